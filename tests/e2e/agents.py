"""The agents of the processes under test: a puppet whose model says what the run's input tells it to, and tools with every kind of effect.

The input is a JSON list; turn n of the run is answered with item n:

    [{"text": "Let me see.", "calls": [["charge", {"order_id": 7}]]}, {"text": "Done."}]

`delay` is slept before each word. With `point` the model first comes to that point of the ledger (`model <point>`); from its second
arrival on it says instead what is next in `again`, if that is there, and at last goes on saying the last of it. With `echo` it says what
the tools answered. Every tool reports its effect to the ledger under `<tool> <order_id>`, and waits there as long as the test holds that
point.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from runward import (
    Agent,
    Approval,
    ClientTool,
    DidNotHappen,
    Happened,
    Limits,
    ModelRequest,
    Reply,
    ScriptedModel,
    ToolCall,
    ToolContext,
    ask_user,
    durable_wait,
    tool,
)

HOST, _, PORT = os.environ.get("RUNWARD_TEST_LEDGER", ":0").partition(":")
SECRET = "CANARY-OF-AN-EXCEPTION"

Context = ToolContext[Any, Any]


async def arrive(point: str, **facts: Any) -> int:
    """Reports to the ledger, waits there if the point is held, and returns how many have come so far."""
    return await _told({"point": point, **facts})


async def effects_under(key: str) -> int:
    """How often the ledger has seen an effect under a key."""
    return await _told({"asks": key})


async def _told(message: dict[str, Any]) -> int:
    reader, writer = await asyncio.open_connection(HOST, int(PORT))
    try:
        writer.write(_line(message))
        return int(await reader.readline())
    finally:
        writer.close()


def arrive_blocking(point: str, **facts: Any) -> int:
    """The same for code that has no event loop, or blocks its own."""
    with socket.create_connection((HOST, int(PORT))) as connection, connection.makefile("rb") as answers:
        connection.sendall(_line({"point": point, **facts}))
        return int(answers.readline())


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"pid": os.getpid(), **message}).encode() + b"\n"


async def effect(name: str, order_id: int, ctx: Context) -> int:
    return await arrive(f"{name} {order_id}", key=ctx.idempotency_key, attempt=ctx.attempt)


# -- tools ---------------------------------------------------------------------------------------------------------------


@tool(effect="read")
async def lookup(order_id: int, ctx: Context) -> str:
    """Look an order up."""
    await effect("lookup", order_id, ctx)
    return f"order {order_id} has shipped"


@tool(effect="idempotent_write")
async def note(order_id: int, ctx: Context) -> str:
    """Write a note under the call's key."""
    await effect("note", order_id, ctx)
    return f"noted {order_id}"


@tool(effect="non_idempotent_write", needs_approval=False)
async def charge(order_id: int, ctx: Context) -> str:
    """Charge an order."""
    await effect("charge", order_id, ctx)
    return f"charged {order_id}"


@tool(effect="non_idempotent_write", needs_approval=False, on_unknown="tell_model")
async def ship(order_id: int, ctx: Context) -> str:
    """Ship an order; the model is told when nobody knows whether it was."""
    await effect("ship", order_id, ctx)
    return f"shipped {order_id}"


async def without_cost(result: dict[str, Any]) -> dict[str, Any]:
    await arrive(f"projection {result['order_id']}")
    return {"order_id": result["order_id"], "price": result["price"]}


@tool(effect="non_idempotent_write", needs_approval=False, to_model_output=without_cost)
async def quote(order_id: int, ctx: Context) -> dict[str, Any]:
    """Make an offer; what it costs us is not for the model."""
    return {"order_id": order_id, "price": 12, "cost": await effect("quote", order_id, ctx)}


async def was_paid(key: str, arguments: Mapping[str, Any], ctx: Context) -> Happened | DidNotHappen:
    """Asks the ledger whether an order was paid under this key."""
    await arrive(f"probe {arguments['order_id']}")
    happened = await effects_under(key) > 0
    return Happened({"order_id": arguments["order_id"], "price": 12, "cost": 0}) if happened else DidNotHappen()


@tool(effect="non_idempotent_write", probe=was_paid, to_model_output=without_cost)
async def pay(order_id: int, ctx: Context) -> dict[str, Any]:
    """Pay for an order. A person approves it first; a lost outcome is looked up."""
    return {"order_id": order_id, "price": 12, "cost": await effect("pay", order_id, ctx)}


@tool(effect="non_idempotent_write")
async def refund(order_id: int, ctx: Context) -> str:
    """Refund an order. A person approves it first."""
    await effect("refund", order_id, ctx)
    return f"refunded {order_id}"


@tool(effect="read", needs_approval=Approval(expires_seconds=1))
async def peek(order_id: int, ctx: Context) -> str:
    """Look at what is private, if somebody lets it within a second."""
    await effect("peek", order_id, ctx)
    return f"peeked at {order_id}"


pick = ClientTool(name="pick", description="Let the user pick a file.", parameters={"type": "object", "properties": {}})


@tool(effect="read")
async def poison(order_id: int, ctx: Context) -> str:
    """Ends the process it runs in."""
    await effect("poison", order_id, ctx)
    os._exit(66)


@tool(effect="read", timeout_seconds=120)
async def advise(order_id: int, ctx: Context) -> str:
    """Asks the model about an order."""
    return await ctx.generate(f"advise {order_id}")


MET = defaultdict[int, asyncio.Event](asyncio.Event)


@tool(effect="non_idempotent_write", needs_approval=False)
async def meet(order_id: int, ctx: Context) -> str:
    """Waits for a `block` in its worker that names it."""
    await effect("meet", order_id, ctx)
    await MET[order_id].wait()
    return f"met {order_id}"


@tool(effect="read")
async def block(order_id: int, seconds: float, ctx: Context, meets: tuple[int, ...] = ()) -> str:
    """Blocks the event loop of its worker, once: in a call into C that lets other threads run.

    It first lets the `meet`s go on that it names, one turn of the loop after the other, so that their runs are caught at every distance
    from the tool's end to the next commit.
    """
    if arrive_blocking(f"block {order_id}", key=ctx.idempotency_key, attempt=ctx.attempt) == 1:
        for met in meets:
            MET[met].set()
            await asyncio.sleep(0)
        time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for
        arrive_blocking(f"unblocked {order_id}")
    return "awake"


@tool(effect="unclassified", needs_approval=False)
async def leak(order_id: int, ctx: Context) -> str:
    """Fails with a secret in the text of its exception, and in that of its cause."""
    await effect("leak", order_id, ctx)
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise RuntimeError(f"password={SECRET}") from error


@tool(effect="read")
async def whoami(ctx: Context) -> dict[str, Any]:
    """Says what it was told, without saying it."""
    return {"told": sorted(ctx.tool_context or {}), "tenant": ctx.scope.tenant}


TOOLS = [lookup, note, charge, ship, quote, pay, refund, peek, pick, ask_user, durable_wait, poison, advise, meet, block, leak, whoami]

# -- the model -----------------------------------------------------------------------------------------------------------


async def puppet_says(request: ModelRequest) -> Reply:
    """What the script says for this turn; to `advise` it says how long its answer may be."""
    if request.purpose == "generate":
        await arrive(f"model {request.messages[0].text}")
        return Reply(text=f"{request.settings.max_output_tokens} tokens")
    script = json.loads(request.messages[0].text)
    turn = sum(message.role == "assistant" for message in request.messages)
    said = script[turn]
    if "point" in said and (arrival := await arrive(f"model {said['point']}")) > 1:
        again = said.get("again", [said])
        said = again[min(arrival - 2, len(again) - 1)]
    if "announce" in said:  # the answer is there by then, and on its way into the store
        asyncio.get_running_loop().call_later(0.3, arrive_blocking, f"model {said['announce']}")
    if said.get("echo"):
        return Reply(text=" | ".join(_answers(request)))
    return Reply(
        text=said.get("text", ""),
        tool_calls=[ToolCall(name, arguments) for name, arguments in said.get("calls", [])],
        finish=said.get("finish", "stop"),
        error=said.get("error"),
        chunk_delay_seconds=said.get("delay", 0),
    )


def _answers(request: ModelRequest) -> list[str]:
    """What the last turn's calls were answered with."""
    answered = request.messages[-1]
    return [json.dumps(part.model_dump(mode="json")["output"]) for part in answered.content if part.type == "tool_result"]


puppet = Agent(name="puppet", model=ScriptedModel(puppet_says), tools=TOOLS)
narrow = Agent(name="narrow", model=ScriptedModel(puppet_says), tools=TOOLS, limits=Limits(max_parallel_tools=2))

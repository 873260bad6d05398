"""The tools of simulated runs: one of every kind. Each does whatever chance says, and the ledger notes what it really did.

What a call does depends on the seed, the run, the call and its attempt, never on when or where it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from runward.agents.approvals import Approval
from runward.agents.builtin import ask_user, durable_wait
from runward.agents.contexts import ToolContext
from runward.agents.elsewhere import ClientTool
from runward.agents.probes import CannotTell, DidNotHappen, Happened, ProbeAnswer
from runward.agents.tools import AnyTool, tool
from runward.core.errors import BudgetExceeded, NeedsInput, ToolError, UnknownOutcome
from runward.core.messages import Message, TextPart
from runward.core.runs.calls import ToolTraits
from runward.ports import tools as port
from runward.ports.models import ModelCallError
from tests.simulation.ledger import TooLate
from tests.simulation.loop import PROCESS
from tests.simulation.processes import Process

TOOL_TIMEOUT = 2.0
FAILURES = ("refuses", "breaks before", "breaks after", "hangs", "resists", "unfit")
TOOL_MANNERS = (*FAILURES, "cannot tell", "cannot tell", "vanishes", "vanishes", "saves", "saves", "asks", "asks")
PROBE_MANNERS = ("raises", "cannot tell", "late", "nonsense")
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def here() -> Process:
    """The process that runs this code."""
    process = PROCESS.get()
    assert isinstance(process, Process)
    return process


async def act(ctx: ToolContext[Any, Any], n: int) -> dict[str, Any]:
    """What every tool does: it waits, has its effect, waits, and ends in one of many ways."""
    process = here()
    ledger = process.world.ledger
    chance = process.world.chance_of(ctx.idempotency_key, ctx.attempt)
    manner = process.world.manners.tool(ctx.run_id, ctx.tool_call_id, ctx.attempt, chance)
    if manner == "kills":
        process.kill()
        await process.gone.get_loop().create_future()
    if manner == "refuses":
        raise ToolError("It did not happen.")
    if manner == "breaks before":
        raise RuntimeError("broken")
    if manner == "vanishes":
        raise UnknownOutcome("it was sent, and nobody answered")
    await process.clock.sleep(chance.choice((0, 0, 0.001, 0.02, 0.3)))
    if manner == "saves":
        await ctx.progress({"n": n})
        text = f"checkpoint of attempt {ctx.attempt}"
        ledger.saves[ctx.idempotency_key].append(text)
        await ctx.save_checkpoint(text)
        ledger.saved[ctx.idempotency_key] = text
    if manner == "asks":
        await asking(ctx, chance.choice((1, 1, 3)), chance.choice((0, 1_500)))
    try:
        happened = ledger.happens(ctx.idempotency_key, ctx.attempt)
    except TooLate:
        raise ToolError("It is too late.") from None
    try:
        await process.clock.sleep(chance.choice((0, 0, 0.002, 0.05, 0.4, 1.0)))
        if manner == "hangs":
            await process.clock.sleep(1_000)
    except asyncio.CancelledError:
        if manner == "resists":
            await process.clock.sleep(chance.choice((0.05, 0.5)))
            return {"token": happened}
        raise
    if manner == "breaks after":
        raise RuntimeError("broken")
    if manner == "cannot tell":
        raise UnknownOutcome("nobody answered")
    if manner == "unfit":
        return {"token": float("nan")}
    return {"token": happened}


async def asking(ctx: ToolContext[Any, Any], times: int, length: int) -> None:
    """Asks the model, so many times at once, and at such length. The tool goes on without an answer."""
    said = [Message(seq=seq, role="user", content=(TextPart(text=text),)) for seq, text in enumerate((ctx.run_id, "x" * length), 1)]
    answers = await asyncio.gather(*(ctx.generate(said) for _ in range(times)), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, (ModelCallError, BudgetExceeded)):
            raise answer


async def shown(result: dict[str, Any]) -> dict[str, Any]:
    """A projection that fails now and then; the effect is not repeated for it."""
    process = here()
    if process.world.chance.random() < process.world.manners.projection_fails:
        raise RuntimeError("broken")
    await process.clock.sleep(0.001)
    return {"token": result["token"], "shown": True}


async def look_up(key: str, arguments: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> ProbeAnswer:
    """A probe: it says what is so, or it says nothing, in some way or other."""
    process = here()
    ledger = process.world.ledger
    always = process.world.chance_of(key, ctx.attempt, "probe")
    chance = always if always.random() < 0.5 else process.world.chance
    manner = process.world.manners.probe(ctx.run_id, ctx.tool_call_id, ctx.attempt, chance)
    await process.clock.sleep(process.world.chance.choice((0, 0.3, 1.0)))
    match manner:
        case "raises":
            raise RuntimeError("broken")
        case "cannot tell":
            return CannotTell("the line is busy")
        case "nonsense":
            answer: Any = True
            return answer  # type: ignore[no-any-return]
        case "late":
            await process.clock.sleep(TOOL_TIMEOUT * 1.5)
    found = ledger.found(key, ctx.attempt)
    if found is None:
        ledger.missing[key] += 1
        return DidNotHappen()
    return Happened({"token": found})


async def holds(evidence: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> bool:
    """Looks at evidence: only some of it holds."""
    process = here()
    await process.clock.sleep(process.world.chance.choice((0, 0.01, 0.3)))
    if evidence.get("source") == "breaks":
        raise RuntimeError("broken")
    return evidence.get("source") == "till"


# -- tools that just run -------------------------------------------------------------------------------------------------


@tool(effect="read", timeout_seconds=TOOL_TIMEOUT)
async def look(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="idempotent_write", timeout_seconds=TOOL_TIMEOUT)
async def put(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT)
async def pay(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, on_unknown="tell_model")
async def post(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(needs_approval=False, timeout_seconds=TOOL_TIMEOUT)
async def run_it(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, to_model_output=shown)
async def ship(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="read", timeout_seconds=TOOL_TIMEOUT, to_model_output=shown)
async def report(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


# -- tools that can be asked what became of a call -------------------------------------------------------------------------


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, probe=look_up, to_model_output=shown)
async def charge(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, probe=look_up, on_unknown="tell_model")
async def bill(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, verify_evidence=holds)
async def transfer(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


# -- tools that people are asked about ---------------------------------------------------------------------------------------


@tool(effect="non_idempotent_write", timeout_seconds=TOOL_TIMEOUT, verify_evidence=holds, probe=look_up)
async def refund(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="idempotent_write", needs_approval=Approval(expires_seconds=4, on_expiry="stop"), timeout_seconds=TOOL_TIMEOUT)
async def launch(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT)
async def enlist(n: int, ctx: ToolContext) -> dict[str, Any]:
    """Asks one or two questions before it does anything."""
    if len(ctx.answers) < 1 + n % 2:
        here().world.ledger.asks[ctx.idempotency_key] += 1
        raise NeedsInput("Really?", choices=("yes", "no") if n % 3 else ())
    return await act(ctx, n)


def wire(version: str) -> AnyTool:
    """A tool whose approval has versions, and whose arguments may be edited."""
    approval = Approval(version=version, editable=True, expires_seconds=6)

    @tool(name="wire", effect="non_idempotent_write", needs_approval=approval, timeout_seconds=TOOL_TIMEOUT)
    async def wired(n: int, ctx: ToolContext) -> dict[str, Any]:
        return await act(ctx, n)

    return wired


# -- calls that nobody here runs -----------------------------------------------------------------------------------------------

pick = ClientTool(
    name="pick", description="", parameters=NUMBER, output_schema={"type": "object", "required": ["picked"]}, expires_seconds=5
)
fetch = ClientTool(name="fetch", description="", parameters=NUMBER)
ask_soon = replace(ask_user, name="ask_soon", expires_seconds=4)


def tools(version: str) -> tuple[AnyTool, ...]:
    """All of them, as this version of the agent has them."""
    running = (look, put, pay, post, run_it, ship, report, charge, bill, transfer)
    asking = (refund, launch, enlist, wire(version), pick, fetch, ask_user, ask_soon, durable_wait)
    return (*running, *asking)


NAMES = tuple(each.name for each in tools("1"))
WAITING = frozenset({"pick", "fetch", "ask_user", "ask_soon", "durable_wait"})
"""Tools that no process runs."""


def arguments(name: str, chance: Random) -> str:
    """What a model asks a tool with."""
    match name:
        case "ask_user" | "ask_soon":
            return chance.choice(('{"question": "Which?", "choices": ["a", "b"], "allows_free_text": false}', '{"question": "Why?"}'))
        case "durable_wait":
            return f'{{"seconds": {chance.choice((1, 1.5, 4))}}}'
        case _:
            return f'{{"n": {chance.randrange(9)}}}'


@dataclass(frozen=True, slots=True)
class WatchedTool:
    """A tool whose every start is reported to the watch, in the very step that lets it start. `approval` is how its calls are approved, by
    the version of the agent that this process has."""

    tool: port.Tool
    approval: Approval | None

    @property
    def traits(self) -> ToolTraits:
        return self.tool.traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        return self.tool.refusal(arguments)

    def invoke(self, arguments: Mapping[str, Any], context: Any) -> Coroutine[Any, Any, port.Returned]:
        here().world.watch.tool_starts(here(), self, arguments, context)
        return self.tool.invoke(arguments, context)

    async def project(self, raw: Any, context: Any) -> port.Returned:
        return await self.tool.project(raw, context)

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> port.ProbeAnswer:
        return await self.tool.probe(idempotency_key, arguments, context)

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool:
        return await self.tool.evidence_holds(evidence, context)

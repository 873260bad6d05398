"""An agent whose runs wait for everything there is to wait for. What its model does is in each run's input."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from runward import Agent, Approval, ClientTool, Reply, ScriptedModel, ToolCall, ToolContext, UnknownOutcome, ask_user, tool
from runward.ports.models import ModelCallError, ModelRequest
from tests.api.house import House, house

REFUND = [{"calls": [["refund", {"order_id": 7, "amount": 5}]]}, {"text": "refunded"}]
CHARGE = [{"calls": [["charge", {"order_id": 7}]]}, {"text": "charged"}]
PICK = [{"calls": [["pick_file", {"kind": "pdf"}]]}, {"text": "picked"}]
ASK = [{"calls": [["ask_user", {"question": "Which?", "choices": ["red", "blue"], "allows_free_text": False}]]}, {"text": "asked"}]


@dataclass(kw_only=True)
class Desk:
    """A house with that agent. `effects` are the calls that really ran, `asked` what the model was shown, `broken` whether it fails."""

    house: House
    effects: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[ModelRequest] = field(default_factory=list)
    broken: bool = False

    @property
    def http(self) -> httpx.AsyncClient:
        return self.house.http

    async def run(self, turns: Sequence[Any], headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
        """A new run once it waits or has ended."""
        sent = {"agent": "desk", "input": json.dumps(turns), **body}
        answer = await self.http.post("/runs", json=sent, headers={"Prefer": "wait=20", **(headers or {})})
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def waiting(self, turns: Sequence[Any], **more: Any) -> dict[str, Any]:
        """A new run that waits."""
        run = await self.run(turns, **more)
        assert run["status"] == "suspended", run
        return run

    async def over(self, run: dict[str, Any], until: str = "ended", headers: dict[str, str] | None = None) -> dict[str, Any]:
        """The run once it has ended, or waits again."""
        return dict((await self.http.get(f"/runs/{run['run_id']}", params={"wait": 20, "until": until}, headers=headers)).json())

    async def post(self, run: dict[str, Any], path: str, body: Any, **headers: str) -> httpx.Response:
        """Sends something to the run."""
        return await self.http.post(f"/runs/{run['run_id']}/{path}", json=body, headers=headers)


def asked_id(run: dict[str, Any], number: int = 0) -> str:
    """The id of a request for approval that the run waits for."""
    return str(run["pending"]["approvals"][number]["approval_id"])


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    """A house with the agent in it."""
    effects: list[tuple[str, Any]] = []
    requests: list[ModelRequest] = []
    made: list[Desk] = []

    def model(request: ModelRequest) -> Reply:
        if made and made[0].broken:
            raise ModelCallError("server_error", "It failed.", transient=True, billed=False)
        requests.append(request)
        (first, *_) = request.messages[0].content
        turn = json.loads(first.text)[request.step - 1]  # type: ignore[union-attr]
        return Reply(text=turn.get("text", ""), tool_calls=[ToolCall(name, arguments) for name, arguments in turn.get("calls", ())])

    @tool(needs_approval=True, effect="non_idempotent_write")
    async def refund(order_id: int, amount: float) -> str:
        """Refund an order."""
        effects.append(("refund", order_id))
        return f"refunded {order_id}"

    @tool(needs_approval=Approval(editable=True, reason="Discounts are dear."), effect="idempotent_write")
    async def discount(order_id: int, percent: int) -> str:
        """Give a discount."""
        effects.append(("discount", percent))
        return "done"

    @tool(needs_approval=Approval(expires_seconds=0.2), effect="idempotent_write")
    async def brief(order_id: int) -> str:
        """Something that somebody has to decide soon."""
        effects.append(("brief", order_id))
        return "done"

    @tool(needs_approval=False, effect="non_idempotent_write")
    async def charge(order_id: int) -> str:
        """Charge for an order; the first time nobody knows how it went."""
        effects.append(("charge", order_id))
        if len(effects) == 1:
            raise UnknownOutcome("the connection broke")
        return "charged"

    async def holds(evidence: Mapping[str, Any], ctx: ToolContext) -> bool:
        return bool(evidence["operation_id"] == "ch_7")

    @tool(needs_approval=False, effect="non_idempotent_write", verify_evidence=holds)
    async def wire(order_id: int) -> str:
        """Wire money; nobody knows how it went, and whoever says so has to prove it."""
        effects.append(("wire", order_id))
        raise UnknownOutcome("the connection broke")

    @tool(effect="read")
    async def lookup(order_id: int) -> str:
        """Look up an order."""
        effects.append(("lookup", order_id))
        return "shipped"

    pick_file = ClientTool(
        name="pick_file",
        description="Let the user pick a file.",
        parameters={"type": "object", "properties": {"kind": {"type": "string"}}},
        output_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    )
    tools = [refund, discount, brief, charge, wire, lookup, pick_file, ask_user]
    agent = Agent(name="desk", version="1", model=ScriptedModel(model), tools=tools)
    async with house(agents=(agent,), **options) as opened:
        made.append(Desk(house=opened, effects=effects, asked=requests))
        yield made[0]

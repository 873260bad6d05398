"""The built-in demo agents: they show the product, and need no key because no model is asked.

`support` is a support desk of a small shop. What it "thinks" is a script, and it says so in its description; its tools, streams and results
are as real as any.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from runward.agents.agent import Agent
from runward.agents.approvals import Approval
from runward.agents.contexts import ToolContext
from runward.agents.models import Reply, ScriptedModel, ToolCall
from runward.agents.tools import tool
from runward.core.errors import ToolError
from runward.core.messages import ToolResultPart
from runward.core.runs.limits import Limits
from runward.ports.models import ModelRequest

LATENCY_SECONDS = 0.4
WORD_SECONDS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the demo shop. Money in cents."""

    order_id: int
    status: str
    item: str
    total_cents: int
    expected: str | None = None


ORDERS = {
    order.order_id: order
    for order in (
        Order(order_id=7, status="shipped", item="a blue teapot", total_cents=3450, expected="tomorrow"),
        Order(order_id=8, status="being packed", item="two reading lamps", total_cents=8900, expected="in three days"),
        Order(order_id=9, status="delivered", item="a garden chair", total_cents=12900),
    )
}


@tool(effect="read", timeout_seconds=10)
async def lookup_order(order_id: int) -> Order:
    """Look up an order by its number.

    Args:
        order_id: The number on the confirmation.
    """
    await asyncio.sleep(LATENCY_SECONDS)  # noqa: TID251 - as an author's tool waits for its database
    order = ORDERS.get(order_id)
    if order is None:
        raise ToolError(f"There is no order {order_id}. This demo knows the orders {', '.join(map(str, ORDERS))}.")
    return order


@tool(effect="non_idempotent_write", needs_approval=Approval(reason="Money leaves the shop.", editable=True))
async def refund(order_id: int, amount_cents: int, ctx: ToolContext[None, None]) -> str:
    """Pay money back for an order.

    Args:
        order_id: The number on the confirmation.
        amount_cents: How much, in cents.
    """
    await asyncio.sleep(LATENCY_SECONDS)  # noqa: TID251 - as an author's tool waits for a payment service
    return f"refunded {amount_cents / 100:.2f} for order {order_id}, receipt {ctx.idempotency_key}"


def answer(request: ModelRequest) -> Reply:
    """What the support desk says next."""
    turn = [message for message in request.messages if message.role != "assistant"]
    if turn and turn[-1].role == "tool":
        return _spoken(" ".join(_told(result) for result in turn[-1].tool_results))
    asked = next((message.text for message in reversed(request.messages) if message.role == "user"), "")
    number = re.search(r"\d{1,9}", asked)
    if number is None:
        return _spoken("Hello, this is the support desk. Which order is it about? Try: Where is order 7?")
    order_id = int(number.group())
    if re.search(r"refund|money back", asked, re.IGNORECASE) and order_id in ORDERS:
        call = ToolCall("refund", {"order_id": order_id, "amount_cents": ORDERS[order_id].total_cents})
        return _spoken(f"I will ask for a refund of order {order_id}.", call)
    return _spoken(f"Let me look up order {order_id}.", ToolCall("lookup_order", {"order_id": order_id}))


def _told(result: ToolResultPart) -> str:
    if result.is_error:
        return f"I am sorry: {result.output}"
    if result.tool_name == "refund":
        return f"Done: {result.output}."
    order = result.output
    when = f" It should be with you {order['expected']}." if order["expected"] else ""
    what = f"Order {order['order_id']}, {order['item']} for {order['total_cents'] / 100:.2f},"
    return f"{what} is {order['status']}.{when} Anything else I can do?"


def _spoken(text: str, *calls: ToolCall) -> Reply:
    return Reply(text=text, tool_calls=calls, finish="tool_calls" if calls else "stop", chunk_delay_seconds=WORD_SECONDS)


support = Agent(
    name="support",
    version="1",
    description="Looks up the orders 7, 8 and 9, and refunds them with approval. A demo: its model is a script, no provider is asked.",
    model=ScriptedModel(answer, name="support-desk"),
    instructions="You help customers with their orders.",
    tools=[lookup_order, refund],
    limits=Limits(max_steps=8, timeout_seconds=120),
)

echo = Agent(
    name="echo",
    version="1",
    description="Says what it was told. A demo without tools: its model is a script.",
    model=ScriptedModel(lambda request: Reply(text=request.messages[-1].text), name="echo"),
)

AGENTS = [support, echo]

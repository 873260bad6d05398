"""A whole agent, as an author writes one: every name an author imports, under `mypy --strict`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from runward import (
    Agent,
    Approval,
    Block,
    CannotTell,
    ClientTool,
    DidNotHappen,
    File,
    GuardedCall,
    Guardrails,
    Happened,
    HttpTool,
    Limits,
    ModelRequest,
    ModelSettings,
    NeedsInput,
    Output,
    Policy,
    Reply,
    Rewrite,
    RunContext,
    ScriptedModel,
    Text,
    ToolCall,
    ToolContext,
    ToolError,
    UnknownOutcome,
    Verdict,
    ask_user,
    durable_wait,
    tool,
)


class Order(BaseModel):
    order_id: int
    status: Literal["open", "shipped"]
    due: date | None = None


class Answer(BaseModel):
    text: str
    order_id: int | None = None


class ShopContext(BaseModel):
    language: str = "en"


@dataclass(frozen=True)
class Payments:
    sent: dict[str, Decimal]

    async def refund(self, order_id: int, amount: Decimal, *, key: str) -> str:
        self.sent[key] = amount
        return f"refunded {amount} for {order_id}"

    async def find(self, key: str) -> Decimal | None:
        return self.sent.get(key)


@dataclass(frozen=True)
class Shop:
    orders: Mapping[int, Order]
    payments: Payments


@asynccontextmanager
async def open_shop() -> AsyncIterator[Shop]:
    yield Shop({7: Order(order_id=7, status="shipped")}, Payments({}))


@tool(effect="read")
async def lookup_order(order_id: int, ctx: ToolContext[Shop, ShopContext]) -> Order:
    """Look up an order by its number."""
    order = ctx.resources.orders.get(order_id)
    if order is None:
        raise ToolError(f"There is no order {order_id}.")
    return order


async def probe_refund(key: str, arguments: Mapping[str, Any], ctx: ToolContext[Shop, ShopContext]) -> Happened | DidNotHappen | CannotTell:
    amount = await ctx.resources.payments.find(key)
    return DidNotHappen() if amount is None else Happened(f"refunded {amount}")


def above_fifty(arguments: Mapping[str, Any], ctx: ToolContext[Shop, ShopContext]) -> bool | Block:
    if ctx.context.language != "en":
        return Block("refunds are made in English only")
    return Decimal(str(arguments["amount"])) > 50


@tool(
    effect="non_idempotent_write",
    timeout_seconds=30,
    needs_approval=Approval(when=above_fifty, editable=True, expires_seconds=3600, on_expiry="deny", reason="Money leaves the shop."),
    probe=probe_refund,
)
async def refund(order_id: int, amount: Annotated[Decimal, Field(gt=0)], ctx: ToolContext[Shop, ShopContext]) -> str:
    """Refund an order.

    Args:
        order_id: The number on the confirmation.
        amount: How much, in euros.
    """
    if not ctx.answers:
        raise NeedsInput("To the card, or as a voucher?", choices=["card", "voucher"])
    try:
        return await ctx.resources.payments.refund(order_id, amount, key=ctx.idempotency_key)
    except TimeoutError as error:
        raise UnknownOutcome("the payment service did not answer") from error


@tool(effect="read", to_model_output=lambda rows: f"{len(rows)} orders")
async def export_orders(since: date, ctx: ToolContext[Shop, ShopContext]) -> list[Order]:
    """Export all orders since a day."""
    done = int(ctx.checkpoint or 0)
    await ctx.progress({"done": done})
    await ctx.save_checkpoint(str(done + len(ctx.resources.orders)))
    return [order for order in ctx.resources.orders.values() if order.due is None or order.due >= since]


@tool(effect="read")
def draw_chart(kind: Literal["bar", "line"], ctx: ToolContext[Shop, ShopContext]) -> list[Text | File]:
    """Draw the sales of a week."""
    _ = ctx.progress("drawing")
    return [Text("Sales of a week:"), File(media_type="image/png", data=b"\x89PNG", name=f"{kind}.png")]


pick_file = ClientTool(
    name="pick_file",
    description="Let the user pick a file.",
    parameters={"type": "object", "properties": {"kind": {"type": "string"}}, "additionalProperties": False},
    output_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    expires_seconds=600,
)
stock = HttpTool(
    name="stock",
    description="How many of an article are there?",
    url="https://erp.internal/stock/{sku}",
    method="GET",
    parameters={"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
    headers={"Authorization": "Bearer ${ERP_TOKEN}"},
    effect="read",
)


def instructions(ctx: RunContext[Shop, ShopContext]) -> str:
    return f"You help customers with their orders. Answer in {ctx.context.language}. Run {ctx.run_id} of {ctx.scope.tenant}."


def choose_model(ctx: RunContext[Shop, ShopContext]) -> str:
    return "openai:gpt-5-mini" if len(ctx.messages) < 20 else "openai:gpt-5"


async def check(candidate: Answer, ctx: RunContext[Shop, ShopContext]) -> Verdict:
    if candidate.order_id is None:
        return Verdict.inconclusive("it names no order")
    if candidate.order_id not in ctx.resources.orders:
        return Verdict.rejected(f"There is no order {candidate.order_id}.")
    summary = await ctx.generate("In one word: " + candidate.text, output=Answer)
    return Verdict.verified() if summary.text else Verdict.rejected("Say more.")


def no_gifts(call: GuardedCall, ctx: RunContext[Shop, ShopContext]) -> Block | Rewrite | None:
    if call.tool_name == "refund" and call.arguments.get("order_id") == 13:
        return Block("unlucky order")
    return Rewrite({**call.arguments, "amount": 50}) if call.arguments.get("amount") == 51 else None


support = Agent(
    name="support",
    version="1",
    description="Answers customers about their orders.",
    model="openai:gpt-5-mini",
    fallback_models=["anthropic:claude-haiku-4-5"],
    model_settings=ModelSettings(temperature=0.2, max_output_tokens=2000, reasoning_effort=None, tool_choice=None, provider_options={}),
    instructions=instructions,
    context=ShopContext,
    lifespan=open_shop,
    tools=[lookup_order, refund, export_orders, draw_chart, pick_file, stock, ask_user, durable_wait],
    output=Output(schema=Answer, verify=check, mode="auto"),
    limits=Limits(max_steps=8, timeout_seconds=600, max_total_tokens=50_000, max_cost_usd="1.00"),
    policy=Policy(require_approval=["refund"], deny_tools=[]),
    guardrails=Guardrails(on_tool_call=no_gifts),
)

next_support = replace(support, version="2", model=choose_model, accepts=["0" * 32])


def scripted(request: ModelRequest) -> Reply:
    last = request.messages[-1]
    return Reply(text=f"{len(request.messages)} messages, the last by {last.role}: {last.text}", chunk_delay_seconds=0.01)


SHARED_TOOLS = [lookup_order, export_orders, pick_file]
demo = Agent(
    name="demo",
    model=ScriptedModel([Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 7})]), Reply(text="Order 7 has shipped.")]),
    tools=SHARED_TOOLS,
)
echo = Agent(name="echo", model=ScriptedModel(scripted))


class Desk:
    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self, customer: str) -> str:
        """Greet a customer."""
        return f"{self.name} greets {customer}"


greet = tool(effect="read")(Desk("north").greet)


@tool
async def wait_a_little(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


async def called_as_functions(ctx: ToolContext[Shop, ShopContext]) -> tuple[Order, str]:
    order: Order = await lookup_order(7, ctx=ctx)
    greeting: str = greet("Ann")
    return order, greeting

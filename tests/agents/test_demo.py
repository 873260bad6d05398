"""The demo agents: what a newcomer sees first."""

from __future__ import annotations

from typing import Any

import pytest

from runward.agents import demo
from runward.agents.limitations import unsupported
from runward.core.errors import ToolError
from runward.core.messages import Message, TextPart, ToolCallPart, ToolResultPart
from runward.ports.models import ModelRequest, Settings


def request(*messages: Message) -> ModelRequest:
    return ModelRequest(
        agent="support",
        step=1,
        attempt=1,
        instructions="",
        messages=messages,
        tools=(),
        tool_choice="auto",
        output_schema=None,
        output_name=None,
        settings=Settings(),
        timeout_seconds=1,
        first_event_timeout_seconds=1,
        chunk_timeout_seconds=1,
    )


def user(text: str) -> Message:
    return Message(seq=1, role="user", content=(TextPart(text=text),))


def answered(name: str, output: Any, is_error: bool = False) -> tuple[Message, Message]:
    call = ToolCallPart(tool_call_id="1.1", tool_name=name, arguments={})
    result = ToolResultPart(tool_call_id="1.1", tool_name=name, output=output, is_error=is_error)
    return Message(seq=2, role="assistant", content=(call,), step=1), Message(seq=3, role="tool", content=(result,), step=1)


def test_the_desk_looks_up_the_order_it_reads() -> None:
    reply = demo.answer(request(user("Hi! Where is order 7?")))
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("lookup_order", {"order_id": 7})]
    assert reply.chunk_delay_seconds > 0 and reply.text


async def test_the_desk_says_what_it_found() -> None:
    from pydantic import TypeAdapter

    order = TypeAdapter(demo.Order).dump_python(await demo.lookup_order(7), mode="json")
    reply = demo.answer(request(user("Where is order 7?"), *answered("lookup_order", order)))
    assert "Order 7" in reply.text and "shipped" in reply.text and "tomorrow" in reply.text and not reply.tool_calls
    delivered = TypeAdapter(demo.Order).dump_python(demo.ORDERS[9], mode="json")
    assert "delivered" in demo.answer(request(user("9?"), *answered("lookup_order", delivered))).text


async def test_an_order_that_is_not_there() -> None:
    with pytest.raises(ToolError, match="no order 99") as raised:
        await demo.lookup_order(99)
    reply = demo.answer(request(user("Where is order 99?"), *answered("lookup_order", str(raised.value), is_error=True)))
    assert "There is no order 99" in reply.text


def test_a_refund_is_asked_for_in_full_and_needs_a_person() -> None:
    reply = demo.answer(request(user("I want my money back for order 8")))
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("refund", {"order_id": 8, "amount_cents": 8900})]
    assert demo.refund.approval is not None
    assert "refunded" in demo.answer(request(user("refund 8"), *answered("refund", "refunded 89.00"))).text


@pytest.mark.parametrize("text", ["Hello", "", "Wo ist meine Bestellung?"])
def test_without_a_number_the_desk_asks_for_one(text: str) -> None:
    reply = demo.answer(request(user(text)))
    assert "Which order" in reply.text and not reply.tool_calls


def test_the_demo_says_that_it_is_one_and_runs() -> None:
    for agent in demo.AGENTS:
        assert "demo" in agent.description and "script" in agent.description and unsupported(agent) == ()


def test_echo_says_what_it_was_told() -> None:
    script: Any = demo.echo.models["scripted:echo"]
    assert script.script(request(user("one"), user("two"))).text == "two"

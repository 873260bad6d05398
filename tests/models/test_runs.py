"""Whole runs on the real wires: typed answers in every way there is, and models of other providers that take over (R27, R28, R30, R31)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel

from runward import Limits, ModelSettings, Output, tool
from tests.engine.rig import Rig, agent
from tests.fakes import Answer, Call, Ending, FakeAnthropic, FakeOpenAI, FakeProvider, Plain, Received
from tests.fakes.replies import Reply
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES
from tests.models.test_history import REDACTED, SIGNATURE, assert_neutral

PATHS = {CHAT: "/v1/chat/completions", RESPONSES: "/v1/responses", CLAUDE: "/v1/messages"}
THINKER = "anthropic:claude-3-7-sonnet-latest"
"""It holds no answer to a schema by itself, and cannot be forced to call a tool while it thinks."""


class Item(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Order(BaseModel):
    items: list[Item] = Field(min_length=1)
    note: str | None = None


class Items(RootModel[list[Item]]):
    pass


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


ORDER = {"items": [{"sku": "a-1", "count": 2}, {"sku": "b", "count": 1}], "note": None}
ITEMS = ORDER["items"]
TREE = {"name": "root", "children": [{"name": "leaf", "children": []}]}


@tool(effect="read")
async def weather(city: str = "") -> str:
    """The weather of a city."""
    return "result 1"


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, FakeProvider]]:
    """A fake of each provider, found by the environment; by model."""
    async with FakeOpenAI() as openai, FakeAnthropic() as anthropic:
        for name, value in (openai.environ | anthropic.environ).items():
            monkeypatch.setenv(name, value)
        yield {CHAT: openai, RESPONSES: openai, CLAUDE: anthropic, THINKER: anthropic}


@asynccontextmanager
async def rigged(model: str, **differing: Any) -> AsyncIterator[Rig]:
    """A process with this agent, whose time passes slowly: the sockets are real."""
    async with Rig(agent(**{"model": model, "tools": [weather], "limits": Limits(model_retries=0), **differing})) as rig:
        rig.clock.tools_running = 1
        yield rig


async def ended(rig: Rig) -> dict[str, Any]:
    uid = await rig.begin()
    await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=3_000)
    return rig.view(uid)


def sent(fake: FakeProvider, model: str) -> list[dict[str, Any]]:
    return [request.json for request in fake.requests if request.path == PATHS.get(model, PATHS[CLAUDE])]


# -- typed answers -----------------------------------------------------------------------------------------------------------


def form_of(body: dict[str, Any]) -> dict[str, Any]:
    """The schema that a provider is asked to hold the answer to."""
    if "response_format" in body:
        schema: dict[str, Any] = body["response_format"]["json_schema"]["schema"]
        return schema
    form: dict[str, Any] = (body.get("text") or body["output_config"])["format"]["schema"]
    return form


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize(
    ("schema", "told", "output"),
    [(Order, ORDER, ORDER), (Items, {"value": ITEMS}, ITEMS)],
    ids=["nested", "array"],
)
async def test_R27_the_provider_holds_the_answer_to_its_type(
    house: dict[str, FakeProvider], model: str, schema: type[BaseModel], told: Any, output: Any
) -> None:
    """Nested objects as they are; what is no object as the one property of one."""
    house[model].reply(Answer(text="thinking"), Answer(text=json.dumps(told)))
    async with rigged(model, output=Output(schema=schema)) as rig:
        view = await ended(rig)
    assert (view["status"], view["output"]) == ("completed", output)
    loop, final = sent(house[model], model)
    form = form_of(final)
    assert form["type"] == "object" and list(form["properties"]) == (["items", "note"] if schema is Order else ["value"])
    assert "Item" in form["$defs"], "definitions are where pointers lead"
    assert not {"response_format", "text", "output_config"} & set(loop)
    assert final["tools"] == loop["tools"] and final["tool_choice"] in ("none", {"type": "none"})


@pytest.mark.parametrize("model", WIRES)
async def test_R27_a_type_that_contains_itself(house: dict[str, FakeProvider], model: str) -> None:
    """OpenAI holds to it. Claude's provider takes no such schema, nor one that is too large: then the answer is asked for as a call."""
    told = json.dumps({"value": TREE})
    final = Answer(calls=[Call(name="answer", arguments=told)]) if model == CLAUDE else Answer(text=told)
    house[model].reply(Answer(text="thinking"), final)
    async with rigged(model, output=Output(schema=Tree)) as rig:
        view = await ended(rig)
    assert (view["status"], view["output"]) == ("completed", TREE)
    asked = sent(house[model], model)[-1]
    form = asked["tools"][0]["input_schema"] if model == CLAUDE else form_of(asked)
    assert form["properties"]["value"]["$ref"] == "#/$defs/Tree" and "Tree" in form["$defs"]


@pytest.mark.parametrize("model", WIRES)
async def test_R28_an_answer_that_the_provider_let_through_is_read_all_the_same(house: dict[str, FakeProvider], model: str) -> None:
    """What no wire can express, such as a bound, is ours to see; the model reads what is wrong."""
    bad, good = {"items": [{"sku": "a", "count": 0}]}, ORDER
    house[model].reply(Answer(text="x"), Answer(text=json.dumps(bad)), Answer(text=json.dumps(good)))
    async with rigged(model, output=Output(schema=Order)) as rig:
        assert (await ended(rig))["output"] == good
    assert "`items.0.count`" in json.dumps(sent(house[model], model)[-1])


@pytest.mark.parametrize("model", WIRES)
async def test_R28_an_answer_cut_off_by_its_length_is_an_attempt(house: dict[str, FakeProvider], model: str) -> None:
    cut = Answer(text='{"items": [{"sku"', finish="max_tokens" if model == CLAUDE else "length")
    house[model].reply(Answer(text="x"), cut, Answer(text=json.dumps(ORDER)), Answer(text="x"), cut, cut)
    async with rigged(model, output=Output(schema=Order)) as rig:
        assert (await ended(rig))["output"] == ORDER
        view = await ended(rig)
        assert (view["stop"]["reason"], view["output"]) == ("output_attempts_exhausted", None)


@pytest.mark.parametrize("model", WIRES)
async def test_R10_a_refusal_is_no_answer_and_not_repaired(house: dict[str, FakeProvider], model: str) -> None:
    house[model].reply(Answer(text="x"), Answer(refusal="I cannot help with that."))
    async with rigged(model, output=Output(schema=Order)) as rig:
        view = await ended(rig)
    assert (view["status"], view["stop"]["reason"], view["output"]) == ("stopped", "refusal", None)


@pytest.mark.parametrize("model", [*WIRES, THINKER])
@pytest.mark.parametrize(("schema", "told", "output"), [(Order, ORDER, ORDER), (Items, {"value": ITEMS}, ITEMS)], ids=["object", "array"])
async def test_R27_a_forced_call_gives_the_answer(
    house: dict[str, FakeProvider], model: str, schema: type[BaseModel], told: Any, output: Any
) -> None:
    """Only the answer's tool is offered; what the provider sees again is its text."""
    calls = Answer(calls=[Call(name="order", arguments=json.dumps(told))])
    house[model].reply(Answer(text="x"), Answer(calls=[Call(name="order", arguments="{}")]), calls)
    mode: Any = "auto" if model == THINKER else "tool"
    async with rigged(model, output=Output(schema=schema, mode=mode, name="order")) as rig:
        view = await ended(rig)
    assert (view["status"], view["output"]) == ("completed", output)
    first, second = sent(house[model], model)[1:]
    (shown,) = first["tools"]
    assert (shown.get("function") or shown)["name"] == "order"
    assert first["tool_choice"] in ("required", {"type": "any"})
    assert "tool_result" not in json.dumps(second) and "function_call_output" not in json.dumps(second)


@pytest.mark.parametrize(
    "settings",
    [ModelSettings(reasoning_effort="high"), ModelSettings(provider_options={"thinking": {"type": "enabled", "budget_tokens": 2_000}})],
)
async def test_R27_a_model_that_thinks_is_not_forced(house: dict[str, FakeProvider], settings: ModelSettings) -> None:
    """It would reject the call. Asked so, it may answer with text as well, which is read like any other."""
    house[THINKER].reply(Answer(text="x"), Answer(text=json.dumps(ORDER)))
    async with rigged(THINKER, output=Output(schema=Order), model_settings=settings) as rig:
        assert (await ended(rig))["output"] == ORDER
    assert sent(house[THINKER], THINKER)[-1]["tool_choice"] == {"type": "auto"}


@pytest.mark.parametrize("model", WIRES)
async def test_R27_a_prompt_can_ask_for_it(house: dict[str, FakeProvider], model: str) -> None:
    """Then nothing is wrapped: an array is an array."""
    house[model].reply(Answer(text="x"), Answer(text=f"```json\n{json.dumps(ITEMS)}\n```"))
    async with rigged(model, output=Output(schema=Items, mode="prompted")) as rig:
        assert (await ended(rig))["output"] == ITEMS
    final = sent(house[model], model)[-1]
    assert "JSON Schema" in json.dumps(final.get("system") or final.get("instructions") or final["messages"][0])
    assert not {"response_format", "text", "output_config"} & set(final)


async def test_drafts_of_a_wrapped_answer_are_those_of_its_value(house: dict[str, FakeProvider]) -> None:
    house[CHAT].reply(Answer(text="x"), Answer(text=json.dumps({"value": ITEMS}), delay=0.05))
    async with rigged(CHAT, output=Output(schema=Items)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=3_000)
        drafts = [frame["data"]["partial"]["value"] for frame in rig.frames(uid, "data-agent") if "partial" in frame["data"]]
        assert drafts and all(isinstance(draft, list) for draft in drafts)


# -- models that fail ----------------------------------------------------------------------------------------------------------

THOUGHT = Answer(
    text="Let me look.",
    thinking="They want the weather.",
    signature=SIGNATURE,
    redacted=REDACTED,
    encrypted=SIGNATURE,
    calls=[Call(name="weather", arguments='{"city": "Paris"}', id="call_a")],
)
DOWN = Plain(status=503, body={"error": {"message": "down"}})


def first_only(first: str, *replies: Reply) -> Callable[[Received], Reply]:
    """One provider gives these replies and is down then; whoever else is asked answers."""
    left = list(replies)

    def reply(request: Received) -> Reply:
        if request.path != PATHS[first]:
            return Answer(text="Sunny.")
        return left.pop(0) if left else DOWN

    return reply


@pytest.mark.parametrize(("first", "second"), list(permutations(WIRES, 2)))
async def test_R31_another_provider_takes_over_in_the_middle_of_a_run(house: dict[str, FakeProvider], first: str, second: str) -> None:
    """It is given the whole transcript in our words: no thought, no signature, no id of the other's (also of OpenAI's two wires)."""
    for fake in house.values():
        fake.default = first_only(first, THOUGHT)
    house[first].default = first_only(first, THOUGHT)
    if house[second] is not house[first]:
        house[second].default = Answer(text="Sunny.")
    async with rigged(first, fallback_models=[second]) as rig:
        view = await ended(rig)
    assert (view["status"], view["text"], view["model"]) == ("completed", "Sunny.", second)
    assert view["failovers"] == [{"step": 2, "from": first, "to": second, "code": "server_error"}]
    (taken_over,) = sent(house[second], second)
    assert_neutral(taken_over)


async def test_R31_thoughts_of_before_the_change_stay_out_and_those_of_after_it_go_back(house: dict[str, FakeProvider]) -> None:
    house[CHAT].default = first_only(RESPONSES, THOUGHT)
    claude = Answer(text="Again.", thinking="Claude thinks.", signature="c2ln", calls=[Call(name="weather", arguments="{}", id="call_c")])
    house[CLAUDE].reply(claude, Answer(text="Sunny."))
    async with rigged(RESPONSES, fallback_models=[CLAUDE]) as rig:
        assert (await ended(rig))["status"] == "completed"
    last = json.dumps(sent(house[CLAUDE], CLAUDE)[-1])
    assert "Claude thinks." in last and '"signature": "c2ln"' in last and "They want" not in last and SIGNATURE not in last


@pytest.mark.parametrize("model", WIRES)
async def test_R30_the_providers_wish_for_patience_is_granted(house: dict[str, FakeProvider], model: str) -> None:
    house[model].reply(Plain(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "17"}))
    async with rigged(model, limits=Limits(model_retries=1)) as rig:
        began = rig.clock.monotonic()
        assert (await ended(rig))["text"] == "ok"
        assert rig.clock.monotonic() - began >= 17


@pytest.mark.parametrize("model", WIRES)
async def test_R30_a_finalization_that_failed_is_retried_as_one(house: dict[str, FakeProvider], model: str) -> None:
    """From the checkpoint, in its phase: the loop's turn is not repeated, and the call is one attempt less."""
    house[model].reply(THOUGHT, Answer(text="thinking"), Answer(text='{"items"', ending=Ending.RESET), Answer(text=json.dumps(ORDER)))
    async with rigged(model, output=Output(schema=Order)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=3_000)
        assert rig.view(uid)["error"]["transient"] and len(sent(house[model], model)) == 3
        await rig.deliver(uid, retry_failed=True)
        await rig.until(lambda: rig.row(uid).status.value == "completed", limit_seconds=3_000)
        view = rig.view(uid)
        assert (view["output"], view["steps"], view["usage"]["model_calls"]) == (ORDER, 3, 4)
        before, after = sent(house[model], model)[-2:]
        assert before == after and len(rig.rows(uid).receipts) == 1

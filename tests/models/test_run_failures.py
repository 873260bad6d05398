"""What becomes of a run whose provider fails, on the real wires: who takes over, what may have been spent, what may be tried again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from runward import Limits, ScriptedModel
from runward import Reply as Scripted
from tests.engine.rig import Rig
from tests.fakes import HTML, Answer, Call, Ending, NoAnswer, Plain
from tests.fakes.replies import Reply
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES
from tests.models.test_failures import refusal
from tests.models.test_runs import house, rigged

__all__ = ["house"]

BACKUP = ScriptedModel(lambda request: Scripted(text="from the backup"))

PASSES: dict[str, tuple[Reply, str, bool]] = {
    "429": (refusal(429, retry_after="9"), "rate_limited", False),
    "500": (refusal(500), "server_error", False),
    "529": (refusal(529, kind="overloaded_error"), "server_error", False),
    "reset": (NoAnswer(), "network", True),
    "silence": (NoAnswer(hang=True), "timeout", True),
    "html": (HTML, "bad_response", True),
    "no json": (Plain(status=200, body="{nope"), "bad_response", True),
    "no finish": (Answer(ending=Ending.NO_FINISH), "cut_off", True),
    "overloaded inside": (Answer(ending=Ending.OVERLOADED), "server_error", True),
}
LASTS: dict[str, tuple[Reply, str, bool]] = {
    "401": (refusal(401), "auth", False),
    "402": (refusal(402), "quota", False),
    "400": (refusal(400), "rejected", False),
}
BREAKS: dict[str, Answer] = {
    "text": Answer(text="It is su", ending=Ending.RESET),
    "thought": Answer(thinking="They want", encrypted="enc", ending=Ending.CUT),
    "call": Answer(calls=[Call(name="weather", arguments='{"city":')], ending=Ending.NO_FINISH),
    "overloaded": Answer(text="It is su", ending=Ending.OVERLOADED),
}
PATIENCE = Limits(model_retries=0, first_event_timeout_seconds=2)


def by_wire(told: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("model", "case"), [(model, case) for model in WIRES for case in told])


async def ended(rig: Rig, model: str) -> tuple[dict[str, Any], int]:
    """The run's view, and how many tokens of calls of the provider's may have been spent."""
    uid = await rig.begin()
    await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=3_000)
    view = rig.view(uid)
    assert view["usage"]["model_calls"] == (2 if view["failovers"] else 1)
    return view, view["accounting"]["unknown"]["tokens"]


@by_wire(PASSES)
async def test_R31_before_the_first_content_another_model_takes_over(house: Any, model: str, case: str) -> None:
    reply, code, billed = PASSES[case]
    house[model].reply(reply)
    async with rigged(model, fallback_models=[BACKUP], limits=PATIENCE) as rig:
        view, unknown = await ended(rig, model)
    assert (view["status"], view["text"]) == ("completed", "from the backup")
    assert [(each["step"], each["from"], each["code"]) for each in view["failovers"]] == [(1, model, code)]
    assert (unknown > 0) is billed, "R33: what may be billed stays counted, what is not is released"
    assert len(house[model].requests) == 1


@by_wire(LASTS)
async def test_R31_what_will_not_pass_fails_the_run_at_once(house: Any, model: str, case: str) -> None:
    reply, code, billed = LASTS[case]
    house[model].reply(reply)
    async with rigged(model, fallback_models=[BACKUP], limits=Limits(model_retries=2)) as rig:
        view, unknown = await ended(rig, model)
    assert (view["status"], view["failovers"]) == ("failed", [])
    assert (view["error"]["transient"], view["error"]["details"]["kind"]) == (False, code)
    assert (unknown > 0) is billed and len(house[model].requests) == 1


@by_wire(BREAKS)
async def test_R31_what_had_begun_to_answer_is_not_replaced_and_may_be_tried_again(house: Any, model: str, case: str) -> None:
    """Whatever it was that had come: text, a thought, the beginning of a call. Nothing of it stays (R32)."""
    house[model].reply(BREAKS[case], Answer(text="Sunny."))
    async with rigged(model, fallback_models=[BACKUP], limits=Limits(model_retries=2)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=3_000)
        view = rig.view(uid)
        assert (view["status"], view["error"]["transient"], view["failovers"]) == ("failed", True, [])
        assert view["accounting"]["unknown"]["tokens"] > 0 and len(rig.frames(uid, "reset-step")) == 1
        await rig.deliver(uid, retry_failed=True)
        await rig.until(lambda: rig.row(uid).status.value == "completed", limit_seconds=3_000)
        assert (rig.view(uid)["text"], rig.view(uid)["model"], rig.view(uid)["steps"]) == ("Sunny.", model, 1)
        assert len(rig.rows(uid).messages) == 2 and not rig.rows(uid).receipts
    assert len(house[model].requests) == 2


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (CHAT, "insufficient_quota"),
        (CHAT, "context_length_exceeded"),
        (CHAT, "content_filter"),
        (RESPONSES, "context_length_exceeded"),
        (RESPONSES, "content_filter"),
    ],
)
async def test_R31_nor_does_another_model_take_over_what_the_provider_refuses_inside_its_stream(house: Any, model: str, code: str) -> None:
    house[model].reply(Answer(ending=Ending.OVERLOADED, error={"message": "no", "code": code}))
    async with rigged(model, fallback_models=[BACKUP], limits=Limits(model_retries=2)) as rig:
        view, unknown = await ended(rig, model)
    assert (view["status"], view["error"]["transient"], view["failovers"]) == ("failed", False, [])
    assert unknown > 0 and len(house[model].requests) == 1


@pytest.mark.parametrize("model", WIRES)
async def test_R33_an_answer_without_usage_may_have_cost_what_was_reserved(house: Any, model: str) -> None:
    """Nothing and nothing is unknown, not free."""
    house[model].reply(Answer(text="Sunny.", usage=None))
    async with rigged(model) as rig:
        view, unknown = await ended(rig, model)
    assert view["status"] == "completed" and unknown > 0 and view["accounting"]["spent"]["tokens"] == 0


async def test_R30_a_key_that_is_missing_fails_the_run_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with rigged(CLAUDE, fallback_models=[BACKUP]) as rig:
        uid = await rig.run()
        view = rig.view(uid)
    assert (view["status"], view["error"]["transient"], view["failovers"]) == ("failed", False, [])
    assert "ANTHROPIC_API_KEY" in view["error"]["message"]

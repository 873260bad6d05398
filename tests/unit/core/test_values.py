"""Ids, keys, times, scopes and the other small values of the core."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runward.core import errors
from runward.core.ids import ID_PATTERN, approval_id, call_id, canonical_json, child_uid, digest, idempotency_key, is_id, worker_id
from runward.core.kernel import mail
from runward.core.kernel.actor import ENDED, Position, Scope, Status, rank_of
from runward.core.kernel.commit import Changes, Face
from runward.core.kernel.frames import Frame, StoredFrame
from runward.core.kernel.records import Stage
from runward.core.messages import PARTS, FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from runward.core.runs.calls import Call, CallStage, Effect
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.receipts import receipt_of
from runward.core.runs.waits import Wait, from_names, names
from runward.core.times import from_rfc3339, milliseconds, optional_rfc3339, rfc3339
from runward.core.usage import Usage
from tests.unit.core.driving import T0, UID

# -- ids -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "A-1_b.c", "7", "x" * 128])
def test_R48_ids_as_they_may_be(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("host", ["shop-7.example.org", "_odd host!", "", "h" * 255, "rechner-\N{LATIN SMALL LETTER U WITH DIAERESIS}"])
def test_R48_a_workers_id_is_an_id_whatever_its_host_is_called(host: str) -> None:
    assert is_id(worker_id(host, 4_194_304, "01a22e3c686c705c828f924d76cb479f"))


@pytest.mark.parametrize("text", ["", ".", "-a", "_a", "a b", "a/b", "a\n", "é", "a%20", "x" * 129, "a\x00", "٣"])
def test_R48_ids_as_they_may_not_be(text: str) -> None:
    assert not is_id(text)


def test_R48_the_published_pattern_is_the_one_that_is_used() -> None:
    assert ID_PATTERN == "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


def test_R17_a_calls_id_and_key_say_where_it_belongs() -> None:
    assert (call_id(3, 12), idempotency_key(UID, "3.12")) == ("3.12", f"{UID}/3.12")


parts = st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))


def test_R18_an_approval_is_for_one_call_with_exactly_these_arguments() -> None:
    one = approval_id(UID, "1.1", "refund", "1", '{"n":1}')
    assert one == approval_id(UID, "1.1", "refund", "1", '{"n":1}')
    assert one.startswith("ap_") and len(one) == 43 and is_id(one)
    others = {
        approval_id("0" * 32, "1.1", "refund", "1", '{"n":1}'),
        approval_id(UID, "1.2", "refund", "1", '{"n":1}'),
        approval_id(UID, "1.1", "charge", "1", '{"n":1}'),
        approval_id(UID, "1.1", "refund", "2", '{"n":1}'),
        approval_id(UID, "1.1", "refund", "1", '{"n":1.0}'),
    }
    assert len(others) == 5 and one not in others


@given(one=parts, other=parts)
@example(one=("refund", "11"), other=("refund1", "1"))
@example(one=("refund", '","'), other=('refund","', ""))
def test_R18_no_two_tools_and_versions_share_an_approval(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = approval_id(UID, "1.1", *one, "{}") == approval_id(UID, "1.1", *other, "{}")
    assert same is (one == other), "the parts are kept apart, whatever characters they hold"


def test_a_childs_uid_is_the_same_whoever_creates_it() -> None:
    assert child_uid(UID, "1.1") == child_uid(UID, "1.1") != child_uid(UID, "1.2")
    assert len(child_uid(UID, "1.1")) == 32


def test_digests_are_those_of_the_text_in_utf8() -> None:
    assert digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest("ü") == hashlib.sha256(b"\xc3\xbc").hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_R17a_canonical_json_refuses_what_is_no_number(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(value)


def test_R19a_who_closes_a_wait_takes_its_key() -> None:
    keys = [
        mail.cancel_key(),
        mail.approval_key("ap_1"),
        mail.client_key("1.1"),
        mail.question_key("q"),
        mail.unknown_key("1.1", 2),
        mail.hold_key(0),
        mail.release_key(1),
        mail.retry_key(7),
        mail.child_key("u"),
    ]
    assert keys == [*("cancel", "approval:ap_1", "client:1.1", "question:q", "unknown:1.1:2", "hold:0", "release:1", "retry:7", "child:u")]


# -- scope, rank, position -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "asked", "result"),
    [
        ((None, None), (None, None), (None, None)),
        ((None, None), ("u", "n"), ("u", "n")),
        (("u", None), (None, "n"), ("u", "n")),
        (("u", None), ("u", None), ("u", None)),
        (("u", None), ("v", None), None),
        ((None, "n"), (None, "m"), None),
        (("u", "n"), ("u", "m"), None),
    ],
)
def test_R43_a_scope_is_narrowed_never_left(key: Any, asked: Any, result: Any) -> None:
    narrowed = Scope(tenant="t", user=key[0], namespace=key[1]).narrowed(user=asked[0], namespace=asked[1])
    assert (None if narrowed is None else (narrowed.user, narrowed.namespace)) == result
    assert narrowed is None or narrowed.tenant == "t"


def test_priorities_age_by_a_minute_a_point() -> None:
    assert rank_of(T0, 0) == T0 and rank_of(T0, 100) == T0 - 6_000_000 and rank_of(T0, -100) == T0 + 6_000_000
    assert rank_of(T0 + 60_000, 1) == rank_of(T0, 0)


def test_R2_a_commit_leads_to_the_next_revision_behind_its_frames() -> None:
    face = Face(
        status=Status.RUNNING,
        state="{}",
        format=1,
        binding="b",
        ready_at=None,
        care_at=None,
        rank=0,
        waiting_on=0,
        stop_reason=None,
        task_outcome="in_progress",
        updated_at=T0,
        ended_at=None,
        recoveries=0,
    )
    frames = tuple(StoredFrame(seq=seq, data=b"{}") for seq in (8, 9))
    changes = Changes(uid=UID, follows=Position(revision=4, last_seq=7), face=face, mail_applied=0, frames=frames)
    assert changes.leads_to == Position(revision=5, last_seq=9)


def test_ended_statuses() -> None:
    assert {status for status in Status if status.ended} == ENDED == {Status.COMPLETED, Status.STOPPED, Status.FAILED}


# -- what is emitted -----------------------------------------------------------------------------------------------------


def said(*types: str, messages: int = 0) -> Emitted:
    made = tuple(Message(seq=seq, role="tool", content=()) for seq in range(messages))
    return Emitted(frames=tuple(Frame(type=type, fields={}) for type in types), messages=made)


def test_what_is_emitted_keeps_its_order_and_knows_which_frames_are_in_the_transcript() -> None:
    both = said("a", "b") + said(messages=1) + said("c")
    assert [frame.type for frame in both.frames] == ["a", "b", "c"] and both.before_message == 2
    more = both + said("d") + said(messages=1) + said("e")
    assert (more.before_message, len(more.messages)) == (4, 2)
    assert (said("a") + said("b")).before_message == 0


def test_emptiness() -> None:
    assert not NOTHING and said("a") and said(messages=1) and Emitted(ignored=(1,))
    assert NOTHING.only_frames and said("a").only_frames
    assert not said(messages=1).only_frames and not Emitted(ignored=(1,)).only_frames


def outcome(stage: Stage, *, attempt: int = 1, outcome: str | None = None) -> Emitted:
    call = Call(id="1.1", provider_id="", name="look", arguments="{}", effect=Effect.READ, stage=CallStage.EXECUTING, attempt=attempt)
    return Emitted(receipts=(replace(receipt_of(call, "{}"), stage=stage, outcome=outcome),))


def test_R40_a_run_gets_on_by_a_models_answer_or_by_what_a_tool_said() -> None:
    answer = Emitted(messages=(Message(seq=2, role="assistant", content=()),))
    got_on = [answer, outcome(Stage.EXECUTED), outcome(Stage.COMPLETED), outcome(Stage.FAILED, outcome="failed")]
    assert all(emitted.got_on for emitted in got_on)
    stood_still = [
        NOTHING,
        said("start-step", messages=1),
        outcome(Stage.EXECUTING),
        outcome(Stage.FAILED, attempt=0, outcome="unknown_tool"),
        outcome(Stage.FAILED, outcome="cancelled"),
        outcome(Stage.FAILED, outcome="unknown"),
    ]
    assert not any(emitted.got_on for emitted in stood_still)


# -- waits, times, usage, messages, errors -------------------------------------------------------------------------------


def test_R8_waits_are_spelt_as_the_api_does() -> None:
    assert names(Wait.APPROVALS | Wait.UNKNOWN_EFFECTS) == ["approvals", "unknown_effects"]
    assert names(Wait(0)) == []
    assert from_names(["hold", "budget"]) == Wait.HOLD | Wait.BUDGET
    assert [from_names([name]) for name in ("HOLD", "Hold", "", "nothing")] == [None] * 4
    assert from_names([]) == Wait(0)
    assert all(from_names([name]) is not None for name in names(~Wait(0)))


@given(ms=st.integers(0, 4_102_444_800_000))
def test_times_are_rfc_3339_in_utc_with_milliseconds(ms: int) -> None:
    text = rfc3339(ms)
    assert len(text) == 24 and text.endswith("Z")
    assert milliseconds(datetime.fromisoformat(text)) == ms


def test_times_of_other_zones_are_the_same_moment() -> None:
    moment = datetime(2026, 1, 31, 13, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=1)))
    assert rfc3339(milliseconds(moment)) == "2026-01-31T12:00:00.250Z"
    assert milliseconds(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert (optional_rfc3339(None), optional_rfc3339(0)) == (None, "1970-01-01T00:00:00.000Z")


@given(ms=st.integers(0, 4_102_444_800_000))
def test_times_are_read_as_they_are_written(ms: int) -> None:
    assert from_rfc3339(rfc3339(ms)) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t01:00:00.5+01:00", 500),
        ("1970-01-01T00:00:00.123456789Z", 123),
        ("1970-01-01T00:00:00", None),
        ("1970-01-01", None),
        ("1970-13-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("1970-01-01T00:00:00Z\n", None),
        ("٠٩٧٠-01-01T00:00:00Z", None),
        ("", None),
    ],
)
def test_times_without_a_zone_or_of_no_calendar_are_none(text: str, ms: int | None) -> None:
    assert from_rfc3339(text) == ms


def test_usages_add_up_field_by_field() -> None:
    one = Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, reasoning_tokens=5, model_calls=6)
    assert one.plus(one) == Usage(
        input_tokens=2, output_tokens=4, cache_read_tokens=6, cache_write_tokens=8, reasoning_tokens=10, model_calls=12
    )
    assert one.total_tokens == 3 and one.plus(Usage()) == one


def test_messages_know_their_text_calls_and_results() -> None:
    content = (
        TextPart(text="a"),
        ReasoningPart(text="hm"),
        TextPart(text="b"),
        ToolCallPart(tool_call_id="1.1", tool_name="look", arguments={"n": 1}),
        ToolResultPart(tool_call_id="1.1", tool_name="look", output=[1], files=(FilePart(media_type="a/b", url="u"),)),
    )
    message = Message(seq=1, role="assistant", content=content, opaque=b"secret")
    assert message.text == "ab" and message.tool_calls == (content[3],) and message.tool_results == (content[4],)
    assert "secret" not in repr(message) and "opaque" not in message.model_dump()
    assert PARTS.validate_json(PARTS.dump_json(content)) == content


def test_errors_have_stable_codes() -> None:
    kinds = (errors.Invalid, errors.NotFound, errors.NotPermitted, errors.Unauthenticated, errors.Unavailable)
    assert [kind("x").code for kind in kinds] == ["invalid_value", "not_found", "not_permitted", "unauthenticated", "unavailable"]
    assert errors.Conflict("x", code="run_ended", recorded=1).recorded == 1
    assert errors.Throttled("x", retry_after=9).retry_after == 9
    problem = errors.Problem(pointer="/a", code="invalid_value", detail="x")
    assert errors.Invalid("x", problems=[problem]).problems == (problem,)
    assert errors.NeedsInput("Which?", choices=["a"]).choices == ("a",)

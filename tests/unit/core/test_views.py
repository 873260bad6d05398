"""What is shown of a run: the view of api.md, and the control state of `data-agent` frames (R9, R11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Status
from runward.core.runs import frames
from runward.core.runs.calls import How
from runward.core.runs.decide import LegOver
from runward.core.runs.facts import Broke
from runward.core.runs.view import view
from tests.unit.core.driving import T0, Drive, row_of
from tests.unit.core.tooling import asked

VIEW = {
    *("run_id", "agent", "agent_version", "scope", "status", "phase", "revision", "last_seq", "events_after"),
    *("created_at", "updated_at", "started_at", "ended_at", "cancel_requested_at"),
    *("steps", "model", "failovers", "text", "output", "stop", "error", "pending", "task_outcome", "usage", "accounting"),
    *("budgets", "parent_run_id", "metadata", "links"),
}
"""The fields of the run view in api.md; `accounting` comes with budgets (R33)."""

NOTHING_PENDING: dict[str, Any] = {
    "approvals": [],
    "client_calls": [],
    "questions": [],
    "timers": [],
    "tasks": [],
    "children": [],
    "unknown_effects": [],
    "budget": None,
    "hold": None,
}


STREAMED = (
    frames.text_delta(2, 3, "Hel"),
    frames.reasoning_delta(2, 3, "hm"),
    frames.tool_input_delta(2, "2.1", "look", '{"or'),
    frames.tool_progress("2.1", {"done": 0.5}),
)


def queued() -> Drive:
    return Drive()


def running() -> Drive:
    return Drive().running("look")


def suspended() -> Drive:
    drive = Drive().running("charge", "look")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver()
    return drive


def told() -> Drive:
    """A run that goes on behind an effect nobody knows of."""
    drive = Drive().running("ship")
    drive.ends("1.1", How.TIMED_OUT)
    drive.settle()
    return drive


def completed() -> Drive:
    drive = Drive().running("look")
    drive.ends("1.1", How.RETURNED)
    drive.settle()
    return drive.answer("All done.").ended()


def completed_but() -> Drive:
    return told().answer("Probably shipped.").ended()


def stopped() -> Drive:
    drive = suspended().claim().gets(data={"reason": "user left"})
    return drive.ended()


def cut_off() -> Drive:
    drive = Drive().claim()
    drive.settle()
    return drive.answer("half an answ", finish="length").ended()


def failed() -> Drive:
    drive = Drive(model_retries=0).claim()
    drive.settle()
    return drive.fails().ended()


def broken() -> Drive:
    drive = Drive().running("charge")
    drive.apply(Broke(at=drive.at, code="internal", message="The agent's code failed.", details={"function": "x"}))
    drive.settle()
    drive.ends("1.1", How.NOT_STARTED)
    return drive.ended()


STORIES: list[Callable[[], Drive]] = [
    *(queued, running, suspended, told, completed, completed_but, stopped, cut_off, failed, broken),
]


def shown(drive: Drive, **differing: Any) -> dict[str, Any]:
    return view(row_of(drive.run, **differing), drive.run)


def folded(drive: Drive) -> dict[str, Any]:
    """The control state of somebody who has folded the `data-agent` frames, the newer over the older."""
    state: dict[str, Any] = {}
    for frame in drive.of("data-agent"):
        state |= frame["data"]
    return state


@pytest.mark.parametrize("story", STORIES)
def test_R9_the_view_has_exactly_the_documented_fields_and_is_json(story: Callable[[], Drive]) -> None:
    data = shown(story())
    assert data.keys() == VIEW
    json.dumps(data, allow_nan=False)
    assert data["pending"].keys() == NOTHING_PENDING.keys()


def test_R9_a_queued_run_in_full() -> None:
    assert shown(queued()) == {
        "run_id": "order-7",
        "agent": "support",
        "agent_version": "1",
        "scope": {"tenant": "acme", "user": None, "namespace": None},
        "status": "queued",
        "phase": "loop",
        "revision": 3,
        "last_seq": 9,
        "events_after": 0,
        "created_at": "2023-11-14T22:13:20.000Z",
        "updated_at": "2023-11-14T22:13:20.000Z",
        "started_at": None,
        "ended_at": None,
        "cancel_requested_at": None,
        "steps": 0,
        "model": "test:model",
        "failovers": [],
        "text": None,
        "output": None,
        "stop": None,
        "error": None,
        "pending": NOTHING_PENDING,
        "task_outcome": "in_progress",
        "usage": {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "total_tokens": 0,
            "model_calls": 0,
        },
        "accounting": {
            "spent": {"tokens": 0, "usd": "0"},
            "reserved": {"tokens": 4098, "usd": "0"},
            "unknown": {"tokens": 0, "usd": "0"},
            "committed": {"tokens": 4098, "usd": "0"},
            "unpriced_calls": 0,
        },
        "budgets": [],
        "parent_run_id": None,
        "metadata": {"ticket": "T-9"},
        "links": {"self": "/runs/order-7", "events": "/runs/order-7/events"},
    }


@pytest.mark.parametrize(
    ("story", "status", "stop", "error", "outcome"),
    [
        (queued, "queued", False, False, "in_progress"),
        (running, "running", False, False, "in_progress"),
        (suspended, "suspended", False, False, "needs_reconciliation"),
        (told, "running", False, False, "needs_reconciliation"),
        (completed, "completed", False, False, "resolved"),
        (completed_but, "completed", False, False, "needs_reconciliation"),
        (stopped, "stopped", True, False, "needs_reconciliation"),
        (cut_off, "stopped", True, False, "failed"),
        (failed, "failed", False, True, "failed"),
        (broken, "failed", False, True, "failed"),
    ],
)
def test_R9_and_R11_every_status_shows_what_belongs_to_it(
    story: Callable[[], Drive], status: str, stop: bool, error: bool, outcome: str
) -> None:
    drive = story()
    data = shown(drive)
    assert (data["status"], data["task_outcome"]) == (status, outcome)
    assert (data["stop"] is not None, data["error"] is not None) == (stop, error)
    assert (data["ended_at"] is not None) is drive.status.ended
    assert data["output"] is None


def test_R9_a_stop_has_a_reason_and_details_a_failure_a_code_and_whether_it_passes() -> None:
    calls = [
        {"tool_call_id": "1.1", "tool_name": "charge", "state": "unknown"},
        {"tool_call_id": "1.2", "tool_name": "look", "state": "finished"},
    ]
    assert shown(stopped())["stop"] == {"reason": "cancelled", "details": {"reason": "user left", "calls": calls}}
    assert shown(cut_off())["stop"] == {"reason": "length", "details": {}}
    assert shown(failed())["error"] == {
        "code": "model_error",
        "message": "The provider failed.",
        "transient": True,
        "details": {"kind": "server_error", "step": 1},
    }


@pytest.mark.parametrize("story", [suspended, completed, completed_but, stopped, cut_off, failed, broken])
def test_R9_folding_the_data_agent_frames_gives_the_views_control_state(story: Callable[[], Drive]) -> None:
    drive = story()
    state, data = folded(drive), shown(drive)
    final = state.pop("final", False)
    assert final is drive.status.ended
    assert state.keys() <= data.keys()
    assert state == {name: data[name] for name in state}
    needed = {"status", "phase", "steps", "task_outcome", "pending", "text"} | ({"usage", "output"} if drive.status.ended else set())
    missing = {name for name in needed if name not in state and data[name] is not None}
    assert not missing
    for name in ("stop", "error"):
        assert (name in state) is (data[name] is not None), "absent fields are left out of frames, never null"


@pytest.mark.parametrize("story", [completed, completed_but, stopped, cut_off, failed, broken])
def test_R5_one_frame_is_final_and_it_is_the_last(story: Callable[[], Drive]) -> None:
    drive = story()
    assert drive.types()[-2:] == ["finish", "data-agent"] and drive.types().count("finish") == 1
    finals = [frame["data"].get("final", False) for frame in drive.of("data-agent")]
    assert finals == [False] * (len(finals) - 1) + [True]


@pytest.mark.parametrize("story", STORIES)
def test_nothing_private_is_in_a_frame_of_control_or_a_view(story: Callable[[], Drive]) -> None:
    """No transcript, raw result, provider id, ledger or inner counter."""
    drive = story()
    inner = ("worked_ms", "reservation", "raw", "provider_id", "call_1", "opaque", "checkpoint", "hello", "lost_model_calls")
    text = json.dumps([shown(drive), drive.of("data-agent")])
    assert [word for word in inner if word in text] == []


def test_the_row_says_where_a_run_stands_while_its_state_is_in_a_workers_hands() -> None:
    """Mail has woken it, or a worker has just taken it: the state still says what the last commit said."""
    drive = suspended()
    data = shown(drive, status=Status.QUEUED, cancel_requested_at=T0 + 250, started_at=T0)
    assert (data["status"], data["cancel_requested_at"]) == ("queued", "2023-11-14T22:13:20.250Z")
    assert [item["tool_call_id"] for item in data["pending"]["unknown_effects"]] == ["1.1"]


def test_R11_an_effect_that_nobody_knows_of_outranks_how_the_run_ended() -> None:
    unknown = told().run.unknowns
    for story in (running, completed, stopped, failed, broken):
        drive = story()
        drive.run = replace(drive.run, unknowns=unknown)
        assert shown(drive)["task_outcome"] == "needs_reconciliation"


def test_a_finish_frame_has_the_usage_and_the_last_text() -> None:
    (finish,) = completed().of("finish")
    assert finish["status"] == "completed" and finish["text"] == "All done."
    assert (finish["usage"]["total_tokens"], finish["usage"]["model_calls"]) == (30, 2)
    (failure,) = failed().of("finish")
    assert failure["status"] == "failed" and "text" not in failure


def test_frames_have_exactly_the_documented_fields() -> None:
    """api.md, "The stream": beside `type, seq, run_id, at`, which are added when a frame is written."""
    wanted = {
        "start": {"agent"},
        "start-step": {"step", "phase", "agent", "model", "attempt"},
        "finish-step": {"step", "finish_reason", "usage"},
        "reset-step": {"step", "attempt"},
        "tool-call": {"step", "tool_call_id", "tool_name", "arguments", "effect", "requires_approval"},
        "tool-state": {"tool_call_id", "tool_name", "state", "attempt"},
        "tool-output": {"step", "tool_call_id", "tool_name", "output", "is_error", "files", "outcome"},
        "data-agent": {"data"},
        "warning": {"code", "message"},
        "usage": {"usage", "total_usage"},
        "finish": {"status", "usage", "text"},
    }
    optional = {"model", "files", "outcome", "text", "effect", "requires_approval"}
    seen = set()
    drives = [story() for story in STORIES]
    drives.append(Drive(model=None).claim())
    noisy = Drive().running("look").crash()
    noisy.gets().gets()
    noisy.settle()
    unknown_tool = Drive().claim()
    unknown_tool.settle()
    unknown_tool.answer("", asked("nope"))
    unknown_tool.settle()
    unknown_tool.screen()
    for frame in [frame for drive in (*drives, noisy, unknown_tool, failed()) for frame in drive.frames]:
        seen.add(frame.type)
        assert wanted[frame.type] - optional <= frame.fields.keys() <= wanted[frame.type], frame
        assert None not in frame.fields.values(), frame
    assert seen == wanted.keys()


def test_what_streams_says_where_it_belongs() -> None:
    """Said by the engine while a model or a tool is at it."""
    assert [(frame.type, dict(frame.fields)) for frame in STREAMED] == [
        ("text-delta", {"step": 2, "attempt": 3, "delta": "Hel"}),
        ("reasoning-delta", {"step": 2, "attempt": 3, "delta": "hm"}),
        ("tool-input-delta", {"step": 2, "tool_call_id": "2.1", "tool_name": "look", "delta": '{"or'}),
        ("tool-progress", {"tool_call_id": "2.1", "data": {"done": 0.5}}),
    ]


def test_tool_states_are_those_of_the_documentation() -> None:
    states = {frame["state"] for story in STORIES for frame in story().of("tool-state")}
    cancelled = Drive().running("look").gets()
    cancelled.settle()
    cancelled.ends("1.1", How.CANCELLED)
    states |= {frame["state"] for frame in cancelled.of("tool-state")}
    assert states == {"executing", "completed", "unknown", "cancelled"}

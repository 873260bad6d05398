"""An operator's hand on a run: hold and release, retry, raised limits, rebind (R10, R30, R35, R39, R41)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.kernel.mail import Mail, MailKind, hold_key, release_key
from runward.core.runs.calls import CallStage, How
from runward.core.runs.decide import CallModel, LegOver, Project, RunCall, Screen, Work
from runward.core.runs.face import face_of
from runward.core.runs.inputs import in_order
from runward.core.runs.ledger import CallTerms
from runward.core.runs.unsettled import ProbeStatus
from runward.core.runs.view import pending
from runward.core.runs.waits import Wait
from tests.unit.core.driving import RATES, T0, Drive, ok
from tests.unit.core.tooling import asked, terms


def held(drive: Drive, *waits: Wait) -> bool:
    """The run is parked, waits for a release, and nothing wakes it."""
    wanted = Wait.HOLD
    for wait in waits:
        wanted |= wait
    assert drive.settle() == LegOver(), drive.run
    return drive.status is Status.SUSPENDED and drive.run.waiting_on == wanted


def hold(drive: Drive, **data: Any) -> Drive:
    return drive.gets(MailKind.HOLD, data, by="ops")


def release(drive: Drive) -> Drive:
    return drive.claim().gets(MailKind.RELEASE)


# -- hold ------------------------------------------------------------------------------------------------------------------


def test_R39_a_run_that_is_held_before_it_began_begins_nothing() -> None:
    drive = hold(Drive().claim(), reason="look first")
    assert drive.settle() == Work(finish=(CallModel(1, 1),)), "what has not begun need not"
    drive.broken_off(started=False)
    assert held(drive) and drive.run.usage.model_calls == 0
    assert drive.shown["pending"]["hold"] == {"since": "2023-11-14T22:13:20.000Z", "by": "ops", "reason": "look first"}
    release(drive)
    assert drive.settle() == Work(start=(CallModel(1, 2),)) and pending(drive.run)["hold"] is None


def test_R39_a_caretaker_can_park_a_run() -> None:
    drive = hold(Drive().claim(caretaker=True))
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    drive.broken_off(started=False)
    assert held(drive)


def test_R39_a_model_call_that_runs_finishes_and_its_calls_do_not_start() -> None:
    drive = Drive().claim()
    drive.settle()
    hold(drive)
    assert drive.settle() == Work(finish=(CallModel(1, 1),))
    drive.answer("", asked("look"), asked("charge"))
    assert held(drive) and [call.stage for call in drive.run.turn] == [CallStage.PROPOSED] * 2
    release(drive)
    assert drive.settle() == Work(start=(Screen(1),))


def test_R39_an_answer_that_ends_the_run_ends_it() -> None:
    drive = Drive().claim()
    drive.settle()
    hold(drive).answer("done").ended()
    assert (drive.status, drive.run.hold, drive.shown["pending"]["hold"]) == (Status.COMPLETED, None, None)


def test_R39_a_model_call_that_failed_is_not_tried_again_while_the_run_is_held() -> None:
    drive = Drive().claim()
    drive.settle()
    hold(drive).fails()
    assert held(drive)
    release(drive)
    assert drive.settle() == Work(start=(CallModel(1, 2, T0 + 500),))


def test_R39_a_tool_that_runs_finishes_and_its_siblings_do_not_start() -> None:
    drive = Drive(max_parallel_tools=1).running("charge", "charge")
    hold(drive)
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))
    drive.ends("1.1", How.RETURNED, ok("charged"))
    assert held(drive) and drive.run.call("1.2").stage is CallStage.READY
    release(drive)
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))


def test_R39_a_failed_attempt_is_not_tried_again_while_the_run_is_held() -> None:
    drive = hold(Drive().running("look"))
    drive.ends("1.1", How.RAISED)
    assert held(drive) and drive.run.call("1.1").stage is CallStage.READY
    release(drive)
    assert drive.settle() == Work(start=(RunCall("1.1", 2, T0 + 250),))


def test_R39_a_result_is_still_shown_and_a_turn_that_is_whole_is_closed() -> None:
    drive = hold(Drive().running("bill"))
    drive.ends("1.1", How.RETURNED, raw=5)
    assert drive.settle() == Work(start=(Project("1.1"),))
    drive.projects("1.1", "five")
    assert held(drive) and drive.results() == [("1.1", "five")] and drive.run.reservation is None


def test_R39_an_approved_call_of_a_held_run_starts_when_it_is_released() -> None:
    drive = hold(Drive(gates={"charge": terms()}).asks("charge").claim())
    assert held(drive, Wait.APPROVALS)
    drive.claim().decides(drive.gate().id)
    assert held(drive) and drive.run.call("1.1").stage is CallStage.CLEARED
    release(drive)
    assert drive.settle() == Work(start=(Screen(1),))


def test_R39_a_held_run_takes_results_and_answers_and_closes_what_is_due() -> None:
    drive = hold(Drive().asks("scan", "poll", "durable_wait", arguments={"seconds": 5}).claim())
    assert held(drive, Wait.CLIENT_CALLS, Wait.TIMERS)
    drive.claim().gives("1.1", 1)
    assert held(drive, Wait.CLIENT_CALLS, Wait.TIMERS)
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (T0 + 5_000, T0 + 5_000)
    drive.at = T0 + 60_000
    drive.claim(caretaker=True)
    assert held(drive) and drive.results() == []
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (None, None), "nothing is due any more"
    release(drive)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert [call_id for call_id, _ in drive.results()] == ["1.1", "1.2", "1.3"]


def test_R39_a_held_run_asks_no_probe() -> None:
    drive = Drive().running("wire")
    hold(drive).ends("1.1", How.CANNOT_TELL)
    assert held(drive, Wait.UNKNOWN_EFFECTS)
    assert face_of(drive.run, binding="b", priority=0, at=drive.at).ready_at is None
    release(drive)
    drive.settle()
    drive.probe("1.1", ProbeStatus.DID_NOT_HAPPEN)
    assert drive.settle() == Work(start=(Screen(1),))


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_R39_cancel_and_deadline_apply_to_a_held_run(end: str) -> None:
    drive = hold(Drive(expires_seconds=60, gates={"charge": terms()}).asks("charge").claim())
    assert held(drive, Wait.APPROVALS)
    if end == "cancel":
        drive.claim(caretaker=True).gets()
    else:
        drive.at = T0 + 60_000
        drive.claim(caretaker=True).after(0)
    drive.ended()
    assert drive.stopped[0] == ("cancelled" if end == "cancel" else "deadline") and drive.run.hold is None


def test_R39_a_drain_of_a_held_run_leaves_it_held() -> None:
    drive = hold(Drive().running("look")).drain(hurried=True)
    assert drive.settle() == Work(stop=(RunCall("1.1", 1),))
    drive.ends("1.1", How.ABANDONED)
    assert held(drive)
    release(drive)
    assert drive.settle() == Work(start=(RunCall("1.1", 2),))


def test_R39_holding_twice_holds_once_and_a_release_without_a_hold_does_nothing() -> None:
    drive = Drive().running("look")
    before = drive.run
    drive.gets(MailKind.RELEASE)
    assert drive.run == before and drive.ignored == []
    hold(drive, reason="first")
    first = drive.run
    drive.after(1)
    hold(drive, reason="second")
    assert drive.run.hold == first.hold and (drive.run.holds, drive.run.releases) == (1, 0)
    drive.gets(MailKind.RELEASE).gets(MailKind.RELEASE)
    assert drive.run.hold is None and (drive.run.holds, drive.run.releases) == (1, 1)


def test_R19a_every_hold_and_every_release_has_a_key_of_its_own() -> None:
    drive = Drive().running("look")
    keys = []
    for _ in range(3):
        keys.append(hold_key(drive.run.releases))
        hold(drive)
        keys.append(release_key(drive.run.holds))
        drive.gets(MailKind.RELEASE)
    assert keys == ["hold:0", "release:1", "hold:1", "release:2", "hold:2", "release:3"]


# -- retry -----------------------------------------------------------------------------------------------------------------


def failed(**limits: Any) -> Drive:
    """A run whose second model call failed for a cause that may pass."""
    drive = Drive(model_retries=0, **limits).running("charge")
    drive.ends("1.1", How.RETURNED, ok("charged"))
    drive.settle()
    return drive.fails().ended()


def retried(drive: Drive) -> Drive:
    return drive.claim(reopened=True).gets(MailKind.RETRY)


def test_R30_a_retry_goes_on_where_the_run_failed() -> None:
    drive = failed()
    error, calls = drive.shown["error"], drive.run.usage.model_calls
    assert error["transient"] is True and drive.run.ended_at == T0
    drive.at += 3_600_000
    retried(drive)
    assert drive.settle() == Work(start=(CallModel(2, 2),)), "the failed call keeps its step"
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.status, face.ended_at, face.stop_reason, drive.ignored) == (Status.RUNNING, None, None, [])
    assert drive.shown == {"status": "running", "phase": "loop", "steps": 2}
    assert drive.run.usage.model_calls == calls, "the failed one stays counted"
    assert drive.results() == [("1.1", "charged")], "what was done is not done again"
    drive.answer("done").ended()
    assert (drive.status, drive.shown["task_outcome"], "error" in drive.shown) == (Status.COMPLETED, "resolved", False)
    assert drive.types().count("finish") == 2 and drive.types()[-2:] == ["finish", "data-agent"]


def test_R30_a_retried_run_has_its_retries_again_and_can_fail_again() -> None:
    drive = failed()
    for attempt in (2, 3):
        retried(drive)
        assert drive.settle() == Work(start=(CallModel(2, attempt),))
        drive.fails().ended()
        assert drive.status is Status.FAILED
    assert drive.run.usage.model_calls == 4


def test_R30_a_leg_that_dies_with_a_retried_run_leaves_it_to_the_next() -> None:
    drive = retried(failed())
    drive.claim(reopened=True, recovered=True).gets(MailKind.RETRY)
    assert drive.settle() == Work(start=(CallModel(2, 2),))
    drive.crash()
    assert drive.settle() == Work(start=(CallModel(2, 3),)), "once stored it is a run like any other"


def broken() -> Drive:
    drive = Drive(model_retries=0).claim()
    drive.settle()
    return drive.fails(transient=False).ended()


def completed() -> Drive:
    drive = Drive().claim()
    drive.settle()
    return drive.answer("done").ended()


@pytest.mark.parametrize("story", [broken, completed])
def test_R10_only_a_failure_that_may_pass_is_left_by_a_retry(story: Callable[[], Drive]) -> None:
    drive = story()
    with pytest.raises(InvariantViolated):
        drive.claim(reopened=True)


def test_R30_a_retry_of_a_run_that_works_or_waits_has_no_use() -> None:
    drive = Drive().running("look").gets(MailKind.RETRY)
    waiting = Drive().asks("scan").claim().gets(MailKind.RETRY)
    assert drive.ignored == waiting.ignored == [1] and waiting.settle() == LegOver()


def test_R10_a_cancel_beside_the_retry_cancels() -> None:
    drive = failed().claim(reopened=True).gets().gets(MailKind.RETRY)
    drive.ended()
    assert drive.stopped == ("cancelled", []) and drive.ignored == [2]


def test_R30_unknown_effects_and_denials_are_not_forgotten_by_a_retry() -> None:
    drive = Drive(model_retries=0, gates={"charge": terms()}).asks("charge", "ship")
    drive.decides(drive.gate().id, approved=False).ends("1.2", How.CANNOT_TELL)
    drive.settle()
    drive.fails().ended()
    retried(drive)
    drive.settle()
    assert pending(drive.run)["unknown_effects"][0]["tool_call_id"] == "1.2"
    drive.reconciles("1.2", "result", output=1).answer("done").ended()
    assert drive.shown["task_outcome"] == "denied"


def test_R35a_a_run_that_was_tried_again_too_late_is_over() -> None:
    drive = failed(expires_seconds=60)
    assert face_of(drive.run, binding="b", priority=0, at=drive.at).care_at is None
    drive.at += 60_000
    retried(drive).after(0).ended()
    assert drive.stopped == ("deadline", [])


def test_R39_a_run_that_failed_on_hold_can_be_held_again() -> None:
    drive = Drive(model_retries=0).claim()
    drive.settle()
    hold(drive).fails().ended()
    assert (drive.run.hold, drive.run.holds, drive.run.releases) == (None, 1, 1)
    retried(drive)
    assert hold_key(drive.run.releases) == "hold:1", "hold:0 is taken"
    hold(drive)
    assert held(drive)


# -- limits and binding ----------------------------------------------------------------------------------------------------


def test_R35_an_operator_may_raise_the_limits_of_a_run() -> None:
    drive = Drive(max_steps=1, max_cost_usd="2.50", terms=CallTerms(rates={"test:model": RATES})).running("look")
    drive.gets(MailKind.LIMITS, {"limits": {"max_steps": 3, "max_cost_usd": "10", "timeout_seconds": 60, "max_parallel_tools": 2}})
    limits = drive.run.limits
    assert (limits.max_steps, limits.max_cost_usd) == (3, "10"), "amounts compare as numbers"
    assert (limits.timeout_seconds, limits.max_parallel_tools) == (None, 8), "what nothing bounds, or bounds more loosely, stays so"
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),)), "it goes on by itself"


def test_R35_raised_limits_are_there_after_a_crash() -> None:
    drive = Drive(max_steps=1).running("look").gets(MailKind.LIMITS, {"limits": {"max_steps": 3}})
    drive.settle()
    drive.crash()
    assert drive.run.limits.max_steps == 3


def test_R41_another_binding_counts_from_the_next_leg_on() -> None:
    drive = Drive().claim(binding="v1")
    drive.settle()
    drive.answer("", asked("look"))
    drive.settle()
    drive.screen()
    drive.settle()
    drive.gets(MailKind.REBIND, {"from": "v1", "to": "v2"})
    assert drive.run.binding == "v2" and drive.settle() == Work(start=(RunCall("1.1", 1),))
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED


def test_R41_a_rebind_of_another_binding_has_no_use() -> None:
    drive = Drive().claim(binding="v1").gets(MailKind.REBIND, {"from": "v0", "to": "v2"})
    assert (drive.run.binding, drive.run.draining, drive.ignored) == ("v1", False, [1])


def test_R41_a_rebound_run_that_waits_goes_on_waiting() -> None:
    drive = Drive().asks("scan").claim(binding="v1", caretaker=True).gets(MailKind.REBIND, {"from": "v1", "to": "v2"})
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED and drive.run.binding == "v2"


# -- what lies side by side --------------------------------------------------------------------------------------------------


def mail(seq: int, kind: MailKind) -> Mail:
    return Mail(seq=seq, kind=kind, key=f"k{seq}", data="{}", principal=None, received_at=T0)


def test_R37_a_cancel_outranks_what_lies_beside_it() -> None:
    items = [mail(1, MailKind.APPROVAL), mail(2, MailKind.CLIENT), mail(3, MailKind.CANCEL), mail(4, MailKind.HOLD)]
    assert [item.seq for item in in_order(items)] == [3, 1, 2, 4], "everything else stays in order (R6a)"
    assert [item.seq for item in in_order([*reversed(items)])] == [3, 1, 2, 4]
    assert in_order([]) == []


def test_R37_a_cancel_completes_nothing_that_a_hold_parked() -> None:
    drive = hold(Drive().running("look"))
    drive.ends("1.1", How.RETURNED)
    drive.gets().ended()
    assert drive.stopped == ("cancelled", [("1.1", "finished")])


def test_a_takeover_is_mail_that_changes_nothing() -> None:
    drive = Drive().running("look")
    before = drive.run
    drive.gets(MailKind.TAKEOVER)
    assert drive.run == before and drive.ignored == []

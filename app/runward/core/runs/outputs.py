"""The typed answer: asked for, repaired, verified (R27-R29). What is no accepted answer is never shown as one (R9)."""

from __future__ import annotations

from typing import Any

from runward.core.kernel.actor import Status
from runward.core.messages import Message, TextPart
from runward.core.runs import frames
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied
from runward.core.runs.facts import VerdictGiven
from runward.core.runs.sentences import FINAL_ANSWER, repair
from runward.core.runs.state import Answer, Candidate, Ending, Phase, RunState, StopReason
from runward.core.runs.view import control
from runward.core.values import replace


def finalizing(run: RunState) -> Applied:
    """The loop is over: the next turn gives the answer, as one more turn of the same conversation."""
    run, asked = _asks(replace(run, phase=Phase.FINALIZING), FINAL_ANSWER)
    return run, asked + Emitted(frames=(frames.data_agent(control(run)),))


def answered(run: RunState, answer: Answer) -> Applied:
    """A turn of finalization gave a candidate, or something that is none."""
    if answer.complaint is not None:
        return _refused(run, answer.complaint)
    run = replace(run, candidate=Candidate(value=answer.output), output_attempts=0)
    if run.outputs is not None and run.outputs.verifies:
        return run, NOTHING
    return _accepted(run, answer.output), NOTHING


def verifying(run: RunState) -> Applied:
    """The verifier is asked. The attempt is counted before it begins, so that a crash cannot repeat it for ever (R29)."""
    return replace(run, verifying=True, verify_attempts=run.verify_attempts + 1), NOTHING


def taken_over(run: RunState) -> RunState:
    """A leg that died was verifying: that attempt is used up, whatever it said."""
    return replace(run, verifying=False)


def judged(run: RunState, fact: VerdictGiven) -> Applied:
    """The verifier's word on the candidate. It changes nothing about a run whose end is decided."""
    candidate = run.candidate
    if candidate is None or run.ending is not None or not run.verifying or fact.attempt != run.verify_attempts:
        return run, NOTHING
    run = replace(run, verifying=False)
    match fact.kind:
        case "verified":
            return _accepted(run, candidate.value), NOTHING
        case "rejected":
            run = replace(run, candidate=None)
            if run.verify_attempts >= run.limits.max_verify_attempts:
                return _stopped(run, StopReason.VERIFICATION_ATTEMPTS_EXHAUSTED, why=fact.message), NOTHING
            return _asks(run, fact.message)
        case _:
            if run.spent_out is not None:  # it could not ask the model that it wanted to ask
                return replace(run, candidate=None, ending=run.spent_out), NOTHING
            return _stopped(replace(run, candidate=None), StopReason.VERIFICATION_INCONCLUSIVE, why=fact.message), NOTHING


def _refused(run: RunState, complaint: str) -> Applied:
    """No candidate: the model reads what is wrong with it, as long as attempts are left (R28)."""
    run = replace(run, output_attempts=run.output_attempts + 1)
    if run.output_attempts >= run.limits.max_output_attempts:
        return _stopped(run, StopReason.OUTPUT_ATTEMPTS_EXHAUSTED, why=complaint), NOTHING
    return _asks(run, repair(complaint))


def _asks(run: RunState, text: str) -> Applied:
    """The service says something to the model, as a user would."""
    message = Message(seq=run.messages + 1, role="user", step=run.step, content=(TextPart(text=text),))
    return replace(run, messages=message.seq), Emitted(messages=(message,))


def _accepted(run: RunState, value: Any) -> RunState:
    return replace(run, candidate=None, output=value, ending=Ending(status=Status.COMPLETED))


def _stopped(run: RunState, reason: StopReason, *, why: str = "") -> RunState:
    return replace(run, ending=Ending(status=Status.STOPPED, reason=reason, details={"why": why} if why else {}))

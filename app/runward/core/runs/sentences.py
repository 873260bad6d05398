"""What the model reads of a call that has no result of its own."""

from __future__ import annotations

UNEXPECTED = "The tool failed unexpectedly."
UNCERTAIN = "The tool failed unexpectedly. Its effect may have happened all the same: do not repeat this call unless the user asks for it."
UNKNOWN_TO_MODEL = "The outcome of this call is unknown: it may or may not have happened. Do not repeat it unless the user asks for it."
TIMED_OUT = "The tool did not answer in time."
CANCELLED = "The call was cancelled."
NOT_STARTED = "The call was not started."
CUT_OFF = "The call was not started: the answer that asked for it was cut off."
FINISHED_UNSEEN = "The call finished, but the run ended before its result was shown."
DENIED = "The call was denied."
NOBODY_DECIDED = "The call was not started: nobody approved it in time."
NOBODY_ANSWERED = "Nobody answered in time."
DECLINED = "The user declined to answer."

NO_TOOLS_NOW = "The call was not started: the final answer is due now, without tools."
FINAL_ANSWER = "Give your final answer now, in the form that was asked for."


def repair(complaint: str) -> str:
    """What the model reads of an answer that does not fit."""
    return f"That answer does not fit: {complaint}. Give the whole answer again, in the form that was asked for."


def denied(reason: str | None) -> str:
    """What a denial says, with its reason where there is one."""
    return DENIED if not reason else f"The call was denied: {reason}"

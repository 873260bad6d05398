"""What has to be durable before what: which activities may start early, and which facts are said only with the state that they change."""

from __future__ import annotations

from typing import Final

from runward.core.runs.asking import GenerationAsked, GenerationEnded
from runward.core.runs.decide import CheckEvidence, GuardInput, GuardOutput, Probe, Screen
from runward.core.runs.facts import AnswerReceived, AttemptEnded, BudgetClosed, BudgetsAnswered, InputGuarded, OutputGuarded

NEEDS_NOTHING_DURABLE: Final = (Screen, GuardInput, GuardOutput, Probe, CheckEvidence)
"""Activities without an effect: they may start before what led to them is durable."""
TOLD_BY_THE_STATE: Final = (AnswerReceived, GenerationAsked, InputGuarded, OutputGuarded)
"""Facts that nothing but the state may tell of: it is saved before the leg goes on."""
SAID_WITH_THE_STATE: Final = (AttemptEnded, AnswerReceived, GenerationEnded, BudgetsAnswered, BudgetClosed, InputGuarded, OutputGuarded)
"""Facts whose frames become durable in one write with the state: a leg that dies in between has said nothing of them."""

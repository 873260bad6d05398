"""Bodies of what is sent to a run: verdicts, results, answers, settlements, and all of them in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runward.api.schemas.values import Body, ItemId, Label, Reason, given
from runward.engine.letters import MAX_QUESTION_ANSWER

MAX_ITEMS = 100
"""The most items that one request may bring."""
MAX_REFERENCE = 512
"""The most characters that name an operation, or where it was found."""


class Verdict(Body):
    """What somebody decided."""

    approved: bool
    reason: Reason | None = Field(default=None, description="At most 4 KiB. Where the call is denied, the model reads it.")
    edited_arguments: dict[str, Any] | None = Field(default=None, description="What is to run instead, where the tool allows that.")
    decided_by: Label | None = Field(default=None, description="Who decides, where the caller speaks for somebody else.")


class Decide(Verdict):
    """A verdict on one call, at the address of its request for approval."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"approved": True, "reason": "A known customer."}, {"approved": False, "decided_by": "ann@acme.example"}]
        }
    )


class VerdictItem(Verdict):
    """A verdict on one call."""

    approval_id: ItemId


class ResultItem(Body):
    """What came of a client tool's call."""

    tool_call_id: ItemId
    output: Any = Field(description="Any JSON that fits the tool's `output_schema`; of an error, what the model is to read.")
    is_error: bool = False


class AnswerItem(Body):
    """The answer to a question: `answer`, or `declined`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [given("answer"), given("declined")]})

    question_id: ItemId
    answer: Annotated[str, Field(max_length=MAX_QUESTION_ANSWER)] | None = None
    declined: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AnswerItem:
        if (self.answer is None) == (self.declined is None):
            raise PydanticCustomError("answer", "A question gets either `answer` or `declined: true`.")
        return self


class EvidenceIn(Body):
    """How somebody knows how a call ended."""

    operation_id: Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE)] | None = None
    source: Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE)] | None = None
    proof: Any = None


class SettlementItem(Body):
    """How an unknown effect is settled: it did not happen, run it again (`retry`); it did, with this `result`; or it failed (`error`)."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {"decision": {"const": "retry"}}, "not": {"required": ["output"]}},
                {"properties": {"decision": {"const": "result"}}, "required": ["output"]},
                {"properties": {"decision": {"const": "error"}}},
            ]
        }
    )

    tool_call_id: ItemId
    decision: Literal["retry", "result", "error"]
    output: Any = Field(default=None, description="The result that was found; of an error, what the model is to read.")
    attempt: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Refuse it unless this attempt of the call is unknown.")
    note: Reason | None = None
    evidence: EvidenceIn | None = None

    @model_validator(mode="after")
    def _output_where_it_belongs(self) -> SettlementItem:
        given = "output" in self.model_fields_set
        if self.decision == "result" and not given:
            raise PydanticCustomError("output", "A result needs its `output`.")
        if self.decision == "retry" and given:
            raise PydanticCustomError("output", "What is run again has no `output` yet.")
        return self


Verdicts = Annotated[list[VerdictItem], Field(min_length=1, max_length=MAX_ITEMS)]
Results = Annotated[list[ResultItem], Field(min_length=1, max_length=MAX_ITEMS)]
Answers = Annotated[list[AnswerItem], Field(min_length=1, max_length=MAX_ITEMS)]
Settlements = Annotated[list[SettlementItem], Field(min_length=1, max_length=MAX_ITEMS)]


class GiveVerdicts(Body):
    """Verdicts on calls of one run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"approvals": [{"approval_id": "ap_0c1d", "approved": True, "reason": "A known customer."}]}]}
    )

    approvals: Verdicts


class GiveResults(Body):
    """Results of client calls of one run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tool_results": [{"tool_call_id": "1.1", "output": {"path": "/home/ann/report.pdf"}}]}]}
    )

    tool_results: Results


class GiveAnswers(Body):
    """Answers to questions of one run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"answers": [{"question_id": "1.1.1", "answer": "blue"}, {"question_id": "1.2.1", "declined": True}]}]
        }
    )

    answers: Answers


class Reconcile(Body):
    """Settlements of unknown effects of one run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"reconcile": [{"tool_call_id": "1.1", "decision": "retry", "note": "Nothing in the ledger."}]},
                {
                    "reconcile": [
                        {"tool_call_id": "1.1", "decision": "result", "output": {"charge": "ch_7"}, "evidence": {"operation_id": "ch_7"}}
                    ]
                },
            ]
        }
    )

    reconcile: Settlements


class Resume(Body):
    """Everything that a run waits for, in one request: all of it is taken, or nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "approvals": [{"approval_id": "ap_0c1d", "approved": True}],
                    "tool_results": [{"tool_call_id": "1.2", "output": "done"}],
                    "expected_revision": 12,
                },
                {"retry_failed": True},
            ]
        }
    )

    approvals: Verdicts | None = None
    tool_results: Results | None = None
    answers: Answers | None = None
    reconcile: Settlements | None = None
    retry_failed: bool = Field(default=False, description="Tries a run again that failed for a cause that may pass.")
    release_hold: bool = Field(default=False, description="Lets a held run go on.")
    expected_revision: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The revision that the caller has seen; at any other, nothing is taken."
    )

    @model_validator(mode="after")
    def _not_too_much(self) -> Resume:
        lists: Sequence[Sequence[Body] | None] = (self.approvals, self.tool_results, self.answers, self.reconcile)
        if sum(len(items or ()) for items in lists) > MAX_ITEMS:
            raise PydanticCustomError("too_many", f"One request may bring at most {MAX_ITEMS} items.")
        return self

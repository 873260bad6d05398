"""What is sent to a run: verdicts, results, answers, settlements; and its inbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.api import cursors
from runward.api.asking import Asked, answer
from runward.api.repeating import repeatable
from runward.api.routing import Answer, Endpoint, Route
from runward.api.schemas.answers import MailPage, Taken
from runward.api.schemas.inputs import (
    AnswerItem,
    GiveAnswers,
    GiveResults,
    GiveVerdicts,
    Reconcile,
    ResultItem,
    Resume,
    SettlementItem,
    Verdict,
    VerdictItem,
)
from runward.api.schemas.requests import ListPart
from runward.api.schemas.values import RunId
from runward.engine.deliveries import Input
from runward.engine.letters import AnswerIn, ResultIn, SettlementIn, VerdictIn


async def give_verdicts(asked: Asked, run_id: RunId, body: GiveVerdicts) -> Response:
    """Approves or denies calls of the run. The first verdict for a call stands; an approved call runs at once."""
    return await _deliver(asked, run_id, Input(approvals=_verdicts(body.approvals)))


async def give_results(asked: Asked, run_id: RunId, body: GiveResults) -> Response:
    """Answers calls of client tools. The first valid result for a call stands; results that are errors may have any form."""
    return await _deliver(asked, run_id, Input(tool_results=_results(body.tool_results)))


async def give_answers(asked: Asked, run_id: RunId, body: GiveAnswers) -> Response:
    """Answers, or declines to answer, questions of the run."""
    return await _deliver(asked, run_id, Input(answers=_answers(body.answers)))


async def reconcile(asked: Asked, run_id: RunId, body: Reconcile) -> Response:
    """Settles calls of which nobody knows whether they happened, also after the run has ended. What is not listed stays unknown."""
    return await _deliver(asked, run_id, Input(reconcile=_settlements(body.reconcile)))


async def resume(asked: Asked, run_id: RunId, body: Resume) -> Response:
    """Gives a run everything it waits for, in one request. What a key needs is what the parts need by themselves.

    Of a run that has ended, an empty request answers how it ended.
    """
    given = Input(
        approvals=_verdicts(body.approvals or ()),
        tool_results=_results(body.tool_results or ()),
        answers=_answers(body.answers or ()),
        reconcile=_settlements(body.reconcile or ()),
        retry_failed=body.retry_failed,
        release_hold=body.release_hold,
        expected_revision=body.expected_revision,
    )
    return await _deliver(asked, run_id, given)


async def list_inbox(asked: Asked, run_id: RunId, query: Annotated[ListPart, FromQuery()]) -> Response:
    """What was sent to the run, by whom, and what became of it, in the order it came."""
    page = await asked.door.queries.inbox(asked.caller, run_id, after=cursors.of_numbered(query.cursor), limit=query.limit)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


def verdict_of(item: Verdict, approval_id: str) -> VerdictIn:
    """A verdict as the engine takes it."""
    return VerdictIn(
        approval_id=approval_id,
        approved=item.approved,
        reason=item.reason,
        edited_arguments=item.edited_arguments,
        decided_by=item.decided_by,
    )


async def _deliver(asked: Asked, run_id: str, given: Input) -> Response:
    delivered = await asked.door.deliveries.deliver(asked.caller, run_id, replace(given, repeatable=repeatable(asked)))
    run = await asked.door.queries.current(delivered.row)
    return answer({"run": run.shown, "items": delivered.items}, 202)


def _verdicts(items: Sequence[VerdictItem]) -> list[VerdictIn]:
    return [verdict_of(item, item.approval_id) for item in items]


def _results(items: Sequence[ResultItem]) -> list[ResultIn]:
    return [ResultIn(tool_call_id=item.tool_call_id, output=item.output, is_error=item.is_error) for item in items]


def _answers(items: Sequence[AnswerItem]) -> list[AnswerIn]:
    return [AnswerIn(question_id=item.question_id, answer=item.answer) for item in items]


def _settlements(items: Sequence[SettlementItem]) -> list[SettlementIn]:
    return [
        SettlementIn(
            tool_call_id=item.tool_call_id,
            decision=item.decision,
            output=item.output,
            attempt=item.attempt,
            note=item.note,
            evidence=None if item.evidence is None else item.evidence.model_dump(exclude_unset=True),
        )
        for item in items
    ]


def _input(path: str, endpoint: Endpoint, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"/runs/{{run_id}}/{path}",
        endpoint=endpoint,
        summary=summary,
        headers=("Idempotency-Key",),
        answers={202: Answer(description="All of it is durable.", model=Taken)},
    )


ROUTES = (
    _input("approvals", give_verdicts, "Decide calls of a run"),
    _input("tool-results", give_results, "Answer client calls of a run"),
    _input("answers", give_answers, "Answer questions of a run"),
    _input("reconcile", reconcile, "Settle unknown effects of a run"),
    _input("resume", resume, "Give a run everything it waits for"),
    Route(
        method="GET",
        path="/runs/{run_id}/inbox",
        endpoint=list_inbox,
        summary="List a run's inputs",
        answers={200: Answer(description="A page.", model=MailPage)},
    ),
)

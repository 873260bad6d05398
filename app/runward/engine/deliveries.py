"""Input for runs from people and clients: verdicts, results, answers, settlements. Checked whole, durable whole, then the run goes on.

Everything accepted is durable when a method returns (I-35). Of a request with one bad item nothing is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runward.core.errors import Conflict, Invalid, NotFound, NotPermitted, Problem, Throttled, Unavailable
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.commit import Appended, HasEnded, InboxFull, KeyTaken, RevisionMoved
from runward.core.kernel.mail import Letter, Mail, MailKind, release_key, retry_key
from runward.core.kernel.records import ApprovalClosing
from runward.core.runs.inputs import with_holds
from runward.core.runs.state import RunState
from runward.engine.callers import Caller, Permission
from runward.engine.catalog import Catalog
from runward.engine.found import run_of, state_of
from runward.engine.letters import (
    Addressed,
    Addressing,
    AnswerIn,
    Item,
    ResultIn,
    SettlementIn,
    VerdictIn,
    id_of,
    not_pending,
    recorded_view,
    same,
)
from runward.engine.repeats import Repeatable
from runward.engine.services import Services
from runward.ports.bus import Hint, Topic
from runward.ports.store import Append

MOST_TRIES = 16
"""How often a delivery looks again because something else was faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What one request brings. `expected_revision`: refuse it unless the run is at exactly this revision. `repeatable` makes it the same
    request when it is sent again: what it brought is not taken a second time, whatever has become of it since (R42)."""

    approvals: Sequence[VerdictIn] = ()
    tool_results: Sequence[ResultIn] = ()
    answers: Sequence[AnswerIn] = ()
    reconcile: Sequence[SettlementIn] = ()
    retry_failed: bool = False
    release_hold: bool = False
    expected_revision: int | None = None
    repeatable: Repeatable | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it brings nothing."""
        return not (self.items or self.retry_failed or self.release_hold)

    @property
    def duplicates(self) -> list[dict[str, str]]:
        """What is answered to all of it when it came before."""
        orders = [{"input": name, "result": "duplicate"} for name in ("retry_failed", "release_hold") if getattr(self, name)]
        return [*({**id_of(item), "result": "duplicate"} for item, _ in self.items), *orders]

    @property
    def items(self) -> list[tuple[Item, str]]:
        """Every item with the JSON pointer to it."""
        lists: Mapping[str, Sequence[Item]] = {
            "approvals": self.approvals,
            "tool_results": self.tool_results,
            "answers": self.answers,
            "reconcile": self.reconcile,
        }
        return [(item, f"/{name}/{index}") for name, items in lists.items() for index, item in enumerate(items)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a request: the run, and of each item whether it was `accepted`, a `duplicate` or `ignored`."""

    row: Envelope
    items: Sequence[dict[str, str]]


@dataclass(slots=True, kw_only=True)
class _Post:
    """The letters of one try, and what is said of each item."""

    letters: list[Letter] = field(default_factory=list)
    closings: list[ApprovalClosing] = field(default_factory=list)
    items: list[dict[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    after_end: bool = True
    retries: bool = False


class Deliveries:
    """Takes input for runs. `verdicts_take_tokens`: only whoever has a request's own access token decides it."""

    def __init__(self, services: Services, catalog: Catalog, *, verdicts_take_tokens: bool) -> None:
        self._verdicts_take_tokens = verdicts_take_tokens
        self._services = services
        self._catalog = catalog

    async def deliver(self, caller: Caller, run_id: str, given: Input) -> Delivered:
        """Checks every item against the run as it stands, and puts all of them into its inbox, or none.

        Raises NotFound; Invalid and Conflict with `problems` item by item; Throttled when the inbox is full.
        """
        self.require(caller, given)
        return await self.deliver_to(caller, await run_of(self._services, caller, run_id), given)

    def require(self, caller: Caller, given: Input) -> None:
        """Raises NotPermitted unless the caller may bring all of it, and decides with an approval's own token where that is required."""
        if given.approvals or given.reconcile:
            caller.require(Permission.APPROVALS_DECIDE)
        if given.tool_results or given.answers or given.retry_failed or given.release_hold:
            caller.require(Permission.RUNS_WRITE)
        if given.approvals and self._verdicts_take_tokens and caller.grant is None:
            raise NotPermitted("A key alone decides nothing here: POST /approvals/{approval_id} with the request's own access token.")

    async def deliver_to(self, caller: Caller, row: Envelope | None, given: Input) -> Delivered:
        """The same, to a run that the caller may see."""
        self.require(caller, given)
        _refuse_twins(given)
        if given.is_empty and row is not None and not row.status.ended:
            raise Invalid("There is nothing in it for a run that has not ended.")
        for _ in range(MOST_TRIES):
            if row is None:
                raise NotFound("There is no such run.")
            delivered = await self._tried(caller, row, given)
            if delivered is not None:
                return delivered
            row = await self._services.reads.get(row.uid)
        raise Unavailable("The run changes faster than this input could be delivered. Send it again.")

    async def _tried(self, caller: Caller, row: Envelope, given: Input) -> Delivered | None:
        """One try. None: something else was faster, look again."""
        if given.repeatable is not None and given.repeatable.came_in(await self._services.reads.mail(row.uid, after=0, limit=None)):
            return Delivered(row=row, items=given.duplicates)
        post = await self._post(caller, row, given)
        if post.problems:
            raise _refusal(post.problems)
        if not post.letters:
            if given.expected_revision not in (None, row.revision):
                raise _moved(row.revision)
            return Delivered(row=row, items=post.items)
        append = Append(
            uid=row.uid,
            letters=post.letters if given.repeatable is None else [_marked(letter, given.repeatable) for letter in post.letters],
            reopens=post.retries,
            care=post.after_end,
            may_be_ended=post.after_end,
            closings=post.closings,
            expected_revision=given.expected_revision,
        )
        match await self._services.store.append_mail(append):
            case Appended():
                self._services.bus.publish((Hint(Topic.MAIL, row.uid), Hint(Topic.READY, row.uid)))
                written = await self._services.reads.get(row.uid)
                return Delivered(row=written or row, items=post.items)
            case HasEnded() | KeyTaken():
                return None
            case RevisionMoved(revision=revision):
                raise _moved(revision)
            case InboxFull():
                raise Throttled("The run's inbox is full. Try again once it has worked through it.")
            case _:
                raise NotFound("There is no such run.")

    async def _post(self, caller: Caller, row: Envelope, given: Input) -> _Post:
        run = state_of(row)
        shown = run if row.status.ended or not run.status.ended else _working(run)
        mail = await self._services.reads.mail(row.uid, after=0, limit=None) if given.reconcile or given.release_hold else ()
        addressing = Addressing(
            shown,
            principal=caller.principal,
            now=self._services.time.now(),
            schemas=await self._schemas(caller, given.approvals),
            output_schema=await self._output_schema(row, given),
            settled=mail,
        )
        addressed = [addressing.address(item, pointer) for item, pointer in given.items]
        recorded = await self._services.reads.mail_by_key(row.uid, [each.letter.key for each in addressed]) if addressed else {}
        post = _Post()
        for each in addressed:
            self._add(post, each, recorded.get(each.letter.key), caller)
        if given.retry_failed:
            _add_retry(post, row, run, caller)
        if given.release_hold:
            _add_release(post, row, run, mail, caller)
        return post

    def _add(self, post: _Post, each: Addressed, recorded: Mail | None, caller: Caller) -> None:
        if recorded is not None and "expired" not in json.loads(recorded.data):
            if same(each.letter, recorded):
                post.items.append({**id_of(each.item), "result": "duplicate"})
            else:
                detail = "Another answer was recorded first, and stands."
                post.problems.append(
                    Problem(pointer=each.pointer, code="already_answered", detail=detail, recorded=recorded_view(recorded))
                )
            return
        if recorded is not None or each.problem is not None:
            post.problems.append(each.problem or not_pending(each.pointer, ended=False))
            return
        post.letters.append(each.letter)
        post.after_end = post.after_end and each.settles_after_end
        post.items.append({**id_of(each.item), "result": "accepted"})
        if isinstance(each.item, VerdictIn):
            post.closings.append(self._closing(each.item, caller))

    def _closing(self, verdict: VerdictIn, caller: Caller) -> ApprovalClosing:
        decision: dict[str, Any] = {"by": verdict.decided_by or caller.name, "key": caller.name}
        told = {
            "from": caller.address,
            "token": caller.grant.id if caller.grant else None,
            "reason": verdict.reason,
            "edited_arguments": verdict.edited_arguments,
        }
        decision |= {name: value for name, value in told.items() if value is not None}
        status = "approved" if verdict.approved else "denied"
        return ApprovalClosing(
            id=verdict.approval_id, status=status, decided_at=self._services.time.now(), decision=canonical_json(decision)
        )

    async def _output_schema(self, row: Envelope, given: Input) -> Callable[[str], Mapping[str, Any] | None]:
        """What the results of the run's tools have to fit, where somebody brings one (R15)."""
        listed = await self._catalog.bound(row.binding) if given.reconcile else None
        return (lambda _: None) if listed is None else listed.output_schema

    async def _schemas(self, caller: Caller, verdicts: Sequence[VerdictIn]) -> Mapping[str, Any]:
        """What edited arguments have to fit, by approval: it was stored with the request (R17a)."""
        schemas = {}
        for verdict in verdicts:
            if verdict.edited_arguments is not None:
                stored = await self._services.reads.approval(caller.reads, verdict.approval_id)
                if stored is not None:
                    schemas[verdict.approval_id] = approval_data(stored.data).get("arguments_schema")
        return schemas


def _marked(letter: Letter, repeatable: Repeatable) -> Letter:
    return replace(letter, principal=repeatable.marked(letter.principal or "{}"))


def approval_data(text: str) -> Mapping[str, Any]:
    """The stored part of a request for approval."""
    data: Mapping[str, Any] = json.loads(text)
    return data


def _working(run: RunState) -> RunState:
    """A failed run that somebody has reopened and nobody drives yet."""
    return replace(run, status=Status.QUEUED)


def _add_retry(post: _Post, row: Envelope, run: RunState, caller: Caller) -> None:
    failure = run.ended.failure if run.ended else None
    if not row.status.ended:
        post.items.append({"input": "retry_failed", "result": "ignored"})
    elif row.status is not Status.FAILED or failure is None or not failure.transient:
        detail = "Only a run that failed for a cause that may pass can be tried again."
        post.problems.append(Problem(pointer="/retry_failed", code="not_transient", detail=detail))
    else:
        post.letters.append(Letter(kind=MailKind.RETRY, key=retry_key(row.revision), principal=caller.principal))
        post.items.append({"input": "retry_failed", "result": "accepted"})
        post.after_end, post.retries = False, True


def _add_release(post: _Post, row: Envelope, run: RunState, mail: Sequence[Mail], caller: Caller) -> None:
    run = with_holds(run, [item for item in mail if item.seq > row.mail_applied])
    if row.status.ended:
        post.problems.append(Problem(pointer="/release_hold", code="run_ended", detail="The run has ended: it takes no more input."))
    elif run.hold is None:
        post.items.append({"input": "release_hold", "result": "ignored"})
    else:
        post.letters.append(Letter(kind=MailKind.RELEASE, key=release_key(run.holds), principal=caller.principal))
        post.items.append({"input": "release_hold", "result": "accepted"})
        post.after_end = False


def _refuse_twins(given: Input) -> None:
    """The same thing named twice in one request: which of them was meant?"""
    seen: set[tuple[str, str, str]] = set()
    problems = []
    for item, pointer in given.items:
        ((name, value),) = id_of(item).items()
        if (type(item).__name__, name, value) in seen:
            problems.append(Problem(pointer=f"{pointer}/{name}", code="invalid_value", detail="This request names it twice."))
        seen.add((type(item).__name__, name, value))
    if problems:
        raise _refusal(problems)


def _refusal(problems: Sequence[Problem]) -> Invalid | Conflict:
    """One error for all of them: a request that is wrong in itself before one that comes too late."""
    wrong = next((problem for problem in problems if problem.code == "invalid_value"), None)
    if wrong is not None:
        return Invalid("The request is not valid; nothing was stored.", code="invalid_value", problems=problems)
    first = problems[0]
    return Conflict(f"{first.detail} Nothing was stored.", code=first.code, problems=problems, recorded=first.recorded)


def _moved(revision: int) -> Conflict:
    message = f"The run is at revision {revision} by now, not at the expected one. Look at it again, then decide."
    return Conflict(message, code="revision_conflict", recorded={"revision": revision})

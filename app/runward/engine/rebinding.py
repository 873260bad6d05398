"""Binding runs to other code than the one they began with, and raising their limits: decisions of operators, recorded (R35, R41)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from runward.core.errors import Conflict, Invalid, NotFound, Problem, Refused, Throttled, Unavailable
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.commit import Appended, HasEnded, InboxFull, KeyTaken, RevisionMoved
from runward.core.kernel.mail import Letter, MailKind
from runward.core.runs.calls import CallStage
from runward.core.runs.state import KIND, RunState
from runward.engine.callers import Caller, Permission
from runward.engine.catalog import Catalog, Listed
from runward.engine.found import run_of, state_of
from runward.engine.operations import MOST_TRIES, Failed
from runward.engine.pages import cursor_of, mark_of, opened
from runward.engine.services import Services
from runward.ports.bus import Hint, Topic
from runward.ports.reads import ActorQuery, Order
from runward.ports.store import Append

_GOING_ON = (Status.QUEUED, Status.RUNNING, Status.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebind:
    """From which binding to which, and why."""

    source: str
    target: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebound:
    """How many runs were bound anew, which were not, and where the next page begins."""

    rebound: int
    failed: Sequence[Failed]
    next_cursor: str | None = None


class Rebinding:
    """Takes such decisions. Every method needs `ops`."""

    def __init__(self, services: Services, catalog: Catalog) -> None:
        self._services = services
        self._catalog = catalog

    async def rebind_run(self, caller: Caller, run_id: str, rebind: Rebind) -> Rebound:
        """Binds one run to other code, from its next leg on.

        Raises NotFound; Invalid where `target` is not published; Conflict: `binding_mismatch` naming what differs, `run_ended`.
        """
        caller.require(Permission.OPS)
        row = await run_of(self._services, caller, run_id)
        await self._rebind(caller, row, rebind, *await self._listed(rebind))
        return Rebound(rebound=1, failed=())

    async def rebind_agent(self, caller: Caller, agent: str, rebind: Rebind, *, cursor: str | None, limit: int) -> Rebound:
        """The same for a page of the agent's runs that are bound to `source` and have not ended. What keeps one from it keeps no other."""
        caller.require(Permission.OPS)
        target, source = await self._listed(rebind)
        if target.name != agent:
            raise _other_agent(target, agent)
        mark = mark_of("rebind", caller.reads, agent, rebind.source, rebind.target)
        after = None if cursor is None else opened(cursor, mark)
        query = ActorQuery(kind=KIND, scope=caller.reads, statuses=_GOING_ON, agent=agent, order=Order.NEWEST, after=after, limit=limit + 1)
        rows = await self._services.reads.list(query)
        more, rows = len(rows) > limit, rows[:limit]
        bound = [row for row in rows if row.binding == rebind.source]
        failed = []
        for row in bound:
            try:
                await self._rebind(caller, row, rebind, target, source)
            except Refused as error:
                failed.append(Failed(run_id=row.public_id, code=error.code))
        following = cursor_of(mark, rows[-1].created_at, rows[-1].uid) if rows and more else None
        return Rebound(rebound=len(bound) - len(failed), failed=failed, next_cursor=following)

    async def raise_limits(self, caller: Caller, run_id: str, limits: Mapping[str, float | str], reason: str | None) -> Envelope:
        """Raises limits of a run that goes on (R35). Raises NotFound; Invalid for what is no raise; Conflict (`run_ended`), Throttled."""
        caller.require(Permission.OPS)
        row = await run_of(self._services, caller, run_id)
        if row.status.ended:
            raise _ended()
        raised = _raised(state_of(row), limits)
        if raised:
            data = canonical_json({"limits": raised, **({} if reason is None else {"reason": reason})})
            key = f"limits:{self._services.chance.uid()}"
            letter = Letter(kind=MailKind.LIMITS, key=key, data=data, principal=caller.principal)
            await self._sent(Append(uid=row.uid, letters=(letter,), care=True))
        return await self._got(row.uid)

    # -- parts -------------------------------------------------------------------------------------------------------------

    async def _listed(self, rebind: Rebind) -> tuple[Listed, Listed | None]:
        """The agents that target and source are bindings of; of the source that may be forgotten."""
        target = await self._catalog.bound(rebind.target)
        if target is None:
            raise _wrong("/to", "No worker has published an agent with this binding. GET /agents shows fingerprints.")
        return target, await self._catalog.bound(rebind.source)

    async def _rebind(self, caller: Caller, row: Envelope, rebind: Rebind, target: Listed, source: Listed | None) -> None:
        for _ in range(MOST_TRIES):
            if row.status.ended:
                raise _ended()
            if row.binding == rebind.target:  # the same request again, or somebody else's who wanted the same
                return
            _check(row, rebind, target, source)
            data: dict[str, str] = {"from": rebind.source, "to": rebind.target}
            if rebind.reason is not None:
                data["reason"] = rebind.reason
            key = f"rebind:{row.revision}"
            letter = Letter(kind=MailKind.REBIND, key=key, data=canonical_json(data), principal=caller.principal)
            append = Append(uid=row.uid, letters=(letter,), care=True, expected_revision=row.revision)
            if await self._sent(append):
                return
            recorded = (await self._services.reads.mail_by_key(row.uid, [key])).get(key)
            if recorded is not None:
                if json.loads(recorded.data)["to"] != rebind.target:
                    stands = json.loads(recorded.data)
                    raise Conflict("Another binding was decided on first, and stands.", code="already_answered", recorded=stands)
                return
            row = await self._got(row.uid)
        raise Unavailable("The run changes faster than it could be bound anew. Send it again.")

    async def _sent(self, append: Append) -> bool:
        """Whether the letter is in the inbox. False: its key is taken, or the run is at another revision."""
        match await self._services.store.append_mail(append):
            case Appended():
                self._services.bus.publish((Hint(Topic.MAIL, append.uid), Hint(Topic.READY, append.uid)))
                return True
            case KeyTaken() | RevisionMoved():
                return False
            case HasEnded():
                raise _ended()
            case InboxFull():
                raise Throttled("The run's inbox is full. Try again once it has worked through it.")
            case _:
                raise NotFound("There is no such run.")

    async def _got(self, uid: str) -> Envelope:
        row = await self._services.reads.get(uid)
        if row is None:
            raise NotFound("There is no such run.")
        return row


def _check(row: Envelope, rebind: Rebind, target: Listed, source: Listed | None) -> None:
    """Raises Conflict naming everything that keeps the run from going on with the other code."""
    if row.agent != target.name:
        raise _other_agent(target, row.agent)
    if row.binding != rebind.source:
        message = f"The run is bound to {row.binding}, not to {rebind.source}."
        raise Conflict(message, code="binding_mismatch", recorded={"binding": row.binding})
    differing = differences(state_of(row), target, source)
    if differing:
        problems = [Problem(pointer="/to", code="binding_mismatch", detail=detail) for detail in differing]
        raise Conflict(f"Open calls of the run need what differs there: {differing[0]}", code="binding_mismatch", problems=problems)


def differences(run: RunState, target: Listed, source: Listed | None) -> list[str]:
    """What of the tools that the run's open calls and unsettled effects need is missing or different in `target`.

    Tools that `source` has not either came with the request, or are unknown to both.
    """
    needed = {
        call.name: (f"call {call.id}", call.effect.value if call.stage is not CallStage.PROPOSED else None)
        for call in run.turn
        if call.open
    }
    needed |= {effect.tool_name: (f"call {effect.tool_call_id}", effect.effect.value) for effect in run.unknowns}
    found = []
    for name, (who, effect) in needed.items():
        was, now = (None if source is None else source.tool(name)), target.tool(name)
        if now is None:
            if source is None or was is not None:
                found.append(f"The tool {name!r}, which {who} needs, is not there.")
            continue
        if effect is not None and now["effect"] != effect:
            found.append(f"The tool {name!r} of {who} had the effect {effect}, and has {now['effect']} there.")
        if was is not None:
            found += [
                f"The tool {name!r} of {who} had {field} {was[field]!r}, and has {now[field]!r} there."
                for field in ("kind", "needs_approval")
                if was[field] != now[field]
            ]
    return found


def _raised(run: RunState, limits: Mapping[str, float | str]) -> dict[str, float | str]:
    """Those of `limits` that are raises. Raises Invalid, naming each that is none."""
    problems: list[Problem] = []
    raised: dict[str, float | str] = {}
    for name, value in limits.items():
        mine = getattr(run.limits, name)
        if mine is None:
            problems.append(Problem(pointer=f"/limits/{name}", code="invalid_value", detail="Nothing bounds this, so it cannot be raised."))
        elif Decimal(str(value)) < Decimal(str(mine)):
            problems.append(
                Problem(pointer=f"/limits/{name}", code="invalid_value", detail=f"Limits can only be raised; this one is {_plain(mine)}.")
            )
        elif Decimal(str(value)) > Decimal(str(mine)):
            raised[name] = value
    if problems:
        raise Invalid(f"{problems[0].detail} Nothing was stored.", problems=problems)
    return raised


def _plain(bound: float | str) -> str:
    return bound if isinstance(bound, str) else f"{bound:g}"


def _other_agent(target: Listed, agent: str) -> Conflict:
    return Conflict(f"That binding is of the agent {target.name!r}, not of {agent!r}.", code="binding_mismatch")


def _wrong(pointer: str, detail: str) -> Invalid:
    return Invalid(detail, problems=[Problem(pointer=pointer, code="invalid_value", detail=detail)])


def _ended() -> Conflict:
    return Conflict("The run has ended: it stays as it is.", code="run_ended")

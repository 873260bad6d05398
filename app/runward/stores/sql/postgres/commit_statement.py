"""The statement of a commit, made of only the parts it has.

Alone, the actor's row is updated where its gates hold: what they read is the row as it is once it can be had, not as the statement's
snapshot shows it. With letters to others all rows are locked in uid order first, the gates read what was locked, and then self and
recipients are updated together: a row that is updated twice in one statement keeps one of the changes, silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    and_,
    case,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql

from runward.stores.sql.expressions import FALSE, QUEUED, RUNNING, SUSPENDED, ZERO, is_ended, rank_of
from runward.stores.sql.postgres.parts import (
    LETTER,
    NEW_ACTOR,
    clock,
    close_approvals,
    columns_of,
    holds_any_key,
    locked,
    put_actors,
    put_receipts,
    put_rows,
    unnested,
)
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors, approvals, frames, mail, messages

_WHOSE = ("uid", "tenant", "user_id", "namespace", "agent")
APPROVAL: Final = columns_of(approvals, without=_WHOSE)
_SELF = (*_WHOSE, "mail_received", "drain_leg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which parts a commit has."""

    release: bool
    minds_mail: bool
    applies: bool
    frames: bool
    messages: bool
    receipts: bool
    approvals: bool
    approval_closings: bool
    closings: bool
    letters: bool
    children: bool
    child_frames: bool
    child_messages: bool


@cache
def commit_statement(shape: Shape) -> Statement:
    """One row, what is stored now, when the commit was written; none when a gate was shut."""
    now = clock()
    if shape.letters:
        me, answer = _with_recipients(shape, now)
    else:
        me = update(actors).where(*_gates(actors, shape)).values(_own(shape)).returning(*(actors.c[name] for name in _SELF)).cte("me")
        answer = select(me.c.mail_received, me.c.drain_leg)
    return Statement(answer.add_cte(*_parts(shape, me, now)), POSTGRES)


def _gates(row: FromClause, shape: Shape) -> list[ColumnElement[bool]]:
    to_mail_applied, closings = given("to_mail_applied", Integer()), given("closings", Integer())
    gates: list[ColumnElement[bool]] = [
        row.c.uid == given("uid", ID),
        row.c.revision == given("revision", Integer()),
        row.c.last_seq == given("last_seq", Integer()),
        or_(row.c.status == RUNNING, and_(is_ended(row.c.status), row.c.status == given("to_status", ID))),
        row.c.mail_applied <= to_mail_applied,
        to_mail_applied <= (row.c.mail_received + closings if shape.closings else row.c.mail_received),
    ]
    if shape.minds_mail:
        gates.append(row.c.mail_received <= given("mail_seen", Integer()))
    if shape.closings:
        gates.append(~holds_any_key(row.c.uid, given_array("own_dedupe_key", ID)))
    if shape.children:
        gates.append(row.c.tenant == given("parent_tenant", ID))
    return gates


def _own(shape: Shape) -> dict[str, Any]:
    """What the commit makes of its actor's columns."""
    names = ["mail_applied", "status", "state", "format", "binding", "waiting_on", "stop_reason", "task_outcome", "updated_at", "ended_at"]
    names += ["recoveries", "revision", "last_seq"]
    own: dict[str, Any] = {}
    if shape.release:
        names += ["ready_at", "care_at", "rank"]
        own = {"lease_owner": null(), "lease_until": null(), "drain_leg": null()}
    own |= {name: given(f"to_{name}", actors.c[name].type) for name in names}
    if shape.closings:
        own["mail_received"] = actors.c.mail_received + given("closings", Integer())
    return own


def _parts(shape: Shape, me: CTE, now: CTE) -> list[CTE]:
    """Everything beside the actor's row. Each part joins `me`, the gate."""
    parts: list[CTE] = []
    if shape.applies:
        parts.append(_stamp(me))
    if shape.closings:
        parts.append(_put_closings(me, now))
    if shape.frames:
        parts.append(put_rows(frames, me, "frame"))
    if shape.messages:
        parts.append(put_rows(messages, me, "message"))
    if shape.receipts:
        parts += put_receipts(me)
    if shape.approvals:
        parts.append(_put_approvals(me))
    if shape.approval_closings:
        parts.append(close_approvals(me))
    if shape.children:
        parts += _put_children(shape, me, now)
    return parts


def _stamp(me: CTE) -> CTE:
    """Marks mail applied. Where that began before is read as the statement found it: the gate has seen to it that nobody moved it since."""
    before = select(actors.c.mail_applied).where(actors.c.uid == given("uid", ID)).scalar_subquery()
    applied = and_(mail.c.uid == me.c.uid, mail.c.seq > before, mail.c.seq <= given("to_mail_applied", Integer()))
    return (
        update(mail).where(applied).values(applied_revision=given("to_revision", Integer()), ignored=_is_ignored(mail.c.seq)).cte("stamp")
    )


def _is_ignored(seq: ColumnElement[Any]) -> ColumnElement[bool]:
    return seq == func.any(given_array("ignored", Integer()))


def _put_closings(me: CTE, now: CTE) -> CTE:
    own = unnested("own", {"seq": Integer(), **LETTER})
    columns = {
        "uid": me.c.uid,
        "seq": own.c.seq,
        "received_at": now.c.now,
        **{name: own.c[name] for name in LETTER},
        "applied_revision": given("to_revision", Integer()),
        "ignored": _is_ignored(own.c.seq),
    }
    source = select(*columns.values()).select_from(me.join(now, true()).join(own, true()))
    return insert(mail).from_select(list(columns), source).cte("put_closings")


def _put_approvals(me: CTE) -> CTE:
    rows = unnested("approval", APPROVAL)
    columns = {name: me.c[name] for name in _WHOSE} | {name: rows.c[name] for name in APPROVAL}
    source = select(*columns.values()).select_from(me.join(rows, true()))
    return insert(approvals).from_select(list(columns), source).cte("put_approvals")


def _put_children(shape: Shape, me: CTE, now: CTE) -> list[CTE]:
    """Creates those children that do not exist, with their first rows."""
    new = put_actors(unnested("child", NEW_ACTOR), now, me)
    children = new.on_conflict_do_nothing(index_elements=["uid"]).returning(actors.c.uid).cte("children")
    parts = [children]
    if shape.child_frames:
        parts.append(put_rows(frames, children, "child_frame", by_uid=True))
    if shape.child_messages:
        parts.append(put_rows(messages, children, "child_message", by_uid=True))
    return parts


# -- with letters to others ----------------------------------------------------------------------------------------------


def _with_recipients(shape: Shape, now: CTE) -> tuple[CTE, Select[Any]]:
    """The gate and the answer of a commit that also writes to others."""
    rows = locked(given_array("uids", ID))
    me = select(*(rows.c[name] for name in _SELF)).where(*_gates(rows, shape)).cte("me").prefix_with("MATERIALIZED")
    arrived = _put_letters(shape, rows, me, now)
    targets = (
        select(rows.c.uid, (rows.c.uid == me.c.uid).label("mine"), arrived.c.upto, now.c.now)
        .select_from(rows.join(me, true()).join(now, true()).outerjoin(arrived, arrived.c.uid == rows.c.uid))
        .where(or_(rows.c.uid == me.c.uid, arrived.c.uid.is_not(None)))
        .cte("targets")
    )
    changed = (
        update(actors)
        .where(actors.c.uid == targets.c.uid)
        .values(_changed(shape, targets))
        .returning(actors.c.uid, actors.c.mail_received, actors.c.drain_leg)
        .cte("changed")
    )
    return me, select(changed.c.mail_received, changed.c.drain_leg).where(changed.c.uid == given("uid", ID))


def _put_letters(shape: Shape, rows: CTE, me: CTE, now: CTE) -> CTE:
    """Puts the letters into the mailboxes that take them, and tells up to which number each mailbox is filled now."""
    letters = unnested("letter", {"uid": ID, "place": Integer(), **LETTER})
    status = case((rows.c.uid == me.c.uid, given("to_status", ID)), else_=rows.c.status)
    received: ColumnElement[Any] = rows.c.mail_received
    if shape.closings:
        received = received + case((rows.c.uid == me.c.uid, given("closings", Integer())), else_=ZERO)
    number = func.row_number().over(partition_by=letters.c.uid, order_by=letters.c.place)
    taken = exists().where(mail.c.uid == letters.c.uid, mail.c.dedupe_key == letters.c.dedupe_key)
    columns = {"uid": letters.c.uid, "seq": (received + number).cast(Integer), "received_at": now.c.now}
    columns |= {name: letters.c[name] for name in LETTER} | {"ignored": FALSE}
    source = (
        select(*columns.values())
        .select_from(letters.join(rows, rows.c.uid == letters.c.uid).join(me, rows.c.tenant == me.c.tenant).join(now, true()))
        .where(status.not_in([literal_column("'completed'"), literal_column("'stopped'")]), ~taken)
    )
    put = postgresql.insert(mail).from_select(list(columns), source).on_conflict_do_nothing().returning(mail.c.uid, mail.c.seq)
    letters_put = put.cte("put_letters")
    return select(letters_put.c.uid, func.max(letters_put.c.seq).label("upto")).group_by(letters_put.c.uid).cte("arrived")


def _changed(shape: Shape, targets: CTE) -> dict[str, Any]:
    """The columns of self, and of recipients: who got a letter is woken, as by an `Append`; that holds for self, too, after its commit."""
    own = _own(shape)
    after = {name: case((targets.c.mine, value), else_=actors.c[name]) for name, value in own.items()}
    status, ready_at, rank = [after.get(name, actors.c[name]) for name in ("status", "ready_at", "rank")]
    got_mail = targets.c.upto.is_not(None)
    wakes = and_(got_mail, status == SUSPENDED)
    now_rank = rank_of(targets.c.now, actors.c.priority)
    return after | {
        "mail_received": func.coalesce(targets.c.upto, after.get("mail_received", actors.c.mail_received)),
        "status": case((wakes, QUEUED), else_=status),
        "ready_at": case((and_(got_mail, ~is_ended(status)), targets.c.now), else_=ready_at),
        "rank": case((wakes, now_rank), (and_(got_mail, status == QUEUED), func.least(rank, now_rank)), else_=rank),
    }

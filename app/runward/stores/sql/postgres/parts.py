"""The parts that the one-statement operations are made of. Each is a data-modifying CTE that joins the operation's gate: a CTE that does
not join it would run even when the gate is shut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Label,
    Table,
    TableValuedAlias,
    Text,
    exists,
    func,
    insert,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.records import MessageRow, Receipt
from runward.stores.sql.expressions import QUEUED, rank_of
from runward.stores.sql.journal import pack
from runward.stores.sql.rows import Values, in_columns, message_values, receipt_values
from runward.stores.sql.statements import POSTGRES, clock_expression, given_array
from runward.stores.sql.tables import ID, actors, approvals, columns, mail, messages, receipts


def clock(*more: Label[Any]) -> CTE:
    """The server's time, read once per statement, and what else is found out once."""
    return select(clock_expression(POSTGRES).label("now"), *more).cte("clock").prefix_with("MATERIALIZED")


def unnested(prefix: str, types: dict[str, TypeEngine[Any]]) -> TableValuedAlias:
    """Rows given as one array per column, named `<prefix>_<column>`."""
    arrays = [given_array(f"{prefix}_{name}", type_) for name, type_ in types.items()]
    typed: Any = [literal_column(name, type_) for name, type_ in types.items()]
    return func.unnest(*arrays).table_valued(*typed, name=prefix).render_derived()


def columns_of(table: Table, *, without: Collection[str] = ()) -> dict[str, TypeEngine[Any]]:
    return {column.name: column.type for column in table.columns if column.name not in without}


def put_rows(table: Table, gate: FromClause, prefix: str, *, by_uid: bool = False) -> CTE:
    """Inserts given rows of the gate's actor; with `by_uid` rows name their actor, and those whose actor is not in the gate stay out."""
    types = columns_of(table, without=() if by_uid else ("uid",))
    rows = unnested(prefix, types)
    on = rows.c.uid == gate.c.uid if by_uid else true()
    names = [name for name in types if name != "uid"]
    source = select(gate.c.uid, *(rows.c[name] for name in names)).select_from(gate.join(rows, on))
    return insert(table).from_select(["uid", *names], source).cte(f"put_{prefix}")


# What a new actor's row gets beside what it is given.
_FIRST = {"revision": 1, "leg": 0, "recoveries": 0, "mail_received": 0, "mail_applied": 0, "waiting_on": 0}
_ABSENT = (
    "started_at",
    "cancel_requested_at",
    "lease_until",
    "lease_owner",
    "ended_at",
    "drain_leg",
    "stop_reason",
    "key_slot",
    "tenant_slot",
)
NEW_ACTOR: Final = columns_of(actors, without={*_FIRST, *_ABSENT, "rank", "status"})
"""The columns of a new actor that are given: those of `rows.actor_values`."""


def put_actors(new: FromClause, now: CTE, gate: FromClause | None) -> postgresql.Insert:
    """Inserts the actors of `new`, if the gate is open."""
    ready_at = func.coalesce(new.c.ready_at, now.c.now)
    values: dict[str, Any] = {name: new.c[name] for name in NEW_ACTOR}
    values |= {name: literal_column(str(value), Integer) for name, value in _FIRST.items()}
    values |= {"ready_at": ready_at, "rank": rank_of(ready_at, new.c.priority), "status": QUEUED}
    source = new.join(now, true())
    if gate is not None:
        source = source.join(gate, true())
    return postgresql.insert(actors).from_select(list(values), select(*values.values()).select_from(source))


def put_receipts(gate: FromClause) -> list[CTE]:
    """Inserts or replaces receipts. Only the actor's lease writes them, under its row's lock: so no other insert can come between."""
    rows = unnested("receipt", columns_of(receipts, without=("uid",)))
    key = ("step", "position", "tool_call_id")
    replaced = (
        update(receipts)
        .where(receipts.c.uid == gate.c.uid, *(receipts.c[name] == rows.c[name] for name in key))
        .values({name: rows.c[name] for name in columns_of(receipts, without=("uid", *key))})
        .returning(receipts.c.tool_call_id)
        .cte("replaced")
    )
    names = list(columns_of(receipts, without=("uid",)))
    new = (
        select(gate.c.uid, *(rows.c[name] for name in names))
        .select_from(gate.join(rows, true()))
        .where(~exists().where(replaced.c.tool_call_id == rows.c.tool_call_id))
    )
    return [replaced, insert(receipts).from_select(["uid", *names], new).cte("put_receipt")]


def close_approvals(gate: FromClause) -> CTE:
    """Shows pending approvals of the gate's actor decided."""
    rows = unnested("closing", CLOSING)
    return (
        update(approvals)
        .where(approvals.c.id == rows.c.id, approvals.c.uid == gate.c.uid, approvals.c.status == literal_column("'pending'"))
        .values(status=rows.c.status, decided_at=rows.c.decided_at, decision=rows.c.decision)
        .cte("close_approvals")
    )


def holds_any_key(uid: ColumnElement[Any], keys: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a mailbox has one of these keys, as far as the statement's snapshot shows."""
    return exists().where(mail.c.uid == uid, mail.c.dedupe_key == func.any(keys))


def locked(uids: ColumnElement[Any]) -> CTE:
    """These actors, locked in uid order: what a gate reads from here is what is stored, whatever the statement's snapshot shows."""
    needed = columns(actors, "uid tenant user_id namespace agent status revision last_seq mail_received mail_applied drain_leg")
    rows = select(*needed).where(actors.c.uid == func.any(uids)).order_by(actors.c.uid)
    return rows.with_for_update(key_share=True).cte("locked").prefix_with("MATERIALIZED")


LETTER: Final = columns_of(mail, without=("uid", "seq", "received_at", "applied_revision", "ignored"))
"""The columns of a letter that are given: those of `rows.letter_values`."""

CLOSING: Final[dict[str, TypeEngine[Any]]] = {"id": ID, "status": ID, "decided_at": BigInteger(), "decision": Text()}
"""What is given to close an approval: `rows.closing_values`."""

# -- values for them -----------------------------------------------------------------------------------------------------


def frame_values(stored: Sequence[StoredFrame], prefix: str = "frame") -> Values:
    bundles = pack(stored)
    return {
        f"{prefix}_seq": [bundle.seq for bundle in bundles],
        f"{prefix}_format": [bundle.format for bundle in bundles],
        f"{prefix}_data": [bundle.data for bundle in bundles],
    }


def all_message_values(rows: Sequence[MessageRow]) -> Values:
    return in_columns([message_values(message) for message in rows], "message", columns_of(messages, without=("uid",)))


def all_receipt_values(rows: Sequence[Receipt]) -> Values:
    return in_columns([receipt_values(receipt) for receipt in rows], "receipt", columns_of(receipts, without=("uid",)))

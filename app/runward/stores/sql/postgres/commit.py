"""A leg's writes: commits, and frames between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import asyncpg
from sqlalchemy import Integer, func, select, update

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Position
from runward.core.kernel.commit import Changes, CommitAnswer, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import MailTo
from runward.stores.guards import check_changes, check_numbers
from runward.stores.sql.expressions import is_driven
from runward.stores.sql.gates import STANDING, Standing, commit_refusal, letters_to_send, stale, standing_of
from runward.stores.sql.postgres.commit_statement import APPROVAL, Shape, commit_statement
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.parts import (
    CLOSING,
    LETTER,
    NEW_ACTOR,
    all_message_values,
    all_receipt_values,
    columns_of,
    frame_values,
    put_rows,
)
from runward.stores.sql.rows import (
    Values,
    actor_values,
    approval_values,
    changed_values,
    closing_values,
    in_columns,
    letter_values,
    message_values,
)
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors, frames, mail, messages


async def commit(connections: Connections, changes: Changes) -> CommitAnswer:
    """`Store.commit`."""
    check_changes(changes)
    letters = letters_to_send(changes)
    try:
        rows = await connections.fetch(commit_statement(_shape(changes, letters)), _values(changes, letters))
    except asyncpg.UniqueViolationError as error:
        raise InvariantViolated("a message or an approval is inserted once, and a child's public id is its own") from error
    if rows:
        return Written(mail_received=rows[0]["mail_received"], drain_leg=rows[0]["drain_leg"])
    refusal = commit_refusal(changes, await standing(connections, changes.uid), await _taken(connections, changes))
    if refusal is None:
        raise InvariantViolated("a commit was refused, and nothing speaks against it")
    return refusal


async def append_frames(connections: Connections, uid: str, follows: Position, new: Sequence[StoredFrame]) -> Written | Stale:
    """`Store.append_frames`."""
    check_numbers(follows.last_seq, new)
    values = {"uid": uid, "revision": follows.revision, "last_seq": follows.last_seq, "to_last_seq": follows.last_seq + len(new)}
    rows = await connections.fetch(_append_frames(), values | frame_values(new))
    if rows:
        return Written(mail_received=rows[0]["mail_received"], drain_leg=rows[0]["drain_leg"])
    return stale(await standing(connections, uid))


async def standing(connections: Connections, uid: str) -> Standing | None:
    """Where an actor stands now: read to explain why a gate was shut."""
    rows = await connections.fetch(_standing(), {"uid": uid})
    return standing_of(tuple(rows[0])) if rows else None


async def taken_keys(connections: Connections, uid: str, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a mailbox has."""
    if not keys:
        return set()
    return {row[0] for row in await connections.fetch(_taken_keys(), {"uid": uid, "keys": list(keys)})}


async def _taken(connections: Connections, changes: Changes) -> set[str]:
    return await taken_keys(connections, changes.uid, [letter.key for letter in changes.closings])


def _shape(changes: Changes, letters: Sequence[MailTo]) -> Shape:
    return Shape(
        release=changes.release,
        minds_mail=changes.mail_seen is not None,
        applies=changes.mail_applied > len(changes.closings),
        frames=bool(changes.frames),
        messages=bool(changes.messages),
        receipts=bool(changes.receipts),
        approvals=bool(changes.approvals),
        approval_closings=bool(changes.approval_closings),
        closings=bool(changes.closings),
        letters=bool(letters),
        children=bool(changes.children),
        child_frames=any(child.frames for child in changes.children),
        child_messages=any(child.messages for child in changes.children),
    )


def _values(changes: Changes, letters: Sequence[MailTo]) -> Values:
    """What the statement of the commit's shape asks for."""
    values = changed_values(changes)
    values["ignored"] = list(changes.mail_ignored)
    if changes.frames:
        values |= frame_values(changes.frames)
    if changes.messages:
        values |= all_message_values(changes.messages)
    if changes.receipts:
        values |= all_receipt_values(changes.receipts)
    if changes.approvals:
        values |= in_columns(approval_values(changes), "approval", APPROVAL)
    if changes.approval_closings:
        values |= in_columns(closing_values(changes.approval_closings), "closing", CLOSING)
    if changes.closings:
        values |= _closing_letters(changes)
    if letters:
        rows = [{"uid": item.uid, "place": place, **letter_values(item.letter)} for place, item in enumerate(letters)]
        values |= in_columns(rows, "letter", ("uid", "place", *LETTER))
        values["uids"] = sorted({changes.uid, *(item.uid for item in letters)})
    if changes.children:
        values |= _child_values(changes)
    return values


def _closing_letters(changes: Changes) -> Values:
    count = len(changes.closings)
    numbered = enumerate(changes.closings, changes.mail_applied - count + 1)
    rows = [{"seq": seq, **letter_values(letter)} for seq, letter in numbered]
    return {**in_columns(rows, "own", ("seq", *LETTER)), "closings": count}


def _child_values(changes: Changes) -> Values:
    children = changes.children
    tenants = {child.scope.tenant for child in children}
    values = in_columns([actor_values(child) for child in children], "child", NEW_ACTOR)
    values["parent_tenant"] = tenants.pop() if len(tenants) == 1 else None
    frames_of = [frame_values(child.frames, "child_frame") for child in children]
    for name in ("seq", "format", "data"):
        values[f"child_frame_{name}"] = [value for mapping in frames_of for value in mapping[f"child_frame_{name}"]]
    values["child_frame_uid"] = [child.uid for child, rows in zip(children, frames_of, strict=True) for _ in rows["child_frame_seq"]]
    rows: list[dict[str, Any]] = [{"uid": child.uid, **message_values(message)} for child in children for message in child.messages]
    return values | in_columns(rows, "child_message", columns_of(messages))


@cache
def _append_frames() -> Statement:
    me = (
        update(actors)
        .where(
            *(actors.c[name] == given(name, actors.c[name].type) for name in ("uid", "revision", "last_seq")), is_driven(actors.c.status)
        )
        .values(last_seq=given("to_last_seq", Integer()))
        .returning(actors.c.uid, actors.c.mail_received, actors.c.drain_leg)
        .cte("me")
    )
    return Statement(select(me.c.mail_received, me.c.drain_leg).add_cte(put_rows(frames, me, "frame")), POSTGRES)


@cache
def _standing() -> Statement:
    return Statement(select(*STANDING).where(actors.c.uid == given("uid", ID)), POSTGRES)


@cache
def _taken_keys() -> Statement:
    held = select(mail.c.dedupe_key).where(mail.c.uid == given("uid", ID), mail.c.dedupe_key == func.any(given_array("keys", ID)))
    return Statement(held, POSTGRES)

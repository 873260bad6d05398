"""Creating an actor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import or_, select

from runward.core.errors import InvariantViolated
from runward.core.kernel.commit import CreateAnswer, Created, CreatedIsGone, IdempotencyKey, KeyReused, NewActor, PublicIdTaken, Replayed
from runward.stores.sql.rows import Row, Values, scope_text
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import insert_into, put_actor
from runward.stores.sql.statements import SQLITE, Statement, given
from runward.stores.sql.tables import ID, actors, idempotency_keys


def create(session: Session, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
    """`Store.create`."""
    slot: Values = {}
    if key is not None:
        slot = {"scope": scope_text(key.scope), "route": key.route, "key": key.key}
        known = session.row(_remembered(), slot)
        if known is not None:
            return _known(key, *known)
    same = session.rows(_same(), {"uid": new.uid, "tenant": new.scope.tenant, "public_id": new.public_id})
    if same:
        return _not_unique(new, same)
    put_actor(session, new)
    if key is not None:
        made = {"uid": new.uid, "public_id": new.public_id, "fingerprint": key.fingerprint, "created_at": session.now}
        session.rows(insert_into(idempotency_keys), slot | made)
    return Created(uid=new.uid)


def _known(key: IdempotencyKey, fingerprint: str, uid: str, public_id: str, found: str | None) -> CreateAnswer:
    if fingerprint != key.fingerprint:
        return KeyReused()
    return CreatedIsGone(public_id=public_id) if found is None else Replayed(uid=uid, public_id=public_id)


def _not_unique(new: NewActor, same: Sequence[Row]) -> CreateAnswer:
    """Another actor has the public id; or this very one was written before, and the answer was lost (R2a)."""
    for uid, tenant, public_id in same:
        if (tenant, public_id) == (new.scope.tenant, new.public_id):
            return Created(uid=new.uid) if uid == new.uid else PublicIdTaken()
    raise InvariantViolated("a uid is never used twice")


@cache
def _remembered() -> Statement:
    key = idempotency_keys.c
    known = select(key.fingerprint, key.uid, key.public_id, actors.c.uid).outerjoin(actors, actors.c.uid == key.uid)
    return Statement(known.where(*(key[name] == given(name, ID) for name in ("scope", "route", "key"))), SQLITE)


@cache
def _same() -> Statement:
    named = (actors.c.tenant == given("tenant", ID)) & (actors.c.public_id == given("public_id", ID))
    found = select(actors.c.uid, actors.c.tenant, actors.c.public_id).where(or_(actors.c.uid == given("uid", ID), named))
    return Statement(found, SQLITE)

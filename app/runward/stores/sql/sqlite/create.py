"""Creating an actor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import or_, select

from runward.core.errors import InvariantViolated
from runward.core.kernel.commit import CreateAnswer, Created, IdempotencyKey, NewActor, PublicIdTaken
from runward.stores.sql import queries
from runward.stores.sql.gates import known_key
from runward.stores.sql.rows import Row, key_values
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import insert_into, put_actor
from runward.stores.sql.statements import SQLITE, Statement, given
from runward.stores.sql.tables import ID, actors, idempotency_keys


def create(session: Session, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
    """`Store.create`."""
    if key is not None and (known := session.row(queries.remembered(SQLITE), key_values(key))) is not None:
        return known_key(key, known)
    same = session.rows(_same(), {"uid": new.uid, "tenant": new.scope.tenant, "public_id": new.public_id})
    if same:
        return _not_unique(new, same)
    put_actor(session, new)
    if key is not None:
        made = {"uid": new.uid, "public_id": new.public_id, "fingerprint": key.fingerprint, "created_at": session.now}
        session.rows(insert_into(idempotency_keys), key_values(key) | made)
    return Created(uid=new.uid)


def _not_unique(new: NewActor, same: Sequence[Row]) -> CreateAnswer:
    """Another actor has the public id; or this very one was written before, and the answer was lost (R2a)."""
    for uid, tenant, public_id in same:
        if (tenant, public_id) == (new.scope.tenant, new.public_id):
            return Created(uid=new.uid) if uid == new.uid else PublicIdTaken()
    raise InvariantViolated("a uid is never used twice")


@cache
def _same() -> Statement:
    named = (actors.c.tenant == given("tenant", ID)) & (actors.c.public_id == given("public_id", ID))
    found = select(actors.c.uid, actors.c.tenant, actors.c.public_id).where(or_(actors.c.uid == given("uid", ID), named))
    return Statement(found, SQLITE)

"""Creating an actor: one statement, whether it is new, a repeat, or one of many that race."""

from __future__ import annotations

from functools import cache

import asyncpg
from sqlalchemy import literal_column, select
from sqlalchemy.dialects import postgresql

from runward.core.errors import InvariantViolated
from runward.core.kernel.commit import CreateAnswer, Created, IdempotencyKey, NewActor, PublicIdTaken
from runward.stores.guards import check_new_actor, check_text
from runward.stores.sql import queries
from runward.stores.sql.gates import known_key
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.parts import NEW_ACTOR, all_message_values, clock, frame_values, put_actors, put_rows
from runward.stores.sql.rows import actor_values, key_values
from runward.stores.sql.statements import POSTGRES, Statement, given
from runward.stores.sql.tables import ID, actors, frames, idempotency_keys, messages


async def create(connections: Connections, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
    """`Store.create`."""
    check_new_actor(new)
    check_text(key)
    values = actor_values(new) | frame_values(new.frames) | all_message_values(new.messages)
    if key is not None:
        values |= key_values(key) | {"fingerprint": key.fingerprint}
    statement = _create(keyed=key is not None, frames_too=bool(new.frames), messages_too=bool(new.messages))
    try:
        rows = await connections.fetch(statement, values)
    except asyncpg.UniqueViolationError:
        return await _not_unique(connections, new)
    if rows:
        return Created(uid=new.uid)
    if key is None:
        raise InvariantViolated("an actor without a key was neither created nor refused")
    (known,) = await connections.fetch(queries.remembered(POSTGRES), values)
    return known_key(key, tuple(known))


async def _not_unique(connections: Connections, new: NewActor) -> CreateAnswer:
    """Another actor has the public id; or this very one was written before, and the answer was lost (R2a)."""
    rows = await connections.fetch(_whose(), {"tenant": new.scope.tenant, "public_id": new.public_id})
    if rows:
        return Created(uid=new.uid) if rows[0]["uid"] == new.uid else PublicIdTaken()
    raise InvariantViolated("a uid is never used twice")


@cache
def _create(*, keyed: bool, frames_too: bool, messages_too: bool) -> Statement:
    """The key is remembered first, and the actor joins that: a known key makes none. A taken public id undoes the whole statement."""
    now = clock()
    new = select(*(given(name, type_).label(name) for name, type_ in NEW_ACTOR.items())).subquery("new")
    key_columns = {name: given(name, ID) for name in ("scope", "route", "key", "fingerprint", "uid", "public_id")} | {
        "created_at": now.c.now
    }
    remembered = (
        postgresql.insert(idempotency_keys)
        .from_select(list(key_columns), select(*key_columns.values()))
        .on_conflict_do_nothing()
        .returning(literal_column("1").label("one"))
        .cte("remembered")
    )
    made = put_actors(new, now, remembered if keyed else None).returning(actors.c.uid).cte("made")
    parts = [put_rows(frames, made, "frame")] if frames_too else []
    parts += [put_rows(messages, made, "message")] if messages_too else []
    return Statement(select(made.c.uid).add_cte(*parts), POSTGRES)


@cache
def _whose() -> Statement:
    same = (actors.c[name] == given(name, ID) for name in ("tenant", "public_id"))
    return Statement(select(actors.c.uid).where(*same), POSTGRES)

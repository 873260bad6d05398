"""Keys, agents and workers, on either database."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, delete, exists, insert, select, update
from sqlalchemy.engine.interfaces import Dialect

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Scope
from runward.ports.directory import ApiKey, PublishedAgent, WorkerRow
from runward.stores.guards import check_text
from runward.stores.sql.database import Database, NotUnique
from runward.stores.sql.expressions import FALSE, TRUE
from runward.stores.sql.rows import Row, Values
from runward.stores.sql.statements import Statement, among, as_list, clock_expression, given, insert_into
from runward.stores.sql.tables import ID, agents, api_keys, columns, service, workers

_KEY = columns(api_keys, "id hash prefix tenant user_id namespace operator permissions created_at expires_at revoked_at last_used_at")
_AGENT = columns(agents, "name version fingerprint place manifest published_at")
_WORKER = columns(workers, "id host pid started_at beat_at slots driving draining bindings asked_to_drain")


class SqlDirectory:
    """`ports.directory.Directory`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect

    # -- keys -----------------------------------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey) -> None:
        check_text(key)
        try:
            await self._database.write(_add_key(self._dialect), _key_values(key))
        except NotUnique as error:
            raise InvariantViolated("an API key is made once") from error

    async def key_by_hash(self, hash: str) -> ApiKey | None:
        rows = await self._database.read(_key_by_hash(self._dialect), {"hash": hash})
        return _key_of(rows[0]) if rows else None

    async def key(self, id: str) -> ApiKey | None:
        rows = await self._database.read(_key_by_id(self._dialect), {"id": id})
        return _key_of(rows[0]) if rows else None

    async def keys(self, scope: Scope | None) -> Sequence[ApiKey]:
        statement = _keys(self._dialect, one_tenant=scope is not None)
        return [_key_of(row) for row in await self._database.read(statement, {"tenant": scope.tenant if scope else None})]

    async def revoke_key(self, id: str) -> bool:
        return bool(await self._database.write(_revoke_key(self._dialect), {"id": id}))

    async def note_key_uses(self, ids: Collection[str]) -> None:
        if ids:
            await self._database.write(_note_key_uses(self._dialect), {"ids": as_list(sorted(ids), self._dialect)})

    async def authentication(self) -> bool:
        """Said so, or, where nothing was ever said: since there is a key."""
        ((said, key_exists),) = await self._database.read(_authentication(self._dialect), {})
        return bool(key_exists if said is None else said)

    async def set_authentication(self, required: bool) -> None:
        await self._database.write(_set_authentication(self._dialect), {"required": required})

    # -- agents ---------------------------------------------------------------------------------------------------------

    async def publish_agents(self, agents: Sequence[PublishedAgent]) -> None:
        check_text(tuple(agents))
        newest = {(agent.name, agent.version, agent.fingerprint): agent for agent in agents}
        if newest:
            await self._database.write(_publish(self._dialect, list(newest.values())), {})

    async def agents(self) -> Sequence[PublishedAgent]:
        return [PublishedAgent(**_named(_AGENT, row)) for row in await self._database.read(_agents(self._dialect), {})]

    # -- workers --------------------------------------------------------------------------------------------------------

    async def beat(self, worker: WorkerRow) -> bool:
        check_text(worker)
        values = _named(_WORKER, [getattr(worker, column.name) for column in _WORKER])
        ((asked,),) = await self._database.write(_beat(self._dialect), values | {"bindings": json.dumps(worker.bindings)})
        return bool(asked)

    async def ask_worker_drain(self, id: str) -> bool:
        return bool(await self._database.write(_ask_drain(self._dialect), {"id": id}))

    async def forget_worker(self, id: str) -> None:
        await self._database.write(_forget(self._dialect), {"id": id})

    async def forget_silent_workers(self, silent_ms: int) -> int:
        return len(await self._database.write(_forget_silent(self._dialect), {"silent": silent_ms}))

    async def workers(self) -> Sequence[WorkerRow]:
        return [_worker_of(row) for row in await self._database.read(_workers(self._dialect), {})]


def _named(columns: Sequence[Any], row: Row) -> Values:
    return {column.name: value for column, value in zip(columns, row, strict=True)}


def _key_values(key: ApiKey) -> Values:
    return {
        "id": key.id,
        "hash": key.hash,
        "prefix": key.prefix,
        "tenant": key.scope.tenant,
        "user_id": key.scope.user,
        "namespace": key.scope.namespace,
        "operator": key.operator,
        "permissions": json.dumps(key.permissions),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
    }


def _key_of(row: Row) -> ApiKey:
    id, hash, prefix, tenant, user, namespace, operator, permissions, created_at, expires_at, revoked_at, last_used_at = row
    return ApiKey(
        id=id,
        hash=hash,
        prefix=prefix,
        scope=Scope(tenant=tenant, user=user, namespace=namespace),
        operator=bool(operator),
        permissions=tuple(json.loads(permissions)),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )


def _worker_of(row: Row) -> WorkerRow:
    values = _named(_WORKER, row)
    flags = {name: bool(values[name]) for name in ("draining", "asked_to_drain")}
    return WorkerRow(**values | flags | {"bindings": tuple(json.loads(values["bindings"]))})


# -- statements ----------------------------------------------------------------------------------------------------------


@cache
def _add_key(dialect: Dialect) -> Statement:
    return Statement(insert(api_keys).values({column.name: given(column.name, column.type) for column in _KEY}), dialect)


@cache
def _key_by_id(dialect: Dialect) -> Statement:
    return Statement(select(*_KEY).where(api_keys.c.id == given("id", ID)), dialect)


@cache
def _key_by_hash(dialect: Dialect) -> Statement:
    return Statement(select(*_KEY).where(api_keys.c.hash == given("hash", ID)), dialect)


@cache
def _keys(dialect: Dialect, *, one_tenant: bool) -> Statement:
    found = select(*_KEY).order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
    return Statement(found.where(api_keys.c.tenant == given("tenant", ID)) if one_tenant else found, dialect)


@cache
def _revoke_key(dialect: Dialect) -> Statement:
    valid = update(api_keys).where(api_keys.c.id == given("id", ID), api_keys.c.revoked_at.is_(None))
    return Statement(valid.values(revoked_at=clock_expression(dialect)).returning(api_keys.c.id), dialect)


@cache
def _note_key_uses(dialect: Dialect) -> Statement:
    used = update(api_keys).where(among(api_keys.c.id, "ids", dialect))
    return Statement(used.values(last_used_at=clock_expression(dialect)), dialect)


@cache
def _authentication(dialect: Dialect) -> Statement:
    return Statement(select(service.c.authentication, exists().select_from(api_keys)), dialect)


@cache
def _set_authentication(dialect: Dialect) -> Statement:
    return Statement(update(service).values(authentication=given("required", service.c.authentication.type)), dialect)


def _publish(dialect: Dialect, published: Sequence[PublishedAgent]) -> Statement:
    """Compiled anew each time: a process publishes its agents once."""
    now = clock_expression(dialect)
    rows = [{column.name: getattr(agent, column.name) for column in _AGENT} | {"published_at": now} for agent in published]
    new = insert_into(agents, dialect).values(rows)
    refreshed = {name: new.excluded[name] for name in ("place", "manifest", "published_at")}
    return Statement(new.on_conflict_do_update(index_elements=["name", "version", "fingerprint"], set_=refreshed), dialect)


@cache
def _agents(dialect: Dialect) -> Statement:
    return Statement(select(*_AGENT).order_by(agents.c.name, agents.c.place, agents.c.version, agents.c.fingerprint), dialect)


@cache
def _beat(dialect: Dialect) -> Statement:
    stamped = ("started_at", "beat_at", "asked_to_drain")
    said = {column.name: given(column.name, column.type) for column in _WORKER if column.name not in stamped}
    now = clock_expression(dialect)
    new = insert_into(workers, dialect).values(said | {"started_at": now, "beat_at": now, "asked_to_drain": FALSE})
    refreshed = {name: new.excluded[name] for name in (*said, "beat_at") if name != "id"}
    beaten = new.on_conflict_do_update(index_elements=["id"], set_=refreshed)
    return Statement(beaten.returning(workers.c.asked_to_drain), dialect)


@cache
def _ask_drain(dialect: Dialect) -> Statement:
    known = update(workers).where(workers.c.id == given("id", ID))
    return Statement(known.values(asked_to_drain=TRUE).returning(workers.c.id), dialect)


@cache
def _forget(dialect: Dialect) -> Statement:
    return Statement(delete(workers).where(workers.c.id == given("id", ID)), dialect)


@cache
def _forget_silent(dialect: Dialect) -> Statement:
    silent = workers.c.beat_at < clock_expression(dialect) - given("silent", BigInteger())
    return Statement(delete(workers).where(silent).returning(workers.c.id), dialect)


@cache
def _workers(dialect: Dialect) -> Statement:
    return Statement(select(*_WORKER).order_by(workers.c.beat_at.desc(), workers.c.id), dialect)

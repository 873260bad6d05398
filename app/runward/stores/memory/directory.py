"""Keys, agents and workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Scope
from runward.ports.directory import ApiKey, PublishedAgent, WorkerRow
from runward.stores.guards import check_text
from runward.stores.memory.database import Faults, MemoryDatabase


class MemoryDirectory:
    """`ports.directory.Directory`."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def add_key(self, key: ApiKey) -> None:
        await self._database.turn(self._faults, "add_key", lambda: _add_key(self._database, key))

    async def key_by_hash(self, hash: str) -> ApiKey | None:
        def work() -> ApiKey | None:
            return next((key for key in self._database.api_keys.values() if key.hash == hash), None)

        return await self._database.turn(self._faults, "key_by_hash", work)

    async def key(self, id: str) -> ApiKey | None:
        return await self._database.turn(self._faults, "key", lambda: self._database.api_keys.get(id))

    async def keys(self, scope: Scope | None) -> Sequence[ApiKey]:
        def work() -> Sequence[ApiKey]:
            keys = [key for key in self._database.api_keys.values() if scope is None or key.scope.tenant == scope.tenant]
            return sorted(keys, key=lambda key: (key.created_at, key.id), reverse=True)

        return await self._database.turn(self._faults, "keys", work)

    async def revoke_key(self, id: str) -> bool:
        return await self._database.turn(self._faults, "revoke_key", lambda: _revoke_key(self._database, id))

    async def note_key_uses(self, ids: Collection[str]) -> None:
        await self._database.turn(self._faults, "note_key_uses", lambda: _note_key_uses(self._database, ids))

    async def authentication(self) -> bool:
        return await self._database.turn(self._faults, "authentication", lambda: self._database.authentication is True)

    async def set_authentication(self, required: bool) -> None:
        def work() -> None:
            self._database.authentication = required

        await self._database.turn(self._faults, "set_authentication", work)

    async def publish_agents(self, agents: Sequence[PublishedAgent]) -> None:
        await self._database.turn(self._faults, "publish_agents", lambda: _publish_agents(self._database, agents))

    async def agents(self) -> Sequence[PublishedAgent]:
        def work() -> Sequence[PublishedAgent]:
            agents = self._database.agents.values()
            return sorted(agents, key=lambda agent: (agent.name, agent.place, agent.version, agent.fingerprint))

        return await self._database.turn(self._faults, "agents", work)

    async def beat(self, worker: WorkerRow) -> bool:
        return await self._database.turn(self._faults, "beat", lambda: _beat(self._database, worker))

    async def ask_worker_drain(self, id: str) -> bool:
        return await self._database.turn(self._faults, "ask_worker_drain", lambda: _ask_worker_drain(self._database, id))

    async def forget_worker(self, id: str) -> None:
        await self._database.turn(self._faults, "forget_worker", lambda: self._database.workers.pop(id, None))

    async def forget_silent_workers(self, silent_ms: int) -> int:
        return await self._database.turn(self._faults, "forget_silent_workers", lambda: _forget_silent_workers(self._database, silent_ms))

    async def workers(self) -> Sequence[WorkerRow]:
        def work() -> Sequence[WorkerRow]:
            return sorted(self._database.workers.values(), key=lambda worker: (-worker.beat_at, worker.id))

        return await self._database.turn(self._faults, "workers", work)


def _add_key(database: MemoryDatabase, key: ApiKey) -> None:
    check_text(key)
    if key.id in database.api_keys or any(known.hash == key.hash for known in database.api_keys.values()):
        raise InvariantViolated("an API key is made once")
    database.api_keys[key.id] = key
    if database.authentication is None:
        database.authentication = True


def _revoke_key(database: MemoryDatabase, id: str) -> bool:
    key = database.api_keys.get(id)
    if key is None or key.revoked_at is not None:
        return False
    database.api_keys[id] = replace(key, revoked_at=database.now())
    return True


def _note_key_uses(database: MemoryDatabase, ids: Collection[str]) -> None:
    now = database.now()
    for id in ids:
        if id in database.api_keys:
            database.api_keys[id] = replace(database.api_keys[id], last_used_at=now)


def _publish_agents(database: MemoryDatabase, agents: Sequence[PublishedAgent]) -> None:
    check_text(agents)
    now = database.now()
    for agent in agents:
        database.agents[agent.name, agent.version, agent.fingerprint] = replace(agent, published_at=now)


def _beat(database: MemoryDatabase, worker: WorkerRow) -> bool:
    check_text(worker)
    now = database.now()
    known = database.workers.get(worker.id)
    started_at, asked = (now, False) if known is None else (known.started_at, known.asked_to_drain)
    database.workers[worker.id] = replace(worker, started_at=started_at, beat_at=now, asked_to_drain=asked)
    return asked


def _ask_worker_drain(database: MemoryDatabase, id: str) -> bool:
    worker = database.workers.get(id)
    if worker is None:
        return False
    database.workers[id] = replace(worker, asked_to_drain=True)
    return True


def _forget_silent_workers(database: MemoryDatabase, silent_ms: int) -> int:
    before = database.now() - silent_ms
    silent = [worker.id for worker in database.workers.values() if worker.beat_at < before]
    for id in silent:
        del database.workers[id]
    return len(silent)

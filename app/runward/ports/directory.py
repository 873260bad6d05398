"""What processes tell each other through the store beside actors: API keys, published agents, live workers.

All of it raises `Unavailable` when the store is away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from runward.core.kernel.actor import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A caller's key as stored: never the key itself, only its SHA-256. `operator` sees all tenants. Times in milliseconds.

    `last_used_at` is when a process last said that it was used; it may lag behind by a minute.
    """

    id: str
    hash: str
    prefix: str
    scope: Scope
    operator: bool
    permissions: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAgent:
    """An agent some worker can drive. `manifest` is JSON text. `fingerprint` is its binding; `place` orders versions of one name as their
    author defined them, and the last one is the default."""

    name: str
    version: str
    fingerprint: str
    place: int
    manifest: str
    published_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker process as it last said. `driving` counts its runs. Times in milliseconds on the store's clock.

    `asked_to_drain` is what others want of it, and nothing that it says itself.
    """

    id: str
    host: str
    pid: int
    started_at: int
    beat_at: int
    slots: int
    driving: int
    draining: bool
    bindings: tuple[str, ...]
    asked_to_drain: bool = False


class Directory(Protocol):
    """See the module. `now` is never given: the store's clock stamps what needs it."""

    async def add_key(self, key: ApiKey) -> None: ...

    async def key_by_hash(self, hash: str) -> ApiKey | None:
        """The key with this hash, revoked and expired ones included."""
        ...

    async def key(self, id: str) -> ApiKey | None:
        """The key with this id, revoked and expired ones included."""
        ...

    async def keys(self, scope: Scope | None) -> Sequence[ApiKey]:
        """All keys, newest first; of one tenant when a scope is given."""
        ...

    async def revoke_key(self, id: str) -> bool:
        """Revokes a key for good; False when there is none or it was revoked before."""
        ...

    async def note_key_uses(self, ids: Collection[str]) -> None:
        """These keys were used just now. What is no key is not noted."""
        ...

    async def authentication(self) -> bool:
        """Whether callers must show a key: True from the first key on, for good, unless it was turned off."""
        ...

    async def set_authentication(self, required: bool) -> None:
        """Turns it off, or on again."""
        ...

    async def publish_agents(self, agents: Sequence[PublishedAgent]) -> None:
        """Makes agents known to every process; the same name, version and fingerprint is refreshed."""
        ...

    async def agents(self) -> Sequence[PublishedAgent]:
        """All agents published, by name and place."""
        ...

    async def beat(self, worker: WorkerRow) -> bool:
        """Says that a worker lives; `beat_at` and `started_at` are stamped by the store. Returns whether it was asked to drain."""
        ...

    async def ask_worker_drain(self, id: str) -> bool:
        """Asks a worker to drain: its next beat tells it. False: there is no such worker."""
        ...

    async def forget_worker(self, id: str) -> None:
        """The worker takes its leave."""
        ...

    async def forget_silent_workers(self, silent_ms: int) -> int:
        """Forgets the workers whose last beat is longer ago than that by the store's clock, and returns how many they were."""
        ...

    async def workers(self) -> Sequence[WorkerRow]:
        """Every worker that said so and did not take its leave, latest beat first."""
        ...

"""Seeded series of writes, one after the other: a database answers every one as the store in memory does, and ends as it ends."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Envelope, Scope, Status
from runward.core.kernel.commit import Changes, Claims
from runward.core.kernel.mail import Mail
from runward.ports.store import Append, Renewal, Store
from tests.contract.backends import Backend, MemoryBackend
from tests.contract.builders import (
    BASE,
    append,
    approval,
    approved,
    changes,
    claim_request,
    face,
    frames,
    idempotency_key,
    letter,
    message,
    new_actor,
    picture,
    position_of,
    receipt,
    to,
    uid_of,
)

ACTORS = range(1, 7)
TTL, DELAY = 10_000_000, 1_000_000
"""Longer than any test, so that only `age` makes a lease run out and a suspect wait."""
FUTURE = 10**14
KEYS = ["k1", "k2", "k3", "approval:ap_1", "cancel", "retry:1"]

Write = Callable[[Store], Awaitable[object]]


class Series:
    """Chooses writes. What it knows of actors it reads from the model; now and then it acts on what it knew before."""

    def __init__(self, random: Random, model: MemoryBackend) -> None:
        self._random = random
        self._model = model
        self._numbers = itertools.count(100)
        self._remembered: list[Envelope] = []

    async def next(self) -> tuple[str, Write]:
        """A write, with what to call it."""
        name = self._random.choices(
            [
                "create",
                "claim",
                "commit",
                "append_frames",
                "append_mail",
                "ask_drain",
                "owned",
                "disown",
                "seize",
                "delete",
                "prune",
                "renew",
            ],
            [4, 7, 14, 3, 8, 2, 1, 1, 1, 1, 1, 1],
        )[0]
        write: Write = await getattr(self, f"_{name}")()
        return name, write

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _some(self, choices: Any, most: int) -> list[Any]:
        return self._random.sample(list(choices), self._random.randint(0, most))

    def _number(self) -> int:
        return self._random.choice(ACTORS)

    async def _known(self) -> Envelope | None:
        """An actor as it stands, or as it stood once."""
        envelope = await self._model.reads.get(uid_of(self._number()))
        if envelope is not None:
            self._remembered.append(envelope)
        return self._random.choice(self._remembered) if self._remembered and self._maybe(0.1) else envelope

    async def _create(self) -> Write:
        missing = [number for number in ACTORS if await self._model.reads.get(uid_of(number)) is None]
        number = self._random.choice(missing) if missing and self._maybe(0.8) else self._number()
        new = new_actor(
            number,
            scope=Scope(tenant="globex" if number == 6 else "acme"),
            ready_at=self._random.choice([None, FUTURE]),
            frames=frames(1, number % 3),
            priority=number,  # the clocks tick apart: nothing else tells who is ranked first
            concurrency_key=self._random.choice([None, None, "x", "y"]),
        )
        if await self._model.reads.get(new.uid) is not None:
            new = replace(new, uid=uid_of(next(self._numbers)))
        key = idempotency_key(self._random.choice("abc"), fingerprint=self._random.choice("fg")) if self._maybe(0.3) else None
        return lambda store: store.create(new, key)

    async def _claim(self) -> Write:
        request = claim_request(
            *(f"b{number}" for number in self._random.sample(ACTORS, 4)),
            owner=f"worker-{self._random.randint(1, 2)}",
            ttl_ms=TTL,
            recovery_delay_ms=DELAY,
            max_recoveries=2,
            limit=self._random.choice([1, 100]),
            per_key=self._random.choice([1, 2]),
            per_tenant=self._random.choice([None, None, 2]),
        )
        return lambda store: store.claim(request)

    async def _commit(self) -> Write:
        envelope = await self._known()
        if envelope is None:
            return await self._create()
        commit = self._changes(envelope)
        return lambda store: store.commit(commit)

    def _changes(self, envelope: Envelope) -> Changes:
        status, release = (envelope.status, self._maybe(0.5)) if envelope.status.ended else (Status.RUNNING, self._maybe(0.4))
        if release and not envelope.status.ended:
            status = self._random.choice(
                [Status.QUEUED, Status.SUSPENDED, Status.SUSPENDED, Status.COMPLETED, Status.STOPPED, Status.FAILED]
            )
        times = [None, 1, FUTURE]
        said = face(
            envelope,
            status,
            state=f'{{"n":{next(self._numbers)}}}',
            ready_at=self._random.choice(times),
            care_at=self._random.choice(times),
            rank=self._random.randint(0, 9),
        )
        closings = tuple(map(letter, self._some(KEYS, 2))) if self._maybe(0.2) else ()
        seen = envelope.mail_received if closings or self._maybe(0.5) else None
        applied = self._random.randint(envelope.mail_applied, envelope.mail_received)
        number = next(self._numbers)
        return changes(
            envelope,
            face_of=said,
            release=release,
            frames=frames(envelope.last_seq + 1, self._random.randint(0, 3), text=f"{number}"),
            messages=(message(number),) if self._maybe(0.4) else (),
            receipts=tuple(receipt(id, attempt=number) for id in self._some(["1.1", "1.2", "1.10"], 2)),
            approvals=(approval(f"ap_{number}"),) if self._maybe(0.2) else (),
            approval_closings=(approved(f"ap_{number - self._random.randint(0, 9)}"),) if self._maybe(0.3) else (),
            closings=closings,
            mail_seen=seen,
            mail_applied=envelope.mail_received + len(closings) if closings else applied,
            mail_ignored=tuple(self._some(range(1, applied + 1), min(applied, 2))),
            mail_to=tuple(to(number, key) for number in self._some(range(1, 9), 4) for key in self._random.choices(KEYS, k=2)),
            children=tuple(new_actor(number, frames=frames(1)) for number in self._some(range(1, 6), 1)) if self._maybe(0.2) else (),
        )

    async def _append_frames(self) -> Write:
        envelope = await self._known()
        if envelope is None:
            return await self._create()
        new = frames(envelope.last_seq + 1, self._random.randint(1, 4))
        uid, follows = envelope.uid, position_of(envelope)
        return lambda store: store.append_frames(uid, follows, new)

    async def _append_mail(self) -> Write:
        flags = {name: self._maybe(0.2) for name in ("reopens", "care", "may_be_ended", "marks_cancel")}
        closings = tuple(approved(f"ap_{n}") for n in range(100, next(self._numbers))) if self._maybe(0.2) else ()
        revision = self._random.randint(1, 9) if self._maybe(0.1) else None
        keys = self._some([*KEYS, *(f"u{next(self._numbers)}" for _ in range(4))], 3)
        item: Append = append(self._number(), *keys, wakes=self._maybe(0.8), closings=closings, expected_revision=revision, **flags)
        return lambda store: store.append_mail(item)

    async def _ask_drain(self) -> Write:
        uid = uid_of(self._number())
        return lambda store: store.ask_drain(uid)

    async def _owned(self) -> Write:
        return lambda store: store.owned("worker-1")

    async def _disown(self) -> Write:
        owned = await self._model.store.owned("worker-1")
        legs = {uid: owned.get(uid, 1) - self._maybe(0.2) for uid in map(uid_of, self._some(ACTORS, 6))}
        return lambda store: store.disown("worker-1", legs)

    async def _seize(self) -> Write:
        uid, item = uid_of(self._number()), letter(self._random.choice([*KEYS, f"t{next(self._numbers)}"]))
        lapsed_only = self._maybe(0.3)
        return lambda store: store.seize(uid, item, lapsed_only=lapsed_only)

    async def _prune(self) -> Write:
        before, limit = BASE + self._random.choice([5, 15, 100]), self._random.randint(1, 2)
        return lambda store: store.prune(ended_before=before, limit=limit)

    async def _delete(self) -> Write:
        uid = uid_of(self._number())
        return lambda store: store.delete(uid)

    async def _renew(self) -> Write:
        uids = [uid_of(number) for number in ACTORS]

        async def write(store: Store) -> Renewal:
            renewals = await store.renewals()
            try:
                return await renewals.renew("worker-1", uids, TTL)
            finally:
                await renewals.close()

        return write


async def answer(store: Store, write: Write) -> object:
    """What a write answers, in words that leave out the time; what it refuses as a bug is an answer too."""
    try:
        return timeless(await write(store))
    except InvariantViolated:
        return InvariantViolated


def timeless(value: object) -> object:
    if isinstance(value, Claims):
        return sorted((taken.envelope.uid, taken.recovered, timeless(taken.envelope)) for taken in value.taken)
    if isinstance(value, Renewal):
        return sorted(value.held.items())
    if isinstance(value, Envelope):
        times = ("lease_until", "ready_at", "started_at", "cancel_requested_at")
        fixed: dict[str, Any] = {name: None if getattr(value, name) is None else 0 for name in times}
        return repr(replace(value, rank=0, care_at=None, **fixed))
    if isinstance(value, Mail):
        return replace(value, received_at=0)
    if isinstance(value, list | tuple):
        return [timeless(item) for item in value]
    return value


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
async def test_a_database_answers_as_memory_does(backend: Backend, seed: int) -> None:
    random, model = Random(seed), MemoryBackend()
    series = Series(random, model)
    for step in range(150):
        if random.random() < 0.15:
            uid, ms = uid_of(random.choice(ACTORS)), random.choice([TTL + DELAY // 2, DELAY])
            for one in (model, backend):
                if await one.reads.get(uid) is not None:
                    await one.age(uid, ms)
        name, write = await series.next()
        expected = await answer(model.store, write)
        assert await answer(backend.store, write) == expected, f"seed {seed}, step {step}: {name}"
    numbers = [*ACTORS, 7, 8, *range(100, 1_000)]
    present = [number for number in numbers if await model.reads.get(uid_of(number)) is not None]
    assert timeless(await picture(backend, *present)) == timeless(await picture(model, *present))

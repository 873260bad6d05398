"""What may never happen to a stored actor is refused by the write itself, and leaves nothing (R49)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Envelope, Scope, Status
from runward.core.kernel.commit import Changes
from tests.contract.backends_sql import SqlBackend
from tests.contract.builders import (
    append,
    approval,
    changes,
    claimed,
    created,
    face,
    frames,
    message,
    new_actor,
    picture,
    release,
    released,
    running,
    stored,
    to,
    uid_of,
    written,
)
from tests.stores.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[SqlBackend]:
    if request.param == "sqlite":
        made = SqlBackend(url_of(request.getfixturevalue("file")))
    else:
        made = SqlBackend(request.getfixturevalue("migrated_url"))
    await made.store.open()
    yield made
    await made.close()


@pytest.mark.parametrize("status", [Status.RUNNING, Status.SUSPENDED, Status.FAILED, Status.STOPPED])
async def test_I_20_an_ended_actor_never_gets_another_status(backend: SqlBackend, status: Status) -> None:
    await released(backend, 1, Status.COMPLETED, face={"care_at": 1})
    (envelope,) = await claimed(backend.store)
    before = await picture(backend, 1)
    commit = changes(envelope, face_of=face(envelope, status), frames=frames(1), release=status is not Status.RUNNING)
    with pytest.raises(InvariantViolated):
        await backend.store.commit(commit)
    assert await picture(backend, 1) == before
    await written(backend.store, release(envelope, Status.COMPLETED))


WRONG: dict[str, Callable[[Envelope], Changes]] = {
    "mail is applied that never came": lambda envelope: changes(envelope, mail_applied=2),
    "mail is taken back": lambda envelope: changes(envelope, mail_applied=0),
    "a message is written twice": lambda envelope: changes(envelope, mail_applied=1, messages=(message(2), message(1))),
    "an approval is opened twice": lambda envelope: changes(envelope, mail_applied=1, approvals=(approval("ap_2"), approval("ap_1"))),
    "a child is another tenant's": lambda envelope: changes(
        envelope, mail_applied=1, children=(new_actor(3), new_actor(4, scope=Scope(tenant="globex")))
    ),
    "a child has another actor's public id": lambda envelope: changes(
        envelope, mail_applied=1, children=(new_actor(3, public_id="run-2"),)
    ),
}


@pytest.mark.parametrize("with_letters", [False, True], ids=["alone", "with letters"])
@pytest.mark.parametrize("case", WRONG)
async def test_R49_a_commit_that_breaks_a_promise_leaves_nothing(backend: SqlBackend, case: str, with_letters: bool) -> None:
    envelope = await running(backend.store, 1)
    await created(backend.store, 2)
    await backend.store.append_mail(append(1, "k1"))
    await written(backend.store, changes(envelope, mail_applied=1, messages=(message(1),), approvals=(approval("ap_1"),)))
    envelope = await stored(backend.reads, uid_of(1))
    before = await picture(backend, 1, 2, 3, 4)
    commit = WRONG[case](envelope)
    if with_letters:
        commit = replace(commit, mail_to=(to(2, "k9"),))
    with pytest.raises(InvariantViolated):
        await backend.store.commit(commit)
    assert await picture(backend, 1, 2, 3, 4) == before
    await written(backend.store, changes(envelope, mail_applied=1, mail_to=(to(2, "k9"),)))


async def test_R49_a_uid_is_never_used_twice(backend: SqlBackend) -> None:
    await created(backend.store, 1)
    before = await picture(backend, 1)
    with pytest.raises(InvariantViolated):
        await backend.store.create(new_actor(1, public_id="another"), None)
    assert await picture(backend, 1) == before

"""Text and bytes come back unchanged, and what not every database keeps is refused by all (R46, R47, I-53)."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from runward.core.kernel.actor import Scope
from runward.core.kernel.frames import StoredFrame
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    approval,
    approvals_of,
    approved,
    changes,
    created,
    face,
    idempotency_key,
    letter,
    message,
    new_actor,
    picture,
    position_of,
    receipt,
    running,
    stored,
    to,
    uid_of,
    written,
)

TEXTS = {
    "empty": "",
    "blanks": "  \t\r\n \n",
    "accents, composed and not": "é e\u0301 \u1e9b\u0323",
    "scripts": "日本語 العربية עברית हिन्दी ไทย",
    "emoji": "🦄👩‍👩‍👧‍👦🇪🇺\U0010ffff",
    "line separators": "a\u2028b\u2029c\u0085d\x0b\x0c",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f\ufeff\u202e\ufffe",
    "replacement": "\ufffd\\u0000\\ud800",
    "quotes": "'; DROP TABLE actors; -- \" \\ % _ $1 :name ? {x} %(y)s",
    "numbers": '{"a":1e22,"b":1E+2,"c":-0.0,"d":1.0,"e":123456789012345678901234567890,"f":9007199254740993,"g":1e400}',
    "keys": '{"b":1,"a":2,"b":3, "a" : 4}',
    "framing": "\n\nevent: done\nid: 9\ndata: x\r\r",
    "long": "aé🦄 " * 200_000,
}
"""The values of F-02 to F-07 that may reach a store, and some more. Where a text is JSON it is kept as the text that it is."""


def as_json(text: str) -> str:
    """A text as JSON, written so that a store that parsed and wrote it anew would change it."""
    return ' { "text" : ' + json.dumps(text, ensure_ascii=False) + ', "n" : 1E+2 } '


@pytest.mark.parametrize("name", TEXTS)
async def test_R47_texts_of_an_actor_come_back_as_they_were(backend: Backend, name: str) -> None:
    text = TEXTS[name]
    new = new_actor(
        context=text,
        state=as_json(text),
        metadata=json.dumps({"text": text}, ensure_ascii=False),
        task_outcome=text[:50],
        frames=(StoredFrame(seq=1, data=as_json(text).encode()),),
        messages=(message(1, content=as_json(text), opaque=text.encode(), opaque_format=text[:50]),),
    )
    await backend.store.create(new, idempotency_key(key=text[:50], fingerprint=text[:50]))
    envelope = await stored(backend.reads, new.uid)
    for field in ("context", "state", "metadata", "task_outcome"):
        assert getattr(envelope, field) == getattr(new, field), field
    assert tuple(await backend.reads.frames(new.uid, after=0, limit=10)) == new.frames
    assert tuple(await backend.reads.messages(new.uid, after=0, limit=None)) == new.messages


@pytest.mark.parametrize("name", TEXTS)
async def test_R47_texts_of_a_commit_come_back_as_they_were(backend: Backend, name: str) -> None:
    text = TEXTS[name]
    envelope = await running(backend.store)
    await created(backend.store, 2)
    frames = tuple(StoredFrame(seq=seq, data=as_json(text).encode()) for seq in (1, 2))
    messages = (message(1, content=text, opaque=text.encode(), opaque_format=text[:50]), message(2, content=as_json(text)))
    receipts = (
        receipt("1.1", arguments=as_json(text), raw=text, output=text, detail=text, tool_name=text[:50], outcome=text[:50]),
        receipt("1.2", raw=None, output=None),
    )
    approvals = (approval(data=text, tool=text[:50]),)
    closing = letter("own", data=text, principal=text)
    commit = changes(
        envelope,
        face_of=face(envelope, state=text, stop_reason=text[:50], task_outcome=text[:50]),
        frames=frames[:1],
        messages=messages,
        receipts=receipts,
        approvals=approvals,
        closings=(closing,),
        mail_seen=0,
        mail_applied=1,
        mail_to=(to(2, data=text, principal=as_json(text)),),
    )
    await written(backend.store, commit)
    envelope = await stored(backend.reads, envelope.uid)
    await backend.store.append_frames(envelope.uid, position_of(envelope), frames[1:])
    await written(backend.store, changes(await stored(backend.reads, envelope.uid), approval_closings=(approved(decision=text),)))
    assert (envelope.state, envelope.stop_reason, envelope.task_outcome) == (text, text[:50], text[:50])
    pages = [await backend.reads.frames(envelope.uid, after=after, limit=10) for after in (0, 1)]  # a page of long ones is shorter
    assert pages[0][0] == frames[0] and tuple(pages[1]) == frames[1:]
    assert tuple(await backend.reads.messages(envelope.uid, after=0, limit=None)) == messages
    assert tuple(await backend.reads.receipts(envelope.uid)) == receipts
    (row,) = await approvals_of(backend.reads, envelope.uid)
    assert (row.data, row.tool, row.decision) == (text, text[:50], text)
    (own,) = await backend.reads.mail(envelope.uid, after=0, limit=None)
    (theirs,) = await backend.reads.mail(uid_of(2), after=0, limit=None)
    assert (own.data, own.principal) == (text, text)
    assert (theirs.data, theirs.principal) == (text, as_json(text))


@pytest.mark.parametrize("name", TEXTS)
async def test_R47_texts_of_letters_come_back_as_they_were(backend: Backend, name: str) -> None:
    text = TEXTS[name]
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval(),)))
    letters = (letter(text[:50], data=text, principal=as_json(text)), letter("no principal", principal=None))
    await backend.store.append_mail(append(1, letters=letters, closings=(approved(decision=text),)))
    mail = await backend.reads.mail_by_key(uid_of(1), [text[:50], "no principal"])
    assert (mail[text[:50]].data, mail[text[:50]].principal) == (text, as_json(text))
    assert mail["no principal"].principal is None
    assert [row.decision for row in await approvals_of(backend.reads, uid_of(1))] == [text]


async def test_bytes_come_back_as_they_were(backend: Backend) -> None:
    every_byte = bytes(range(256))
    messages = (message(1, opaque=every_byte, opaque_format="x"), message(2, opaque=b"", opaque_format="x"), message(3, opaque=None))
    await created(backend.store, messages=messages)
    assert tuple(await backend.reads.messages(uid_of(1), after=0, limit=None)) == messages


async def test_large_numbers_come_back_as_they_were(backend: Backend) -> None:
    far = 2**53 + 1
    envelope = await running(backend.store, created_at=far, care_at=far + 1)
    said = face(envelope, waiting_on=2**30, updated_at=far + 2, task_outcome="resolved")
    await written(backend.store, changes(envelope, face_of=said, receipts=(receipt("70000.80000", started_at=far, attempt=40_000),)))
    after = await stored(backend.reads, envelope.uid)
    assert (after.created_at, after.care_at, after.waiting_on, after.updated_at) == (far, far + 1, 2**30, far + 2)
    assert list(await backend.reads.receipts(envelope.uid)) == [receipt("70000.80000", started_at=far, attempt=40_000)]


# -- what no store takes -------------------------------------------------------------------------------------------------

BAD = ["a\0b", "a\ud800b", "\udfff"]


def with_bad_text(value: Any, bad: str) -> list[Any]:
    """A value once for every text in it, with that text replaced."""
    found = []
    for field in fields(value):
        inner = getattr(value, field.name)
        if type(inner) is str:
            found.append(replace(value, **{field.name: bad}))
    return found


@pytest.mark.parametrize("bad", BAD, ids=ascii)
async def test_I_53_text_that_no_store_keeps_creates_nothing(backend: Backend, bad: str) -> None:
    before = await picture(backend, 1)
    plain = new_actor(context="c", session_id="s", scope=Scope(tenant="acme", user="u", namespace="n"))
    bad_actors = with_bad_text(plain, bad) + [replace(plain, scope=scope) for scope in with_bad_text(plain.scope, bad)]
    bad_actors += [replace(plain, messages=(row,)) for row in with_bad_text(message(1, opaque_format="x"), bad)]
    for new in bad_actors:
        with pytest.raises(ValueError, match=r"."):
            await backend.store.create(new, idempotency_key())
    for key in with_bad_text(idempotency_key(), bad):
        with pytest.raises(ValueError, match=r"."):
            await backend.store.create(plain, key)
    assert await picture(backend, 1) == before


@pytest.mark.parametrize("bad", BAD, ids=ascii)
async def test_I_53_text_that_no_store_keeps_commits_nothing(backend: Backend, bad: str) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    await created(backend.store, 2)
    envelope = await stored(backend.reads, envelope.uid)
    before = await picture(backend, 1, 2, 3)
    commits = [changes(envelope, face_of=bad_face) for bad_face in with_bad_text(face(envelope, stop_reason="s"), bad)]
    commits += [changes(envelope, messages=(row,)) for row in with_bad_text(message(1, opaque_format="x"), bad)]
    commits += [changes(envelope, receipts=(row,)) for row in with_bad_text(receipt(raw="r", output="o", outcome="x"), bad)]
    commits += [changes(envelope, approvals=(row,)) for row in with_bad_text(approval("ap_2"), bad)]
    commits += [changes(envelope, approval_closings=(row,)) for row in with_bad_text(approved(), bad)]
    commits += [changes(envelope, closings=(row,), mail_seen=0, mail_applied=1) for row in with_bad_text(letter(), bad)]
    commits += [changes(envelope, mail_to=(to(2, key=bad),)), changes(envelope, mail_to=(to(2, data=bad),))]
    commits += [changes(envelope, children=(new,)) for new in with_bad_text(new_actor(3), bad)]
    for commit in commits:
        with pytest.raises(ValueError, match=r"."):
            await backend.store.commit(commit)
    assert await picture(backend, 1, 2, 3) == before
    await written(backend.store, changes(envelope))


@pytest.mark.parametrize("bad", BAD, ids=ascii)
async def test_I_53_text_that_no_store_keeps_is_no_mail(backend: Backend, bad: str) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    before = await picture(backend, 1)
    for bad_letter in with_bad_text(letter(), bad):
        with pytest.raises(ValueError, match=r"."):
            await backend.store.append_mail(append(1, letters=(letter("fine"), bad_letter)))
    for closing in with_bad_text(approved("ap_1"), bad):
        with pytest.raises(ValueError, match=r"."):
            await backend.store.append_mail(append(1, "fine", closings=(closing,)))
    assert await picture(backend, 1) == before

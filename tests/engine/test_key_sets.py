"""The keys of an identity provider: fetched beside the requests, seldom, and kept while nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jwt.algorithms import RSAAlgorithm

from runward.core.errors import Unavailable
from runward.engine import key_sets
from runward.engine.key_sets import ASYMMETRIC, FIRST_INTERVAL_SECONDS, FRESH_SECONDS, INTERVAL_SECONDS, KEPT_SECONDS, KeySet
from runward.ports.outbound import Incoming, OutboundError, Outgoing, Unreachable
from runward.testing import VirtualClock
from tests.engine.rig import Heard
from tests.support.identity import jwks, private_key, public_jwk


def body(*keys: Any) -> bytes:
    """A set of keys without the head of an answer."""
    return jwks(*keys).partition(b"\r\n\r\n")[2]


@dataclass
class Provider:
    """`ports.outbound.Outbound` that answers what a test says, once `open` is set."""

    answer: Incoming | OutboundError = field(default_factory=lambda: came(body("rsa1")))
    asked: list[Outgoing] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, outgoing: Outgoing) -> Incoming:
        self.asked.append(outgoing)
        await self.open.wait()
        if isinstance(self.answer, OutboundError):
            raise self.answer
        return self.answer


def came(body: bytes, status: int = 200, **more: Any) -> Incoming:
    return Incoming(status=status, content_type="application/json", body=body, **more)


@dataclass
class Kept:
    keys: KeySet
    provider: Provider
    clock: VirtualClock
    heard: Heard

    async def has(self, id: str) -> bool:
        return await self.keys.key(id) is not None


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    provider, clock, heard = Provider(), VirtualClock(), Heard()
    provider.open.set()
    keys = KeySet("https://id.example/keys", algorithms=ASYMMETRIC, outbound=provider, clock=clock, telemetry=heard)
    yield Kept(keys, provider, clock, heard)
    await keys.close()


async def turns() -> None:
    """Everybody who can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_key_is_fetched_once_and_then_known(kept: Kept) -> None:
    assert await asyncio.gather(*(kept.has("rsa1") for _ in range(50))) == [True] * 50
    assert all([await kept.has("rsa1") for _ in range(50)])
    assert len(kept.provider.asked) == 1
    (sent,) = kept.provider.asked
    assert (sent.method, sent.url, sent.body) == ("GET", "https://id.example/keys", None)
    assert sent.timeout_seconds <= 5 and sent.max_bytes <= 262_144


async def test_a_known_key_waits_for_no_fetch(kept: Kept) -> None:
    """What is old is fetched anew beside the requests, also by a provider that hangs."""
    assert await kept.has("rsa1")
    kept.provider.open.clear()
    kept.clock.advance(FRESH_SECONDS)
    async with asyncio.timeout(1):
        assert all([await kept.has("rsa1") for _ in range(50)])
        await turns()
        assert len(kept.provider.asked) == 2
        kept.clock.advance(INTERVAL_SECONDS * 3)
        assert await kept.has("rsa1")
    assert len(kept.provider.asked) == 2, "one fetch at a time"


async def test_keys_rotate(kept: Kept) -> None:
    """A new one is there when a token first names it, and a withdrawn one goes with the next fetch."""
    assert await kept.has("rsa1")
    kept.clock.advance(INTERVAL_SECONDS)
    kept.provider.answer = came(body("rsa1", "rsa2"))
    assert await kept.has("rsa2")
    kept.provider.answer = came(body("rsa2"))
    kept.clock.advance(FRESH_SECONDS)
    assert await kept.has("rsa1"), "good until the fetch is done"
    await turns()
    assert await kept.has("rsa2")
    assert not await kept.has("rsa1")


async def test_made_up_names_cost_the_provider_one_fetch_in_an_interval_and_no_memory(kept: Kept) -> None:
    assert await kept.has("rsa1")
    for number in range(1_000):
        assert not await kept.has(f"made-up-{number}")
    assert len(kept.provider.asked) == 1, "too soon after the first"
    kept.clock.advance(INTERVAL_SECONDS)
    assert await asyncio.gather(*(kept.has(f"made-up-{number}") for number in range(1_000))) == [False] * 1_000
    for number in range(1_000):
        assert not await kept.has(f"made-up-{number}")
    assert len(kept.provider.asked) == 2
    assert len(kept.keys._keys) == 1


async def test_a_failed_fetch_counts_for_the_interval_too(kept: Kept) -> None:
    assert await kept.has("rsa1")
    kept.provider.answer = Unreachable("Nobody listens.")
    for _ in range(3):
        kept.clock.advance(INTERVAL_SECONDS)
        for number in range(100):
            assert not await kept.has(f"made-up-{number}")
    assert len(kept.provider.asked) == 4
    assert kept.heard.names == ["identity_keys_failed"] * 3


BROKEN: dict[str, Incoming | OutboundError] = {
    "nobody listens": Unreachable("Nobody listens."),
    "500": came(b"", 500),
    "404 with keys": came(body("rsa1"), 404),
    "an answer that is too large": came(b"", fault="too_large"),
    "no JSON": came(b"<html>"),
    "deep JSON": came(b"[" * 200_000),
    "a list": came(b"[]"),
    "no list of keys": came(b'{"keys": {}}'),
    "an empty set": came(b'{"keys": []}'),
    "no key of ours": came(body({"kty": "oct", "kid": "rsa1", "k": "AAAA", "use": "sig"})),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_known_keys_go_on_while_the_provider_does_not_answer_and_for_a_day(kept: Kept, answer: Incoming | OutboundError) -> None:
    assert await kept.has("rsa1")
    kept.provider.answer = answer
    kept.clock.advance(FRESH_SECONDS)
    for _ in range(5):
        assert await kept.has("rsa1")
        await turns()
        kept.clock.advance(INTERVAL_SECONDS)
    assert kept.heard.names == ["identity_keys_failed"] * 5
    kept.clock.advance(KEPT_SECONDS)
    with pytest.raises(Unavailable):
        await kept.has("rsa1")
    kept.provider.answer = came(body("rsa1"))
    kept.clock.advance(INTERVAL_SECONDS)
    assert await kept.has("rsa1")


async def test_before_there_was_a_key_nobody_can_know(kept: Kept) -> None:
    kept.provider.answer = came(b"", 503)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await kept.has("rsa1")
    assert len(kept.provider.asked) == 1
    kept.provider.answer = came(body("rsa1"))
    kept.clock.advance(FIRST_INTERVAL_SECONDS)
    assert await kept.has("rsa1")


async def test_who_leaves_takes_nobodys_fetch_along(kept: Kept) -> None:
    kept.provider.open.clear()
    leaves, stays = asyncio.ensure_future(kept.has("rsa1")), asyncio.ensure_future(kept.has("rsa1"))
    await turns()
    leaves.cancel()
    await turns()
    kept.provider.open.set()
    assert await stays
    assert leaves.cancelled()


async def test_a_process_that_ends_lets_go_of_its_fetch(kept: Kept) -> None:
    kept.provider.open.clear()
    waiting = asyncio.ensure_future(kept.has("rsa1"))
    await turns()
    async with asyncio.timeout(1):
        await kept.keys.close()
        with pytest.raises(Unavailable):
            await waiting


UNUSABLE: dict[str, Any] = {
    "for encryption": public_jwk("rsa1", use="enc"),
    "for encryption, by its operations": {**public_jwk("rsa1"), "key_ops": ["encrypt"]},
    "operations that are no list": {**public_jwk("rsa1"), "key_ops": 1},
    "without an id": {name: value for name, value in public_jwk("rsa1").items() if name != "kid"},
    "with an id that is none": public_jwk("rsa1", kid=7),
    "a shared secret": {"kty": "oct", "kid": "rsa1", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "alg": "HS256"},
    "a public key for HS256": public_jwk("rsa1", alg="HS256"),
    "a public key for none": public_jwk("rsa1", alg="none"),
    "an RSA key for ES256": public_jwk("rsa1", alg="ES256"),
    "an algorithm nobody knows": public_jwk("rsa1", alg="RS1"),
    "an algorithm that is a number": public_jwk("rsa1", alg=7),
    "1,024 bits": public_jwk("weak", kid="rsa1"),
    "an exponent of nothing": public_jwk("rsa1", e="AA"),
    "half a key": {name: value for name, value in public_jwk("rsa1").items() if name != "n"},
    "a curve nobody knows": public_jwk("ec", kid="rsa1", crv="P-1"),
    "a point that is not on its curve": public_jwk("ec", kid="rsa1", x="AAAA"),
    "a text": "rsa1",
    "nothing": None,
}


@pytest.mark.parametrize("given", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_what_is_no_key_to_verify_with_is_passed_over(kept: Kept, given: Any) -> None:
    kept.provider.answer = came(body(given if given != "rsa1" else [], "rsa2"))
    assert not await kept.has("rsa1")
    assert await kept.has("rsa2")


async def test_each_key_verifies_with_one_algorithm(kept: Kept) -> None:
    kept.provider.answer = came(
        body("rsa1", public_jwk("rsa2", alg="PS256"), "ec", "p384", "ed", public_jwk("rsa3", kid="rsa1", alg="RS512"))
    )
    found = {id: await kept.keys.key(id) for id in ("rsa1", "rsa2", "ec", "p384", "ed")}
    assert [key and key.algorithm_name for key in found.values()] == ["RS256", "PS256", "ES256", "ES384", "EdDSA"]


async def test_keys_for_what_is_not_accepted_are_none(kept: Kept) -> None:
    kept.keys._algorithms = ("ES256",)
    kept.provider.answer = came(body("rsa1", "ec"))
    assert [await kept.has(id) for id in ("rsa1", "ec")] == [False, True]


async def test_a_private_key_in_the_set_is_taken_for_its_public_half(kept: Kept) -> None:
    private: Any = private_key("rsa1")
    whole = {**RSAAlgorithm.to_jwk(private, as_dict=True), "kid": "rsa1", "key_ops": ["sign", "verify"]}
    assert "d" in whole
    kept.provider.answer = came(body(whole))
    key = await kept.keys.key("rsa1")
    assert key is not None and not hasattr(key.key, "private_numbers")
    assert "d" not in key._jwk_data


async def test_of_very_many_keys_some_are_read(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "MAX_KEYS", 2)
    kept.provider.answer = came(body("rsa1", "rsa2", "ec"))
    assert [await kept.has(id) for id in ("rsa1", "rsa2", "ec")] == [True, True, False]

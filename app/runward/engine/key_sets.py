"""The public keys of an identity provider (its JWKS), as this process knows them.

They are fetched beside the requests: one that names a known key never waits, whether the provider answers or not. One that names a key
that nobody has heard of may wait for a fetch, of which there is one at a time and none within `INTERVAL_SECONDS` of the one before: made-up
names cost the provider nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jwt import PyJWK

from runward.core.errors import Unavailable
from runward.ports.clock import Clock
from runward.ports.outbound import Incoming, Outbound, OutboundError, Outgoing
from runward.ports.telemetry import Telemetry

FRESH_SECONDS: Final = 300.0
"""How long a set of keys is good for before it is fetched anew. A key that the provider has withdrawn is good for that much longer."""
INTERVAL_SECONDS: Final = 10.0
"""How long nobody asks the provider again, whatever came of it."""
FIRST_INTERVAL_SECONDS: Final = 1.0
"""The same for as long as there has never been a key."""
KEPT_SECONDS: Final = 86_400.0
"""How long the last set of keys goes on while the provider does not answer."""
FETCH_SECONDS: Final = 5.0
MAX_BYTES: Final = 262_144
MAX_KEYS: Final = 100

ASYMMETRIC: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Every algorithm that a provider may sign with: those whose key to verify with cannot sign."""


class KeySet:
    """The keys at a URL. `algorithms` are those that are accepted, and keys for others are none."""

    def __init__(self, url: str, *, algorithms: Sequence[str], outbound: Outbound, clock: Clock, telemetry: Telemetry) -> None:
        self._url = url
        self._algorithms = algorithms
        self._outbound = outbound
        self._clock = clock
        self._telemetry = telemetry
        self._keys: Mapping[str, PyJWK] = {}
        self._fetched_at = 0.0
        self._next_at = clock.monotonic()
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, id: str) -> PyJWK | None:
        """The key of this id, None where there is none. Raises Unavailable while nobody can know."""
        if not self._is_kept() or id not in self._keys:
            await self.fetch()
            if not self._is_kept():
                raise Unavailable("The keys of the identity provider cannot be had just now.")
        elif self._clock.monotonic() - self._fetched_at >= FRESH_SECONDS:
            self.begin()
        return self._keys.get(id)

    async def fetch(self) -> None:
        """Returns once the provider has answered, or could not be asked; at once where it is too soon to ask again."""
        fetching = self.begin()
        if fetching is not None:
            await asyncio.wait((fetching,))  # whoever waits may leave: the fetch is everybody's

    async def close(self) -> None:
        """Lets go of a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))

    def _is_kept(self) -> bool:
        return bool(self._keys) and self._clock.monotonic() - self._fetched_at < KEPT_SECONDS

    def begin(self) -> asyncio.Task[None] | None:
        """Asks the provider, beside whatever goes on. The fetch that is under way, be it new or not; None where it is too soon for one."""
        if self._fetching is None and self._clock.monotonic() >= self._next_at:
            self._fetching = asyncio.ensure_future(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        outgoing = Outgoing(
            method="GET",
            url=self._url,
            headers=(("Accept", "application/jwk-set+json, application/json"),),
            timeout_seconds=FETCH_SECONDS,
            max_bytes=MAX_BYTES,
        )
        try:
            self._keys = _keys_in(await self._outbound.send(outgoing), self._algorithms)
            self._fetched_at = self._clock.monotonic()
        except OutboundError as error:
            self._telemetry.problem("identity_keys_failed", error, reason="The provider did not answer.")
        except _NoKeys as error:
            self._telemetry.problem("identity_keys_failed", reason=str(error))
        finally:
            self._next_at = self._clock.monotonic() + (INTERVAL_SECONDS if self._keys else FIRST_INTERVAL_SECONDS)
            self._fetching = None


class _NoKeys(Exception):
    """What came is no set of keys."""


def _keys_in(incoming: Incoming, algorithms: Sequence[str]) -> Mapping[str, PyJWK]:
    """The usable keys by id; of two with the same the first. Raises _NoKeys where there is none."""
    if incoming.status != 200 or incoming.fault is not None:
        raise _NoKeys(f"The provider answered {incoming.status}{f', {incoming.fault}' if incoming.fault else ''}.")
    try:
        document = json.loads(incoming.body)
    except (ValueError, RecursionError):
        raise _NoKeys("The answer is not JSON.") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise _NoKeys('The answer is not {"keys": […]}.')
    found: dict[str, PyJWK] = {}
    for each in listed[:MAX_KEYS]:
        key = _key_of(each, algorithms)
        if key is not None:
            found.setdefault(str(key.key_id), key)
    if not found:
        raise _NoKeys(f"There is no key in it for {', '.join(algorithms)} that has a kid.")
    return found


def _key_of(given: Any, algorithms: Sequence[str]) -> PyJWK | None:
    """A key that verifies and has an id; None for what is meant for something else, weak, or not a key.

    Each key verifies with one algorithm alone: the one it names, else the usual one of its type.
    """
    if not isinstance(given, dict) or not isinstance(given.get("kid"), str) or given.get("use", "sig") != "sig":
        return None
    operations = given.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    public = {name: value for name, value in given.items() if name not in _PRIVATE}
    try:
        key = PyJWK(public)
    except Exception:  # noqa: BLE001 - whatever it is that the library stumbles over, it is no key
        return None
    known = key.algorithm_name in ASYMMETRIC and key.algorithm_name in algorithms
    return key if known and key.Algorithm.check_key_length(key.key) is None else None


_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""What only whoever signs should have. A set that holds it is a mistake, and it is not taken over."""

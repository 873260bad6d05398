"""Callers who come with a token of an identity provider (a signed JWT) in place of a key.

What such a token is trusted for is what settings say of its claims. Nobody becomes an operator by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from jwt.types import Options

from runward.core.errors import NotPermitted, Unauthenticated
from runward.core.kernel.actor import Scope
from runward.engine.callers import BEARER_PREFIX, Caller, Permission
from runward.engine.key_sets import KeySet
from runward.engine.keys import is_name
from runward.engine.timing import StoreTime

MAX_LENGTH: Final = 16_384
"""The longest that a token can be, in characters."""

_NEVER: Final = 2**43
"""Seconds that no token lasts, and the first that a time in milliseconds could not be counted to."""
_SUBJECT = re.compile(r"[\x20-\x7e]{1,255}\Z", re.ASCII)
"""OpenID Connect says so."""
_OPTIONS: Final[Options] = {
    "require": ["exp", "iss", "aud", "sub"],
    "verify_exp": False,  # below, by the store's clock
    "verify_nbf": False,
    "verify_iat": False,
    "enforce_minimum_key_length": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Which tokens are good here, and what their claims say of a caller.

    The tenant is `tenant`, or what `tenant_claim` says. A claim that is named confines whoever comes: a token without it opens nothing.
    What `permissions_claim` lists are permissions, or `roles`, each of which is some.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_seconds: float
    tenant: str | None
    tenant_claim: str | None
    user_claim: str | None
    namespace_claim: str | None
    permissions_claim: str
    roles: Mapping[str, frozenset[Permission]]


class Bearers:
    """Knows callers by their tokens. Each is checked whenever it comes; nothing is remembered of any."""

    def __init__(self, claims: Claims, keys: KeySet, time: StoreTime) -> None:
        self._claims = claims
        self._keys = keys
        self._time = time

    async def caller(self, text: str) -> Caller:
        """Whoever shows this token. Raises Unauthenticated, for whatever is wrong with it alike; NotPermitted where a good one does not say
        who comes; and Unavailable while the provider's keys are not known."""
        told = await self._verified(text)
        expires_at = self._in_its_time(told)
        scope = Scope(
            tenant=self._claims.tenant or self._named(told, self._claims.tenant_claim),
            user=self._named(told, self._claims.user_claim) if self._claims.user_claim else None,
            namespace=self._named(told, self._claims.namespace_claim) if self._claims.namespace_claim else None,
        )
        return Caller(name=BEARER_PREFIX + told["sub"], scope=scope, permissions=self._permissions(told), ends_at=expires_at)

    def prepare(self) -> None:
        """Asks for the provider's keys before a first caller needs them."""
        self._keys.begin()

    async def close(self) -> None:
        """Lets go of what is under way."""
        await self._keys.close()

    async def _verified(self, text: str) -> Mapping[str, Any]:
        """The claims of a token that the provider has signed for this service."""
        claims, told = self._claims, None
        try:
            key = await self._key(text)
            if key is not None:
                told = jwt.decode(text, key, algorithms=claims.algorithms, audience=claims.audience, issuer=claims.issuer, options=_OPTIONS)
        except jwt.PyJWTError:
            raise _not_valid() from None
        if told is None or not _SUBJECT.match(told["sub"]):
            raise _not_valid()
        return told

    async def _key(self, text: str) -> jwt.PyJWK | None:
        """The key that a token says it was signed with: its header is believed in nothing else, not even in how."""
        header = jwt.get_unverified_header(text) if len(text) <= MAX_LENGTH else {}
        if header.get("alg") not in self._claims.algorithms or "kid" not in header:
            return None
        return await self._keys.key(header["kid"])

    def _in_its_time(self, told: Mapping[str, Any]) -> int:
        """Until when a token is good, in milliseconds since 1970."""
        now, leeway = self._time.now() / 1000, self._claims.leeway_seconds
        expires = _seconds(told["exp"])
        begins = max(_seconds(told.get(name, 0)) for name in ("nbf", "iat"))
        if expires <= now - leeway or begins > now + leeway:
            raise _not_valid()
        return int(expires * 1000)

    def _named(self, told: Mapping[str, Any], claim: str | None) -> str:
        name = told.get(claim or "")
        if not isinstance(name, str) or not is_name(name):
            raise NotPermitted(f"This token does not say in {claim!r} who comes: one name, of 1 to 128 characters.")
        return name

    def _permissions(self, told: Mapping[str, Any]) -> frozenset[Permission]:
        listed = told.get(self._claims.permissions_claim)
        names = listed.split() if isinstance(listed, str) else listed if isinstance(listed, list) else []
        found: set[Permission] = set()
        for name in names:
            if isinstance(name, str):
                found |= self._claims.roles.get(name, frozenset(each for each in Permission if each.value == name))
        return frozenset(found)


def _seconds(value: Any) -> float:
    """A time in a token. Raises Unauthenticated for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _NEVER:
        raise _not_valid()
    return float(value)


def _not_valid() -> Unauthenticated:
    return Unauthenticated("This token is not valid here, or not any more.")

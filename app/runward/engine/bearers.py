"""Callers who come with a token of an identity provider (a signed JWT) in place of a key.

What such a token is trusted for is what settings say of its claims. Nobody becomes an operator by one.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
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
REMEMBERED: Final = 1_000
"""Of how many tokens it is remembered that they were signed well."""

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


@dataclass(frozen=True, slots=True)
class _Good:
    """A token that the provider has signed with this key, and who comes with it from when until when, in seconds since 1970."""

    kid: str
    key: jwt.PyJWK
    caller: Caller
    begins: float
    expires: float


class Bearers:
    """Knows callers by their tokens. Of good ones it is remembered that they were signed well, which takes a while to find out: a key that
    the provider withdraws, and the time, end them all the same.
    """

    def __init__(self, claims: Claims, keys: KeySet, time: StoreTime) -> None:
        self._claims = claims
        self._keys = keys
        self._time = time
        self._good: OrderedDict[bytes, _Good] = OrderedDict()

    async def caller(self, text: str) -> Caller:
        """Whoever shows this token. Raises Unauthenticated, for whatever is wrong with it alike; NotPermitted where a good one does not say
        who comes; and Unavailable while the provider's keys are not known."""
        if len(text) > MAX_LENGTH:
            raise _not_valid()
        hash = hashlib.sha256(text.encode()).digest()
        good = self._good.get(hash)
        if good is None or await self._keys.key(good.kid) is not good.key:
            good = self._good[hash] = await self._read(text)
            if len(self._good) > REMEMBERED:
                self._good.popitem(last=False)
        self._check_time(good.begins, good.expires)
        return good.caller

    def prepare(self) -> None:
        """Asks for the provider's keys before a first caller needs them."""
        self._keys.begin()

    async def close(self) -> None:
        """Lets go of what is under way."""
        await self._keys.close()

    async def _read(self, text: str) -> _Good:
        """What the provider has signed for this service. A token's header is believed in which key to try, and in nothing else."""
        claims, told, kid, key = self._claims, None, "", None
        try:
            header = jwt.get_unverified_header(text)
            if header.get("alg") in claims.algorithms and "kid" in header:
                kid = header["kid"]
                key = await self._keys.key(kid)
            if key is not None:
                told = jwt.decode(text, key, algorithms=claims.algorithms, audience=claims.audience, issuer=claims.issuer, options=_OPTIONS)
        except jwt.PyJWTError:
            raise _not_valid() from None
        if key is None or told is None or not _SUBJECT.match(told["sub"]):
            raise _not_valid()
        begins, expires = max(_seconds(told.get(name, 0)) for name in ("nbf", "iat")), _seconds(told["exp"])
        self._check_time(begins, expires)
        return _Good(kid, key, self._caller(told, expires), begins, expires)

    def _check_time(self, begins: float, expires: float) -> None:
        now, leeway = self._time.now() / 1000, self._claims.leeway_seconds
        if expires <= now - leeway or begins > now + leeway:
            raise _not_valid()

    def _caller(self, told: Mapping[str, Any], expires: float) -> Caller:
        claims = self._claims
        scope = Scope(
            tenant=claims.tenant or self._named(told, claims.tenant_claim),
            user=self._named(told, claims.user_claim) if claims.user_claim else None,
            namespace=self._named(told, claims.namespace_claim) if claims.namespace_claim else None,
        )
        name = BEARER_PREFIX + told["sub"]
        return Caller(name=name, scope=scope, permissions=self._permissions(told), ends_at=int(expires * 1000))

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

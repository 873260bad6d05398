"""Who is calling: keys, access tokens, and tokens of an identity provider."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runward.core.errors import NotPermitted, Unauthenticated
from runward.core.kernel.actor import Scope
from runward.engine import keys
from runward.engine.callers import BEARER_PREFIX, LOCAL, Caller, Permission
from runward.engine.key_uses import KeyUses
from runward.engine.services import Services
from runward.engine.tokens import Tokens, is_token
from runward.ports.bus import Hint, Topic
from runward.ports.directory import ApiKey

if TYPE_CHECKING:
    from runward.engine.bearers import Bearers

FRESH_SECONDS = 0.5
"""How long what the store said about a key is good for where no hint says that keys have changed."""
REMEMBERED_KEYS = 1_000
DOTS_OF_BEARERS = 2
"""A provider's token has three parts; keys and access tokens never have."""

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)\Z")


@dataclass(frozen=True, slots=True)
class _Known:
    key: ApiKey
    at: float


class Authenticator:
    """Knows callers by their keys. Keys that are made or revoked count at once: by hint where there is a bus, after `FRESH_SECONDS` else.

    What is remembered are keys that exist, never what somebody tried. `bearers` knows those who come from an identity provider, if there
    is one: then nobody is let in unknown.
    """

    def __init__(self, services: Services, tokens: Tokens, uses: KeyUses, bearers: Bearers | None, *, may_be_open: bool) -> None:
        self._services = services
        self._bearers = bearers
        self._tokens = tokens
        self._uses = uses
        self._may_be_open = may_be_open
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._required: bool | None = None
        self._required_at = 0.0
        self._changes = 0
        services.bus.subscribe(self._heard)

    async def caller(self, authorization: Sequence[bytes], tokens: Sequence[str] = ()) -> Caller:
        """Who sent these `Authorization` headers, or these access tokens in the address: one of all, and a key never in an address.

        Without an access token everybody is `LOCAL` until a first key was made, where that may be. Raises Unauthenticated, and what
        `Bearers.caller` raises.
        """
        found = _BEARER.match(authorization[0]) if len(authorization) == 1 else None
        bearer = None if found is None else found[1].decode("ascii")
        if tokens:
            if authorization or len(tokens) > 1:
                raise _unauthenticated()
            return await self._by_token(tokens[0])
        if bearer is not None and is_token(bearer):
            return await self._by_token(bearer)
        if self._may_be_open and self._bearers is None and not await self._keys_are_required():
            return LOCAL
        if bearer is None:
            raise _unauthenticated()
        if self._bearers is not None and bearer.count(".") == DOTS_OF_BEARERS:
            return await self._bearers.caller(bearer)
        key = await self._key(bearer)
        if key is None or not self._is_good(key):
            raise _unauthenticated()
        self._uses.note(key.id)
        return _caller(key)

    async def _by_token(self, token: str) -> Caller:
        """Whoever holds a token, as long as the key that made it is good: revoking a key ends what was handed on with it."""
        caller = self._tokens.caller(token)
        maker = LOCAL.name if caller.grant is None else caller.grant.by
        if maker != LOCAL.name and not await self._is_known(maker):
            raise _unauthenticated()
        return caller

    async def _is_known(self, maker: str) -> bool:
        """Whether whoever made a token may still come. Nobody here can tell of one who came from a provider: the token ends with theirs."""
        if maker.startswith(BEARER_PREFIX):
            return self._bearers is not None
        key = await self._services.directory.key(maker)
        return key is not None and self._is_good(key)

    def _is_good(self, key: ApiKey) -> bool:
        return key.revoked_at is None and (key.expires_at is None or key.expires_at > self._services.time.now())

    async def _keys_are_required(self) -> bool:
        now = self._services.clock.monotonic()
        if self._required is not None and now - self._required_at < FRESH_SECONDS:
            return self._required
        changes = self._changes
        required = await self._services.directory.authentication()
        if changes == self._changes:
            self._required, self._required_at = required, now
        return required

    async def _key(self, text: str) -> ApiKey | None:
        if not keys.is_key(text):
            return None
        hash = keys.hash_of(text)
        now = self._services.clock.monotonic()
        known = self._known.get(hash)
        if known is not None and now - known.at < FRESH_SECONDS:
            return known.key
        changes = self._changes
        key = await self._services.directory.key_by_hash(hash)
        if key is None or not keys.is_same(key.hash, hash):
            return None
        if changes == self._changes:
            self._known[hash] = _Known(key, now)
            self._known.move_to_end(hash)
            if len(self._known) > REMEMBERED_KEYS:
                self._known.popitem(last=False)
        return key

    def _heard(self, hint: Hint) -> None:
        if hint.topic in (Topic.KEYS, Topic.ANYTHING):
            self._changes += 1
            self._required = None
            self._known.clear()


def narrowed(caller: Caller, tenant: str | None) -> Caller:
    """The caller confined to the tenant that the request names. Raises NotPermitted for everybody but operators."""
    if tenant is None:
        return caller
    if not caller.operator:
        raise NotPermitted("Only an operator key may name a tenant.")
    return replace(caller, scope=Scope(tenant=tenant), narrowed=True)


def _caller(key: ApiKey) -> Caller:
    permissions = frozenset(permission for permission in Permission if permission.value in key.permissions)
    return Caller(name=key.id, scope=key.scope, permissions=permissions, operator=key.operator)


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated("A valid API key is needed: Authorization: Bearer <key>")

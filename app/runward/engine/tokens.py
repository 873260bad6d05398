"""Access tokens: each opens one run, or one request for approval, for a while, and nothing else (R20). They are signed and never stored.

A token is `rwt_<what it grants>.<signature>`. Whoever has one has no key: hand it to a browser, or send it as a link.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from runward.core.errors import Conflict, NotFound, Unauthenticated
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Scope
from runward.core.times import rfc3339
from runward.engine.callers import Allow, Caller, Grant, Permission
from runward.engine.found import run_of
from runward.engine.services import Services

PREFIX = "rwt_"
"""What every token begins with, so that scanners for leaked secrets can know one."""
MAX_LENGTH = 4_096
"""The longest that a token can be, in characters."""
MAX_TTL_SECONDS = 2_592_000
"""Thirty days: the longest that a token can be good for."""

_TOKEN = re.compile(rf"({PREFIX}[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\Z", re.ASCII)
_PERMISSIONS = {
    Allow.EVENTS: Permission.RUNS_READ,
    Allow.TOOL_RESULTS: Permission.RUNS_WRITE,
    Allow.ANSWERS: Permission.RUNS_WRITE,
    Allow.CANCEL: Permission.RUNS_WRITE,
    Allow.DECIDE: Permission.APPROVALS_DECIDE,
}
"""What a caller has to be permitted to hand it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token, and until when it is good."""

    text: str
    expires_at: str


class Signer:
    """Signs what tokens grant, with a key of its own that is derived from `RUNWARD_SECRET_KEY`. Another secret key ends every token."""

    def __init__(self, secret_key: str) -> None:
        self._key = hashlib.sha256(b"runward access token\0" + secret_key.encode()).digest()

    def token(self, grant: Grant) -> str:
        scope = grant.scope
        allows = [allow.value for allow in Allow if allow in grant.allows]
        granted = [grant.id, grant.of, scope.tenant, scope.user, scope.namespace, allows, grant.expires_at, grant.by, grant.decides_as]
        signed = PREFIX + _base64(canonical_json(granted).encode())
        return f"{signed}.{self._signature(signed)}"

    def grant(self, token: str) -> Grant | None:
        """What a token grants; None for what was not signed with this key. Compares in constant time, and reads only what is signed."""
        found = _TOKEN.match(token) if len(token) <= MAX_LENGTH else None
        if found is None or not hmac.compare_digest(found[2].encode(), self._signature(found[1]).encode()):
            return None
        granted = base64.urlsafe_b64decode(found[1].removeprefix(PREFIX) + "===")
        id, of, tenant, user, namespace, allows, expires_at, by, decides_as = json.loads(granted)
        return Grant(
            id=id,
            of=of,
            scope=Scope(tenant=tenant, user=user, namespace=namespace),
            allows=frozenset(map(Allow, allows)),
            expires_at=expires_at,
            by=by,
            decides_as=decides_as,
        )

    def _signature(self, signed: str) -> str:
        return _base64(hmac.digest(self._key, signed.encode(), "sha256"))


class Tokens:
    """Makes and reads access tokens. Without a signer none can be made, and none is valid."""

    def __init__(self, services: Services, signer: Signer | None) -> None:
        self._services = services
        self._signer = signer

    async def for_run(self, caller: Caller, run_id: str, *, allows: Collection[Allow], ttl_seconds: int) -> Issued:
        """A token for one run. Nobody hands on more than they may do themselves. Raises NotPermitted and NotFound."""
        caller.require(Permission.RUNS_WRITE)
        for allow in allows:
            caller.require(_PERMISSIONS[allow])
        row = await run_of(self._services, caller, run_id)
        return self._issued(caller, of=row.uid, scope=row.scope, allows=allows, ttl_seconds=ttl_seconds)

    async def for_approval(self, caller: Caller, approval_id: str, *, decides_as: str | None, ttl_seconds: int) -> Issued:
        """A token that reads and decides one request for approval. Raises NotFound, and Conflict when nothing is left to decide."""
        caller.require(Permission.APPROVALS_DECIDE)
        stored = await self._services.reads.approval(caller.reads, approval_id)
        if stored is None:
            raise NotFound("There is no such request for approval.")
        if stored.status != "pending":
            raise Conflict("This request for approval is closed: there is nothing left to decide.", code="not_pending")
        return self._issued(
            caller, of=stored.id, scope=stored.scope, allows=(Allow.DECIDE,), ttl_seconds=ttl_seconds, decides_as=decides_as
        )

    def caller(self, token: str) -> Caller:
        """Whoever shows this token. Raises Unauthenticated, for whatever is wrong with it alike."""
        grant = None if self._signer is None else self._signer.grant(token)
        if grant is None or grant.expires_at <= self._services.time.now():
            raise Unauthenticated("This access token is not valid, or not any more.")
        permissions = frozenset(_PERMISSIONS[allow] for allow in grant.allows)
        return Caller(name=grant.by, scope=grant.scope, permissions=permissions, grant=grant)

    def _issued(
        self, caller: Caller, *, of: str, scope: Scope, allows: Collection[Allow], ttl_seconds: int, decides_as: str | None = None
    ) -> Issued:
        if self._signer is None:
            raise Conflict("Access tokens need RUNWARD_SECRET_KEY: set it, the same in every process.", code="secret_key_missing")
        expires_at = self._services.time.now() + ttl_seconds * 1000
        if caller.ends_at is not None:
            expires_at = min(expires_at, caller.ends_at)
        grant = Grant(
            id=self._services.chance.uid(),
            of=of,
            scope=scope,
            allows=frozenset(allows),
            expires_at=expires_at,
            by=caller.name,
            decides_as=decides_as,
        )
        return Issued(text=self._signer.token(grant), expires_at=rfc3339(expires_at))


def is_token(text: str) -> bool:
    """Whether a text is meant to be a token, be it valid or not."""
    return text.startswith(PREFIX)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

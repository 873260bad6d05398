"""API keys: making, listing, revoking, and what a key looks like. Only a key's SHA-256 is ever stored."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence

from runward.core.errors import Invalid
from runward.core.kernel.actor import Scope
from runward.engine.callers import Permission
from runward.engine.services import Services
from runward.ports.bus import Hint, Topic
from runward.ports.directory import ApiKey

PREFIX = "rw_"
"""What every key begins with, so that scanners for leaked secrets can know one."""
ID_DIGITS = 16

_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}\Z")
"""What the door takes as a user or a namespace, too."""
_KEY = re.compile(rf"{PREFIX}[0-9a-f]{{{ID_DIGITS}}}_[A-Za-z0-9_-]{{16,128}}\Z", re.ASCII)


async def create(
    services: Services,
    *,
    scope: Scope,
    permissions: Collection[Permission],
    operator: bool = False,
    expires_at: int | None = None,
) -> tuple[ApiKey, str]:
    """Makes a key; its text is returned this once. From now on callers must show one, at once and for good, also where that was turned off.

    `expires_at` is in milliseconds since 1970. Raises Invalid when the key could do nothing, or is for somebody who cannot be named so.
    """
    if not permissions:
        raise Invalid("A key needs at least one permission.")
    for name in (scope.tenant, scope.user, scope.namespace):
        if name is not None and not is_name(name):
            raise Invalid("A tenant, a user and a namespace are named by 1 to 128 characters, and none that controls a terminal.")
    now = await services.store.now()
    if expires_at is not None and expires_at <= now:
        raise Invalid("The key would have expired already.")
    id = services.chance.uid()[-ID_DIGITS:]
    text = f"{PREFIX}{id}_{services.chance.secret()}"
    key = ApiKey(
        id=id,
        hash=hash_of(text),
        prefix=f"{PREFIX}{id}",
        scope=scope,
        operator=operator,
        permissions=tuple(permission.value for permission in Permission if permission in permissions),
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
    )
    await services.directory.add_key(key)
    await services.directory.set_authentication(True)
    _tell(services)
    return key, text


async def listed(services: Services, tenant: str | None = None) -> Sequence[ApiKey]:
    """All keys, or those of one tenant, newest first; revoked and expired ones too."""
    return await services.directory.keys(None if tenant is None else Scope(tenant=tenant))


async def revoke(services: Services, id: str) -> bool:
    """Revokes a key for good, at once. False when there is none of this id or it was revoked before. Authentication stays on."""
    revoked = await services.directory.revoke_key(id)
    _tell(services)
    return revoked


async def open_to_all(services: Services) -> None:
    """Lets everybody in without a key again. Without keys a service binds loopback only."""
    await services.directory.set_authentication(False)
    _tell(services)


def is_name(text: str) -> bool:
    """Whether a tenant, a user or a namespace can be called so."""
    return _NAME.match(text) is not None


def is_key(text: str) -> bool:
    """Whether a text looks like a key at all."""
    return _KEY.match(text) is not None


def hash_of(text: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_same(hash: str, other: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(hash.encode(), other.encode())


def _tell(services: Services) -> None:
    services.bus.publish((Hint(Topic.KEYS),))

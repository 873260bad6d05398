"""What settings say of an identity provider: which of its tokens are good here, and who comes with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from runward.core.errors import DefinitionError
from runward.engine.bearers import Claims
from runward.engine.callers import Permission
from runward.engine.key_sets import ASYMMETRIC
from runward.engine.keys import is_name
from runward.ports.outbound import OutboundRefused
from runward.settings import Settings
from runward.tools.destinations import Place, target_of

NOBODY: Final = "none"
"""What `RUNWARD_JWT_USER_CLAIM` says where a caller is confined to no user."""


def claims_of(settings: Settings) -> Claims:
    """Which tokens are good, and what their claims mean. Raises DefinitionError, naming the setting."""
    if settings.jwt_issuer is None:
        _refuse("RUNWARD_JWT_ISSUER", "is missing: say whose tokens are taken")
    if settings.jwt_audience is None:
        _refuse("RUNWARD_JWT_AUDIENCE", "is missing: without it the tokens for any service of the provider would be good here")
    if (settings.jwt_tenant is None) == (settings.jwt_tenant_claim is None):
        _refuse("RUNWARD_JWT_TENANT_CLAIM", "or RUNWARD_JWT_TENANT has to say whose runs a caller sees; one of them, not both")
    if settings.jwt_tenant is not None and not is_name(settings.jwt_tenant):
        _refuse("RUNWARD_JWT_TENANT", "is not 1 to 128 characters, none of which controls a terminal")
    unknown = [name for name in settings.jwt_algorithms if name not in ASYMMETRIC]
    if unknown or not settings.jwt_algorithms:
        _refuse("RUNWARD_JWT_ALGORITHMS", f"names other algorithms than {', '.join(ASYMMETRIC)}")
    return Claims(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        algorithms=settings.jwt_algorithms,
        leeway_seconds=settings.jwt_leeway_seconds,
        tenant=settings.jwt_tenant,
        tenant_claim=settings.jwt_tenant_claim,
        user_claim=None if settings.jwt_user_claim == NOBODY else settings.jwt_user_claim,
        namespace_claim=settings.jwt_namespace_claim,
        permissions_claim=settings.jwt_permissions_claim,
        roles=_roles(settings.jwt_roles),
    )


def keys_at(settings: Settings) -> tuple[str, Place]:
    """Where the provider's keys are, and the one place that may be asked for them. Raises DefinitionError.

    Whoever can change them on their way lets in whom they like: without TLS they are taken from this machine alone.
    """
    url = settings.jwt_jwks_url
    if url is None:
        _refuse("RUNWARD_JWT_JWKS_URL", "is missing: say where the provider's keys are")
    try:
        target = target_of(url)
    except OutboundRefused as error:
        _refuse("RUNWARD_JWT_JWKS_URL", f"cannot be called: {error.why}")
    here = target.host == "localhost" or (target.address is not None and target.address.is_loopback)
    if target.scheme != "https" and not here:
        _refuse("RUNWARD_JWT_JWKS_URL", "has to be https, but on this machine")
    return url, Place(host=target.host, port=target.port, below=False)


def _roles(entries: tuple[str, ...]) -> Mapping[str, frozenset[Permission]]:
    roles: dict[str, frozenset[Permission]] = {}
    for entry in entries:
        role, separator, names = entry.rpartition("=")
        given = names.split("+")
        if not separator or not role.strip() or not set(given) <= set(Permission):
            _refuse("RUNWARD_JWT_ROLES", f"{entry!r} is not role=permission+permission, of {', '.join(Permission)}")
        roles[role.strip()] = frozenset(map(Permission, given)) | roles.get(role.strip(), frozenset())
    return roles


def _refuse(setting: str, why: str) -> NoReturn:
    raise DefinitionError(f"{setting} {why}.")

"""Who calls, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runward.core.errors import NotPermitted
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Scope

DEFAULT_TENANT = "default"


class Permission(StrEnum):
    """What a key allows. `ops` includes nothing else; give a key every permission it needs."""

    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    APPROVALS_DECIDE = "approvals:decide"
    OPS = "ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a command or query. `name` is recorded as the principal: a key's id, or `local`; so is `address`, where it calls from.

    `scope` confines everything the caller reads and writes. An operator sees every tenant: `reads` is None then, unless narrowed.
    """

    name: str
    scope: Scope
    permissions: frozenset[Permission]
    operator: bool = False
    narrowed: bool = False
    address: str | None = None

    @property
    def principal(self) -> str:
        """Who this is, as JSON, for what is kept of who did what (R23)."""
        return canonical_json({"by": self.name} if self.address is None else {"by": self.name, "from": self.address})

    @property
    def reads(self) -> Scope | None:
        """The scope of this caller's queries; None means every tenant."""
        return None if self.operator and not self.narrowed else self.scope

    def require(self, *any_of: Permission) -> None:
        """Raises NotPermitted unless the caller has one of these permissions."""
        if self.permissions.isdisjoint(any_of):
            raise NotPermitted(f"This key lacks the permission {' or '.join(any_of)}.")


LOCAL = Caller(name="local", scope=Scope(tenant=DEFAULT_TENANT), permissions=frozenset(Permission))
"""Everybody, as long as no key was ever made: the service is bound to loopback only then."""

"""Who calls, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runward.core.errors import NotPermitted
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Scope

DEFAULT_TENANT = "default"
LOCAL_NAME = "local"
BEARER_PREFIX = "jwt:"
"""What the names of callers begin with who come with a token of an identity provider; no key's id does."""


class Permission(StrEnum):
    """What a key allows. `ops` includes nothing else; give a key every permission it needs."""

    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    APPROVALS_DECIDE = "approvals:decide"
    OPS = "ops"


class Allow(StrEnum):
    """What an access token lets its holder do: the first four with a run, the last with a request for approval."""

    EVENTS = "events"
    TOOL_RESULTS = "tool-results"
    ANSWERS = "answers"
    CANCEL = "cancel"
    DECIDE = "decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an access token grants: `allows`, for the run whose uid, or the request for approval whose id, is `of`.

    `id` is the token's own. `by` made it, and whoever decides with it does so as `decides_as`. `expires_at` is in milliseconds since 1970.
    """

    id: str
    of: str
    scope: Scope
    allows: frozenset[Allow]
    expires_at: int
    by: str
    decides_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a command or query. `name` is recorded as the principal: a key's id, `local`, or `jwt:` and the subject of a provider's
    token; so is `address`, where it calls from. `ends_at` is when such a token ends, in milliseconds since 1970: so does what is handed on
    with it.

    `scope` confines everything the caller reads and writes. An operator sees every tenant: `reads` is None then, unless narrowed. `grant`
    is that of an access token, where the caller came with one: nothing else is within reach then.
    """

    name: str
    scope: Scope
    permissions: frozenset[Permission]
    operator: bool = False
    narrowed: bool = False
    address: str | None = None
    grant: Grant | None = None
    ends_at: int | None = None

    @property
    def principal(self) -> str:
        """Who this is, as JSON, for what is kept of who did what (R23)."""
        told = {"by": self.name, "from": self.address, "token": self.grant.id if self.grant else None}
        return canonical_json({name: value for name, value in told.items() if value is not None})

    def reaches(self, id: str) -> bool:
        """Whether a run (by its uid) or a request for approval is what the caller's access token is for; anything is without one."""
        return self.grant is None or self.grant.of == id

    @property
    def reads(self) -> Scope | None:
        """The scope of this caller's queries; None means every tenant."""
        return None if self.operator and not self.narrowed else self.scope

    @property
    def runs_the_service(self) -> bool:
        """Whether its processes are this caller's business: an operator's, or everybody's as long as nobody has a key."""
        return self.operator or self.name == LOCAL_NAME

    def require_operator(self) -> None:
        """Raises NotPermitted unless the service itself is this caller's business, and this request about no tenant alone."""
        if not self.runs_the_service:
            raise NotPermitted("This concerns every tenant: an operator key is needed.")
        if self.narrowed:
            raise NotPermitted("This concerns every tenant: send it without ?tenant=.")

    def require(self, *any_of: Permission) -> None:
        """Raises NotPermitted unless the caller has one of these permissions."""
        if self.permissions.isdisjoint(any_of):
            raise NotPermitted(f"This key lacks the permission {' or '.join(any_of)}.")


LOCAL = Caller(name=LOCAL_NAME, scope=Scope(tenant=DEFAULT_TENANT), permissions=frozenset(Permission))
"""Everybody, as long as no key was ever made: the service is bound to loopback only then."""

"""The tables, for both databases. `migrations/` makes them; a test finds no difference between the two.

| table | holds |
| --- | --- |
| `actors` | envelopes with their leases: what stays first, what every commit changes last |
| `messages`, `receipts`, `mail`, `approvals` | rows of an actor, as the kernel has them |
| `frames` | the journal, one row for the frames of one write (`journal.py`); `seq` is its last frame's |
| `idempotency_keys` | what a request made; outlives the actor |
| `budgets`, `budget_reservations` | what runs may spend together, and each amount that was set aside for one |
| `api_keys`, `agents`, `workers`, `singletons`, `service` | what processes tell each other; `service` is one row |

JSON is text. Times are milliseconds since 1970. Nothing refers to anything by a foreign key: every row of an actor is written under its
lock, and `delete` names all tables.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import postgresql

SCHEMA: Final = "0004"
"""The newest migration this code knows, and needs. Migrations are numbered so that they sort."""

METADATA: Final = MetaData(
    naming_convention={"ix": "%(table_name)s_%(column_0_N_name)s", "uq": "%(table_name)s_%(column_0_N_name)s", "pk": "%(table_name)s_pkey"}
)

ID: Final = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
"""What is compared and sorted byte by byte, whatever the database's collation."""


def columns(table: Table, names: str) -> tuple[Column[Any], ...]:
    """Some columns of a table, in the order that is named."""
    return tuple(table.c[name] for name in names.split())


def _needed(name: str, type_: Any) -> Column[Any]:
    return Column(name, type_, nullable=False)


actors: Final = Table(
    "actors",
    METADATA,
    _needed("uid", ID),
    _needed("created_at", BigInteger),
    _needed("kind", ID),
    _needed("public_id", ID),
    _needed("tenant", ID),
    Column("user_id", ID),
    Column("namespace", ID),
    _needed("agent", ID),
    _needed("agent_version", ID),
    Column("session_id", ID),
    Column("parent_uid", ID),
    _needed("priority", Integer),
    _needed("metadata", Text),
    Column("context", Text),
    # what commits change: together, and what claims change behind it, so that the database logs little more than the difference
    _needed("state", Text),
    _needed("updated_at", BigInteger),
    _needed("revision", Integer),
    _needed("last_seq", Integer),
    _needed("mail_received", Integer),
    _needed("mail_applied", Integer),
    _needed("waiting_on", Integer),
    _needed("format", Integer),
    Column("stop_reason", ID),
    _needed("task_outcome", ID),
    _needed("binding", ID),
    _needed("status", ID),
    _needed("leg", Integer),
    _needed("recoveries", Integer),
    Column("drain_leg", Integer),
    Column("lease_owner", ID),
    Column("lease_until", BigInteger),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("care_at", BigInteger),
    Column("ready_at", BigInteger),
    _needed("rank", BigInteger),
    Column("concurrency_key", ID, nullable=False, server_default=text("''")),
    Column("key_slot", Integer),
    Column("tenant_slot", Integer),
    PrimaryKeyConstraint("uid"),
    postgresql_with={"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02, "autovacuum_analyze_scale_factor": 0.02},
)

# Commits between claim and release change no column of any of these, so that they are HOT. `lease_until` moves only with a claim, a
# renewal and a release.
# `RANKED` and `LANED` are the same but for a mark of each that is always true: a statement that gives one can be planned with that index
# alone. Postgres would else believe that a queue is still as short as it last saw it, and filter one of thousands by the other index.
RANKED: Final = text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND format > 0")
LANED: Final = text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND kind <> ''")
WITH_KEY: Final = text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND concurrency_key <> ''")
LEASED: Final = text("lease_owner IS NOT NULL")
CARED: Final = text("care_at IS NOT NULL")
KEYED: Final = text("lease_owner IS NOT NULL AND key_slot IS NOT NULL")
BOUNDED: Final = text("lease_owner IS NOT NULL AND tenant_slot IS NOT NULL")
_ended = text("ended_at IS NOT NULL")
Index(None, actors.c.public_id, actors.c.tenant, unique=True)
Index(None, actors.c.tenant, actors.c.created_at)
Index(None, actors.c.tenant, actors.c.ended_at, postgresql_where=_ended, sqlite_where=_ended)
Index("actors_ended", actors.c.ended_at, postgresql_where=_ended, sqlite_where=_ended)
Index("actors_ready", actors.c.binding, actors.c.rank, actors.c.ready_at, postgresql_where=RANKED, sqlite_where=RANKED)
Index(
    "actors_lanes",
    *columns(actors, "binding tenant concurrency_key rank ready_at"),
    postgresql_where=LANED,
    sqlite_where=LANED,
)
Index("actors_keyed", actors.c.binding, postgresql_where=WITH_KEY, sqlite_where=WITH_KEY)
# No two leases have the same slot, whoever claims at the same time. A lease that is given back is in neither of these.
Index("actors_key_slots", *columns(actors, "tenant concurrency_key key_slot"), unique=True, postgresql_where=KEYED, sqlite_where=KEYED)
Index("actors_tenant_slots", actors.c.tenant, actors.c.tenant_slot, unique=True, postgresql_where=BOUNDED, sqlite_where=BOUNDED)
Index("actors_leased", actors.c.lease_until, postgresql_where=LEASED, sqlite_where=LEASED)
Index("actors_care", actors.c.care_at, postgresql_where=CARED, sqlite_where=CARED)

frames: Final = Table(
    "frames",
    METADATA,
    _needed("uid", ID),
    _needed("seq", Integer),
    _needed("format", Integer),
    _needed("data", LargeBinary),
    PrimaryKeyConstraint("uid", "seq"),
    sqlite_with_rowid=False,
)

messages: Final = Table(
    "messages",
    METADATA,
    _needed("uid", ID),
    _needed("seq", Integer),
    Column("step", Integer),
    _needed("format", Integer),
    _needed("role", Text),
    _needed("content", Text),
    Column("opaque", LargeBinary),
    Column("opaque_format", Text),
    PrimaryKeyConstraint("uid", "seq"),
)

receipts: Final = Table(
    "receipts",
    METADATA,
    _needed("uid", ID),
    _needed("step", Integer),
    _needed("position", Integer),
    _needed("tool_call_id", ID),
    _needed("format", Integer),
    Column("started_at", BigInteger),
    _needed("tool_name", Text),
    _needed("effect", Text),
    _needed("arguments", Text),
    # from here on: what a call's way changes
    Column("ended_at", BigInteger),
    _needed("attempt", Integer),
    _needed("is_error", Boolean),
    _needed("stage", Text),
    Column("outcome", Text),
    Column("raw", Text),
    Column("output", Text),
    _needed("detail", Text),
    PrimaryKeyConstraint("uid", "step", "position", "tool_call_id"),
    postgresql_with={"fillfactor": 80},
)

mail: Final = Table(
    "mail",
    METADATA,
    _needed("uid", ID),
    _needed("seq", Integer),
    _needed("received_at", BigInteger),
    _needed("kind", Text),
    _needed("dedupe_key", ID),
    _needed("data", Text),
    Column("principal", Text),
    Column("applied_revision", Integer),
    _needed("ignored", Boolean),
    PrimaryKeyConstraint("uid", "seq"),
    UniqueConstraint("uid", "dedupe_key"),
    postgresql_with={"fillfactor": 80},
)

approvals: Final = Table(
    "approvals",
    METADATA,
    _needed("id", ID),
    _needed("uid", ID),
    _needed("created_at", BigInteger),
    Column("expires_at", BigInteger),
    _needed("tenant", ID),
    Column("user_id", ID),
    Column("namespace", ID),
    _needed("agent", ID),
    _needed("tool", ID),
    _needed("data", Text),
    _needed("status", ID),
    Column("decided_at", BigInteger),
    Column("decision", Text),
    PrimaryKeyConstraint("id"),
)
Index(None, approvals.c.uid)
# `status` is in it although it is always the same: it is by the columns that are asked for that SQLite chooses among indexes.
_pending = text("status = 'pending'")
Index(None, approvals.c.tenant, approvals.c.created_at)
Index("approvals_pending", approvals.c.tenant, approvals.c.status, approvals.c.created_at, postgresql_where=_pending, sqlite_where=_pending)

idempotency_keys: Final = Table(
    "idempotency_keys",
    METADATA,
    _needed("scope", ID),
    _needed("route", ID),
    _needed("key", ID),
    _needed("created_at", BigInteger),
    _needed("fingerprint", Text),
    _needed("uid", ID),
    _needed("public_id", Text),
    PrimaryKeyConstraint("scope", "route", "key"),
)
Index(None, idempotency_keys.c.created_at)

budgets: Final = Table(
    "budgets",
    METADATA,
    _needed("tenant", ID),
    _needed("key", ID),
    _needed("created_at", BigInteger),
    _needed("changed_at", BigInteger),
    Column("changed_by", Text),
    Column("max_total_tokens", BigInteger),
    Column("max_picos", BigInteger),
    Column("window_seconds", BigInteger),
    Column("warn_at", Integer),
    _needed("on_exhausted", Text),
    # from here on: what a reservation changes
    _needed("used_at", BigInteger),
    _needed("idle", Boolean),
    _needed("counted", Text),
    PrimaryKeyConstraint("tenant", "key"),
    postgresql_with={"fillfactor": 80},
)
"""`counted` is what counts against the terms, as JSON: sums of any size. `idle`: nothing is reserved."""

budget_reservations: Final = Table(
    "budget_reservations",
    METADATA,
    _needed("tenant", ID),
    _needed("id", ID),
    _needed("created_at", BigInteger),
    _needed("holder", ID),
    _needed("asked", Text),
    _needed("outcome", Text),
    Column("closed", Text),
    Column("waits_for", ID),
    _needed("over", Boolean),
    PrimaryKeyConstraint("tenant", "id"),
    postgresql_with={"fillfactor": 80},
)
_waits = text("waits_for IS NOT NULL")
_over = text("over")
Index("budget_reservations_waiting", *columns(budget_reservations, "tenant waits_for id"), postgresql_where=_waits, sqlite_where=_waits)
Index("budget_reservations_over", budget_reservations.c.created_at, postgresql_where=_over, sqlite_where=_over)

api_keys: Final = Table(
    "api_keys",
    METADATA,
    _needed("id", ID),
    _needed("hash", ID),
    _needed("prefix", Text),
    _needed("tenant", ID),
    Column("user_id", ID),
    Column("namespace", ID),
    _needed("operator", Boolean),
    _needed("permissions", Text),
    _needed("created_at", BigInteger),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("hash"),
)

agents: Final = Table(
    "agents",
    METADATA,
    _needed("name", ID),
    _needed("version", ID),
    _needed("fingerprint", ID),
    _needed("place", Integer),
    _needed("manifest", Text),
    _needed("published_at", BigInteger),
    PrimaryKeyConstraint("name", "version", "fingerprint"),
)

workers: Final = Table(
    "workers",
    METADATA,
    _needed("id", ID),
    _needed("host", Text),
    _needed("pid", Integer),
    _needed("started_at", BigInteger),
    _needed("beat_at", BigInteger),
    _needed("slots", Integer),
    _needed("driving", Integer),
    _needed("draining", Boolean),
    _needed("asked_to_drain", Boolean),
    _needed("bindings", Text),
    PrimaryKeyConstraint("id"),
)

singletons: Final = Table(
    "singletons",
    METADATA,
    _needed("key", ID),
    Column("owner", ID),
    _needed("token", BigInteger),
    _needed("until", BigInteger),
    PrimaryKeyConstraint("key"),
)

service: Final = Table(
    "service",
    METADATA,
    _needed("id", Integer),
    _needed("identity", Text),
    Column("authentication", Boolean),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="service_one_row"),
)
"""One row: the database's identity, which names the bus's channel, and whether callers must show a key (NULL: no key was ever made)."""

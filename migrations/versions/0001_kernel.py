"""The tables of the kernel."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
READY = sa.text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL")
LEASED = sa.text("lease_owner IS NOT NULL")
CARED = sa.text("care_at IS NOT NULL")
ENDED = sa.text("ended_at IS NOT NULL")
PENDING = sa.text("status = 'pending'")


def upgrade() -> None:
    op.create_table(
        "actors",
        sa.Column("uid", ID, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", ID, nullable=False),
        sa.Column("public_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("user_id", ID, nullable=True),
        sa.Column("namespace", ID, nullable=True),
        sa.Column("agent", ID, nullable=False),
        sa.Column("agent_version", ID, nullable=False),
        sa.Column("session_id", ID, nullable=True),
        sa.Column("parent_uid", ID, nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("mail_received", sa.Integer(), nullable=False),
        sa.Column("mail_applied", sa.Integer(), nullable=False),
        sa.Column("waiting_on", sa.Integer(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("stop_reason", ID, nullable=True),
        sa.Column("task_outcome", ID, nullable=False),
        sa.Column("binding", ID, nullable=False),
        sa.Column("status", ID, nullable=False),
        sa.Column("leg", sa.Integer(), nullable=False),
        sa.Column("recoveries", sa.Integer(), nullable=False),
        sa.Column("drain_leg", sa.Integer(), nullable=True),
        sa.Column("lease_owner", ID, nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("care_at", sa.BigInteger(), nullable=True),
        sa.Column("ready_at", sa.BigInteger(), nullable=True),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="actors_pkey"),
        postgresql_with={"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02, "autovacuum_analyze_scale_factor": 0.02},
    )
    op.create_index("actors_care", "actors", ["care_at"], postgresql_where=CARED, sqlite_where=CARED)
    op.create_index("actors_ended", "actors", ["ended_at"], postgresql_where=ENDED, sqlite_where=ENDED)
    op.create_index("actors_leased", "actors", ["lease_until"], postgresql_where=LEASED, sqlite_where=LEASED)
    op.create_index("actors_public_id_tenant", "actors", ["public_id", "tenant"], unique=True)
    op.create_index("actors_ready", "actors", ["binding", "rank", "ready_at"], postgresql_where=READY, sqlite_where=READY)
    op.create_index("actors_tenant_created_at", "actors", ["tenant", "created_at"])
    op.create_index("actors_tenant_ended_at", "actors", ["tenant", "ended_at"], postgresql_where=ENDED, sqlite_where=ENDED)
    op.create_table(
        "frames",
        sa.Column("uid", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "seq", name="frames_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "messages",
        sa.Column("uid", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("opaque", sa.LargeBinary(), nullable=True),
        sa.Column("opaque_format", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("uid", "seq", name="messages_pkey"),
    )
    op.create_table(
        "receipts",
        sa.Column("uid", ID, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tool_call_id", ID, nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("raw", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "step", "position", "tool_call_id", name="receipts_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "mail",
        sa.Column("uid", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("dedupe_key", ID, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=True),
        sa.Column("applied_revision", sa.Integer(), nullable=True),
        sa.Column("ignored", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "seq", name="mail_pkey"),
        sa.UniqueConstraint("uid", "dedupe_key", name="mail_uid_dedupe_key"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "approvals",
        sa.Column("id", ID, nullable=False),
        sa.Column("uid", ID, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("user_id", ID, nullable=True),
        sa.Column("namespace", ID, nullable=True),
        sa.Column("agent", ID, nullable=False),
        sa.Column("tool", ID, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("status", ID, nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="approvals_pkey"),
    )
    op.create_index("approvals_pending", "approvals", ["tenant", "status", "created_at"], postgresql_where=PENDING, sqlite_where=PENDING)
    op.create_index("approvals_tenant_created_at", "approvals", ["tenant", "created_at"])
    op.create_index("approvals_uid", "approvals", ["uid"])
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", ID, nullable=False),
        sa.Column("route", ID, nullable=False),
        sa.Column("key", ID, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("uid", ID, nullable=False),
        sa.Column("public_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "route", "key", name="idempotency_keys_pkey"),
    )
    op.create_index("idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("hash", ID, nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("user_id", ID, nullable=True),
        sa.Column("namespace", ID, nullable=True),
        sa.Column("operator", sa.Boolean(), nullable=False),
        sa.Column("permissions", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="api_keys_pkey"),
        sa.UniqueConstraint("hash", name="api_keys_hash"),
    )
    op.create_table(
        "agents",
        sa.Column("name", ID, nullable=False),
        sa.Column("version", ID, nullable=False),
        sa.Column("fingerprint", ID, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", "fingerprint", name="agents_pkey"),
    )
    op.create_table(
        "workers",
        sa.Column("id", ID, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("beat_at", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("driving", sa.Integer(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("asked_to_drain", sa.Boolean(), nullable=False),
        sa.Column("bindings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="workers_pkey"),
    )
    op.create_table(
        "singletons",
        sa.Column("key", ID, nullable=False),
        sa.Column("owner", ID, nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="singletons_pkey"),
    )
    op.create_table(
        "service",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("authentication", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="service_pkey"),
        sa.CheckConstraint("id = 1", name="service_one_row"),
    )
    made_up = "gen_random_uuid()::text" if op.get_bind().dialect.name == "postgresql" else "lower(hex(randomblob(16)))"
    op.execute(f"INSERT INTO service (id, identity) VALUES (1, replace({made_up}, '-', ''))")


def downgrade() -> None:
    for table in (
        "service",
        "singletons",
        "workers",
        "agents",
        "api_keys",
        "idempotency_keys",
        "approvals",
        "mail",
        "receipts",
        "messages",
        "frames",
        "actors",
    ):
        op.drop_table(table)

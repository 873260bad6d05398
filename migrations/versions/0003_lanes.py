"""Concurrency keys, and queues by tenant and key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
RANKED = sa.text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND format > 0")
LANED = sa.text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND kind <> ''")
WITH_KEY = sa.text("status IN ('queued', 'suspended') AND ready_at IS NOT NULL AND concurrency_key <> ''")
KEYED = sa.text("lease_owner IS NOT NULL AND key_slot IS NOT NULL")
BOUNDED = sa.text("lease_owner IS NOT NULL AND tenant_slot IS NOT NULL")
LANE = ["binding", "tenant", "concurrency_key", "rank", "ready_at"]
KEY_SLOT = ["tenant", "concurrency_key", "key_slot"]


def upgrade() -> None:
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("actors", recreate=recreate) as actors:
        actors.add_column(sa.Column("concurrency_key", ID, nullable=False, server_default=sa.text("''")))
        actors.add_column(sa.Column("key_slot", sa.Integer(), nullable=True))
        actors.add_column(sa.Column("tenant_slot", sa.Integer(), nullable=True))
    op.drop_index("actors_ready", "actors")
    op.create_index("actors_ready", "actors", ["binding", "rank", "ready_at"], postgresql_where=RANKED, sqlite_where=RANKED)
    op.create_index("actors_lanes", "actors", LANE, postgresql_where=LANED, sqlite_where=LANED)
    op.create_index("actors_keyed", "actors", ["binding"], postgresql_where=WITH_KEY, sqlite_where=WITH_KEY)
    op.create_index("actors_key_slots", "actors", KEY_SLOT, unique=True, postgresql_where=KEYED, sqlite_where=KEYED)
    op.create_index("actors_tenant_slots", "actors", ["tenant", "tenant_slot"], unique=True, postgresql_where=BOUNDED, sqlite_where=BOUNDED)

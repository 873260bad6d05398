"""Persistent budgets, and what was reserved of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
WAITS = sa.text("waits_for IS NOT NULL")
OVER = sa.text("over")


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("key", ID, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=True),
        sa.Column("max_total_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_picos", sa.BigInteger(), nullable=True),
        sa.Column("window_seconds", sa.BigInteger(), nullable=True),
        sa.Column("warn_at", sa.Integer(), nullable=True),
        sa.Column("on_exhausted", sa.Text(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=False),
        sa.Column("idle", sa.Boolean(), nullable=False),
        sa.Column("counted", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="budgets_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "budget_reservations",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("holder", ID, nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("closed", sa.Text(), nullable=True),
        sa.Column("waits_for", ID, nullable=True),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="budget_reservations_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("budget_reservations_over", "budget_reservations", ["created_at"], postgresql_where=OVER, sqlite_where=OVER)
    op.create_index(
        "budget_reservations_waiting",
        "budget_reservations",
        ["tenant", "waits_for", "id"],
        postgresql_where=WAITS,
        sqlite_where=WAITS,
    )

"""How Alembic runs here: on the connection it is given, inside the transaction that `runward.stores.sql.migrate` has begun and locked."""

from alembic import context

from runward.stores.sql.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()

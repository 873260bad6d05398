"""Which databases a URL may name."""

from __future__ import annotations

import pytest

from runward.core.errors import DefinitionError
from runward.stores.sql.postgres.address import address_of
from runward.stores.sql.urls import file_of, parsed
from tests.stores.conftest import stores_of


@pytest.mark.parametrize(
    "url",
    [
        "",
        "runward.db",
        "postgres://user:secret@host/name",
        "postgresql://user:secret@host/name",
        "sqlite:///x.db",
        "mysql+aiomysql://user:secret@host/name",
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+aiosqlite:///x.db?mode=memory",
        "postgresql+asyncpg://user:secret@host/name?command_timeout=secret",
        "postgresql+asyncpg://user:secret@host/name?command_timeout=1&command_timeout=secret",
        "postgresql+asyncpg://user:secret@host/name?port=secret",
        "postgresql+asyncpg://user:secret@host/name?secret=1",
        "postgresql+asyncpg://user:se@cret:1/x?secret=1@host/name",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        stores_of(url)
    assert "secret" not in str(caught.value)


def test_a_file_is_named_relative_or_absolute() -> None:
    assert str(file_of(parsed("sqlite+aiosqlite:///./runward.db"))) == "runward.db"
    assert str(file_of(parsed("sqlite+aiosqlite:////var/lib/a b.db"))) == "/var/lib/a b.db"


def test_a_postgres_url_carries_the_drivers_options() -> None:
    url = "postgresql+asyncpg://user:p%40ss@host:5433/name?ssl=require&command_timeout=3&prepared_statement_cache_size=0"
    address = address_of(parsed(url), command_seconds=10)
    assert address.pooled and address.command_seconds == 3
    expected = {"host": "host", "port": 5433, "user": "user", "password": "p@ss", "database": "name", "ssl": "require"}
    assert expected | {"command_timeout": 3.0, "timeout": 10, "statement_cache_size": 0} == address.options
    assert not address_of(parsed("postgresql+asyncpg://user@host/name"), command_seconds=10).pooled


def test_an_address_never_shows_its_password() -> None:
    address = address_of(parsed("postgresql+asyncpg://user:secret@host/name"), command_seconds=10)
    assert "secret" not in repr(address)

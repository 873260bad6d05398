"""`runward`: the processes of the service and its keys; the API from a terminal is in `commands`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import ValidationError

from runward.commands import approvals, ops, runs
from runward.commands.parts import AsJson, show
from runward.core.errors import RunwardError
from runward.core.kernel.actor import Scope
from runward.core.times import milliseconds, optional_rfc3339
from runward.settings import Settings

if TYPE_CHECKING:
    from runward.engine.services import Services

T = TypeVar("T")

app = typer.Typer(
    help="Durable agent runs: the processes of the service, its keys, and its API from a terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="API keys, in the database; works while the service runs.", no_args_is_help=True)
app.command()(runs.agents)
app.add_typer(runs.app, name="runs")
app.add_typer(approvals.app, name="approvals")
app.add_typer(ops.app, name="ops")
app.add_typer(keys, name="keys")


def main() -> None:
    """The `runward` command. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."""
    with _errors():
        app()


# -- processes -----------------------------------------------------------------------------------------------------------


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="RUNWARD_HOST, 127.0.0.1 else.")] = None,
    port: Annotated[int | None, typer.Option(help="RUNWARD_PORT, 8000 else.")] = None,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Only the API: runs are driven by `runward worker` processes.")] = False,
) -> None:
    """The API, and a worker in the same process. Migrates its SQLite file by itself."""
    settings = _settings(**{name: value for name, value in (("host", host), ("port", port)) if value is not None})
    from runward import main  # it takes its time, which nobody needs to wait for to read what is wrong with a setting

    main.serve(settings, worker=not no_worker)


@app.command()
def worker() -> None:
    """A worker only. Exits 0 after a drain."""
    settings = _settings()
    from runward import main

    main.work(settings)


@app.command()
def migrate() -> None:
    """Bring the database to this version."""
    from runward.stores.sql import migrate

    asyncio.run(migrate(_settings().database_url))
    typer.echo("The database is up to date.")


@app.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from runward.api.openapi import document

    typer.echo(json.dumps(document(), indent=2, ensure_ascii=False))


# -- keys ----------------------------------------------------------------------------------------------------------------


@keys.command("create")
def create_key(  # noqa: PLR0917 - typer makes options of them
    tenant: Annotated[str, typer.Option(help="Whose runs the key is for.")],
    permission: Annotated[list[str], typer.Option(help="runs:read, runs:write, approvals:decide, ops; repeatable.")],
    user: Annotated[str | None, typer.Option(help="Confine the key to one user.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Confine the key to one namespace.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="The key sees every tenant.")] = False,
    expires: Annotated[datetime | None, typer.Option(help="When it stops working, such as 2027-01-31T12:00:00 (UTC).")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed this once. From the first key on nobody comes in without one."""
    from datetime import UTC

    from runward.engine import keys as made
    from runward.engine.callers import Permission

    unknown = [name for name in permission if name not in set(Permission)]
    if unknown:
        _fail(f"There is no permission {unknown[0]!r}: they are {', '.join(Permission)}.")
    expires_at = None if expires is None else milliseconds(expires if expires.tzinfo else expires.replace(tzinfo=UTC))
    scope = Scope(tenant=tenant, user=user, namespace=namespace)
    permissions = [Permission(name) for name in permission]
    key, text = _in_database(
        lambda services: made.create(services, scope=scope, permissions=permissions, operator=operator, expires_at=expires_at)
    )
    typer.echo(json.dumps({"id": key.id, "key": text}) if as_json else text)
    if not as_json and _settings().secret is None:
        typer.echo("Set RUNWARD_SECRET_KEY (the same in every process) before the service is started again.", err=True)


@keys.command("list")
def list_keys(tenant: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False) -> None:
    """All keys; never their text."""
    from runward.engine import keys as made

    found = _in_database(lambda services: made.listed(services, tenant))
    data = [
        {
            "id": key.id,
            "tenant": key.scope.tenant,
            "user": key.scope.user,
            "namespace": key.scope.namespace,
            "operator": key.operator,
            "permissions": list(key.permissions),
            "created_at": optional_rfc3339(key.created_at),
            "expires_at": optional_rfc3339(key.expires_at),
            "revoked_at": optional_rfc3339(key.revoked_at),
            "last_used_at": optional_rfc3339(key.last_used_at),
        }
        for key in found
    ]
    show(data, as_json, tuple(data[0]) if data else ())


@keys.command("revoke")
def revoke_key(id: str) -> None:
    """Revoke a key for good, at once."""
    from runward.engine import keys as made

    if not _in_database(lambda services: made.revoke(services, id)):
        _fail(f"There is no key {id!r} that could be revoked.")


@keys.command("open")
def open_without_keys() -> None:
    """Let everybody in without a key again. Only a service that binds loopback starts then."""
    from runward.engine import keys as made

    _in_database(made.open_to_all)


# -- parts ---------------------------------------------------------------------------------------------------------------


def _settings(**given: Any) -> Settings:
    return Settings(**given)


def _in_database(work: Callable[[Services], Awaitable[T]]) -> T:
    """Does something with the database, which has to be migrated, and tells running processes."""
    return asyncio.run(_with_services(work))


async def _with_services(work: Callable[[Services], Awaitable[T]]) -> T:
    from runward.telemetry import logging_telemetry
    from runward.wiring import redactor_of, services_of

    settings = _settings()
    telemetry = logging_telemetry(settings.log_format, redactor_of(settings))
    telemetry.take_over()
    services = services_of(settings, telemetry)
    try:
        await services.store.open()
        await services.bus.start()
        try:
            return await work(services)
        finally:
            await services.bus.stop()
    finally:
        await services.store.close()


@contextmanager
def _errors() -> Iterator[None]:
    """What went wrong, as a sentence."""
    try:
        yield
    except RunwardError as error:
        _fail(error.detail)
    except ValidationError as error:
        _fail("; ".join(f"RUNWARD_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors(include_input=False)))
    except Exception as error:  # noqa: BLE001 - a traceback would show its text, which may hold anything
        from runward.telemetry import describe

        told = describe(error)
        _fail(f"This is a bug: {' from '.join(told['error'])} at {told['trace'][-1]}.")


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    sys.exit(1)

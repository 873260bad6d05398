"""Joins adapters to ports. The only module that knows both."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from runward.agents.elsewhere import HttpTool
from runward.agents.loader import load
from runward.agents.models import is_choice
from runward.agents.registry import Registered, Registry
from runward.core.redaction import Redactor, knowing
from runward.engine.clock import SystemChance, SystemClock
from runward.engine.deployment import Deployed
from runward.engine.probed_store import probed
from runward.engine.probes import FaultPoints, rules_of
from runward.engine.sealing import Seal
from runward.engine.service import Service, Workforce
from runward.engine.services import CircuitSettings, Services, UpkeepSettings, WorkerSettings
from runward.engine.timing import StoreTime
from runward.engine.tokens import Signer
from runward.models.clients import ModelClients
from runward.models.names import KEY_VARIABLES, require_keys
from runward.models.prices import PriceTable, configured_prices
from runward.ports.bus import Bus
from runward.ports.clock import Chance, Clock
from runward.ports.models import ModelClients as AnyModelClients
from runward.ports.telemetry import Telemetry
from runward.settings import Settings
from runward.telemetry import logging_telemetry
from runward.tools.asides import aside
from runward.tools.bodies import bodies, waiting
from runward.tools.threads import Threads

if TYPE_CHECKING:
    from runward.engine.bearers import Bearers
    from runward.stores.sql import SqlStores
    from runward.tools.destinations import Destinations
    from runward.tools.outward import Outward

POLL_WITH_BUS_SECONDS = 5.0
DAY_SECONDS = 86_400.0
_PASSWORD = re.compile(r"://[^/@:]*:([^/@]+)@|[?&]password=([^&]+)")
_SECRET_NAME = re.compile(
    r"(?i:.*_)?(?i:API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)"
)


def registry_of(settings: Settings) -> Registry:
    """The agents this process is told to know. Raises DefinitionError."""
    return load(settings.agents)


def services_of(settings: Settings, telemetry: Telemetry) -> Services:
    """Everything a process shares, not yet connected. Raises DefinitionError for a URL or a fault that is none."""
    from runward.stores.sql import open_sql  # the testing package needs the rest of this module, and no database

    clock, chance = SystemClock(), SystemChance()
    stores = open_sql(settings.database_url, clock=clock, chance=chance, telemetry=telemetry)
    faults = None
    if settings.faults is not None:
        faults = FaultPoints(rules_of(settings.faults), clock=clock, chance=chance, telemetry=telemetry)
    return Services(
        store=stores.store if faults is None else probed(stores.store, faults),
        reads=stores.reads,
        directory=stores.directory,
        singletons=stores.singletons,
        budgets=stores.budgets,
        bus=_bus(settings, stores, clock=clock, chance=chance, telemetry=telemetry),
        clock=clock,
        chance=chance,
        time=StoreTime(clock),
        telemetry=telemetry,
        prices=PriceTable(configured_prices(settings.prices)),
        faults=faults,
        redactor=redactor_of(settings),
    )


def redactor_of(settings: Settings) -> Redactor:
    """What takes out secrets, what operators want taken out besides, and what this process was started with: its secret key, passwords in
    URLs, keys of model providers, and whatever the environment calls a key, a token, a secret or a password."""
    urls = [settings.database_url, "" if settings.redis_url is None else settings.redis_url.get_secret_value()]
    passwords = [found[1] or found[2] for url in urls for found in _PASSWORD.finditer(url)]
    keys = [os.environ.get(variable, "") for variables in KEY_VARIABLES.values() for variable in variables]
    named = [value for name, value in os.environ.items() if _SECRET_NAME.fullmatch(name)]
    return knowing([settings.secret or "", *passwords, *map(unquote, passwords), *keys, *named], settings.redact)


def _bus(settings: Settings, stores: SqlStores, *, clock: Clock, chance: Chance, telemetry: Telemetry) -> Bus:
    """The one bus of a process: over Redis where there is one, else over the database."""
    if settings.redis_url is None:
        return stores.bus
    from runward.stores.redis import redis_bus  # the driver is not for those who have no Redis

    return redis_bus(settings.redis_url.get_secret_value(), identity=stores.identity, clock=clock, chance=chance, telemetry=telemetry)


async def service_of(
    settings: Settings, registry: Registry, services: Services, *, worker: bool, on_stall: Callable[[], None] = lambda: None
) -> Service:
    """A process of the service, not yet started. Raises DefinitionError, for a missing key naming agent and variable."""
    workforce = None
    if worker:
        models = ModelClients(services.clock)
        names = [(entry.agent.name, name) for entry in registry.agents for name in _provider_models(entry)]
        require_keys(names, os.environ)
        await models.prepare(name for _, name in names)
        await _prepare_prices(services, [name for _, name in names])
        workforce = Workforce(
            deployed=deployed(
                registry, models, max_result_bytes=settings.max_result_bytes, outward=_outward(settings, registry, services.telemetry)
            ),
            models=models,
            settings=worker_settings(settings),
            host=socket.gethostname(),
            pid=os.getpid(),
            resources={},
            on_stall=on_stall,
        )
    return Service(
        services=services,
        registry=registry,
        seal=Seal(settings.secret),
        signer=None if settings.secret is None else Signer(settings.secret),
        verdicts_take_tokens=settings.approval_tokens == "required",
        poll=settings.poll_seconds,
        poll_with_bus=max(settings.poll_seconds, POLL_WITH_BUS_SECONDS),
        workforce=workforce,
        working=worker_settings(settings),
        upkeep=upkeep_settings(settings),
    )


async def _prepare_prices(services: Services, models: Sequence[str]) -> None:
    """Reads the table of prices, which takes a moment, before anything is claimed."""
    await asyncio.to_thread(lambda: [services.prices.rates(model, 0) for model in models])


def deployed(
    registry: Registry, models: AnyModelClients, *, max_result_bytes: int, outward: Callable[[], Outward] | None = None
) -> Mapping[str, Deployed]:
    """Every agent of a registry with its tools ready to run, by binding. `outward` is asked where there are HTTP tools; without it nothing
    is open to them that is not open to everybody."""
    threads, outward = Threads(), outward or cache(lambda: outward_of(logging_telemetry(None)))
    return {entry.binding: _deployed(entry, models, max_result_bytes, threads, outward) for entry in registry.agents}


def outward_of(telemetry: Telemetry, destinations: Destinations | None = None) -> Outward:
    """What HTTP tools of a process share: the way out, which opens no more than `destinations` says, and the environment."""
    from runward.tools.destinations import Destinations  # the HTTP client is for those who have such tools
    from runward.tools.known_secrets import KnownSecrets
    from runward.tools.outbound import GuardedClient
    from runward.tools.outward import Outward

    secrets = KnownSecrets()
    client = GuardedClient(destinations or Destinations(), telemetry=telemetry, redact=secrets.redact)
    return Outward(client=client, environ=os.environ, secrets=secrets)


def bearers_of(settings: Settings, services: Services) -> Bearers | None:
    """Knows the callers that come from an identity provider, where one is set. Raises DefinitionError, naming the setting."""
    if not (settings.jwt_issuer or settings.jwt_jwks_url or settings.jwt_audience):
        return None
    from runward.engine.bearers import Bearers  # what it takes to verify signatures is for those who have a provider
    from runward.engine.key_sets import KeySet
    from runward.identity import claims_of, keys_at
    from runward.tools.destinations import Destinations
    from runward.tools.outbound import GuardedClient

    claims, (url, place) = claims_of(settings), keys_at(settings)
    outbound = GuardedClient(Destinations(opened=(place,), only=(place,)), telemetry=services.telemetry)
    keys = KeySet(url, algorithms=claims.algorithms, outbound=outbound, clock=services.clock, telemetry=services.telemetry)
    return Bearers(claims, keys, services.time)


def upkeep_settings(settings: Settings) -> UpkeepSettings:
    retention = settings.run_retention_days
    return UpkeepSettings(
        idempotency_retention=settings.idempotency_retention_days * DAY_SECONDS,
        run_retention=None if retention is None else retention * DAY_SECONDS,
    )


def worker_settings(settings: Settings) -> WorkerSettings:
    return WorkerSettings(
        concurrency=settings.worker_concurrency,
        lease_ttl=settings.lease_ttl_seconds,
        poll=settings.poll_seconds,
        poll_with_bus=max(settings.poll_seconds, POLL_WITH_BUS_SECONDS),
        drain_grace=settings.drain_grace_seconds,
        cancel_grace=settings.cancel_grace_seconds,
        max_recoveries=settings.max_recoveries,
        loop_stall=settings.loop_stall_seconds,
        per_key=settings.concurrency_per_key,
        per_tenant=settings.concurrency_per_tenant,
        circuit=CircuitSettings(
            failures=settings.model_circuit_failures,
            window_seconds=settings.model_circuit_window_seconds,
            open_seconds=settings.model_circuit_open_seconds,
        ),
    )


def _deployed(
    entry: Registered, models: AnyModelClients, max_result_bytes: int, threads: Threads, outward: Callable[[], Outward]
) -> Deployed:
    agent = entry.agent
    return Deployed(
        agent=agent,
        binding=entry.binding,
        tools=bodies(agent, max_result_bytes=max_result_bytes, threads=threads, outward=outward),
        waiting=waiting(agent.tools),
        offers_of=waiting,
        models=models,
        verify=None if agent.output is None or agent.output.verify is None else aside(agent.output.verify, threads),
    )


def _outward(settings: Settings, registry: Registry, telemetry: Telemetry) -> Callable[[], Outward]:
    """The same for a worker, whose HTTP tools can all be called. Raises DefinitionError, naming tool and variable or setting."""
    tools = [(entry.agent.name, tool) for entry in registry.agents for tool in entry.agent.tools if isinstance(tool, HttpTool)]
    if not (tools or settings.outbound_hosts or settings.outbound_only):
        return cache(lambda: outward_of(telemetry))
    from runward.tools.destinations import ONLY, OPENED, Destinations, places_of
    from runward.tools.outward import require_outward

    destinations = Destinations(
        opened=places_of(settings.outbound_hosts, setting=OPENED),
        only=places_of(settings.outbound_only, setting=ONLY),
        plain_http=settings.outbound_plain_http == "any",
    )
    require_outward(tools, os.environ, destinations)
    return cache(lambda: outward_of(telemetry, destinations))


def _provider_models(entry: Registered) -> list[str]:
    models = (entry.agent.model, *entry.agent.fallback_models)
    return [model for model in models if isinstance(model, str) and not is_choice(model)]

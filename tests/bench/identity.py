"""What it costs to know who calls, and what streams cost that say nothing."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import aiohttp

from tests.bench.house import House, Kind, running
from tests.bench.load import QUESTION, load, percentile
from tests.bench.pairs import NAMES
from tests.bench.report import Findings, Row, Table, row, spread
from tests.bench.servers import PYTHON, Process, runward
from tests.support.identity import AUDIENCE, ISSUER, Provider, claims, provider, signed

SECRET = "a secret key for the benchmark"
WAYS = ("nobody", "nobody, too", "key", "token")
"""The second is the first once more: what their ratio is off 1 by is the machine's."""
STREAMS = 1_000
RUNS, CALLERS = 100, 8
REST_SECONDS = 3.0

Headers = Mapping[str, str]


async def measure_callers(house: House) -> Findings:
    """`POST /runs` by nobody in particular, by a key of one user, and by a provider's token, each to a server of its own, request by
    request in turn."""
    rows: list[Row] = []
    lines, data = [], {}
    with provider() as at:
        for kind in ("sqlite", "postgres"):
            seen, spent = await _callers(house, at, kind)
            pairs = {name: [mine / none for mine, none in zip(seen[name], seen["nobody"], strict=True)] for name in WAYS[1:]}
            medians = {name: statistics.median(values) for name, values in seen.items()}
            note = f"{medians['key']:.2f} ms against {medians['nobody']:.2f}"
            rows.append(row("17" if kind == "postgres" else "17a", pairs["key"], note))
            lines += [
                [
                    f"{NAMES[kind]}, {name}",
                    f"{medians[name]:.2f}",
                    f"{medians['nobody']:.2f}",
                    spread(found, 3),
                    f"{spent[name]:.2f} / {spent['nobody']:.2f}",
                ]
                for name, found in pairs.items()
            ]
            data[kind] = {"p50_ms": seen, "server_cpu_ms": spent}
    table = Table(
        title="POST /runs, p50 ms",
        columns=["", "with it", "without", "ratio of the rounds", "server CPU ms, with and without"],
        lines=lines,
    )
    return Findings(rows=rows, tables=[table], data=data)


async def _callers(house: House, at: Provider, kind: Kind) -> tuple[Mapping[str, Sequence[float]], Mapping[str, float]]:
    """The p50 of each way to call, round by round, and what a request takes of the server's CPU; in ms."""
    rounds, requests = (4, 150) if house.quick else (9, 400)
    databases = {name: await house.database(kind, migrated=True) for name in WAYS}
    settings = {
        "RUNWARD_SECRET_KEY": SECRET,
        "RUNWARD_JWT_ISSUER": ISSUER,
        "RUNWARD_JWT_AUDIENCE": AUDIENCE,
        "RUNWARD_JWT_JWKS_URL": at.url,
        "RUNWARD_JWT_TENANT_CLAIM": "tenant",
    }
    token = signed(claims(int(time.time() * 1000), exp=int(time.time()) + 3_600))
    credentials = {"key": _key(databases["key"]), "token": token}
    servers = {name: runward("serve", url, "--no-worker", **(settings if name in credentials else {})) for name, url in databases.items()}
    seen: dict[str, list[float]] = {name: [] for name in WAYS}
    with running(*servers.values()):
        async with aiohttp.ClientSession() as session:
            asked = {name: (server.url, credentials.get(name)) for name, server in servers.items()}
            await _round(session, asked, 50)
            before = {name: server.cpu() for name, server in servers.items()}
            for _ in range(rounds):
                for name, times in (await _round(session, asked, requests)).items():
                    seen[name].append(percentile(times, 0.5))
            spent = {name: (server.cpu() - before[name]) / (rounds * requests) * 1e3 for name, server in servers.items()}
    return seen, spent


async def _round(
    session: aiohttp.ClientSession, asked: Mapping[str, tuple[str, str | None]], requests: int
) -> Mapping[str, Sequence[float]]:
    """Milliseconds of so many requests of each, one after the other, each kind as often first as last."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    order = list(asked.items())
    for number in range(requests):
        turned = order[number % len(order) :] + order[: number % len(order)]
        for name, (url, credential) in turned:
            headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
            begun = time.perf_counter()
            async with session.post(f"{url}/runs", json={"agent": "bench", "input": QUESTION}, headers=headers) as answer:
                await answer.read()
                assert answer.status == 202, await answer.text()
            times[name].append((time.perf_counter() - begun) * 1e3)
    return times


def _key(database: str) -> str:
    """A new key that is confined to one user and one namespace."""
    scope = ["--tenant", "acme", "--user", "ann", "--namespace", "red", "--permission", "runs:write"]
    process = runward("keys", database)
    done = subprocess.run(
        [str(PYTHON.with_name("runward")), "keys", "create", *scope, "--json"],
        env=process.identity()["env"],
        check=True,
        capture_output=True,
        text=True,
    )
    return str(json.loads(done.stdout)["key"])


async def measure_idle(house: House) -> Findings:
    """A thousand streams of runs that wait: what memory they take, and how fast runs beside them are, against a process without any."""
    rounds = 2 if house.quick else 5
    grown: list[float] = []
    seen: dict[str, list[float]] = {"with": [], "without": []}
    spent: dict[str, list[float]] = {"with": [], "without": []}
    with ExitStack() as stack:
        servers = {name: runward("serve", await house.database("sqlite", migrated=True)) for name in seen}
        for server in servers.values():
            stack.enter_context(running(server))
            await load(server.url, callers=CALLERS, runs=RUNS)
            await load(server.url, callers=CALLERS, runs=RUNS)
        await asyncio.sleep(REST_SECONDS)
        before = servers["with"].rss()
        async with _followers(servers["with"], STREAMS):
            await asyncio.sleep(REST_SECONDS)
            grown.append(servers["with"].rss() - before)
            for number in range(rounds):
                for name in sorted(servers, reverse=bool(number % 2)):
                    used = servers[name].cpu()
                    found = await load(servers[name].url, callers=CALLERS, runs=RUNS)
                    spent[name].append((servers[name].cpu() - used) / RUNS * 1e3)
                    seen[name].append(percentile(found.done, 0.5))
    pairs = [mine / none for mine, none in zip(seen["with"], seen["without"], strict=True)]
    note = f"done p50 {statistics.median(seen['with']):.1f} ms against {statistics.median(seen['without']):.1f}"
    rows = [row("18", grown, f"{STREAMS} streams, {grown[0] / STREAMS * 1e3:.0f} kB each"), row("18a", pairs, note)]
    lines = [[name, spread(seen[name]), spread(spent[name], 2)] for name in seen]
    table = Table(title=f"{RUNS} runs, {CALLERS} at a time", columns=["idle streams", "done p50 ms", "server CPU ms a run"], lines=lines)
    return Findings(rows=rows, tables=[table], data={"grown_mb": grown, "done_p50": seen, "server_cpu_ms": spent})


@asynccontextmanager
async def _followers(server: Process, count: int) -> Any:
    """So many open streams of as many runs that begin in a year."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        streams = []
        for _ in range(count):
            async with session.post("/runs", json={"agent": "bench", "input": QUESTION, "start_at": _later()}) as answer:
                run_id = (await answer.json())["run_id"]
            stream = await session.get(f"/runs/{run_id}/events")
            assert stream.status == 200
            await stream.content.readuntil(b"\n\n")
            streams.append(stream)
        try:
            yield
        finally:
            for stream in streams:
                stream.close()


def _later() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))

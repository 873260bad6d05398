"""The client: so many callers at once, each of which creates a run, reads its stream to the end, and goes on with the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

QUESTION = "What is 2 + 2? Use the tool."
FIRST_STEP = b'"type":"tool-'
"""What the first frame holds that carries something of the model's first answer: it asks for a tool."""

ANSWER, END = b"The answer is 4.", b"data: [DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load found. Times of each run from its submission, in ms; `client_cpu` is in ms a run."""

    runs: int
    seconds: float
    first_frame: Sequence[float]
    first_step: Sequence[float]
    done: Sequence[float]
    client_cpu: float

    @property
    def runs_per_second(self) -> float:
        return self.runs / self.seconds


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of all, between 0 and 1, does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


async def load(url: str, *, callers: int, runs: int, agent: str = "bench", pause: float = 0) -> Load:
    """Runs so many runs to their end; each caller waits `pause` seconds before each of its own. Raises AssertionError when one of them did
    not end with the answer."""
    seen: list[tuple[float, float, float]] = []
    numbers = iter(range(runs))
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def caller() -> None:
            for _ in numbers:
                await asyncio.sleep(pause)
                seen.append(await _run(session, agent))

        begun, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller() for _ in range(callers)))
        seconds, spent = time.perf_counter() - begun, time.process_time() - spent
    first_frame, first_step, done = ([value * 1e3 for value in column] for column in zip(*seen, strict=True))
    return Load(runs=runs, seconds=seconds, first_frame=first_frame, first_step=first_step, done=done, client_cpu=spent / runs * 1e3)


async def create(session: aiohttp.ClientSession, agent: str) -> str:
    """Creates a run, and returns its id."""
    async with session.post("/runs", json={"agent": agent, "input": QUESTION}) as answer:
        body: dict[str, Any] = await answer.json()
        assert answer.status == 202, body
    return str(body["run_id"])


async def _run(session: aiohttp.ClientSession, agent: str) -> tuple[float, float, float]:
    """Seconds from the submission to the first frame, the first step, and the end."""
    begun = time.perf_counter()
    run_id = await create(session, agent)
    first = step = 0.0
    told = b""
    async with session.get(f"/runs/{run_id}/events") as stream:
        assert stream.status == 200, await stream.text()
        async for chunk in stream.content.iter_any():
            now = time.perf_counter()
            told += chunk
            if not first and b"data: " in told:
                first = now
            if not step and FIRST_STEP in told:
                step = now
    end = time.perf_counter()
    assert first and step and ANSWER in told and END in told, told[-1000:]
    return first - begun, step - begun, end - begun

"""The agents of the workloads, with models that cost nothing. `RUNWARD_AGENTS` names this file, so it imports what authors import."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runward import Agent, Limits, ModelRequest, Reply, ScriptedModel, ToolCall, ToolContext, tool

LONG_STEPS = 100
PAGE = "The quick brown fox jumps over the lazy dog. " * 450
"""About 20 KB of text."""

CONSULTATIONS = 1000
PATIENT_STEPS = 3
MODEL_SECONDS = 1.0
LAG_TICK_SECONDS = 0.05
GATE_VARIABLE = "BENCH_GATE_FILE"


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="non_idempotent_write", needs_approval=False)
async def book(a: int, b: int) -> int:
    """Add two numbers, as if money were moved."""
    return a + b


@tool(effect="non_idempotent_write")
async def pay() -> float:
    """Say when it began: a person has approved it."""
    return time.time()


@tool(effect="read", timeout_seconds=600)
async def wait_at_gate() -> str:
    """Wait for the file that `BENCH_GATE_FILE` names."""
    while not os.path.exists(os.environ.get(GATE_VARIABLE, "")):  # noqa: ASYNC110, ASYNC240  another process makes it
        await asyncio.sleep(0.05)
    return "open"


@tool(effect="read")
async def turn_page() -> str:
    """Read on."""
    return PAGE


@tool(effect="read", timeout_seconds=600)
async def consult(ctx: ToolContext) -> list[float]:
    """Ask a model a thousand times, one after the other; how long each call took, in ms."""
    took = []
    for _ in range(CONSULTATIONS):
        begun = time.perf_counter()
        await ctx.generate("And now?")
        took.append(round((time.perf_counter() - begun) * 1e3, 3))
    return took


def additions(name: str, turns: int) -> list[Reply]:
    """A model's turns: so many calls of a tool, one after the other, then the answer."""
    asks = [Reply(tool_calls=[ToolCall(name, {"a": 2, "b": 2})]) for _ in range(turns)]
    return [*asks, Reply(text="The answer is 4.")]


def long_script(request: ModelRequest) -> Reply:
    """Says 20 KB and asks for 20 KB more, a hundred times over."""
    if request.step < LONG_STEPS:
        return Reply(text=PAGE, tool_calls=[ToolCall("turn_page", {})])
    return Reply(text="The answer is 4.")


async def patient_script(request: ModelRequest) -> Reply:
    """Thinks for a second, as a real model would."""
    await asyncio.sleep(MODEL_SECONDS)
    if request.step < PATIENT_STEPS:
        return Reply(tool_calls=[ToolCall("add", {"a": 2, "b": 2})])
    return Reply(text="The answer is 4.")


@asynccontextmanager
async def measured_loop() -> AsyncIterator[None]:
    """Notes how late the worker's event loop is, and adds it to the file that `BENCH_LAG_FILE` names: lists of ms, a line each."""
    task = asyncio.ensure_future(_note_lags(os.environ.get("BENCH_LAG_FILE")))
    try:
        yield
    finally:
        task.cancel()


async def _note_lags(path: str | None) -> None:
    while path is not None:
        lags = []
        for _ in range(20):
            due = time.perf_counter() + LAG_TICK_SECONDS
            await asyncio.sleep(LAG_TICK_SECONDS)
            lags.append(round((time.perf_counter() - due) * 1e3, 2))
        with open(path, "a", encoding="utf-8") as file:  # noqa: ASYNC230  a line a second
            file.write(json.dumps(lags) + "\n")


AGENTS = [
    Agent(name="bench", model=ScriptedModel(additions("add", 1), name="bench"), tools=[add]),
    Agent(name="two-reads", model=ScriptedModel(additions("add", 2), name="two-reads"), tools=[add]),
    Agent(name="one-effect", model=ScriptedModel(additions("book", 1), name="one-effect"), tools=[book]),
    Agent(name="long", model=ScriptedModel(long_script, name="long"), tools=[turn_page], limits=Limits(max_steps=LONG_STEPS)),
    Agent(name="gated", model=ScriptedModel([Reply(tool_calls=[ToolCall("pay", {})]), Reply(text="The answer is 4.")]), tools=[pay]),
    Agent(
        name="stuck",
        model=ScriptedModel([Reply(tool_calls=[ToolCall("wait_at_gate", {})]), Reply(text="The answer is 4.")], name="stuck"),
        tools=[wait_at_gate],
    ),
    Agent(
        name="consulting",
        model=ScriptedModel(
            [Reply(tool_calls=[ToolCall("consult", {})]), Reply(text="The answer is 4.")], name="consulting", generate=Reply(text="Yes.")
        ),
        tools=[consult],
    ),
    Agent(name="patient", model=ScriptedModel(patient_script, name="patient"), tools=[add], lifespan=measured_loop),
]

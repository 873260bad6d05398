"""What it takes to read a typed answer: from a model's text to a value that fits its schema. No run, no store: the reader alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from pydantic import BaseModel, Field

from runward import Output
from runward.engine.outputs import OutputReader
from tests.bench.house import House
from tests.bench.report import Findings, Table, row, spread


class Line(BaseModel):
    article: str
    quantity: int = Field(ge=1)
    price_cents: int
    note: str = Field(max_length=200)


class Quote(BaseModel):
    title: str
    summary: str = Field(max_length=2_000)
    lines: list[Line]
    total_cents: int


def answer(size: int) -> str:
    """A quote of about so many bytes, as a model writes it."""
    lines: list[dict[str, object]] = []
    made: dict[str, object] = {"title": "Order 7", "summary": "It ships on Monday. " * 12, "lines": lines, "total_cents": 361_200}
    while len(json.dumps(made)) < size:
        note = "With armrests, in oak, as agreed on the phone."
        lines.append({"article": f"chair {len(lines)}", "quantity": 2, "price_cents": 12_900, "note": note})
    return json.dumps(made)


async def measure(house: House) -> Findings:
    """Reads answers of 2 KB and 20 KB, by a Pydantic model and by a JSON Schema, beside what Python takes to parse them."""
    rounds = 5 if house.quick else 15
    readers = {
        "a Pydantic model": OutputReader(Output(schema=Quote)),
        "a JSON Schema": OutputReader(Output(schema=Quote.model_json_schema())),
    }
    seen: dict[str, dict[int, list[float]]] = {name: {} for name in (*readers, "json.loads alone")}
    for size in (2_000, 20_000):
        text = answer(size)
        for name, reader in readers.items():
            assert reader.read(text).complaint is None
            seen[name][size] = [_micros(partial(reader.read, text)) for _ in range(rounds)]
        seen["json.loads alone"][size] = [_micros(partial(json.loads, text)) for _ in range(rounds)]
    rows = [row("19", seen["a Pydantic model"][2_000]), row("19a", seen["a JSON Schema"][2_000])]
    lines = [[name, spread(found[2_000]), spread(found[20_000])] for name, found in seen.items()]
    table = Table(title="Reading a typed answer", columns=["read by", "2 KB, µs", "20 KB, µs"], lines=lines)
    return Findings(rows=rows, tables=[table], data={"micros": seen})


def _micros(work: Callable[[], object], times: int = 500) -> float:
    """What one of many takes, in microseconds of this process' CPU: others have the machine as well."""
    began = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - began) / times / 1_000

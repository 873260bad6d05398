"""`docs/api.md` says what the code does."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from runward.api import bodies, connections, door, headers, middleware, problems, query_strings, sse, strict_json
from runward.api.permissions import PERMISSIONS, spelled
from runward.api.schemas import control, inputs, messages, ops, requests, values
from runward.engine import letters
from runward.engine.tokens import MAX_LENGTH, MAX_TTL_SECONDS
from tests.api.house import House

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text()


def test_every_call_is_documented_with_what_it_needs() -> None:
    table = TEXT.split("## Calls")[1].split("##")[0]
    documented: dict[str, str] = {}
    for row in re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", table, re.MULTILINE):
        for call in re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) [^`?]+)`", row[0]):
            documented[call] = row[1]
    assert documented == {name: spelled(needs) or "\N{EN DASH}" for name, needs in PERMISSIONS.items()}


def test_every_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| .+ \|$", TEXT, re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {code: status for code, (status, _) in problems.STATUSES.items()}


def test_every_frame_is_documented() -> None:
    source = ast.parse((ROOT / "app" / "runward" / "core" / "runs" / "frames.py").read_text())
    calls = [
        node for node in ast.walk(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Frame"
    ]
    said = {word.value.value for call in calls for word in call.keywords if word.arg == "type" and isinstance(word.value, ast.Constant)}
    table = TEXT.split("### Frames")[1].split("##")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)}
    assert named == said


CAPS = [
    ("| `Idempotency-Key` | 1\N{EN DASH}{} visible", headers.MAX_IDEMPOTENCY_KEY),
    ("complete within {} s |", int(bodies.BODY_SECONDS)),
    ("| headers | {} KiB;", middleware.MAX_HEADER_BYTES // 1024),
    ("; {} KiB with the request line; complete within 30 s |", connections.MAX_HEAD_BYTES // 1024),
    ("| query | {} parameters,", query_strings.MAX_PARAMETERS),
    (" parameters, {} characters each;", query_strings.MAX_PARAMETER),
    ("files in a tool result | {} |", messages.MAX_ITEMS),
    ("| `metadata` | {} keys", values.MAX_METADATA_KEYS),
    ("characters, {} KiB as JSON |", values.MAX_METADATA_BYTES // 1024),
    ("`client_tools` | {} tools each |", requests.MAX_TOOLS),
    (" `-` · {} characters |", requests.MAX_DESCRIPTION),
    ("that is sent to a run | {} |", inputs.MAX_ITEMS),
    ("| `ttl_seconds` | 1\N{EN DASH}{} |", MAX_TTL_SECONDS),
    ("1,024 characters each; {} of a `token` |", MAX_LENGTH),
    ("`evidence.source` | {} · ", letters.MAX_QUESTION_ANSWER),
    (" · {} characters |", inputs.MAX_REFERENCE),
    ("0.001\N{EN DASH}{} |", requests.MAX_SECONDS),
    ("| `reason` · `note` | {} KiB |", values.MAX_REASON_BYTES // 1024),
    ("| nesting | {} |", strict_json.MAX_DEPTH),
    ("| `wait` | {} s |", headers.MAX_WAIT_SECONDS),
    ("| `run_ids` of a bulk cancel | {} |", control.MAX_RUN_IDS),
    ("| `limit` of a prune | {} |", ops.MAX_PRUNED),
    ("| open streams of one process | {} |", door.MAX_STREAMS),
    ("| body | {} MiB", door.MAX_BODY_BYTES // 1_048_576),
    ("After {} s of silence", int(sse.BEAT_PULSES * sse.PULSE_SECONDS)),
    ("does not read for {} s", int(sse.STUCK_PULSES * sse.PULSE_SECONDS)),
]


@pytest.mark.parametrize(("text", "number"), CAPS, ids=[text for text, _ in CAPS])
def test_R48_every_cap_is_documented(text: str, number: int) -> None:
    assert text.format(f"{number:,}") in TEXT


async def test_the_documented_request_is_accepted(quiet_house: House) -> None:
    example = re.findall(r"^```json\n(.+?)```", TEXT.split("## Creating a run")[1], re.MULTILINE | re.DOTALL)[0]
    for key in json.loads(example)["budgets"]:
        assert (await quiet_house.http.put(f"/budgets/{key}", json={})).status_code == 200
    run = await quiet_house.created(**json.loads(example))
    shown = re.findall(r"^```json\n(.+?)```", TEXT.split("## Reading a run")[1], re.MULTILINE | re.DOTALL)[0]
    assert json.loads(shown).keys() == run.keys()
    assert json.loads(shown)["pending"].keys() == run["pending"].keys()

"""The OpenAPI document: kept, complete, and true for requests made from it."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runward.api import openapi
from runward.api.asking import Asked
from runward.api.permissions import PERMISSIONS, spelled
from runward.api.routes import ROUTES, runs
from runward.api.waiting import waited
from runward.engine.callers import Permission
from runward.engine.queries import RunView, Until
from tests.api.house import House, house, served
from tests.api.test_callers import key

KEPT = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"


def test_the_kept_document_is_that_of_the_code() -> None:
    assert KEPT.read_bytes() == openapi.text(), "stale: `make openapi` writes it anew"


def test_the_document_is_always_the_same() -> None:
    assert json.dumps(openapi.document()) == json.dumps(openapi.document())


def test_every_route_is_described() -> None:
    document = openapi.document()
    assert document["openapi"].startswith("3.1")
    described = {f"{method.upper()} {path}": operation for path, item in document["paths"].items() for method, operation in item.items()}
    assert described.keys() == PERMISSIONS.keys()
    assert len({operation["operationId"] for operation in described.values()}) == len(ROUTES)
    for name, operation in described.items():
        assert operation["summary"] and operation["description"], name
        assert operation.get("x-permission") == spelled(PERMISSIONS[name])
        assert operation["responses"]["default"]["content"].keys() == {"application/problem+json"}
        placed = [parameter["in"] + ":" + parameter["name"] for parameter in operation.get("parameters", [])]
        assert len(placed) == len(set(placed))
        assert ("query:tenant" in placed) == (PERMISSIONS[name] is not None)
    assert described["POST /runs"]["requestBody"]["required"] is True
    assert "required" not in described["POST /runs/{run_id}/cancel"]["requestBody"]


def test_bodies_have_examples_and_take_nothing_else() -> None:
    schemas = openapi.document()["components"]["schemas"]
    for name in ("CreateRun", "CancelRun", "GiveVerdicts", "GiveResults", "GiveAnswers", "Reconcile", "Resume", "Decide"):
        assert schemas[name]["examples"]
    bodies = {name for name, schema in schemas.items() if schema.get("additionalProperties") is not True}
    assert {"CreateRun", "ClientToolIn", "VerdictItem", "ResultItem", "AnswerItem", "SettlementItem", "EvidenceIn", "Resume"} <= bodies
    for name in bodies:
        assert schemas[name]["additionalProperties"] is False, name


async def test_examples_of_the_document_work(quiet_house: House) -> None:
    for example in openapi.document()["components"]["schemas"]["CreateRun"]["examples"]:
        await quiet_house.created(**example)


UNSAID = {
    "": (
        "This cursor is not one of this list",
        "A cursor is ",
        "This cursor lies beyond",
        "An integer in the body does not fit into 64 bits",
    ),
    "POST /ops/rebind": ("No worker has published an agent with this binding.", "`from` and `to` are the same."),
    "POST /runs": ("/input/", "There is no budget "),
}
"""Refusals of what fits the document, because no schema says it: whether a cursor was ever given, how messages of an input pair,
which budgets there are."""
NOT_WHOLE = "Input should be a valid integer"
"""To JSON Schema `1.0` is an integer, and here it is none (R46)."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_requests_made_from_the_document_pass_every_check(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that schemathesis knows to make and to check, seeded: every operation covered, and operations in a row. No 5xx; what fits the
    document is taken, what does not is refused; nobody comes in without a key; other methods are refused, with an `Allow` that is true."""
    monkeypatch.setattr(runs, "waited", soon)
    async with house(url=url) as made:
        keyed = await key(made, permissions=tuple(Permission))
        async with served(made) as port:
            report = tmp_path / "report.ndjson"
            await generated(f"http://127.0.0.1:{port}/openapi.json", keyed["Authorization"], report)
    cases, broken = read(report)
    assert [(case, failure) for case, failure in broken if not excused(case, failure)] == []
    assert cases.keys() == PERMISSIONS.keys() - {"GET /openapi.json"}
    assert sum(cases.values()) > 1_500
    assert made.heard.problems == []


async def soon(asked: Asked, run: RunView, seconds: int, until: Until) -> RunView:
    """A wait as it is, but that nobody has the time."""
    return await waited(asked, run, 0, until)


async def generated(address: str, authorization: str, report: Path) -> None:
    """Runs it, in a process of its own."""
    phases = (
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--max-examples",
        "3",
        "--seed",
        "1",
        "--no-shrink",
        "--continue-on-failure",
    )
    told = ("--report", "ndjson", "--report-ndjson-path", str(report), "--output-truncate", "false", "--warnings", "off")
    program = Path(sys.executable).parent / "schemathesis"
    arguments = ("run", address, "-H", f"Authorization: {authorization}", "--checks", "all", "--request-timeout", "30", *phases, *told)
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=PIPE, stderr=STDOUT, cwd=report.parent)
    said, _ = await process.communicate()
    assert b"Errors:" not in said and process.returncode in (0, 1), said[-4_000:].decode()


Case = dict[str, Any]


def read(report: Path) -> tuple[Counter[str], list[tuple[Case, Case]]]:
    """How many requests each operation got, and each that failed a check, with the check."""
    counts: Counter[str] = Counter()
    broken = []
    for line in report.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for id, checks in recorder.get("checks", {}).items():
            interaction = recorder["interactions"][id]
            case = {"operation": recorder["cases"][id]["value"]["path"], **interaction["request"], "answer": interaction.get("response")}
            counts[f"{case['method']} {case['operation']}"] += 1
            broken += [(case, check) for check in checks if check["status"] != "success"]
    described = {f"{method.upper()} {path}" for path, item in openapi.document()["paths"].items() for method in item}
    return Counter({name: count for name, count in counts.items() if name in described}), broken


def excused(case: Case, failure: Case) -> bool:
    """Whether a refusal is right although the document cannot say why."""
    if failure["name"] == "allow_header_conformance":
        return bool(case["operation"] == "/runs/cancel")  # a run may have this name, and then its address has other methods
    if failure["name"] != "positive_data_acceptance":
        return False
    detail: str = json.loads(base64.b64decode(case["answer"]["content"]["$base64"]))["detail"]
    details = (*UNSAID[""], *UNSAID.get(f"{case['method']} {case['operation']}", ()))
    return detail.startswith(details) or detail.partition(": ")[2].startswith(NOT_WHOLE)

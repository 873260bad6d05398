"""The OpenAPI document: kept, complete, and true for requests made from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi import checks

from runward.api import openapi
from runward.api.permissions import PERMISSIONS, spelled
from runward.api.routes import ROUTES
from tests.api.house import House, served

CHECKS = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
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


@pytest.mark.filterwarnings("ignore")
async def test_requests_made_from_the_document_are_answered_as_it_says(open_house: House) -> None:
    """Generated from the document by schemathesis, seeded and few: no 5xx, and every answer is one that is described."""
    run = await open_house.completed(run_id="run-1")
    assert run["status"] == "completed"
    async with served(open_house) as port:
        address = f"http://127.0.0.1:{port}"
        counts = await asyncio.to_thread(generate, address)
    assert len(counts) == len(ROUTES) - 1  # it leaves out the address that the document came from
    assert sum(counts) > 100
    assert open_house.heard.problems == []


def generate(address: str) -> Sequence[int]:
    """Calls every operation of the document served there; returns how often each was."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    return [call(operation) for operation in sorted(operations, key=lambda operation: operation.method == "delete")]


def call(operation: Any) -> int:
    count = 0
    good = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=good | bad)
    def check(case: Any) -> None:
        nonlocal count
        count += 1
        if "run_id" in case.path_parameters and count % 2:
            case.path_parameters["run_id"] = "run-1"
        answer = case.call(timeout=20)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.headers["content-type"][0] == "application/problem+json"
        case.validate_response(answer, checks=CHECKS)

    check()
    return count

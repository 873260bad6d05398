"""Anybody may do anything to any run in any order: the door answers as a small model of a run's life says, and fails at nothing.

Hypothesis finds the order. A failing one is printed step by step, with a line that repeats it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.api.desk import ASK, PICK, REFUND, asked_id, desk

T = TypeVar("T")

SCRIPTS = {"refund": REFUND, "pick": PICK, "ask": ASK, "talk": [{"text": "hello"}]}
WAIT = {"Prefer": "wait=20"}

which = st.integers(0, 7)
"""Which of the runs there have been; those that are deleted go on being asked for."""


@dataclass(kw_only=True)
class Life:
    """What should be so of a run. `answered` is what closed its wait, once something has."""

    id: str
    kind: str
    body: dict[str, Any]
    key: str | None
    approval: str | None = None
    answered: Any = None
    cancelled: bool = False
    deleted: bool = False
    revision: int = 0
    frames: list[int] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return self.kind != "talk" and self.answered is None and not self.cancelled

    @property
    def status(self) -> str:
        return "stopped" if self.cancelled else "suspended" if self.waits else "completed"


class Lives(RuleBasedStateMachine):
    """Callers of one service. `lives` is what they have made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[Life] = []

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.opened = desk()
        self.desk = self._do(self.opened.__aenter__())

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        self._do(self.opened.__aexit__(None, None, None))
        self.runner.close()
        approved = sum(life.kind == "refund" and life.answered is True for life in self.lives)
        assert self.desk.effects == [("refund", 7)] * approved, "what was approved has run once, and nothing else has"
        assert self.desk.house.heard.problems == []

    # -- what callers do -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.lives) < 8)
    @rule(kind=st.sampled_from([*SCRIPTS]), keyed=st.booleans(), named=st.booleans())
    def create(self, kind: str, keyed: bool, named: bool) -> None:
        number = len(self.lives)
        body: dict[str, Any] = {"agent": "desk", "input": json.dumps(SCRIPTS[kind])}
        if named:
            body["run_id"] = f"named-{number}"
        key = f"key-{number}" if keyed else None
        answer = self._ask("POST", "/runs", body, **self._keyed(key), **WAIT)
        assert answer.status_code == 200
        run = answer.json()
        life = Life(id=run["run_id"], kind=kind, body=body, key=key, approval=asked_id(run) if kind == "refund" else None)
        self.lives.append(life)
        self._check(life, run)

    @rule(which=which, other=st.booleans())
    def create_again(self, which: int, other: bool) -> None:
        """With the key or the name of one that there was."""
        life = self._life(which)
        if life is None or (life.key is None and (life.deleted or "run_id" not in life.body)):
            return
        body = {**life.body, **({"priority": 1} if other else {})}
        answer = self._ask("POST", "/runs", body, **self._keyed(life.key), **WAIT)
        if life.key is None:
            self._refused(answer, 409, "run_exists")
        elif other:
            self._refused(answer, 422, "idempotency_key_reused")
        elif life.deleted:
            self._refused(answer, 410, "run_deleted")
        else:
            assert (answer.status_code, answer.headers["idempotent-replayed"]) == (200, "true")
            self._check(life, answer.json())

    @rule(which=which, approved=st.booleans(), door=st.sampled_from(["own", "approvals", "resume"]))
    def decide(self, which: int, approved: bool, door: str) -> None:
        life = self._life(which)
        if life is None or life.approval is None:
            return
        if door == "own":
            answer = self._ask("POST", f"/approvals/{life.approval}", {"approved": approved})
        else:
            body = {"approvals": [{"approval_id": life.approval, "approved": approved}]}
            answer = self._ask("POST", f"/runs/{life.id}/{door}", body)
        self._closes(life, answer, approved, 200 if door == "own" else 202)

    @rule(which=which, choice=st.sampled_from(["red", "blue"]))
    def say(self, which: int, choice: str) -> None:
        life = self._life(which)
        if life is not None and life.kind == "ask":
            answer = self._ask("POST", f"/runs/{life.id}/answers", {"answers": [{"question_id": "1.1.1", "answer": choice}]})
            self._closes(life, answer, choice, 202)

    @rule(which=which, path=st.sampled_from(["a", "b"]))
    def bring(self, which: int, path: str) -> None:
        life = self._life(which)
        if life is not None and life.kind == "pick":
            body = {"tool_results": [{"tool_call_id": "1.1", "output": {"path": path}}]}
            self._closes(life, self._ask("POST", f"/runs/{life.id}/tool-results", body), path, 202)

    @rule(which=which, what=st.sampled_from(["approvals", "answers", "tool-results", "reconcile"]))
    def send_what_nobody_waits_for(self, which: int, what: str) -> None:
        life = self._life(which)
        if life is None:
            return
        body = {
            "approvals": [{"approval_id": "ap_" + "0" * 40, "approved": True}],
            "answers": [{"question_id": "9.9.9", "answer": "red"}],
            "tool-results": [{"tool_call_id": "9.9", "output": 1}],
            "reconcile": [{"tool_call_id": "9.9", "decision": "error"}],
        }[what]
        answer = self._ask("POST", f"/runs/{life.id}/{what}", {what.replace("-", "_"): body})
        assert answer.status_code == (404 if life.deleted else 409), answer.text

    @rule(which=which)
    def cancel(self, which: int) -> None:
        life = self._life(which)
        if life is None:
            return
        answer = self._ask("POST", f"/runs/{life.id}/cancel", None, **WAIT)
        if life.deleted:
            self._refused(answer, 404, "not_found")
        else:
            told = (answer.status_code, answer.json()["outcome"])
            assert told == ((202, "accepted") if life.waits else (200, "already_ended"))
            life.cancelled = life.cancelled or life.waits
            self._check(life, answer.json()["run"])

    @rule(which=which)
    def delete(self, which: int) -> None:
        life = self._life(which)
        if life is None:
            return
        answer = self._ask("DELETE", f"/runs/{life.id}", None)
        if life.deleted:
            self._refused(answer, 404, "not_found")
        elif life.waits:
            self._refused(answer, 409, "run_not_ended")
        else:
            assert answer.status_code == 204
            life.deleted = True

    @rule(which=which, after=st.integers(0, 60))
    def follow(self, which: int, after: int) -> None:
        """A stream has every frame behind its cursor, once, and what it had it keeps."""
        life = self._life(which)
        if life is None:
            return
        answer = self._ask("GET", f"/runs/{life.id}/events?after={after}&until=suspended", None)
        if life.deleted:
            self._refused(answer, 404, "not_found")
        elif answer.status_code == 400:
            self._refused(answer, 400, "invalid_cursor")
            assert after > len(life.frames)
        else:
            seen = [json.loads(line[6:])["seq"] for line in answer.text.splitlines() if line.startswith("data: {")]
            assert answer.status_code == (200 if seen else 204)
            assert seen == [*range(after + 1, after + 1 + len(seen))]
            if after == 0:
                assert len(seen) >= len(life.frames)
                life.frames = seen

    # -- what is so after each of it -----------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        if not hasattr(self, "desk"):
            return
        listed = {run["run_id"]: run for run in self._ask("GET", "/runs", None).json()["data"]}
        assert listed.keys() == {life.id for life in self.lives if not life.deleted}
        for life in self.lives:
            if life.deleted:
                self._refused(self._ask("GET", f"/runs/{life.id}", None), 404, "not_found")
            else:
                self._check(life, listed[life.id])
        pending = self._ask("GET", "/approvals?status=pending", None).json()["data"]
        assert {each["approval_id"] for each in pending} == {life.approval for life in self.lives if life.approval and life.waits}

    # -- parts -----------------------------------------------------------------------------------------------------------------------

    def _closes(self, life: Life, answer: httpx.Response, sent: Any, good: int) -> None:
        """What answers a run's wait: the first counts, the same again changes nothing, another one is told what stands."""
        if life.deleted:
            self._refused(answer, 404, "not_found")
        elif life.answered is not None and life.answered == sent:
            assert answer.status_code == good, answer.text
        elif life.answered is not None:
            self._refused(answer, 409, "already_answered")
        elif life.cancelled:
            self._refused(answer, 409, "run_ended")
        else:
            assert answer.status_code == good, answer.text
            life.answered = sent
            self._ask("GET", f"/runs/{life.id}?wait=20&until=ended", None)

    def _check(self, life: Life, run: dict[str, Any]) -> None:
        assert (run["status"], run["run_id"]) == (life.status, life.id)
        assert run["revision"] >= life.revision
        life.revision = run["revision"]
        if life.cancelled:
            assert run["stop"]["reason"] == "cancelled"

    def _life(self, which: int) -> Life | None:
        return self.lives[which % len(self.lives)] if self.lives else None

    def _ask(self, method: str, path: str, body: Any, **headers: str) -> httpx.Response:
        answer = self._do(self.desk.http.request(method, path, json=body, headers=headers))
        assert answer.status_code < 500, f"{method} {path}: {answer.text}"
        return answer

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @staticmethod
    def _keyed(key: str | None) -> dict[str, str]:
        return {} if key is None else {"Idempotency-Key": key}

    @staticmethod
    def _refused(answer: httpx.Response, status: int, code: str) -> None:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_run_lives_as_the_door_says_whatever_callers_do() -> None:
    bounds = settings(max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Lives, settings=bounds)

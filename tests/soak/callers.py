"""Whoever uses the service: makes runs, cancels some, answers whatever they ask for. Every request is sent again until it is answered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import httpx

from tests.e2e.deployment import Deployment, Script, View

OVER = ("completed", "stopped", "failed")
AGAIN_SECONDS = 0.2
PATIENCE_SECONDS = 120.0
CANCELLED_SHARE = 0.08
DENIED_SHARE = 0.15
KINDS: dict[str, Callable[[int], Script]] = {
    "talk": lambda number: [{"text": "Word after word. " * 15, "delay": 0.05}],
    "read and write": lambda number: [
        {"calls": [["lookup", {"order_id": number}]]},
        {"calls": [["note", {"order_id": number}], ["charge", {"order_id": number}]]},
        {"echo": True},
    ],
    "quote": lambda number: [{"calls": [["quote", {"order_id": number}], ["ship", {"order_id": number}]]}, {"echo": True}],
    "pay": lambda number: [{"text": "Let me pay.", "calls": [["pay", {"order_id": number}]]}, {"echo": True}],
    "refund": lambda number: [{"calls": [["refund", {"order_id": number}], ["lookup", {"order_id": number}]]}, {"echo": True}],
    "ask": lambda number: [
        {"calls": [["ask_user", {"question": "Which?"}], ["pick", {}]]},
        {"calls": [["durable_wait", {"seconds": 2}]]},
        {"text": "x"},
    ],
}


class Callers:
    """All of them, on one seed. `make` returns once every run was accepted; `answer_all` goes on until it is told to stop."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self._deployment = deployment
        self._seed = seed
        self._over = threading.Event()
        self.ids: dict[int, str] = {}
        self.asked = 0
        """How many requests were sent again because they got no answer, or a 503."""

    def make(self, count: int, seconds: float) -> None:
        """Makes runs, spread over some time, and cancels a few of them."""
        chance = Random(f"{self._seed} make")
        with self._client() as http:
            for number in range(count):
                self.ids[number] = self._created(http, number, KINDS[chance.choice(list(KINDS))])
                if chance.random() < CANCELLED_SHARE:
                    self._cancel(http, self.ids[number])
                time.sleep(seconds / count)

    def answer_all(self) -> None:
        """Decides, settles and answers what suspended runs wait for, until `close`."""
        chance = Random(f"{self._seed} answer")
        with self._client() as http:
            while not self._over.wait(AGAIN_SECONDS):
                listed = self._insists(lambda: http.get("/runs", params={"status": "suspended", "limit": 100}))
                for run in listed.json()["data"]:
                    self._answer(http, run["run_id"], chance)

    def close(self) -> None:
        self._over.set()

    def unfinished(self) -> list[View]:
        """The runs that have not ended."""
        with self._client() as http:
            return [view for run_id in self.ids.values() if (view := self._view(http, run_id))["status"] not in OVER]

    def _created(self, http: httpx.Client, number: int, kind: Callable[[int], Script]) -> str:
        body = {"agent": "puppet", "input": json.dumps(kind(number))}
        answer = self._insists(lambda: http.post("/runs", json=body, headers={"Idempotency-Key": f"soak-{number}"}))
        assert answer.status_code in (200, 202), answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    def _cancel(self, http: httpx.Client, run_id: str) -> None:
        assert self._insists(lambda: http.post(f"/runs/{run_id}/cancel", json={})).status_code in (200, 202)

    def _view(self, http: httpx.Client, run_id: str) -> View:
        view: View = self._insists(lambda: http.get(f"/runs/{run_id}")).json()
        return view

    def _answer(self, http: httpx.Client, run_id: str, chance: Random) -> None:
        pending = self._view(http, run_id)["pending"]
        given = {
            "approvals": [
                {"approval_id": each["approval_id"], "approved": chance.random() > DENIED_SHARE} for each in pending["approvals"]
            ],
            "tool_results": [{"tool_call_id": each["tool_call_id"], "output": "picked"} for each in pending["client_calls"]],
            "answers": [{"question_id": each["question_id"], "answer": "red"} for each in pending["questions"]],
            "reconcile": [settled(each["tool_call_id"], chance) for each in pending["unknown_effects"]],
        }
        body = {name: items for name, items in given.items() if items}
        if body:
            answer = self._insists(lambda: http.post(f"/runs/{run_id}/resume", json=body))
            assert answer.status_code in (202, 409), answer.text

    def _insists(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Sends a request until it is answered by something else than 503. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                answer = send()
            except httpx.HTTPError:
                pass
            else:
                if answer.status_code != 503:
                    assert answer.status_code < 500, answer.text
                    return answer
            self.asked += 1
            time.sleep(AGAIN_SECONDS)
        raise TimeoutError("the API did not answer")

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self._deployment.url, timeout=15, trust_env=False)


def settled(tool_call_id: str, chance: Random) -> dict[str, Any]:
    """How somebody settles an unknown effect."""
    decisions: Sequence[dict[str, Any]] = (
        {"decision": "retry"},
        {"decision": "result", "output": "found"},
        {"decision": "error", "note": "no"},
    )
    return {"tool_call_id": tool_call_id, **chance.choice(decisions)}

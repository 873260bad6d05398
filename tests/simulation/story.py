"""A run's journal as a client folds it: what it would show at any moment (R32)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from runward.core.kernel.frames import StoredFrame
from runward.stores.memory.database import Rows

AFTER_THE_END = ("tool-state", "warning", "data-agent")
"""What may still be said of a run that has ended: an effect was settled, or it is tried again (R10)."""


class Story:
    """Hears the frames of one run in order. Yields what a client could make no sense of.

    `approvals`, `questions` and `clients` are what waits for an answer, by id, with its call; `unknown` the calls that may have happened;
    `ignored` counts the inputs that had no use.
    """

    def __init__(self) -> None:
        self.status = "queued"
        self.text: dict[int, str] = {}
        self.outputs: dict[str, Any] = {}
        self.calls: list[str] = []
        self.approvals: dict[str, str] = {}
        self.questions: dict[str, str] = {}
        self.clients: dict[str, str] = {}
        self.unknown: dict[str, int] = {}
        self.ignored = 0
        self._again: dict[str, int] = {}
        """Calls that wait for approval to run once more: until they do, nobody knows what became of that attempt (R15)."""
        self._seen: set[str] = set()
        self._attempt: dict[int, int] = {}
        self._open: int | None = None
        self._finished = False
        self._final = False

    def hear(self, frame: StoredFrame) -> Iterator[str]:
        said = orjson.loads(frame.data)
        if said["seq"] != frame.seq:
            yield f"frame {frame.seq} calls itself {said['seq']}"
        if self._final and said["type"] not in AFTER_THE_END:
            yield f"{said['type']} after the end"
        hear = getattr(self, "_" + said["type"].replace("-", "_"), None)
        if hear is not None:
            yield from hear(said)

    def differs(self, rows: Rows, pending: Mapping[str, Any]) -> Iterator[str]:
        """What of the stored messages, and of what waits, is not what the frames said."""
        texts: dict[int, str] = {}
        outputs: dict[str, Any] = {}
        for message in rows.messages.values():
            for part in orjson.loads(message.content):
                if part["type"] == "text" and message.role == "assistant" and message.step is not None:
                    texts[message.step] = texts.get(message.step, "") + part["text"]
                if part["type"] == "tool_result":
                    outputs[part["tool_call_id"]] = part.get("output")
        said = {step: text for step, text in self.text.items() if text}
        if said != texts:
            yield f"texts {said} where {texts} are stored"
        if any(outputs[call] != self.outputs.get(call, outputs[call]) for call in outputs):
            yield f"outputs {self.outputs} where {outputs} are stored"
        if unsaid := [call for call in outputs if call in self.calls and call not in self.outputs]:
            yield f"no output was said of {unsaid}"
        yield from self._waits(pending)

    def _waits(self, pending: Mapping[str, Any]) -> Iterator[str]:
        folded = {
            "approvals": sorted(self.approvals),
            "questions": sorted(self.questions),
            "client_calls": sorted(self.clients),
            "unknown_effects": sorted(self.unknown.items()),
        }
        shown = {
            "approvals": sorted(item["approval_id"] for item in pending["approvals"]),
            "questions": sorted(item["question_id"] for item in pending["questions"]),
            "client_calls": sorted(item["tool_call_id"] for item in pending["client_calls"]),
            "unknown_effects": sorted((item["tool_call_id"], item["attempt"]) for item in pending["unknown_effects"]),
        }
        yield from (f"{name}: {folded[name]} where {shown[name]} wait" for name in folded if folded[name] != shown[name])

    # -- frames --------------------------------------------------------------------------------------------------------------

    def _start_step(self, said: dict[str, Any]) -> Iterator[str]:
        step, attempt = said["step"], said["attempt"]
        if self._open is not None:
            yield f"step {step} starts while step {self._open} is open"
        if attempt != self._attempt.get(step, 0) + 1:
            yield f"attempt {attempt} of step {step} after {self._attempt.get(step, 0)}"
        if self.text.get(step):
            yield f"step {step} starts again before its text was dropped"
        self._open, self._attempt[step] = step, attempt

    def _text_delta(self, said: dict[str, Any]) -> Iterator[str]:
        if (said["step"], said["attempt"]) != (self._open, self._attempt.get(said["step"])):
            yield f"text of {said['step']}/{said['attempt']}, but {self._open} is open"
        self.text[said["step"]] = self.text.get(said["step"], "") + said["delta"]

    def _reset_step(self, said: dict[str, Any]) -> Iterator[str]:
        self.text[said["step"]] = ""
        self._open, self._attempt[said["step"]] = None, said["attempt"]
        yield from ()

    def _finish_step(self, said: dict[str, Any]) -> Iterator[str]:
        if self._open != said["step"]:
            yield f"step {said['step']} is finished, but {self._open} is open"
        self._open = None

    def _tool_call(self, said: dict[str, Any]) -> Iterator[str]:
        if said["tool_call_id"] in self.calls:
            yield f"call {said['tool_call_id']} twice"
        self.calls.append(said["tool_call_id"])
        yield from ()

    def _tool_state(self, said: dict[str, Any]) -> Iterator[str]:
        call = said["tool_call_id"]
        if call in self.outputs and self.unknown.get(call) != said["attempt"]:
            yield f"{call} is {said['state']} though it has its output"
        if said["state"] == "unknown":
            self.unknown[call] = said["attempt"]
            return
        attempt: int = said["attempt"]
        was, again = self.unknown.pop(call, None), self._again.pop(call, None)
        if said["state"] == "awaiting_approval" and was == attempt:
            self._again[call] = attempt
        if said["state"] == "denied" and again == attempt:
            self.unknown[call] = attempt

    def _tool_output(self, said: dict[str, Any]) -> Iterator[str]:
        call = said["tool_call_id"]
        if call in self.outputs:
            yield f"two outputs of {call}"
        self.outputs[call] = said["output"]
        for waiting in (self.approvals, self.questions, self.clients):
            for each in [each for each, of in waiting.items() if of == call]:
                del waiting[each]

    def _tool_approval_request(self, said: dict[str, Any]) -> Iterator[str]:
        yield from self._asked(self.approvals, said["approval_id"], said["tool_call_id"])

    def _tool_approval_response(self, said: dict[str, Any]) -> Iterator[str]:
        yield from self._answered(self.approvals, said["approval_id"])

    def _question(self, said: dict[str, Any]) -> Iterator[str]:
        yield from self._asked(self.questions, said["question_id"], said["question_id"].rpartition(".")[0])

    def _question_answered(self, said: dict[str, Any]) -> Iterator[str]:
        yield from self._answered(self.questions, said["question_id"])

    def _client_call(self, said: dict[str, Any]) -> Iterator[str]:
        yield from self._asked(self.clients, said["tool_call_id"], said["tool_call_id"])

    def _asked(self, waiting: dict[str, str], id: str, call: str) -> Iterator[str]:
        if id in self._seen:
            yield f"{id} is asked for twice"
        self._seen.add(id)
        waiting[id] = call

    def _answered(self, waiting: dict[str, str], id: str) -> Iterator[str]:
        if waiting.pop(id, None) is None:
            yield f"{id} is answered, and does not wait"

    def _warning(self, said: dict[str, Any]) -> Iterator[str]:
        self.ignored += said["code"] == "input_ignored"
        yield from ()

    def _finish(self, said: dict[str, Any]) -> Iterator[str]:
        if self._finished:
            yield "two ends"
        self._finished, self.status = True, said["status"]

    def _data_agent(self, said: dict[str, Any]) -> Iterator[str]:
        status, final = said["data"]["status"], "final" in said["data"]
        if self._final and not final:
            if self.status != "failed":
                yield f"{status} after {self.status}"
            self._finished = False
        elif self._final and status != self.status:
            yield f"{status} after the end"
        self.status, self._final = status, final
        if said["data"].get("output") is not None and status != "completed":
            yield f"an answer is shown of a run that is {status}"
        if "partial" in said["data"] and (self._open is None or said["data"]["phase"] != "finalizing"):
            yield f"a draft in phase {said['data']['phase']}, step {self._open} open"
        if final and not self._finished:
            yield "a final state without an end"

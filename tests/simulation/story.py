"""A run's journal as a client folds it: what it would show at any moment (R32)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from runward.core.kernel.frames import StoredFrame
from runward.stores.memory.database import Rows


class Story:
    """Hears the frames of one run in order. Yields what a client could make no sense of."""

    def __init__(self) -> None:
        self.status = "queued"
        self.text: dict[int, str] = {}
        self.outputs: dict[str, Any] = {}
        self.calls: list[str] = []
        self._attempt: dict[int, int] = {}
        self._open: int | None = None
        self._finished = False
        self._final = False

    def hear(self, frame: StoredFrame) -> Iterator[str]:
        said = orjson.loads(frame.data)
        if said["seq"] != frame.seq:
            yield f"frame {frame.seq} calls itself {said['seq']}"
        if self._final:
            yield f"{said['type']} after the end"
        hear = getattr(self, "_" + said["type"].replace("-", "_"), None)
        if hear is not None:
            yield from hear(said)

    def differs(self, rows: Rows) -> Iterator[str]:
        """What of the stored messages is not what the frames said."""
        texts: dict[int, str] = {}
        outputs: dict[str, Any] = {}
        for message in rows.messages.values():
            for part in orjson.loads(message.content):
                if part["type"] == "text" and message.step is not None:
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

    def _tool_output(self, said: dict[str, Any]) -> Iterator[str]:
        if said["tool_call_id"] in self.outputs:
            yield f"two outputs of {said['tool_call_id']}"
        self.outputs[said["tool_call_id"]] = said["output"]

    def _finish(self, said: dict[str, Any]) -> Iterator[str]:
        if self._finished:
            yield "two ends"
        self._finished, self.status = True, said["status"]

    def _data_agent(self, said: dict[str, Any]) -> Iterator[str]:
        self.status, self._final = said["data"]["status"], "final" in said["data"]
        if self._final and not self._finished:
            yield "a final state without an end"

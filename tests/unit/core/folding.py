"""A subscriber: folds a journal's frames as docs/api.md says, and refuses a journal that breaks the grammar of steps (R32)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runward.core.kernel.frames import Frame
from runward.core.messages import Message, ReasoningPart


@dataclass
class Page:
    """What somebody who follows a run sees of its transcript, by step and by call."""

    texts: dict[int, str] = field(default_factory=dict)
    reasonings: dict[int, str] = field(default_factory=dict)
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict)
    results: dict[str, tuple[Any, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Page:
        """The page as `GET /messages` fills it."""
        page = cls()
        for message in messages:
            for call in message.tool_calls:
                page.calls[call.tool_call_id] = (call.tool_name, call.arguments)
            for result in message.tool_results:
                page.results[result.tool_call_id] = (result.output, result.is_error)
            if message.role == "assistant" and message.step is not None:
                page._write(page.texts, message.step, message.text)
                page._write(page.reasonings, message.step, "".join(p.text for p in message.content if isinstance(p, ReasoningPart)))
        return page

    def fold(self, frame: Frame) -> None:
        fields = frame.fields
        match frame.type:
            case "text-delta":
                self._write(self.texts, fields["step"], fields["delta"])
            case "reasoning-delta":
                self._write(self.reasonings, fields["step"], fields["delta"])
            case "reset-step":
                self.texts.pop(fields["step"], None)
                self.reasonings.pop(fields["step"], None)
            case "tool-call":
                self.calls[fields["tool_call_id"]] = (fields["tool_name"], fields["arguments"])
            case "tool-output":
                self.results[fields["tool_call_id"]] = (fields["output"], fields["is_error"])

    def without(self, step: int | None) -> Page:
        """The page but for a step that is still open."""
        page = Page(dict(self.texts), dict(self.reasonings), dict(self.calls), dict(self.results))
        if step is not None:
            page.texts.pop(step, None)
            page.reasonings.pop(step, None)
        return page

    @staticmethod
    def _write(where: dict[int, str], step: int, text: str) -> None:
        if text:
            where[step] = where.get(step, "") + text


class Journal:
    """A run's frames, checked one by one as they become durable."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.page = Page()
        self.control: dict[str, Any] = {}
        self.open: tuple[int, int] | None = None
        self.last: tuple[int, int] = (1, 0)
        self.over = False
        self._finishing = False

    def append(self, frame: Frame) -> None:
        if self.over:
            self._behind_the_end(frame)
        assert (frame.type == "start") is (not self.frames)
        assert not self._finishing or frame.type == "data-agent", f"{frame} was said between finish and the final frame"
        match frame.type:
            case "start-step":
                self._start((frame.fields["step"], frame.fields["attempt"]))
            case "text-delta" | "reasoning-delta":
                assert self.open == (frame.fields["step"], frame.fields["attempt"]), f"{frame} belongs to no open attempt"
            case "reset-step":
                self._reset((frame.fields["step"], frame.fields["attempt"]))
            case "finish-step":
                assert self.open is not None and self.open[0] == frame.fields["step"], f"{frame} finishes no open step"
                self.open, self.last = None, (frame.fields["step"] + 1, 0)
            case "tool-call" | "tool-output":
                assert self.open is not None and self.open[0] == frame.fields["step"], f"{frame} belongs to no open step"
                self._speak_of_call(frame)
            case "finish":
                assert self.open is None, "the run ended with a step open"
                self._finishing = True
            case "data-agent":
                self.control = dict(frame.fields["data"])
                final = bool(self.control.get("final", False))
                assert final is (self._finishing or self.over)
                self.over, self._finishing = final, False
        self.frames.append(frame)
        self.page.fold(frame)

    def _behind_the_end(self, frame: Frame) -> None:
        """An effect that is settled later is said with its call's state, and a run that is tried again says that it is running (R10)."""
        assert frame.type in ("tool-state", "warning", "data-agent"), f"{frame} was said after the final frame"
        if frame.type == "data-agent" and not frame.fields["data"].get("final", False):
            assert self.control["error"]["transient"] and frame.fields["data"]["status"] == "running"
            self.over = False

    @property
    def ends_final(self) -> bool:
        """Whether the newest frame is a final one, as it has to be once the run is over."""
        return self.over and self.frames[-1].type == "data-agent"

    def _start(self, begun: tuple[int, int]) -> None:
        assert self.open is None, f"{begun} began while {self.open} was open"
        assert begun == (self.last[0], self.last[1] + 1), f"{begun} began behind {self.last}"
        self.open = self.last = begun

    def _speak_of_call(self, frame: Frame) -> None:
        """A call is announced, then answered once. A leg that died before it saved its screening leaves it to the next to say it again."""
        call_id = frame.fields["tool_call_id"]
        assert call_id not in self.page.results, f"{frame} was said of a call that has its answer"
        if frame.type == "tool-call":
            said = (frame.fields["tool_name"], frame.fields["arguments"])
            assert self.page.calls.get(call_id, said) == said, f"{frame} is another call than before"
        else:
            assert call_id in self.page.calls, f"{frame} was never announced"

    def _reset(self, dropped: tuple[int, int]) -> None:
        """An attempt is taken back: the open one; once more the last one, when a worker died between saying so and saving it; or the
        very first, when its worker died before it said that it had begun."""
        assert dropped == self.open or (self.open is None and dropped in (self.last, (1, 1))), f"{dropped} dropped, open is {self.open}"
        self.open, self.last = None, dropped

"""A run's journal as a client folds it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Frame = dict[str, Any]


@dataclass
class Frames:
    """What one stream said: frames with their ids, and whether `[DONE]` came last."""

    frames: list[Frame] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    done: bool = False

    def of(self, *kinds: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["type"] in kinds]

    @property
    def kinds(self) -> list[str]:
        return [frame["type"] for frame in self.frames]

    @property
    def texts(self) -> dict[int, str]:
        """The text of every step, as a client that folds frames in order ends up with it."""
        texts: dict[int, str] = {}
        for frame in self.frames:
            if frame["type"] == "text-delta":
                texts[frame["step"]] = texts.get(frame["step"], "") + frame["delta"]
            elif frame["type"] == "reset-step":
                texts[frame["step"]] = ""
        return texts

    def check(self, after: int = 0) -> None:
        """Gapless, numbered alike inside and outside, and ended by the one terminal frame and `[DONE]`."""
        assert self.seqs == list(range(after + 1, after + 1 + len(self.frames)))
        assert [frame["seq"] for frame in self.frames] == self.seqs
        assert self.done
        final = [frame for frame in self.of("data-agent") if frame["data"].get("final")]
        assert final == [self.frames[-1]]
        assert len(self.of("finish")) == 1


def frames_of(chunks: Iterable[bytes]) -> Frames:
    """Reads a stream to its end."""
    read = Frames()
    for block in b"".join(chunks).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields.get("data") == "[DONE]":
            read.done = True
        elif "data" in fields:
            assert not read.done, "something came after [DONE]"
            read.frames.append(json.loads(fields["data"]))
            read.seqs.append(int(fields["id"]))
    return read

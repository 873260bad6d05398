"""What the engine does for a tool under way: `ctx.progress`, `ctx.save_checkpoint`, `ctx.cancelled`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runward.agents.limitations import Unsupported
from runward.core.messages import Message
from runward.core.runs import frames
from runward.core.text import clean, clean_json
from runward.engine.encoding import to_bytes
from runward.engine.journal import Journal

PROGRESS_BYTES = 65_536
CHECKPOINT_BYTES = 65_536
NO_GENERATE = "The agent's code asked for ctx.generate, which this version of the service does not run yet."


class LegCallHost:
    """Serves one attempt of one call, on the worker's loop, until the attempt is over."""

    def __init__(self, call_id: str, checkpoint: str | None, journal: Journal, save: Callable[[str], Awaitable[None]]) -> None:
        self._call_id = call_id
        self._journal = journal
        self._save = save
        self._over = False
        self.cancelled = False
        self.checkpoint = checkpoint

    def cancel(self) -> None:
        """The call is to stop soon."""
        self.cancelled = True

    def over(self) -> None:
        """The attempt is over: what its tool still asks for is refused."""
        self._over = True

    async def progress(self, data: Any) -> None:
        """Raises ValueError for what is not JSON or longer than 64 KiB, RuntimeError once the call is over."""
        self._check()
        shown = clean_json(data)
        if len(to_bytes(shown)) > PROGRESS_BYTES:
            raise ValueError("Progress may be at most 64 KiB of JSON.")
        self._journal.emit((frames.tool_progress(self._call_id, shown),))

    async def save_checkpoint(self, text: str) -> None:
        """Raises ValueError for more than 64 KiB, RuntimeError once the call is over."""
        self._check()
        text = clean(text)
        if len(text.encode()) > CHECKPOINT_BYTES:
            raise ValueError("A checkpoint may be at most 64 KiB.")
        await self._save(text)
        self.checkpoint = text

    async def generate(self, prompt: str | Sequence[Message], *, model: str | None, output: Any) -> Any:
        """Raises Unsupported."""
        raise Unsupported(NO_GENERATE)

    def _check(self) -> None:
        if self._over:
            raise RuntimeError("The call is over.")

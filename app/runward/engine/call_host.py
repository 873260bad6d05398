"""What the engine does for a tool under way: `ctx.progress`, `ctx.save_checkpoint`, `ctx.cancelled`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runward.core.messages import Message
from runward.core.runs import frames
from runward.core.text import clean, clean_json
from runward.engine.encoding import to_bytes
from runward.engine.generating import Generator, Line, hung_up
from runward.engine.journal import Journal

PROGRESS_BYTES = 65_536
CHECKPOINT_BYTES = 65_536
OVER = "The call is over."


class LegCallHost:
    """Serves one attempt of one call, on the worker's loop, until the attempt is over."""

    def __init__(
        self, call_id: str, checkpoint: str | None, journal: Journal, save: Callable[[str], Awaitable[None]], generator: Generator
    ) -> None:
        self._call_id = call_id
        self._journal = journal
        self._save = save
        self._generator = generator
        self._line = Line()
        self._over = False
        self._runs = True
        self.cancelled = False
        self.checkpoint = checkpoint

    def cancel(self) -> None:
        """The call is to stop soon. Models that it has asked are not waited for."""
        self.cancelled = True
        self._line.hang_up()

    def looks_on(self) -> None:
        """The call does not run: who looks at it can neither report progress nor save, but ask a model."""
        self._runs = False

    def over(self) -> None:
        """The attempt is over: what its tool still asks for is refused."""
        self._over = True
        self._line.hang_up()

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
        """Raises RuntimeError once the call is over, ModelCallError once it is to stop; see `RunContext.generate` for the rest."""
        if self._over:
            raise RuntimeError(OVER)
        if self.cancelled:
            raise hung_up(billed=False)
        return await self._generator.generate_within(self._line, prompt, model=model, output=output)

    def _check(self) -> None:
        if self._over or not self._runs:
            raise RuntimeError(OVER)

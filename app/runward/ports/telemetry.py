"""What the engine tells about itself. Facts with names and numbers; adapters turn them into logs, metrics and spans."""

from __future__ import annotations

from typing import Any, Protocol


class Telemetry(Protocol):
    """Never raises, never blocks. Values hold no content of runs: no texts, arguments, results, contexts or keys."""

    def event(self, name: str, **values: Any) -> None:
        """Something happened that an operator may want to read."""
        ...

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        """Something went wrong inside the service; `error` is logged with its trace for operators and never shown to callers."""
        ...

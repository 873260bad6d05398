"""Facts to logs. JSON lines for machines, a readable line for people on a terminal.

What is logged of an exception is its type and where it came from, never its text: that may hold anything.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, Literal

import orjson
import structlog

FRAMES_LOGGED = 12


class LogTelemetry:
    """`ports.telemetry.Telemetry` as log lines."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def event(self, name: str, **values: Any) -> None:
        self._logger.info(name, **values)

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self._logger.warning(name, **values, **({} if error is None else describe(error)))


def describe(error: BaseException) -> dict[str, Any]:
    """An exception without its text: the types along its causes, and where it was raised."""
    kinds: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(kinds) < FRAMES_LOGGED:
        kinds.append(f"{type(cause).__module__}.{type(cause).__qualname__}".removeprefix("builtins."))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_LOGGED:]
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": kinds, "trace": where}


def logging_telemetry(form: Literal["console", "json"] | None) -> LogTelemetry:
    """Telemetry to the standard error stream. None: console on a terminal, else JSON."""
    console = form == "console" or (form is None and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if console:
        renderer: Any = structlog.dev.ConsoleRenderer()
        factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    else:
        renderer = structlog.processors.JSONRenderer(serializer=_to_bytes)
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    logger = structlog.wrap_logger(
        factory(), processors=[*shared, renderer], wrapper_class=structlog.make_filtering_bound_logger(20), cache_logger_on_first_use=True
    )
    return LogTelemetry(logger)


def _to_bytes(event: MutableMapping[str, Any], **_: Any) -> bytes:
    return orjson.dumps(event, default=str)

"""Facts to logs. JSON lines for machines, a readable line for people on a terminal.

What is logged of an exception is its type and where it came from, never its text: that may hold anything. What libraries and authors log
is logged without what looks like a secret, or is one of those the process was started with.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import MutableMapping
from typing import Any, Literal

import orjson
import structlog

from runward.core.errors import Unavailable
from runward.core.redaction import SECRETS, Redactor

FRAMES_LOGGED = 12
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class LogTelemetry:
    """`ports.telemetry.Telemetry` as log lines."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def event(self, name: str, **values: Any) -> None:
        self._logger.info(name, **values)

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self._logger.warning(name, **values, **({} if error is None else describe(error)))

    def take_over(self) -> None:
        """From here on what libraries and authors' modules log, warnings, and what ends threads are lines of this log, too."""
        logging.basicConfig(handlers=[_Records(self._logger)], level=logging.WARNING, force=True)
        logging.captureWarnings(True)
        threading.excepthook = lambda ended: self.problem("uncaught", ended.exc_value, thread=ended.thread and ended.thread.name)


class _Records(logging.Handler):
    """The standard library's log records as lines of ours; of an exception what `describe` tells."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit their message
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        level = max((known for known in LEVELS if known <= record.levelno), default=logging.DEBUG)
        self._logger.log(level, text, logger=record.name, **({} if error is None else describe(error)))


def describe(error: BaseException) -> dict[str, Any]:
    """An exception without its text: the types along its causes, and where it was raised; why the store is away, which is for operators."""
    kinds: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(kinds) < FRAMES_LOGGED:
        kinds.append(f"{type(cause).__module__}.{type(cause).__qualname__}".removeprefix("builtins."))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    reason = {"reason": error.detail} if isinstance(error, Unavailable) else {}
    return {"error": kinds, **reason, "trace": _places(traceback.extract_tb(error.__traceback__))}


def stacks() -> dict[str, list[str]]:
    """Where every thread of this process is, the innermost place last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {names.get(id, str(id)): _places(traceback.extract_stack(frame)) for id, frame in sys._current_frames().items()}


def _places(stack: traceback.StackSummary) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack[-FRAMES_LOGGED:]]


def logging_telemetry(form: Literal["console", "json"] | None, redactor: Redactor = SECRETS) -> LogTelemetry:
    """Telemetry to the standard error stream. None: console on a terminal, else JSON."""
    console = form == "console" or (form is None and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _, __, event: redactor.json(event),
    ]
    if console:
        renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
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

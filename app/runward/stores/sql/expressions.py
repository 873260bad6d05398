"""Expressions on an actor's columns that several statements use."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, literal_column

from runward.core.kernel.actor import RANK_PER_PRIORITY_MS

ONE: Final = literal_column("1", Integer)
ZERO: Final = literal_column("0", Integer)
FALSE: Final[ColumnElement[Any]] = literal_column("false")
QUEUED: Final[ColumnElement[Any]] = literal_column("'queued'")
SUSPENDED: Final[ColumnElement[Any]] = literal_column("'suspended'")
FAILED: Final[ColumnElement[Any]] = literal_column("'failed'")
RUNNING: Final[ColumnElement[Any]] = literal_column("'running'")

_ENDED: Final[ColumnElement[Any]] = literal_column("('completed', 'stopped', 'failed')")


def is_ended(status: ColumnElement[Any]) -> ColumnElement[bool]:
    return status.op("IN", is_comparison=True)(_ENDED)


def rank_of(ready_at: ColumnElement[Any], priority: ColumnElement[Any]) -> ColumnElement[Any]:
    """The place in the queue of an actor that is ready at a time."""
    return ready_at - priority * literal_column(str(RANK_PER_PRIORITY_MS), Integer)

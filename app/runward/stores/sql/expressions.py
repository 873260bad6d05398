"""Expressions on an actor's columns that several statements use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, case, literal_column, null, or_

from runward.core.kernel.actor import RANK_PER_PRIORITY_MS
from runward.stores.sql.tables import actors

ONE: Final = literal_column("1", Integer)
ZERO: Final = literal_column("0", Integer)
FALSE: Final[ColumnElement[Any]] = literal_column("false")
TRUE: Final[ColumnElement[Any]] = literal_column("true")
QUEUED: Final[ColumnElement[Any]] = literal_column("'queued'")
SUSPENDED: Final[ColumnElement[Any]] = literal_column("'suspended'")
FAILED: Final[ColumnElement[Any]] = literal_column("'failed'")
RUNNING: Final[ColumnElement[Any]] = literal_column("'running'")

_ENDED: Final[ColumnElement[Any]] = literal_column("('completed', 'stopped', 'failed')")


def is_ended(status: ColumnElement[Any]) -> ColumnElement[bool]:
    return status.op("IN", is_comparison=True)(_ENDED)


def is_driven(status: ColumnElement[Any]) -> ColumnElement[bool]:
    """What an actor is while a leg has it."""
    return or_(status == RUNNING, is_ended(status))


def rank_of(ready_at: ColumnElement[Any], priority: ColumnElement[Any]) -> ColumnElement[Any]:
    """The place in the queue of an actor that is ready at a time."""
    return ready_at - priority * literal_column(str(RANK_PER_PRIORITY_MS), Integer)


def given_back(now: ColumnElement[Any], least: Callable[..., ColumnElement[Any]]) -> dict[str, Any]:
    """The columns of an actor whose lease is over before its time: queued and ready now, unless it has ended. `least` is the function of
    the database that is called so."""
    ended = is_ended(actors.c.status)
    return {
        "revision": actors.c.revision + ONE,
        "status": case((ended, actors.c.status), else_=QUEUED),
        "lease_owner": null(),
        "lease_until": null(),
        "drain_leg": null(),
        "ready_at": case((ended, null()), else_=now),
        "rank": case((ended, actors.c.rank), else_=least(actors.c.rank, rank_of(now, actors.c.priority))),
    }


def seized(now: ColumnElement[Any], least: Callable[..., ColumnElement[Any]]) -> dict[str, Any]:
    """The same of an actor that somebody takes from its holder with a letter."""
    lapsed = case((actors.c.lease_until < now, ONE), else_=ZERO)
    return given_back(now, least) | {
        "recoveries": actors.c.recoveries + lapsed,
        "mail_received": actors.c.mail_received + ONE,
        "care_at": case((is_ended(actors.c.status), now), else_=actors.c.care_at),
    }

"""Reading a long queue lane by lane, for both databases. A lane is what is ready of one binding, tenant and concurrency key, in order of
rank; what has no key is a lane, too.

The first by rank of all lanes may be ten thousand runs of one tenant, or of a key that is taken. So a claim also walks from lane to lane,
one step in the index each, over a bounded number of them; where it ran out of steps, the next one goes on.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CTE, ColumnElement, Integer, Text, and_, case, cast, func, literal_column, null, or_, select
from sqlalchemy.engine.interfaces import Dialect

from runward.stores.sql.claims import MAX_AHEAD_MS
from runward.stores.sql.expressions import ONE, ZERO
from runward.stores.sql.statements import POSTGRES, given
from runward.stores.sql.tables import ID, KEYED, LANED, LEASED, WITH_KEY, actors

MOST_LANES: Final = 32
"""How many lanes one walk finds in which something may be ready, per binding."""
MOST_KEYS: Final = 8
"""How many of them may be one tenant's, so that one with thousands of keys does not hide the others."""
MOST_STEPS: Final = 500
"""How many lanes it steps over altogether, per binding: those of taken keys, and of what only waits for a time, are skipped."""

Place = tuple[str, str]
"""A tenant and a key, behind which a walk goes on."""

NO_KEY: Final = literal_column("''", ID)

START: Final[Place] = ("", "")
"""Before every lane: no tenant is called nothing."""


class Walks:
    """Where the last walk of each binding ran out of steps."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def start(self, binding: str) -> Place:
        return self._places.get(binding, START)

    def ended(self, binding: str, place: Place, *, found: int, steps: int) -> None:
        """A walk has ended at a place, after so many open lanes and steps: behind the last lane, or before it saw them all."""
        if found >= MOST_LANES or steps >= MOST_STEPS:
            self._places[binding] = place
        else:
            self._places.pop(binding, None)


def walked(starts: Any, now: ColumnElement[Any], dialect: Dialect) -> CTE:
    """The lanes behind some places: `starts` has `binding, tenant, key`. Rows before the first lane have no `uid`.

    `found` and `in_tenant` count the open lanes before a row's, `open` says whether its own is one.
    """
    zero = literal_column("0", Integer)
    begin = select(
        _id(cast(null(), Text()), dialect).label("uid"),
        _id(starts.c.binding, dialect).label("binding"),
        _id(starts.c.tenant, dialect).label("tenant"),
        _id(starts.c.key, dialect).label("concurrency_key"),
        zero.label("open"),
        zero.label("in_tenant"),
        zero.label("found"),
        zero.label("steps"),
    )
    walk = begin.cte("walk", recursive=True)
    head = actors.alias("head")
    same_tenant = and_(actors.c.tenant == walk.c.tenant, actors.c.concurrency_key > walk.c.concurrency_key, ~_enough(walk))
    uid = func.coalesce(_first_of_lane(walk, same_tenant), _first_of_lane(walk, actors.c.tenant > walk.c.tenant))
    more = and_(walk.c.found + walk.c.open < _number(MOST_LANES), walk.c.steps < _number(MOST_STEPS))
    step = (
        select(
            head.c.uid,
            walk.c.binding,
            head.c.tenant,
            head.c.concurrency_key,
            _is_open(head, now),
            case((head.c.tenant == walk.c.tenant, walk.c.in_tenant + walk.c.open), else_=ZERO),
            walk.c.found + walk.c.open,
            walk.c.steps + ONE,
        )
        .select_from(walk.join(head, head.c.uid == uid))
        .where(more)
    )
    return walk.union_all(step)


def _enough(walk: CTE) -> ColumnElement[bool]:
    """Whether the walk has found as many lanes of a tenant as it may."""
    return walk.c.in_tenant + walk.c.open >= _number(MOST_KEYS)


def _is_open(head: Any, now: ColumnElement[Any]) -> ColumnElement[int]:
    """Whether something of a lane may be ready, and its key is free."""
    holder = actors.alias("holder")
    taken = select(func.count()).where(KEYED, holder.c.tenant == head.c.tenant, holder.c.concurrency_key == head.c.concurrency_key)
    free = or_(head.c.concurrency_key == NO_KEY, taken.scalar_subquery() < given("per_key", Integer()))
    return case((and_(head.c.rank <= now + _number(MAX_AHEAD_MS), free), ONE), else_=ZERO)


def beside(tenant: ColumnElement[Any]) -> tuple[ColumnElement[bool], ColumnElement[bool], ColumnElement[bool]]:
    """What waits with a key, of a tenant before this one, and of one behind it: each a condition that an index has."""
    return and_(WITH_KEY, actors.c.concurrency_key != NO_KEY), and_(LANED, actors.c.tenant < tenant), and_(LANED, actors.c.tenant > tenant)


def _first_of_lane(walk: CTE, which: ColumnElement[bool]) -> ColumnElement[Any]:
    """The first actor of the first lane that a condition holds for. It names the order of the one index that has it, so that the planner
    takes no other."""
    ready_ones = select(actors.c.uid).where(LANED, actors.c.binding == walk.c.binding, which)
    ready_ones = ready_ones.order_by(actors.c.tenant, actors.c.concurrency_key, actors.c.rank).limit(ONE)
    return ready_ones.correlate_except(actors).scalar_subquery()


def leases_by_lane() -> Any:
    """All leases, counted by what bounds and turns ask for."""
    by = (actors.c.tenant, actors.c.concurrency_key, actors.c.key_slot, actors.c.tenant_slot)
    found = select(*by).where(LEASED).cte("leases").prefix_with("MATERIALIZED")  # or the planner reads all actors in the order of groups
    return select(*found.c, func.count().label("count")).group_by(*found.c)


def _number(value: int) -> ColumnElement[int]:
    return literal_column(str(value), Integer)


def _id(value: ColumnElement[Any], dialect: Dialect) -> ColumnElement[Any]:
    """A value that is sorted as the columns of this type are."""
    return value.collate("C") if dialect is POSTGRES else value

"""Who waits, where those of the lowest ranks are not simply those whose turn it is: several tenants, concurrency keys, long queues."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Subquery,
    Text,
    func,
    literal_column,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import distinct_on

from runward.stores.sql.claims import ready
from runward.stores.sql.expressions import FALSE, ONE, TRUE
from runward.stores.sql.lanes import beside, leases_by_lane, walked
from runward.stores.sql.postgres.parts import clock, unnested
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, LANED, actors

WAITS, HELD, WALK = 1, 2, 3
"""What a row of `look` tells of: an actor that is ready, leases of a lane, where the walk of a binding ended."""


def first_by_rank(now: ColumnElement[Any]) -> Subquery:
    """Of each binding the first by rank."""
    bindings = func.unnest(given_array("bindings", ID)).table_valued(literal_column("binding", ID), name="bindings").render_derived()
    first = (
        select(actors.c.uid, actors.c.tenant, actors.c.concurrency_key, actors.c.rank)
        .where(actors.c.binding == bindings.c.binding, ready(now))
        .order_by(actors.c.rank)
        .limit(given("candidates", Integer()))
        .lateral("first")
    )
    columns = (first.c.uid, first.c.tenant, first.c.concurrency_key, first.c.rank)
    return select(*columns).select_from(bindings.join(first, true())).subquery("first_by_rank")


def crowded(*, looks: bool) -> ColumnElement[bool]:
    """Whether something with a key waits, or, if it `looks`, something of another tenant than the given one."""
    mine = actors.c.binding == func.any(given_array("bindings", ID))
    keyed, before, behind = (select(TRUE).where(mine, which) for which in beside(given("tenant", ID)))
    by_lane = (actors.c.binding, actors.c.tenant, actors.c.concurrency_key, actors.c.rank)
    elsewhere = (func.coalesce(each.order_by(*by_lane).limit(ONE).scalar_subquery(), FALSE) for each in (before, behind))
    return or_(keyed.exists(), *elsewhere) if looks else keyed.exists()


@cache
def look() -> Statement:
    """Who waits and who has what. Rows: part, uid, binding, tenant, key, number (a rank, a count, the open lanes found), slots, steps."""
    now = select(clock().c.now).scalar_subquery()
    walk = walked(unnested("start", {"binding": ID, "tenant": ID, "key": ID}), now, POSTGRES)
    lanes = select(walk.c.binding, walk.c.tenant, walk.c.concurrency_key).where(walk.c.open == ONE).subquery("lanes")
    in_lane = (
        select(actors.c.uid, actors.c.tenant, actors.c.concurrency_key, actors.c.rank)
        .where(
            actors.c.binding == lanes.c.binding,
            actors.c.tenant == lanes.c.tenant,
            actors.c.concurrency_key == lanes.c.concurrency_key,
            ready(now, LANED),
        )
        .order_by(actors.c.rank)
        .limit(given("in_lane", Integer()))
        .lateral("in_lane")
    )
    of_lanes = select(in_lane.c.uid, in_lane.c.tenant, in_lane.c.concurrency_key, in_lane.c.rank).select_from(lanes.join(in_lane, true()))
    found = select(first_by_rank(now)).union(of_lanes).subquery("found")
    nothing, number = literal_column("NULL::text", Text), literal_column("NULL::integer", Integer)
    waits = select(
        literal_column(str(WAITS), Integer).label("part"),
        found.c.uid,
        nothing.label("binding"),
        found.c.tenant,
        found.c.concurrency_key,
        found.c.rank.label("number"),
        number.label("key_slot"),
        number.label("tenant_slot"),
        number.label("steps"),
    )
    lane = leases_by_lane().subquery("lane")
    leases = (lane.c.tenant, lane.c.concurrency_key, lane.c["count"], lane.c.key_slot, lane.c.tenant_slot)
    held = select(literal_column(str(HELD), Integer), nothing, nothing, *leases, number)
    last = select(walk).ext(distinct_on(walk.c.binding)).order_by(walk.c.binding, walk.c.steps.desc()).subquery("last")
    end = (last.c.binding, last.c.tenant, last.c.concurrency_key, last.c.found + last.c.open, number, number, last.c.steps)
    ends = select(literal_column(str(WALK), Integer), nothing, *end)
    return Statement(union_all(waits, held, ends), POSTGRES)

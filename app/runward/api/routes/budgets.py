"""Persistent budgets: what runs of a tenant may spend together."""

from __future__ import annotations

from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.routing import Answer, Route
from runward.api.schemas.budgets import BudgetChanges, BudgetKey, BudgetTerms, BudgetView


async def read_budget(asked: Asked, key: BudgetKey) -> Response:
    """A budget of the tenant: its terms, what counts against it, and what is left."""
    return answer(await asked.door.budgets.read(asked.caller, key))


async def put_budget(asked: Asked, key: BudgetKey, body: BudgetTerms) -> Response:
    """Sets a budget's terms, whole, and makes it if need be. What is spent stays spent, and runs that wait for it ask again at once.

    A lifetime budget that gets a window counts anew: nobody knows when in its life what was spent.
    """
    return answer(await asked.door.budgets.put(asked.caller, key, body.terms))


async def change_budget(asked: Asked, key: BudgetKey, body: BudgetChanges) -> Response:
    """Changes some of a budget's terms; the others stay. Runs that wait for it ask again at once."""
    return answer(await asked.door.budgets.change(asked.caller, key, body.applied))


ROUTES = (
    Route(
        method="GET",
        path="/budgets/{key}",
        endpoint=read_budget,
        summary="Read a budget",
        tag="budgets",
        answers={200: Answer(description="The budget.", model=BudgetView)},
    ),
    Route(
        method="PUT",
        path="/budgets/{key}",
        endpoint=put_budget,
        summary="Set a budget",
        tag="budgets",
        answers={200: Answer(description="The budget as it is now.", model=BudgetView)},
    ),
    Route(
        method="PATCH",
        path="/budgets/{key}",
        endpoint=change_budget,
        summary="Change a budget",
        tag="budgets",
        answers={200: Answer(description="The budget as it is now.", model=BudgetView)},
    ),
)

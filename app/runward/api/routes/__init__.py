"""What can be asked: one function per route, and the list of them all."""

from runward.api.routes import agents, approvals, budgets, control, inputs, journal, operations, ops, runs, tokens
from runward.api.routing import Route

ROUTES: tuple[Route, ...] = (
    *runs.ROUTES,
    *journal.ROUTES,
    *control.ROUTES,
    *inputs.ROUTES,
    *approvals.ROUTES,
    *tokens.ROUTES,
    *agents.ROUTES,
    *budgets.ROUTES,
    *ops.ROUTES,
    *operations.ROUTES,
)

"""What can be asked: one function per route, and the list of them all."""

from runward.api.routes import agents, approvals, control, inputs, journal, operations, runs
from runward.api.routing import Route

ROUTES: tuple[Route, ...] = (
    *runs.ROUTES,
    *journal.ROUTES,
    *control.ROUTES,
    *inputs.ROUTES,
    *approvals.ROUTES,
    *agents.ROUTES,
    *operations.ROUTES,
)

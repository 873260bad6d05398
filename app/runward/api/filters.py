"""What a filter of runs means to the store, whether it came as a query or in a body."""

from __future__ import annotations

from collections.abc import Mapping

from runward.api.schemas.control import RunFilter
from runward.api.schemas.requests import ListRuns
from runward.core.kernel.actor import Status
from runward.core.runs.state import KIND
from runward.core.runs.waits import from_names
from runward.ports.reads import ActorQuery


def filtered(given: ListRuns | RunFilter, metadata: Mapping[str, str]) -> ActorQuery:
    """The runs that a filter matches. The scope is not its business: whoever reads sets it."""
    return ActorQuery(
        kind=KIND,
        scope=None,
        statuses=tuple(Status(status) for status in given.status),
        waiting_on=int(from_names(given.waiting_on) or 0),
        agent=given.agent,
        agent_version=given.agent_version,
        user=given.user,
        namespace=given.namespace,
        stop_reason=given.stop_reason,
        task_outcome=given.task_outcome,
        cancel_requested=given.cancel_requested,
        metadata=metadata,
        created_after=given.created_after,
        created_before=given.created_before,
        ended_after=given.ended_after,
        ended_before=given.ended_before,
        updated_before=given.updated_before,
    )

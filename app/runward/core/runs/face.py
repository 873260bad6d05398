"""A run as the columns that lists and claims read."""

from __future__ import annotations

from runward.core.kernel.actor import FORMAT, Status, rank_of
from runward.core.kernel.commit import Face
from runward.core.runs import codec
from runward.core.runs.dues import care_due, work_due
from runward.core.runs.state import RunState
from runward.core.runs.view import task_outcome
from runward.core.runs.waits import NOTHING


def face_of(run: RunState, *, binding: str, priority: int, at: int, recoveries: int = 0) -> Face:
    """The face of a run at store time `at`. A suspended run is ready, and any worker's care, once something falls due (R8, R41)."""
    ready = max(at, run.start_at or at) if run.status is Status.QUEUED else work_due(run) if run.status is Status.SUSPENDED else None
    return Face(
        status=run.status,
        state=codec.encode(run),
        format=FORMAT,
        binding=binding,
        ready_at=ready,
        care_at=None if run.status.ended else care_due(run),
        rank=rank_of(at if ready is None else ready, priority),
        waiting_on=int(run.waiting_on if run.status is Status.SUSPENDED else NOTHING),
        stop_reason=run.ended.reason.value if run.ended and run.ended.reason else None,
        task_outcome=task_outcome(run),
        updated_at=at,
        ended_at=run.ended_at,
        recoveries=recoveries,
    )

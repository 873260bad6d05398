"""What must never happen: seen at every write, at every start of a tool or model, and at the end of every run.

The numbers are the invariants of the reliability catalogue and the rules of docs/semantics.md. Nothing here uses the engine's judgement.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from runward.agents.contexts import ToolContext
from runward.core.kernel.actor import Envelope, Status
from runward.core.runs import codec, view
from runward.ports.models import ModelRequest
from runward.stores.memory.database import Rows
from tests.simulation.bills import Bill, Bills
from tests.simulation.calls import Calls
from tests.simulation.inputs import Inputs
from tests.simulation.processes import TTL, Process
from tests.simulation.spending import Spending
from tests.simulation.story import Story
from tests.simulation.tools import WatchedTool
from tests.simulation.typed import Typed

if TYPE_CHECKING:
    from tests.simulation.world import World

THIRD_MS = round(TTL * 1000 / 3)
MINUTE = 60.0
MOST_CLAIMS = 30
"""How often one run may be taken within a minute."""
MOST_COMMITS = 120
"""How often one run may be written in all."""
MOVES = {
    "claim": {
        (Status.QUEUED, Status.RUNNING),
        (Status.SUSPENDED, Status.RUNNING),
        (Status.RUNNING, Status.RUNNING),
    },
    "commit": {(Status.RUNNING, status) for status in Status},
    "append_mail": {(status, status) for status in Status} | {(Status.SUSPENDED, Status.QUEUED), (Status.FAILED, Status.QUEUED)},
    "disown": {(Status.RUNNING, Status.QUEUED)},
    "seize": {(Status.RUNNING, Status.QUEUED)},
}
"""Which operation may change which status; any other leaves it alone (R1, I-20)."""


class Watch:
    """The watch over one world. `violations` are the promises that were broken, in the order they were."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self.stories: dict[str, Story] = {}
        self.said_at: dict[str, list[float]] = defaultdict(list)
        """When each frame of a run became durable."""
        self.calls = Calls(world, self)
        self.inputs = Inputs(world, self)
        self.spending = Spending(world, self)
        self.typed = Typed(world, self)
        self.bills = Bills(self)
        self._asked: set[tuple[str, int, int]] = set()
        self._seized_at: dict[str, float] = {}
        self._writes: Counter[str] = Counter()
        self._claimed_at: dict[str, list[float]] = defaultdict(list)
        self.cancelled: set[str] = set()
        """uids of runs whose cancel was accepted."""

    def broken(self, promise: str, what: str, error: BaseException | None = None) -> None:
        trace = "" if error is None else "\n" + "".join(traceback.format_exception(error))
        self.violations.append(f"at {self._world.loop.time():.3f} s: {promise}: {what}{trace}")

    def check(self, kept: bool, promise: str, what: str) -> None:
        if not kept:
            self.broken(promise, what)

    # -- rows --------------------------------------------------------------------------------------------------------------

    def created(self, rows: Rows) -> None:
        self.stories[rows.envelope.uid] = Story()
        self.bills.created(rows)
        self._said(rows, 0)

    def written(self, before: Envelope, rows: Rows, process: Process, name: str) -> None:
        after = rows.envelope
        where = f"{name} of {after.public_id} by {process.name}: {_place(before)} -> {_place(after)}"
        moved = (before.status, after.status)
        self.check(before.status is after.status or moved in MOVES.get(name, ()), "I-20 only a leg changes a status", where)
        self._ends(before, after, name, where)
        self._position(before, after, process, name, where)
        self._lease(after, where)
        if name in ("commit", "append_frames"):
            self.check(before.lease_owner == process.owner, "R3 only the holder of the lease writes", where)
            self._said(rows, before.last_seq)
        if name == "commit":
            self._committed(before, rows, where)
        self.inputs.written(before, rows, where)
        self._calm(after, name, where)

    def _ends(self, before: Envelope, after: Envelope, name: str, where: str) -> None:
        """I-20: an ended run never changes, but that a failure that may pass is tried again."""
        if not before.status.ended or before.status is after.status:
            return
        failure = ended.failure if (ended := codec.decode(before.state).ended) else None
        passes = failure is not None and failure.transient and name == "append_mail" and after.status is Status.QUEUED
        self.check(passes, "I-20 an ended run never changes", where)

    def _calm(self, after: Envelope, name: str, where: str) -> None:
        """Nothing spins: a run is taken and written as often as something happens to it, and no oftener."""
        if name == "seize":
            self._seized_at[after.uid] = self._world.loop.time()
        if name == "claim":
            claims, now = self._claimed_at[after.uid], self._world.loop.time()
            claims.append(now)
            spins = len(claims) > MOST_CLAIMS and now - claims[-1 - MOST_CLAIMS] < MINUTE
            self.check(not spins, "I-22 nothing spins", f"{where}: {MOST_CLAIMS} claims within a minute")
        if name == "commit":
            self._writes[after.uid] += 1
            self.check(self._writes[after.uid] < MOST_COMMITS, "I-22 nothing spins", f"{where}: {MOST_COMMITS} commits")

    def _position(self, before: Envelope, after: Envelope, process: Process, name: str, where: str) -> None:
        """R1, R2, R3: what moves revision, leg and journal."""
        steps = (after.revision - before.revision, after.leg - before.leg)
        expected = {"claim": (1, 1), "commit": (1, 0), "disown": (1, 0), "seize": (1, 0)}.get(name, (0, 0))
        self.check(steps == expected, "R2 revision and leg move one by one", where)
        if name not in ("commit", "append_frames"):
            self.check(after.last_seq == before.last_seq and after.state == before.state, "R1 only the holder writes", where)
        if name == "commit":
            self.check(after.recoveries in (0, before.recoveries), "R40 recoveries are counted by claims", where)
        if name == "renew":
            self.check(before.lease_owner == process.owner, "I-14 only its holder renews a lease", where)
        if name == "claim":
            free = before.lease_owner is None or (before.lease_until or 0) < self._world.database.now()
            self.check(free and after.lease_owner == process.owner, "I-16 a lease is taken when it has run out", where)
            self.check(after.recoveries - before.recoveries == (before.lease_owner is not None), "R40 recoveries are counted", where)

    def _lease(self, after: Envelope, where: str) -> None:
        held = after.lease_owner is not None
        match after.status:
            case Status.RUNNING:
                self.check(held and after.lease_until is not None, "I-17 a running run has a lease that can run out", where)
            case Status.QUEUED:
                self.check(not held and after.ready_at is not None, "I-17 a queued run can be claimed", where)
            case Status.SUSPENDED:
                self.check(not held and after.waiting_on != 0, "R8 a suspended run says what it waits for", where)

    def _committed(self, before: Envelope, rows: Rows, where: str) -> None:
        after = rows.envelope
        seen_all = after.mail_applied == len(rows.mail)
        if after.status.ended or after.status is Status.SUSPENDED:
            self.check(seen_all, "R6 mail counts before a run suspends or ends", where)
        if after.status.ended:
            self.check(after.lease_owner is None, "R2 the end gives the lease back", where)
        self.calls.committed(before, rows, where)
        self.typed.committed(codec.decode(before.state), codec.decode(after.state), after.uid, after.leg, where)
        self.bills.committed(rows, where)

    def _said(self, rows: Rows, after: int) -> None:
        uid = rows.envelope.uid
        for seq, frame in enumerate(rows.frames[after:], after + 1):
            self.check(frame.seq == seq, "I-41 frames are numbered without gaps", f"{uid}: {frame.seq} where {seq} is due")
            self.said_at[uid].append(self._world.loop.time())
            for problem in self.stories[uid].hear(frame):
                self.broken("R32 the journal tells the run's story", f"{rows.envelope.public_id}: {problem}")
            said = orjson.loads(frame.data)
            for problem in self.bills.said(uid, said) if said["type"] == "usage" else ():
                self.broken("R33 each answer is settled once", f"{rows.envelope.public_id}: {problem}")
        self.check(len(rows.frames) == rows.envelope.last_seq, "I-43 state and frames go together", f"{uid}: {rows.envelope.last_seq}")

    # -- starts ------------------------------------------------------------------------------------------------------------

    def tool_starts(self, process: Process, tool: WatchedTool, arguments: Mapping[str, Any], context: ToolContext[Any, Any]) -> None:
        where = f"{tool.traits.name} {context.idempotency_key} attempt {context.attempt} by {process.name}"
        rows = self._held(context.idempotency_key.split("/")[0], process, where)
        if rows is not None:
            self.calls.starts_now(rows, tool, arguments, context, where)

    def model_starts(self, process: Process, model: str, request: ModelRequest) -> Bill:
        """A model is asked; what it bills goes on the bill."""
        run_id = request.messages[0].text
        uid = self._world.database.public_ids.get(("default", run_id), "")
        where = f"model call {request.step}/{request.attempt} of {run_id} by {process.name}, {request.purpose}"
        rows = self._held(uid, process, where)
        if request.purpose == "turn":
            self._turn_starts(rows, uid, model, request, where)
        elif rows is not None:
            self.check(bool(codec.decode(rows.envelope.state).generations), "R33 the reservation is durable before the call", where)
        shares = rows is not None and codec.decode(rows.envelope.state).shared is not None
        bill = self.bills.begins(uid, request, where, admits=self.spending.admits if shares else None)
        if rows is not None and request.purpose == "turn":
            self.spending.model_starts(codec.decode(rows.envelope.state), bill, where)
        return bill

    def _turn_starts(self, rows: Rows | None, uid: str, model: str, request: ModelRequest, where: str) -> None:
        asked = (uid, request.step, request.attempt)
        self.check(asked not in self._asked, "R32 an attempt of a model call starts once", where)
        self._asked.add(asked)
        if rows is None:
            return
        run = codec.decode(rows.envelope.state)
        reservation = run.reservation
        durable = reservation is not None and (reservation.step, reservation.attempt) == (request.step, request.attempt)
        self.check(durable, "R33 the reservation is durable before the call", f"{where}: {reservation}")
        self.check([message.seq for message in request.messages] == sorted(rows.messages), "R17b the model sees what is stored", where)
        self._paired(request, where)
        self.typed.asks(rows, model, request, where)

    def _held(self, uid: str, process: Process, where: str) -> Rows | None:
        """R3a: whoever starts something has the run, and at least a third of its lease left, by the store's own clock."""
        rows = self._world.database.actors.get(uid)
        if rows is None:
            self.broken("I-13 nothing starts without the lease", f"{where}: the run is gone")
            return None
        envelope = rows.envelope
        left = (envelope.lease_until or 0) - self._world.database.now()
        holds = envelope.lease_owner == process.owner and envelope.status is Status.RUNNING
        if not holds and self._world.loop.time() - self._seized_at.get(uid, -TTL) < TTL * 2 / 3:
            return None  # it was taken from a holder that could go on, and has not heard of it: whoever does that has to expect it
        self.check(
            holds and left >= THIRD_MS - 1, "R3a nothing starts without a good lease", f"{where}: {_place(envelope)}, {left} ms left"
        )
        return rows

    def _paired(self, request: ModelRequest, where: str) -> None:
        open_calls: list[str] = []
        for message in request.messages:
            answered = [result.tool_call_id for result in message.tool_results]
            self.check(answered == (open_calls if message.role == "tool" else []), "I-07 every call has its result", where)
            self.check(message.role == "tool" or not open_calls, "I-07 every call has its result", where)
            open_calls = [call.tool_call_id for call in message.tool_calls]
        self.check(not open_calls, "I-07 every call has its result", where)

    # -- the end of a run --------------------------------------------------------------------------------------------------------

    def deleted(self, rows: Rows) -> None:
        self.check(
            rows.envelope.status.ended and rows.envelope.lease_owner is None, "R45 only what ended is deleted", rows.envelope.public_id
        )
        if rows.envelope.mail_applied == len(rows.mail):  # what came for it since went with it
            self.over(rows)
        else:
            self.spending.counted(codec.decode(rows.envelope.state))

    def over(self, rows: Rows) -> None:
        """A run has ended, or waits for somebody for good."""
        envelope = rows.envelope
        where = f"{envelope.public_id} {_place(envelope)}"
        run, story = codec.decode(envelope.state), self.stories[envelope.uid]
        waits = envelope.status is Status.SUSPENDED and not self._world.diligent
        self.check(envelope.status.ended or waits, "I-22 every run ends or waits visibly", where)
        self.check(run.status is envelope.status, "I-43 state and columns agree", f"{where}: {run.status}")
        self.check(story.status == envelope.status.value, "R5 the end is announced", f"{where}: said {story.status}")
        self.check(envelope.mail_applied == len(rows.mail), "R6 no input is left", where)
        overdue = [due for due in (envelope.ready_at, envelope.care_at) if due is not None and due <= self._world.database.now()]
        self.check(not overdue, "I-34 what is due by itself has happened", f"{where}: {overdue}")
        for problem in story.differs(rows, view.pending(run)):
            self.broken("R32 the frames fold to the messages", f"{where}: {problem}")
        if envelope.uid in self.cancelled:
            self.check(envelope.stop_reason == "cancelled", "R37 an accepted cancel ends the run", where)
        self.calls.over(rows, run.ended.details.get("calls", ()) if run.ended else (), where)
        self.inputs.over(rows, story.ignored, where)
        self.spending.over(rows, run, where)
        self.typed.over(rows, where)
        self.bills.over(envelope, where)


def _place(envelope: Envelope) -> str:
    return f"{envelope.status}/r{envelope.revision}/l{envelope.leg}/s{envelope.last_seq} held by {envelope.lease_owner}"

"""What must never happen: seen at every write, at every start of a tool or model, and at the end of every run.

The numbers are the invariants of the reliability catalogue and the rules of docs/semantics.md. Nothing here uses the engine's judgement.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runward.agents.contexts import ToolContext
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.records import Receipt, Stage
from runward.core.runs import codec
from runward.core.runs.calls import Effect, ToolTraits
from runward.ports.models import ModelRequest
from runward.stores.memory.database import Rows
from tests.simulation.processes import TTL, Process
from tests.simulation.story import Story

if TYPE_CHECKING:
    from tests.simulation.world import World

THIRD_MS = round(TTL * 1000 / 3)
MOVES = {
    "claim": {
        (Status.QUEUED, Status.RUNNING),
        (Status.SUSPENDED, Status.RUNNING),
        (Status.RUNNING, Status.RUNNING),
    },
    "commit": {(Status.RUNNING, status) for status in Status},
    "append_mail": {(status, status) for status in Status if not status.ended} | {(Status.SUSPENDED, Status.QUEUED)},
    "disown": {(Status.RUNNING, Status.QUEUED)},
    "seize": {(Status.RUNNING, Status.QUEUED)},
}
"""Which operation may change which status; any other leaves it alone (R1, I-20)."""


class Ledger:
    """What tools really did to the world outside, which no store and no engine knows."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, int]] = []
        self.saves: dict[str, list[str]] = defaultdict(list)
        """What each call wanted to save, in order, and in `saved` the last one that it was told is durable."""
        self.saved: dict[str, str] = {}

    def happens(self, key: str, attempt: int) -> str:
        self.effects.append((key, attempt))
        return token(key, attempt)


def token(key: str, attempt: int) -> str:
    """What a tool returns: it says which attempt of which call had the effect."""
    return f"{key}#{attempt}"


class Watch:
    """The watch over one world. `violations` are the promises that were broken, in the order they were."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self.stories: dict[str, Story] = {}
        self.said_at: dict[str, list[float]] = defaultdict(list)
        """When each frame of a run became durable."""
        self.starts: Counter[str] = Counter()
        self.effects: dict[str, Effect] = {}
        self._started: set[tuple[str, int]] = set()
        self._asked: set[tuple[str, int, int]] = set()
        self._receipts: dict[str, dict[str, Receipt]] = defaultdict(dict)
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
        self._said(rows, 0)

    def written(self, before: Envelope, rows: Rows, process: Process, name: str) -> None:
        after = rows.envelope
        where = f"{name} of {after.public_id} by {process.name}: {_place(before)} -> {_place(after)}"
        moved = (before.status, after.status)
        self.check(before.status is after.status or moved in MOVES.get(name, ()), "I-20 only a leg changes a status", where)
        self.check(not before.status.ended or moved[0] is moved[1], "I-20 an ended run never changes", where)
        self._position(before, after, process, name, where)
        self._lease(after, where)
        if name in ("commit", "append_frames"):
            self.check(before.lease_owner == process.owner, "R3 only the holder of the lease writes", where)
            self._said(rows, before.last_seq)
        if name == "commit":
            self._committed(before, rows, where)

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
        after, known = rows.envelope, self._receipts[rows.envelope.uid]
        seen_all = after.mail_applied == len(rows.mail)
        if after.status.ended or after.status is Status.SUSPENDED:
            self.check(seen_all, "R6 mail counts before a run suspends or ends", where)
        if after.status.ended:
            self.check(after.lease_owner is None, "R2 the end gives the lease back", where)
        for call_id, receipt in rows.receipts.items():
            old = known.get(call_id)
            if old is receipt:
                continue
            known[call_id] = receipt
            self._receipt(old, receipt, f"receipt {call_id}: {where}")
            if receipt.stage is Stage.EXECUTING and receipt.outcome is None and receipt.effect != "read":
                marked = old is None or old.attempt != receipt.attempt
                self.check(seen_all or not marked, "R6 mail counts before a writing call starts", where)

    def _receipt(self, old: Receipt | None, new: Receipt, where: str) -> None:
        if old is None:
            return
        self.check(old.stage not in (Stage.COMPLETED, Stage.FAILED), "I-01 a recorded outcome is never changed", where)
        self.check(new.attempt >= old.attempt and new.arguments == old.arguments, "I-10 a call keeps its arguments", where)
        self.check(old.raw in (None, new.raw), "R12 what a tool returned is kept", where)

    def _said(self, rows: Rows, after: int) -> None:
        uid = rows.envelope.uid
        for seq, frame in enumerate(rows.frames[after:], after + 1):
            self.check(frame.seq == seq, "I-41 frames are numbered without gaps", f"{uid}: {frame.seq} where {seq} is due")
            self.said_at[uid].append(self._world.loop.time())
            for problem in self.stories[uid].hear(frame):
                self.broken("R32 the journal tells the run's story", f"{rows.envelope.public_id}: {problem}")
        self.check(len(rows.frames) == rows.envelope.last_seq, "I-43 state and frames go together", f"{uid}: {rows.envelope.last_seq}")

    # -- starts ------------------------------------------------------------------------------------------------------------

    def tool_starts(self, process: Process, traits: ToolTraits, arguments: Mapping[str, Any], context: ToolContext[Any, Any]) -> None:
        key, attempt = context.idempotency_key, context.attempt
        uid, call_id = key.split("/")
        where = f"{traits.name} {key} attempt {attempt} by {process.name}"
        rows = self._held(uid, process, where)
        self.check((key, attempt) not in self._started, "R13 an attempt starts once", where)
        self._started.add((key, attempt))
        saves, saved = self._world.ledger.saves[key], self._world.ledger.saved.get(key)
        possible = [saved, *saves[saves.index(saved) + 1 if saved in saves else 0 :]]
        self.check(context.checkpoint in possible, "R13 a checkpoint is durable", f"{where}: {context.checkpoint!r}, {possible}")
        self.starts[key] += 1
        self.effects[key] = traits.effect
        self.check(traits.effect.repeatable or self.starts[key] == 1, "I-03 an effect that may not be repeated happens once", where)
        if rows is None:
            return
        receipt = rows.receipts.get(call_id)
        durable = receipt is not None and receipt.stage is Stage.EXECUTING and receipt.outcome is None and receipt.attempt == attempt
        self.check(durable, "I-02 the receipt is durable before the effect", f"{where}: {receipt}")
        if receipt is not None:
            self.check(receipt.arguments == canonical_json(arguments), "I-10 what runs is what was recorded", where)

    def model_starts(self, process: Process, request: ModelRequest) -> None:
        run_id = request.messages[0].text
        uid = self._world.database.public_ids.get(("default", run_id), "")
        where = f"model call {request.step}/{request.attempt} of {run_id} by {process.name}"
        rows = self._held(uid, process, where)
        asked = (uid, request.step, request.attempt)
        self.check(asked not in self._asked, "R32 an attempt of a model call starts once", where)
        self._asked.add(asked)
        if rows is None:
            return
        reservation = codec.decode(rows.envelope.state).reservation
        durable = reservation is not None and (reservation.step, reservation.attempt) == (request.step, request.attempt)
        self.check(durable, "R33 the reservation is durable before the call", f"{where}: {reservation}")
        self.check([message.seq for message in request.messages] == sorted(rows.messages), "R17b the model sees what is stored", where)
        self._paired(request, where)

    def _held(self, uid: str, process: Process, where: str) -> Rows | None:
        """R3a: whoever starts something has the run, and at least a third of its lease left, by the store's own clock."""
        rows = self._world.database.actors.get(uid)
        if rows is None:
            self.broken("I-13 nothing starts without the lease", f"{where}: the run is gone")
            return None
        envelope = rows.envelope
        left = (envelope.lease_until or 0) - self._world.database.now()
        holds = envelope.lease_owner == process.owner and envelope.status is Status.RUNNING
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
        self.over(rows)

    def over(self, rows: Rows) -> None:
        """A run has ended, or waits for somebody for good."""
        envelope = rows.envelope
        where = f"{envelope.public_id} {_place(envelope)}"
        run, story = codec.decode(envelope.state), self.stories[envelope.uid]
        self.check(envelope.status.ended or envelope.status is Status.SUSPENDED, "I-22 every run ends or waits visibly", where)
        self.check(run.status is envelope.status, "I-43 state and columns agree", f"{where}: {run.status}")
        self.check(story.status == envelope.status.value, "R5 the end is announced", f"{where}: said {story.status}")
        self.check(envelope.mail_applied == len(rows.mail), "R6 no input is left", where)
        for problem in story.differs(rows):
            self.broken("R32 the frames fold to the messages", f"{where}: {problem}")
        if envelope.uid in self.cancelled:
            self.check(envelope.stop_reason == "cancelled", "R37 an accepted cancel ends the run", where)
        for receipt in rows.receipts.values():
            self._outcome(envelope.uid, receipt, f"{where}: receipt {receipt}")
        self._known(envelope.uid, run.ended.details.get("calls", ()) if run.ended else (), where)

    def _outcome(self, uid: str, receipt: Receipt, where: str) -> None:
        """What is recorded is what happened."""
        key = f"{uid}/{receipt.tool_call_id}"
        happened = [attempt for what, attempt in self._world.ledger.effects if what == key]
        open_ = receipt.stage in (Stage.EXECUTING, Stage.EXECUTED, Stage.SUSPENDED)
        self.check(not open_ or receipt.outcome == "unknown", "I-06 every call has one outcome", where)
        if receipt.outcome == "unknown":
            self.check(not Effect(receipt.effect).repeatable, "R13 only what may not be repeated is unknown", where)
        if receipt.stage is Stage.COMPLETED:
            shown = receipt.raw or receipt.output or ""
            self.check(receipt.attempt in happened and token(key, receipt.attempt) in shown, "I-01 a result is the tool's own", where)
        certain = '"effect_certain":true' in receipt.detail
        if receipt.outcome == "failed" and certain and receipt.effect not in ("read", "idempotent_write"):
            self.check(not happened, "R16 a tool's own error means that it did not happen", where)
        if receipt.attempt == 0:
            self.check(not self.starts[key], "I-02 what was never marked never started", where)

    def _known(self, uid: str, calls: Any, where: str) -> None:
        """R38: the end says of each call what is known, and that is true."""
        for call in calls:
            key, state = f"{uid}/{call['tool_call_id']}", call["state"]
            if state == "not_started":
                self.check(not self.starts[key], "R38 not started is true", f"{where}: {call}")
            if state == "cancelled":
                self.check(self.effects.get(key, Effect.READ).repeatable, "R38 cancelled is true", f"{where}: {call}")
            if state == "finished":
                self.check(self.starts[key] > 0, "R38 finished is true", f"{where}: {call}")


def _place(envelope: Envelope) -> str:
    return f"{envelope.status}/r{envelope.revision}/l{envelope.leg}/s{envelope.last_seq} held by {envelope.lease_owner}"

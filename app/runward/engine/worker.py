"""A worker: claims runs, drives each as a leg, gives them back when it has to go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from runward.core.ids import worker_id
from runward.core.kernel.actor import Status
from runward.core.kernel.commit import Claimed
from runward.core.runs.dues import work_due
from runward.engine.alarms import Alarms
from runward.engine.deployment import Deployed
from runward.engine.heartbeat import Heartbeat, HeartbeatThread
from runward.engine.hold import Hold, LeaseLost
from runward.engine.leg import SUSPECT_RECOVERIES, Leg
from runward.engine.performer import Performer
from runward.engine.services import Services, WorkerSettings
from runward.engine.tail import Tails
from runward.engine.timing import wait_for
from runward.ports.bus import Hint, Topic
from runward.ports.directory import WorkerRow
from runward.ports.store import ClaimRequest, Renewal

TICK_SECONDS = 1.0
LAST_SECONDS = 2.0
"""How long after the drain's grace a leg may take to give its run back."""


class Worker:
    """Drives up to `concurrency` runs at a time. `start` returns once it claims; `drain` gives every run back and returns (R39)."""

    def __init__(
        self,
        *,
        services: Services,
        settings: WorkerSettings,
        deployments: Mapping[str, Deployed],
        tails: Tails,
        performer: Callable[[Claimed, Deployed, Hold], Performer],
        host: str,
        pid: int,
        own_thread: bool = True,
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self.owner = worker_id(host, pid, services.chance.uid())
        self._services = services
        self._settings = settings
        self._deployments = deployments
        self._tails = tails
        self._performer = performer
        self._host = host
        self._pid = pid
        self._on_stall = on_stall
        self._legs: dict[str, Leg] = {}
        self._tasks: dict[Leg, asyncio.Task[None]] = {}
        self._abandoned: dict[str, int] = {}
        self._driven: tuple[str, ...] = ()
        self._wake = asyncio.Event()
        self._look = asyncio.Event()
        self._idle = asyncio.Event()
        self._odd = itertools.cycle((1, 0))
        """Of an odd number of runs the larger half goes to overdue ones and to ready ones in turns."""
        self.asked_to_drain = asyncio.Event()
        """Set once an operator has asked this worker to drain. Whoever started it sees to that."""
        self._draining = False
        self._leaving: asyncio.Task[None] | None = None
        self._claiming = False
        self._unsettled = False
        self._ticked_at = services.clock.monotonic()
        self._loops: list[asyncio.Task[None]] = []
        self._alarms = Alarms(services.clock, services.time, self._wake.set)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._heartbeat = Heartbeat(
            store=services.store,
            clock=services.clock,
            telemetry=services.telemetry,
            keeper=self,
            owner=self.owner,
            ttl=settings.lease_ttl,
            stall=settings.loop_stall,
        )
        self._thread = HeartbeatThread(self._heartbeat) if own_thread else None

    # -- life --------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts claiming."""
        self._unsubscribe = self._services.bus.subscribe(self._heard)
        if self._thread is not None:
            self._thread.start()
        else:
            self._loops.append(asyncio.ensure_future(self._heartbeat.beat_forever()))
        loops = (self._claim_forever, self._look_forever, self._tick_forever, self._report_forever)
        self._loops += [asyncio.ensure_future(loop()) for loop in loops]
        self._wake.set()

    async def drain(self) -> None:
        """Claims nothing more, lets every run finish the step in hand and gives it back; after the grace it breaks off what can be
        repeated, and leaves the leases of the rest to run out (R39). Asked for again, it is the same drain."""
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave())
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        self._draining = True
        if (faults := self._services.faults) is not None:
            await faults.reach("draining")
        for leg in self._tasks:
            leg.drain()
        if not await self._all_over(self._settings.drain_grace):
            for leg in self._tasks:
                leg.drain(hurried=True)
            await self._all_over(LAST_SECONDS)
        await self.stop()
        await self._take_leave()

    async def stop(self) -> None:
        """Stops at once: what is still driven is left to its lease."""
        self._draining = True
        self._unsubscribe()
        self._alarms.stop()
        tasks = [*self._tasks.values(), *self._loops]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._thread is not None:
            await self._thread.stop()

    @property
    def free(self) -> int:
        """How many more runs it would take."""
        return 0 if self._draining else self._settings.concurrency - len(self._tasks)

    async def _all_over(self, seconds: float) -> bool:
        """Waits until nothing is driven and no claim is under way, so many seconds at most; says whether it is so."""
        until = self._services.clock.monotonic() + seconds
        while self._tasks or self._claiming:
            self._idle.clear()
            if not await wait_for(self._services.clock, self._idle, until - self._services.clock.monotonic()):
                return False
        return True

    async def _take_leave(self) -> None:
        """Gives back what a claim without an answer may have taken, and says goodbye. What fails of that, time will do."""
        try:
            if self._unsettled:
                await self._settle()
            await self._services.directory.forget_worker(self.owner)
        except Exception as error:  # noqa: BLE001 - as above
            self._services.telemetry.problem("leave_failed", error)

    # -- claiming ----------------------------------------------------------------------------------------------------------

    async def _claim_forever(self) -> None:
        while True:
            await wait_for(self._services.clock, self._wake, self._poll)
            self._wake.clear()
            try:
                if self._unsettled:
                    await self._settle()
                while self.free > 0 and await self._claim() == 0:
                    pass
            except Exception as error:  # noqa: BLE001 - the store is away, or it is a bug: a worker that stopped claiming would look alive
                self._services.telemetry.problem("claim_failed", error)
                await self._services.clock.sleep(self._settings.poll)
                self._wake.set()

    async def _claim(self) -> int:
        """Claims once. Returns how many more it would have taken: 0 means that there may be more."""
        wanted = self.free
        request = ClaimRequest(
            owner=self.owner,
            bindings=tuple(self._deployments),
            limit=wanted,
            overdue=(wanted + next(self._odd)) // 2,
            suspects=0 if any(leg.recoveries >= SUSPECT_RECOVERIES for leg in self._legs.values()) else 1,
            ttl_ms=round(self._settings.lease_ttl * 1000),
            recovery_delay_ms=round(self._settings.recovery_delay * 1000),
            max_recoveries=self._settings.max_recoveries,
            per_key=self._settings.per_key,
            per_tenant=self._settings.per_tenant,
        )
        self._unsettled = self._claiming = True
        sent_at = self._services.clock.monotonic()
        try:
            claims = await self._services.store.claim(request)
        finally:
            self._claiming = False
            self._idle.set()
        self._unsettled = False
        self._services.time.learn(claims.now)
        for claimed in claims.taken:
            self._begin(claimed, sent_at)
        return wanted - len(claims.taken)

    async def _settle(self) -> None:
        """A claim's answer was lost: whatever it took and nobody drives goes back (R2a)."""
        owned = await self._services.store.owned(self.owner)
        driven = {uid: leg.number for uid, leg in self._legs.items()}
        lost = {uid: leg for uid, leg in owned.items() if leg not in (driven.get(uid), self._abandoned.get(uid))}
        if lost:
            await self._services.store.disown(self.owner, lost)
        self._unsettled = False

    def _begin(self, claimed: Claimed, sent_at: float) -> None:
        row = claimed.envelope
        drivable = not row.status.ended and row.has_turn(per_tenant=self._settings.per_tenant is not None)
        deployed = self._deployments.get(row.binding) if drivable else None
        hold = Hold(self._services.clock, self._settings.lease_ttl, sent_at, self._heartbeat.renew_soon)
        leg = Leg(
            claimed=claimed,
            performer=None if deployed is None else self._performer(claimed, deployed, hold),
            worker=self.owner,
            max_recoveries=self._settings.max_recoveries,
            hold=hold,
            services=self._services,
            subscribers=self._tails,
        )
        before = self._legs.get(row.uid)
        if before is not None:  # it gave the run back, or lost it, and has not heard of that yet
            before.lose()
        self._legs[row.uid] = leg
        self._abandoned.pop(row.uid, None)
        self._driven = tuple(self._legs)
        self._tails.driven_here(row.uid, True)
        self._tasks[leg] = asyncio.ensure_future(self._drive(leg))
        if self._draining:
            leg.drain()

    async def _drive(self, leg: Leg) -> None:
        try:
            await leg.drive()
            if leg.status is Status.QUEUED:
                self._services.bus.publish((Hint(Topic.READY, leg.uid),))
            elif leg.status is Status.SUSPENDED:
                self._alarms.add(work_due(leg.run))
        except LeaseLost:
            self._abandon(leg)
            self._services.telemetry.event("lease_lost", uid=leg.uid)
        except asyncio.CancelledError:
            self._abandon(leg)
            raise
        except Exception as error:  # noqa: BLE001 - a bug ends one leg: its lease runs out, the worker goes on
            self._abandon(leg)
            self._services.telemetry.problem("leg_failed", error, uid=leg.uid)
        finally:
            more_may_wait = self.free == 0 or leg.was_suspect or leg.uid in self._abandoned
            del self._tasks[leg]
            if self._legs.get(leg.uid) is leg:
                del self._legs[leg.uid]
                self._driven = tuple(self._legs)
                self._tails.driven_here(leg.uid, False, in_step=leg.uid not in self._abandoned)
            if more_may_wait:
                self._wake.set()
            self._idle.set()

    def _abandon(self, leg: Leg) -> None:
        """The leg did not give its run back: its lease, if it still has one, is left to run out."""
        if self._legs.get(leg.uid) is leg:
            self._abandoned[leg.uid] = leg.number

    # -- news --------------------------------------------------------------------------------------------------------------

    def _heard(self, hint: Hint) -> None:
        if hint.topic is Topic.READY:
            self._wake.set()
        elif hint.topic is Topic.MAIL and hint.uid in self._legs:
            self._legs[hint.uid].poke()
        elif hint.topic is Topic.ANYTHING:
            self._wake.set()
            self._look.set()

    async def _look_forever(self) -> None:
        """The floor under hints: one statement says where every driven run stands."""
        while True:
            await wait_for(self._services.clock, self._look, self._poll)
            self._look.clear()
            if not self._legs:
                continue
            try:
                heads = await self._services.store.heads([*self._legs])
            except Exception as error:  # noqa: BLE001 - as above
                self._services.telemetry.problem("look_failed", error)
                continue
            for uid, head in heads.items():
                if uid in self._legs:
                    self._legs[uid].heard(head)

    async def _tick_forever(self) -> None:
        """Shows the heartbeat that the loop lives, and ends legs whose lease could have run out."""
        while True:
            self._ticked_at = self._services.clock.monotonic()
            for leg in self._legs.values():
                if leg.hold.remaining <= 0:
                    leg.lose()
            await self._services.clock.sleep(min(TICK_SECONDS, self._settings.lease_ttl / 10))

    async def _report_forever(self) -> None:
        """Says that this worker lives, as often as it renews."""
        while True:
            try:
                if await self._services.directory.beat(self._row()):
                    self.asked_to_drain.set()
            except Exception as error:  # noqa: BLE001 - as above
                self._services.telemetry.problem("beat_failed", error)
            await self._services.clock.sleep(self._settings.lease_ttl / 3)

    def _row(self) -> WorkerRow:
        return WorkerRow(
            id=self.owner,
            host=self._host,
            pid=self._pid,
            started_at=0,
            beat_at=0,
            slots=self._settings.concurrency,
            driving=len(self._legs),
            draining=self._draining,
            bindings=tuple(self._deployments),
        )

    @property
    def _poll(self) -> float:
        return self._settings.poll_with_bus if self._services.bus.healthy else self._settings.poll

    # -- heartbeat.Keeper --------------------------------------------------------------------------------------------------

    def driven(self) -> Sequence[str]:
        return self._driven

    def held(self, uids: Iterable[str], sent_at: float) -> None:
        for uid in uids:
            if (leg := self._legs.get(uid)) is not None:
                leg.hold.reach(sent_at)

    def renewed(self, asked: Sequence[str], renewal: Renewal, sent_at: float) -> None:
        self._services.time.learn(renewal.now)
        for uid in asked:
            leg = self._legs.get(uid)
            if leg is None:
                continue
            if uid in renewal.held:
                leg.hold.extend(sent_at)
                leg.heard(renewal.held[uid])
            elif leg.hold.older_than(sent_at):
                leg.lose()

    def ticked_at(self) -> float:
        return self._ticked_at

    def stalled(self) -> None:
        self._on_stall()

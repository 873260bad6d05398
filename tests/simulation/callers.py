"""Callers of a simulated world: they ask whichever process they reach, ask again when nobody knows what became of it, and hold the
service to what it answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from runward.core.errors import Conflict, NotFound, Unavailable
from runward.core.messages import Message, TextPart
from runward.core.runs.limits import TighterLimits
from runward.engine.callers import LOCAL
from runward.engine.commands import NewRun
from runward.engine.queries import RunView
from runward.engine.repeats import Repeatable
from runward.engine.service import Service
from runward.engine.tail import RunGone
from tests.simulation.agents import AGENT, TYPED, VERSIONS
from tests.simulation.loop import first, sleep
from tests.simulation.operators import Operator
from tests.simulation.people import People
from tests.simulation.processes import Process
from tests.simulation.typed import SCHEMA

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

PATIENCE = 4.0
"""How long a caller waits for an answer, in virtual seconds."""

PROMPT_TOKENS = 1_100
"""About what the first prompt of a run is estimated at."""

PROMPT = 0.4
"""How long a frame may take from the database to a subscriber when nothing goes wrong."""


class Nobody(Exception):
    """Nobody knows what became of it: the process died, or did not answer in time."""


class Caller:
    """One caller and its one run."""

    def __init__(self, world: World, run_id: str, chance: Random) -> None:
        self.world = world
        self._chance = chance
        self.run_id = run_id
        self.agent = AGENT
        self.uid: str | None = None
        self.gone = False
        self._revision = 0
        self._people = People(self)

    async def live(self) -> None:
        """Creates a run, follows it, answers it, perhaps cancels or parks it, and perhaps deletes it in the end."""
        chance = self._chance
        await sleep(chance.choice((0, 0.05, 0.5, 2.0)))
        await self._create()
        if self.uid is None:
            return
        others = [asyncio.ensure_future(self._follow()) for _ in range(chance.choice((0, 1, 1, 2)))]
        if chance.random() < 0.25:
            others.append(asyncio.ensure_future(self._cancel()))
        if chance.random() < 0.3:
            others.append(asyncio.ensure_future(self._create()))
        if chance.random() < 0.4:
            others.append(asyncio.ensure_future(Operator(self).live()))
        view = await self._end()
        for other in others:
            await other
        if chance.random() < 0.2:
            await self._follow()
        if view is not None and chance.random() < 0.2:
            await self._delete()

    # -- asking ------------------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Service], Awaitable[T]]) -> T:
        """An answer from some process. Raises what it raised, and Nobody."""
        process = await self._reached()
        asked = process.begin(_asked(question, process))
        patience = asyncio.ensure_future(sleep(PATIENCE))
        await first(asked, patience, asyncio.shield(process.gone))
        patience.cancel()
        if not asked.done():
            asked.add_done_callback(_unheard)
            raise Nobody
        answer: T = asked.result()
        return answer

    async def _reached(self) -> Process:
        """Some process that answers callers, as a load balancer finds one."""
        while not (reachable := [process for process in self.world.processes if process.up]):
            await sleep(0.2)
        return self._chance.choice(reachable)

    async def ask_again(self, question: Callable[[Service], Awaitable[T]]) -> T:
        """The same, until somebody knows."""
        while True:
            try:
                return await self.ask(question)
            except (Nobody, Unavailable):
                await sleep(self._chance.choice((0, 0.05, 0.3)))

    # -- what it wants -------------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        kind = self.world.chance_of(self.run_id, "kind").choice((AGENT, AGENT, TYPED, "with a type"))
        self.agent = TYPED if kind == TYPED else AGENT
        new = asked_for(
            self.run_id,
            agent=self.agent,
            output={"schema": SCHEMA} if kind == "with a type" else None,
            agent_version=self.world.chance_of(self.run_id, "version").choice(VERSIONS),
            limits=replace(
                self._limits(self.world.chance_of(self.run_id, "limits")), **self._bounds(self.world.chance_of(self.run_id, "bounds"))
            ),
            priority=self.world.chance_of(self.run_id, "priority").choice((0, 0, 5)),
            budgets=self._budgets(self.world.chance_of(self.run_id, "budgets")),
            start_at=self.world.database.now() + 700 if self.world.chance_of(self.run_id, "start").random() < 0.1 else None,
        )
        key = Repeatable(key=self.run_id, fingerprint="the same")
        try:
            created = await self.ask_again(lambda service: service.commands.create_run(LOCAL, new, key))
        except (Conflict, NotFound) as refused:
            self.check(self.gone or self.uid is not None, "R42 one key makes one run", f"{refused.code}: {refused.detail}")
            return
        self.check(created.row.uid in self.world.watch.stories, "I-23 what is accepted is durable", created.row.uid)
        self.check(self.uid in (None, created.row.uid), "I-50 the same key is the same run", f"{self.uid} and {created.row.uid}")
        self.uid = created.row.uid

    def _limits(self, chance: Random) -> TighterLimits:
        if chance.random() < 0.8:
            return TighterLimits()
        attempts = TighterLimits(max_output_attempts=chance.choice((1, 2)), max_verify_attempts=chance.choice((1, 2)))
        return chance.choice((TighterLimits(max_steps=2), TighterLimits(timeout_seconds=1.5), TighterLimits(expires_seconds=4.0), attempts))

    def _budgets(self, chance: Random) -> list[str]:
        """Those that there are, in any order, or some of them."""
        keys = [key for _, key in self.world.database.budgets]
        return chance.sample(keys, chance.choice((len(keys), len(keys), 0, min(1, len(keys)))))

    def _bounds(self, chance: Random) -> Mapping[str, Any]:
        """What the run may cost."""
        drawn, prompt = chance.random(), PROMPT_TOKENS
        bounds: dict[str, Any] = {}
        if drawn < 0.3:
            bounds["max_total_tokens"] = chance.choice((100, prompt + 20, prompt + 70, prompt + 200, 2 * prompt, 4 * prompt))
        if 0.2 < drawn < 0.5:
            bounds["max_cost_usd"] = chance.choice(("0.0005", "0.0021", "0.003", "0.01"))
        return bounds

    async def _cancel(self) -> None:
        await sleep(self._chance.choice((0, 0.01, 0.1, 0.5, 1.5, 4.0)))
        try:
            answer = await self.ask_again(lambda service: service.commands.cancel_run(LOCAL, self.run_id, "enough"))
        except NotFound:
            self.check(self.gone, "I-22 a run does not vanish", "cancelled")
            return
        if answer.accepted and self.uid is not None:
            self.world.watch.cancelled.add(self.uid)
        self.check(answer.accepted or answer.row.status.ended, "R37 only what has ended is not cancelled", str(answer.row.status))

    async def _end(self) -> RunView | None:
        """Reads the run until it is over: its revision only grows."""
        while True:
            try:
                view = await self.ask_again(lambda service: service.queries.run(LOCAL, self.run_id))
            except NotFound:
                self.check(self.gone, "I-22 a run does not vanish", "read")
                return None
            self.check(view.revision >= self._revision, "I-11 revisions only grow", f"{self._revision} and then {view.revision}")
            self._revision = view.revision
            await self._people.look(view)
            if view.status.ended and not await self._people.tries_again(view):
                return view
            if not self.world.troubled and not self.world.diligent and self.world.settled:
                return view
            await sleep(self._chance.choice((0.2, 0.5)))

    async def _delete(self) -> None:
        self.gone = True
        try:
            await self.ask_again(lambda service: service.commands.delete_run(LOCAL, self.run_id))
        except NotFound:
            pass
        except Conflict:
            self.gone = False

    async def _follow(self) -> None:
        """Reads the journal from some process to some other, as far as they come, without a gap and without a repeat."""
        cursor = 0
        uid = self.uid
        assert uid is not None
        while True:
            process = await self._reached()
            reader = Reader(self.world, process, uid, cursor)
            asked = process.begin(reader.read())
            waiting = asyncio.ensure_future(sleep(self._chance.choice((0.5, 3.0, 20.0))))
            await first(asked, waiting, asyncio.shield(process.gone))
            waiting.cancel()
            if not asked.done():
                asked.cancel()
            cursor = reader.cursor
            if reader.over or uid not in self.world.database.actors:
                return
            if not self.world.troubled and self.world.settled and cursor == self.world.database.actors[uid].envelope.last_seq:
                return

    def check(self, kept: bool, promise: str, what: str) -> None:
        self.world.watch.check(kept, promise, f"{self.run_id}: {what}")


class Reader:
    """One subscription of one caller in one process."""

    def __init__(self, world: World, process: Process, uid: str, cursor: int) -> None:
        self.world = world
        self._process = process
        self._uid = uid
        self.cursor = cursor
        self.over = False
        self._began = world.loop.time()

    async def read(self) -> None:
        try:
            async with self._process.service.queries.subscribe(self._uid, self.cursor) as subscription:
                while True:
                    self._heard(await subscription.next())
                    if self.over:
                        return
        except RunGone:
            self.world.watch.check(self._uid not in self.world.database.actors, "R44a a stream ends with its run", self._uid)
            self.over = True
        except Unavailable:
            return

    def _heard(self, frames: object) -> None:
        """I-42, R4: exactly the next frames, the very bytes that are durable already."""
        assert isinstance(frames, (list, tuple))
        rows = self.world.database.actors.get(self._uid)
        if rows is None:
            return
        durable = rows.frames[self.cursor : self.cursor + len(frames)]
        self.world.watch.check(list(frames) == durable, "R44a a stream is the journal", f"{self._uid} after {self.cursor}: {frames}")
        self._check_delay()
        self.cursor += len(frames)
        self.over = b'"final":true' in frames[-1].data

    def _check_delay(self) -> None:
        """R44a: when nothing goes wrong, what is durable is heard of at once."""
        world = self.world
        late = world.loop.time() - max(world.watch.said_at[self._uid][self.cursor], self._began)
        what = f"frame {self.cursor + 1} of {self._uid} in {self._process.name}, {late:.1f} s late"
        world.watch.check(not world.calm or late <= PROMPT, "R44a a stream does not fall asleep", what)


def asked_for(run_id: str, *, agent: str = AGENT, **differing: Any) -> NewRun:
    """A request for a run whose model knows it by its id."""
    return NewRun(agent=agent, messages=(Message(seq=0, role="user", content=(TextPart(text=run_id),)),), run_id=run_id, **differing)


def _unheard(asked: asyncio.Task[object]) -> None:
    """The answer came when nobody waited for it any more."""
    if not asked.cancelled():
        asked.exception()


async def _asked(question: Callable[[Service], Awaitable[T]], process: Process) -> T:
    return await question(process.service)

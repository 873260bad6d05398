"""Golden runs: stories with one right ending, lived through with one thing going wrong at one chosen write (H3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from runward.core.errors import Conflict, NotFound
from runward.core.ids import canonical_json
from runward.core.kernel.mail import Letter, MailKind
from runward.engine.callers import LOCAL
from runward.engine.deliveries import Input
from runward.engine.letters import AnswerIn, ResultIn, SettlementIn, VerdictIn
from runward.engine.queries import RunView
from runward.engine.repeats import Repeatable
from tests.simulation.agents import AGENT, VERSIONS, bindings
from tests.simulation.callers import Caller, asked_for
from tests.simulation.database import OF_RUNS, Fate, Kind
from tests.simulation.loop import sleep
from tests.simulation.operators import appended
from tests.simulation.people import People
from tests.simulation.processes import TTL, Process
from tests.simulation.spending import make, raised
from tests.simulation.stories import Story
from tests.simulation.world import Outcome, World

RUN = "golden"
BUDGET = "team"
IDLE = 0.002
"""How long an operation takes, so that no two of them share a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A story's end: how the world came out, how often something was written, how the run ended, how many effects there were, and how
    many calls had one."""

    outcome: Outcome
    writes: int
    status: str
    effects: int
    calls: int


@dataclass(slots=True)
class Struck:
    """Fates that strike at some writes, counted from 1, and at no other operation."""

    world: World
    at: Mapping[int, Kind]
    restarts: Callable[[], None]
    writes: int = 0

    def fate(self, process: Process, name: str) -> Fate:
        if name not in OF_RUNS:
            return Fate(Kind.DONE, IDLE)
        self.writes += 1
        kind = self.at.get(self.writes)
        if kind is None:
            return Fate(Kind.DONE, IDLE)
        if kind in (Kind.KILLS_BEFORE, Kind.KILLS_AFTER):
            self.world.loop.call_later(0.05, self.restarts, context=self.world.outside_context())
        return Fate(kind, IDLE, 0, TTL * 1.5 if kind in (Kind.FREEZES_BEFORE, Kind.FREEZES_AFTER) else 0.05)


class Person(People):
    """Somebody who answers everything, truthfully, and always the same."""

    def __init__(self, caller: Caller, story: Story) -> None:
        super().__init__(caller)
        self._story = story

    async def look(self, view: RunView) -> None:
        pending, verdict = view.shown["pending"], self._story.verdict
        asked = pending["approvals"] if verdict is not None else ()
        given = Input(
            approvals=[VerdictIn(approval_id=each["approval_id"], **(verdict or {})) for each in asked],
            tool_results=[ResultIn(tool_call_id=each["tool_call_id"], output={"picked": 1}) for each in pending["client_calls"]],
            answers=[AnswerIn(question_id=each["question_id"], answer=(*each["choices"], "so")[0]) for each in pending["questions"]],
            reconcile=[self._found(each, ended=view.status.ended) for each in pending["unknown_effects"]],
            retry_failed=view.shown["error"] is not None and view.shown["error"]["transient"],
        )
        await self.send(given)

    def _found(self, asked: Mapping[str, Any], *, ended: bool) -> SettlementIn:
        found, call = self.world.ledger.found(asked["idempotency_key"], asked["attempt"]), asked["tool_call_id"]
        evidence = {"source": "till"} if asked["evidence_required"] else None
        if found is not None:
            return SettlementIn(tool_call_id=call, decision="result", output={"token": found}, evidence=evidence)
        return SettlementIn(tool_call_id=call, decision="error" if ended else "retry", evidence=evidence)


def tell(story: Story, at: Mapping[int, Kind]) -> Told:
    """Lives through a story in which these writes have these fates."""
    world = World(f"{story.name} {sorted((number, kind.name) for number, kind in at.items())}", manners=story)
    struck = Struck(world, at, lambda: world.begin(world.start("next", *VERSIONS)))
    world.fates = struck.fate
    outcome = world.live(_tell(world, story))
    rows = world.database.actors[world.database.public_ids["default", RUN]]
    ledger = world.ledger
    calls = len({key for key, _ in ledger.effects})
    return Told(outcome=outcome, writes=struck.writes, status=rows.envelope.status.value, effects=len(ledger.effects), calls=calls)


async def _tell(world: World, story: Story) -> None:
    first = await world.start("first", *VERSIONS)
    world.diligent = story.people
    if story.budget is not None:
        await first.begin(make(first.service, {BUDGET: story.budget}))
    caller = await begun(Caller(world, RUN, Random(0)), story.agent)
    person = asyncio.ensure_future(_answered(caller, story)) if story.people else None
    began = world.loop.time()
    for second, hand in sorted(story.hands.items()):
        await sleep(began + second - world.loop.time())
        await strike(caller, hand)
    done = person.done if person is not None else lambda: True
    await world.settle(done)
    await world.heal()
    await world.settle(done)
    if person is not None:
        person.cancel()
    await world.judge()
    await asyncio.sleep(0)


async def begun(caller: Caller, agent: str = AGENT) -> Caller:
    """The caller, once their run is created: of the agent's first version."""
    caller.agent = agent
    budgets = [key for _, key in caller.world.database.budgets]
    new = asked_for(RUN, agent=agent, agent_version=VERSIONS[0], budgets=budgets)
    key = Repeatable(key=RUN, fingerprint="the same")
    created = await caller.ask_again(lambda service: service.commands.create_run(LOCAL, new, key))
    caller.uid = created.row.uid
    return caller


async def _answered(caller: Caller, story: Story) -> None:
    """Somebody looks at the run until nothing of it waits for them."""
    person = Person(caller, story)
    while True:
        view = await caller.ask_again(lambda service: service.queries.run(LOCAL, RUN))
        failed = view.shown["error"] is not None and view.shown["error"]["transient"]
        if view.status.ended and not failed and not view.shown["pending"]["unknown_effects"]:
            return
        await person.look(view)
        await sleep(0.1)


async def strike(caller: Caller, hand: str) -> None:
    """Does something to the run, as `Story.hands` names it."""
    uid, (here, there) = caller.uid or "", bindings(caller.agent)
    match hand:
        case "cancel":
            answer = await caller.ask_again(lambda service: service.commands.cancel_run(LOCAL, RUN, None))
            if answer.accepted:
                caller.world.watch.cancelled.add(uid)
        case "hold":
            try:
                await caller.ask_again(lambda service: service.operations.hold_run(LOCAL, RUN, None))
            except (Conflict, NotFound) as refused:
                caller.check(refused.code == "run_ended", "I-49 a refusal says why", refused.code)
        case "release":
            try:
                await caller.ask_again(lambda service: service.deliveries.deliver(LOCAL, RUN, Input(release_hold=True)))
            except Conflict as refused:
                caller.check(refused.code == "run_ended", "I-49 a refusal says why", refused.code)
        case "raise":
            await caller.ask_again(lambda service: raised(service, BUDGET))
        case "rebind":
            letter = Letter(kind=MailKind.REBIND, key="rebind:1", data=canonical_json({"from": here, "to": there}))
            await caller.ask_again(lambda service: appended(service, uid, letter))


def well(story: Story) -> Told:
    """The story when nothing goes wrong."""
    return tell(story, {})

"""The operators of a simulated world: they park runs, take them from their holders, bind them to other code, and raise their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runward.core.errors import Conflict, NotFound, Refused
from runward.core.ids import canonical_json
from runward.core.kernel.commit import AppendAnswer
from runward.core.kernel.mail import Letter, MailKind
from runward.engine.callers import LOCAL
from runward.engine.deliveries import Input
from runward.engine.service import Service
from runward.ports.bus import Hint, Topic
from runward.ports.store import Append
from tests.simulation.agents import bindings
from tests.simulation.loop import sleep

if TYPE_CHECKING:
    from tests.simulation.callers import Caller

RAISED = {"max_steps": 30, "expires_seconds": 90, "max_total_tokens": 9_000, "max_cost_usd": "0.02"}
HANDS = ("drain", "hold", "hold", "seize", "rebind", "limits")


class Operator:
    """An operator who has an eye on one run."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._chance = caller.world.chance_of(caller.run_id, "operator")
        self._number = 0

    async def live(self) -> None:
        """Does some things to the run, one after the other."""
        for _ in range(self._chance.choice((1, 2, 4))):
            await sleep(self._chance.choice((0.05, 0.3, 1.0, 2.0)))
            self._number += 1
            try:
                await self._strike(self._chance.choice(HANDS))
            except (NotFound, Conflict) as refused:
                ended = refused.code == "run_ended" or isinstance(refused, NotFound)
                self._caller.check(ended, "I-49 a refusal says why", f"an operator's hand: {refused.code}")

    async def _strike(self, hand: str) -> None:
        caller, run_id, uid = self._caller, self._caller.run_id, self._caller.uid
        assert uid is not None
        match hand:
            case "drain":
                await caller.ask_again(lambda service: service.operations.drain_run(LOCAL, run_id))
            case "hold":
                await caller.ask_again(lambda service: service.operations.hold_run(LOCAL, run_id, "let me see"))
                await sleep(self._chance.choice((0.05, 1.0, 3.0)))
                await self._release()
            case "seize":
                letter = Letter(kind=MailKind.TAKEOVER, key=f"takeover:{self._number}", principal=LOCAL.principal)
                await caller.ask_again(lambda service: service.services.store.seize(uid, letter, lapsed_only=False))
            case "rebind":
                here, there = self._chance.sample(bindings(caller.agent), 2)
                await self._append(MailKind.REBIND, {"from": here, "to": there})
            case "limits":
                await self._append(MailKind.LIMITS, {"limits": RAISED})

    async def _release(self) -> None:
        """Mostly: what is left parked is released by the people in the end, where they are diligent."""
        if self._chance.random() < 0.8:
            given = Input(release_hold=True)
            try:
                await self._caller.ask_again(lambda service: service.deliveries.deliver(LOCAL, self._caller.run_id, given))
            except Refused as refused:
                self._caller.check(refused.code in ("run_ended", "not_found"), "I-49 a refusal says why", f"a release: {refused.code}")

    async def _append(self, kind: MailKind, data: dict[str, Any]) -> None:
        letter = Letter(kind=kind, key=f"{kind}:{self._number}", data=canonical_json(data), principal=LOCAL.principal)
        uid = self._caller.uid or ""
        await self._caller.ask_again(lambda service: appended(service, uid, letter))


async def appended(service: Service, uid: str, letter: Letter) -> AppendAnswer:
    """Puts a letter that any worker can apply into a run's inbox."""
    answer = await service.services.store.append_mail(Append(uid=uid, letters=(letter,), care=True))
    service.services.bus.publish((Hint(Topic.MAIL, uid), Hint(Topic.READY, uid)))
    return answer

"""What operators ask of budgets: see them, set their terms, and with that let runs go on that had none left (R34, R35)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runward.core.budgets import Close, Room, Terms
from runward.core.errors import NotFound, NotPermitted, Throttled
from runward.core.ids import canonical_json
from runward.core.kernel.commit import AppendAnswer, Appended, HasEnded, InboxFull, NotThere
from runward.core.kernel.mail import Letter, MailKind, budget_key
from runward.core.runs.ledger import Amount
from runward.core.times import optional_rfc3339, rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.repeats import sender_shown
from runward.engine.services import Services
from runward.ports.budgets import Budget, Waiter
from runward.ports.bus import Hint, Topic
from runward.ports.store import Append

WOKEN_AT_ONCE = 100
"""How many runs are read at a time that wait for a budget."""


class BudgetDesk:
    """Budgets of the caller's tenant. Every method needs `ops`, and a key that is confined to no user and no namespace."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def read(self, caller: Caller, key: str) -> dict[str, Any]:
        """A budget, and what is left of it. Raises NotFound."""
        budget = await self._services.budgets.get(_tenant(caller), key)
        if budget is None:
            raise _no_such_budget()
        return budget_shown(budget)

    async def put(self, caller: Caller, key: str, terms: Terms) -> dict[str, Any]:
        """Sets a budget's terms, whole. What is spent stays spent. Runs that wait for it ask again at once.

        Raises Throttled when one of them could not be told: the terms are set, and the same request again tells it.
        """
        budget = await self._services.budgets.put(_tenant(caller), key, terms, caller.principal)
        await self._wake(caller, budget)
        return budget_shown(budget)

    async def change(self, caller: Caller, key: str, change: Callable[[Terms], Terms]) -> dict[str, Any]:
        """Changes some of a budget's terms. Raises NotFound, and what `put` does."""
        budget = await self._services.budgets.change(_tenant(caller), key, change, caller.principal)
        if budget is None:
            raise _no_such_budget()
        await self._wake(caller, budget)
        return budget_shown(budget)

    # -- parts -------------------------------------------------------------------------------------------------------------

    async def _wake(self, caller: Caller, budget: Budget) -> None:
        """Writes to every run that waits for a budget. The terms are durable by now, so that none of them suspends again on the old ones;
        and a run that was refused before is found, since its waiting is written under the budget's lock."""
        after, all_told = None, True
        while True:
            page = await self._services.budgets.waiting(budget.tenant, budget.key, after=after, limit=WOKEN_AT_ONCE)
            for waiter in page:
                answer = await tell(self._services, budget.tenant, budget.key, waiter, caller.principal)
                all_told = all_told and not isinstance(answer, InboxFull)
            if len(page) < WOKEN_AT_ONCE:
                break
            after = page[-1].id
        if not all_told:
            raise Throttled("The terms are set, but the inbox of a run that waits for them is full. Send the same again.")


async def tell(services: Services, tenant: str, key: str, waiter: Waiter, principal: str | None) -> AppendAnswer:
    """Writes to a run that waits for a budget that its terms were set, by `principal`. One that is over waits no more."""
    data = canonical_json({"key": key, "reservation_id": waiter.id})
    letter = Letter(kind=MailKind.BUDGET, key=budget_key(waiter.id), data=data, principal=principal)
    answer = await services.store.append_mail(Append(uid=waiter.holder, letters=(letter,)))
    match answer:
        case Appended():
            services.bus.publish((Hint(Topic.MAIL, waiter.holder), Hint(Topic.READY, waiter.holder)))
        case HasEnded() | NotThere():
            await services.budgets.close(tenant, waiter.id, Close.RELEASED)
        case _:  # it was told before, or cannot be
            pass
    return answer


def budget_shown(budget: Budget) -> dict[str, Any]:
    """A budget as `/budgets/{key}` shows it."""
    account, terms, now = budget.account, budget.account.terms, budget.now
    return {
        "key": budget.key,
        "max_total_tokens": terms.max_total_tokens,
        "max_cost_usd": None if terms.max_picos is None else Amount(picos=terms.max_picos).usd,
        "window_seconds": terms.window_seconds,
        "warn_at": terms.warn_at,
        "on_exhausted": terms.on_exhausted.value,
        "spent": amount_shown(account.spent(now)),
        "reserved": amount_shown(account.reserved),
        "unknown": amount_shown(account.unknown(now)),
        "committed": amount_shown(account.committed(now)),
        "remaining": room_shown(account.remaining(now)),
        "resets_at": optional_rfc3339(account.resets_at(now)),
        "created_at": rfc3339(budget.created_at),
        "changed_at": rfc3339(budget.changed_at),
        "changed_by": sender_shown(budget.changed_by),
    }


def amount_shown(amount: Amount) -> dict[str, Any]:
    return {"tokens": amount.tokens, "usd": amount.usd}


def room_shown(room: Room) -> dict[str, Any]:
    """What is left; null where nothing bounds it."""
    return {"tokens": room.tokens, "usd": None if room.picos is None else Amount(picos=room.picos).usd}


def _tenant(caller: Caller) -> str:
    caller.require(Permission.OPS)
    scope = caller.scope
    if scope.user is not None or scope.namespace is not None:
        raise NotPermitted("Budgets are the whole tenant's: this key is confined to a part of it.")
    return scope.tenant


def _no_such_budget() -> NotFound:
    return NotFound("There is no such budget. PUT makes it.")

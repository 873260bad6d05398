"""What the HTTP side is given by the process it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runward.api.rates import Rate
from runward.engine.approvals import Approvals
from runward.engine.budgets import BudgetDesk
from runward.engine.catalog import Catalog
from runward.engine.commands import Commands
from runward.engine.deliveries import Deliveries
from runward.engine.key_uses import KeyUses
from runward.engine.operations import Operations
from runward.engine.oversight import Oversight
from runward.engine.queries import Queries
from runward.engine.rebinding import Rebinding
from runward.engine.services import Services
from runward.engine.tokens import Tokens
from runward.engine.why import Whys

if TYPE_CHECKING:
    from runward.engine.bearers import Bearers

MAX_BODY_BYTES = 1_048_576
MAX_STREAMS = 2_000
"""How many event streams one process keeps open; who comes then is asked to come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Everything callers may ask, and what the process says of itself.

    `ready` tells whether requests should be sent here. `closing` is set once the process is about to stop: streams and long polls end then,
    properly. `cors_origins` are the other origins whose pages may call, `*` for any. `may_be_open`: only this machine can reach the door,
    so that callers need no key as long as nobody has one. `bearers` knows callers who come from an identity provider. `rate` is how many
    requests each tenant may make of this process; None: any.
    """

    commands: Commands
    operations: Operations
    whys: Whys
    oversight: Oversight
    rebinding: Rebinding
    budgets: BudgetDesk
    queries: Queries
    deliveries: Deliveries
    approvals: Approvals
    tokens: Tokens
    catalog: Catalog
    key_uses: KeyUses
    services: Services
    ready: Callable[[], Awaitable[bool]]
    closing: asyncio.Event
    max_body_bytes: int = MAX_BODY_BYTES
    max_streams: int = MAX_STREAMS
    cors_origins: tuple[str, ...] = ()
    may_be_open: bool = True
    bearers: Bearers | None = None
    rate: Rate | None = None

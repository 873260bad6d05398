"""Prices: what models cost."""

from __future__ import annotations

from typing import Protocol

from runward.core.runs.ledger import Rates


class Prices(Protocol):
    """Knows what models cost."""

    def rates(self, model: str, at: int) -> Rates | None:
        """What `provider:model` costs at a time (milliseconds), None when nobody knows. Cheap: it is asked for by every leg."""
        ...


class NoPrices:
    """Knows of no model what it costs."""

    def rates(self, model: str, at: int) -> Rates | None:
        return None

"""What really happened in the world outside, which no store and no engine knows: effects, questions, probes, and what people said."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any


class TooLate(Exception):
    """The world outside was told that this attempt did not happen: it cannot happen any more."""


class Ledger:
    """Effects by the key of their call and by attempt; `saves` and `saved` are the checkpoints of each call.

    `fenced` are the attempts that somebody found not to have happened: from then on they cannot. `asks` counts the questions that a call's
    tool asked, `missing` the probes of it that answered so.
    """

    def __init__(self) -> None:
        self.effects: list[tuple[str, int]] = []
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.saves: dict[str, list[str]] = defaultdict(list)
        """What each call wanted to save, in order, and in `saved` the last one that it was told is durable."""
        self.saved: dict[str, str] = {}
        self.fenced: Counter[str] = Counter()
        self.asks: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.verdicts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        """What people said of each request for approval, by its id, from before they sent it."""
        self.decisions: dict[str, set[tuple[int, str]]] = defaultdict(set)
        """What people decided of each unknown effect, by the key of its call: of which attempt, and how."""
        self.risky: Counter[str] = Counter()
        """How often somebody had a call run again though its effect had happened: then it happens twice, and that is theirs to answer."""

    def happens(self, key: str, attempt: int) -> str:
        """An effect. Raises TooLate."""
        if attempt <= self.fenced[key]:
            raise TooLate
        self.effects.append((key, attempt))
        self.by_key[key].append(attempt)
        return token(key, attempt)

    def found(self, key: str, attempt: int) -> str | None:
        """What the effect of a call gave, looked up in the world outside; None when there is none, and then there will be none."""
        happened = self.by_key[key]
        if happened:
            return token(key, happened[-1])
        self.fenced[key] = max(self.fenced[key], attempt)
        return None


def token(key: str, attempt: int) -> str:
    """What a tool returns: it says which attempt of which call had the effect."""
    return f"{key}#{attempt}"

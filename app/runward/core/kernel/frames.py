"""The journal: what an actor says, numbered 1, 2, 3 … without gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One thing to be said. Its number, the run's id and the time are added when it is written."""

    type: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrame:
    """One journal entry: exactly the JSON text (one line, UTF-8) that every subscriber gets, encoded once."""

    seq: int
    data: bytes

"""Identifiers, and everything that is derived from them: canonical JSON, digests, idempotency keys, approval ids."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""What an id in a request or URL looks like (R48). One spelling only: no escapes, no trailing newline."""

BUDGET_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$"
"""What the key of a budget looks like: an id that may say of what it is, as in `user:42`."""

_ID = re.compile(ID_PATTERN[:-1] + r"\Z")
_BUDGET = re.compile(BUDGET_PATTERN[:-1] + r"\Z")
_NO_ID = re.compile(r"[^A-Za-z0-9.-]")


def is_id(text: str) -> bool:
    """Whether `text` may be an id: 1 to 128 characters, ASCII letters, digits, `.`, `_`, `-`, starting with a letter or digit."""
    return _ID.match(text) is not None


def is_budget_key(text: str) -> bool:
    """Whether `text` may be the key of a budget: an id in which `:`, `@` and `+` may be, too."""
    return _BUDGET.match(text) is not None


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value (R17a): sorted keys, no spaces, integers verbatim; `1` and `1.0` differ.

    Raises ValueError for NaN, infinities and what is not JSON.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """SHA-256 of a text's UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def call_id(step: int, index: int) -> str:
    """The service's own id of the `index`-th call (from 1) of a step (R17)."""
    return f"{step}.{index}"


def idempotency_key(uid: str, tool_call_id: str) -> str:
    """The key every attempt of one call sends to the outside world: the same on every attempt, shared with no other call."""
    return f"{uid}/{tool_call_id}"


def approval_id(uid: str, tool_call_id: str, tool_name: str, version: str, arguments: str) -> str:
    """The id under which one call, with exactly these canonical arguments, can be approved (R18)."""
    return "ap_" + digest(canonical_json([uid, tool_call_id, tool_name, version, digest(arguments)]))[:40]


def question_id(tool_call_id: str, number: int) -> str:
    """The id of the `number`-th question (from 1) that a call asks the user."""
    return f"{tool_call_id}.{number}"


def worker_id(host: str, pid: int, unique: str) -> str:
    """The id of one start of a worker process: it says where to look, and is an id like any other."""
    return f"{_NO_ID.sub('-', host)[:64].lstrip('-.') or 'worker'}-{pid}-{unique}"


def child_uid(parent_uid: str, tool_call_id: str) -> str:
    """The uid of an actor created by a call of another one: the same whoever creates it, so a repeated creation does nothing."""
    return digest(canonical_json([parent_uid, tool_call_id]))[:32]

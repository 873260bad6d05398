"""What every store refuses before it writes anything, since not every database would: bugs of the service, never of a caller (R49)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.kernel.commit import Changes, NewActor
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter

_PLAIN = frozenset({int, bool, bytes, type(None)})
"""What holds no text."""

_NAMES: dict[type[Any], tuple[str, ...]] = {}


def check_text(value: Any) -> None:
    """Raises ValueError when a text in a value of the kernel, however deep, holds NUL or a lone surrogate: no two databases agree on
    those. Entry points refuse or clean them (R46, R47), so here it is a bug."""
    kind: type[Any] = type(value)
    if kind is str:
        _check_str(value)
    elif kind is tuple or kind is list:
        for item in value:
            check_text(item)
    elif kind not in _PLAIN:
        for name in _field_names(kind):
            check_text(getattr(value, name))


def _check_str(text: str) -> None:
    if "\0" in text:
        raise ValueError("text with NUL cannot be stored")
    if not text.isascii():
        text.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate


def check_new_actor(new: NewActor) -> None:
    """Raises InvariantViolated unless an actor's first frames are numbered from 1 and its messages differ."""
    check_text(new)
    check_numbers(0, new.frames)
    _check_unique("messages", [message.seq for message in new.messages])


def check_changes(changes: Changes) -> None:
    """Raises InvariantViolated for a commit that contradicts itself, whatever is stored."""
    check_text(changes)
    check_numbers(changes.follows.last_seq, changes.frames)
    face = changes.face
    if face.status.ended != (face.ended_at is not None):
        raise InvariantViolated(f"ended_at does not go with status {face.status}")
    if not face.status.ended and changes.release is (face.status is Status.RUNNING):
        raise InvariantViolated(f"release={changes.release} does not go with status {face.status}")
    if changes.closings and (changes.mail_seen is None or changes.mail_applied != changes.mail_seen + len(changes.closings)):
        raise InvariantViolated("closings are numbered right behind the mail seen, and applied at once")
    _check_unique("closings", [letter.key for letter in changes.closings])
    _check_unique("messages", [message.seq for message in changes.messages])
    _check_unique("receipts", [receipt.tool_call_id for receipt in changes.receipts])
    _check_unique("approvals", [approval.id for approval in changes.approvals])
    for child in changes.children:
        check_new_actor(child)


def check_letters(letters: Iterable[Letter]) -> None:
    """Raises InvariantViolated when letters of one append share a key."""
    check_text(tuple(letters))
    _check_unique("letters", [letter.key for letter in letters])


def check_numbers(last_seq: int, frames: Iterable[StoredFrame]) -> None:
    """Raises InvariantViolated unless frames go on where the journal ends."""
    for expected, frame in enumerate(frames, last_seq + 1):
        if frame.seq != expected:
            raise InvariantViolated(f"frame {frame.seq} where {expected} is due")


def _check_unique(what: str, keys: Collection[Hashable]) -> None:
    if len(set(keys)) != len(keys):
        raise InvariantViolated(f"the same of {what} twice in one write")


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass; none of anything else, such as an enumeration's member."""
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return names

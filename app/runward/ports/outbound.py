"""Requests that the service itself makes: what leaves, what comes back, and how it can go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runward.core.errors import RunwardError

Fault = Literal["too_large", "undecodable", "cut_off"]
"""Why an answer has no body that could be used, though its status is known. `undecodable`: it came in an encoding, or in a way, that nobody
reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request. `headers` go to the host of `url` and to no other one. At most `max_bytes` of an answer are read, and counted once it is
    decompressed; all of it, redirects included, takes at most `timeout_seconds`."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    timeout_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """An answer of any status. `body` is empty where there is a `fault`. `content_type` is in lower case."""

    status: int
    content_type: str
    body: bytes
    fault: Fault | None = None


class OutboundError(RunwardError):
    """There is no answer. `sent`: somebody may have read the request, and acted on it; else nobody has."""

    default_code = "outbound_failed"

    def __init__(self, detail: str, *, sent: bool = False) -> None:
        super().__init__(detail)
        self.sent = sent


class OutboundRefused(OutboundError):
    """The service does not go there. `why` is the reason without the place; `detail` names the place, too, and is for operators."""

    default_code = "outbound_refused"

    def __init__(self, detail: str, *, why: str, sent: bool = False) -> None:
        super().__init__(detail, sent=sent)
        self.why = why


class Unreachable(OutboundError):
    """There was no connection: the name is unknown, nobody listens, or the other side's certificate is not valid."""

    default_code = "outbound_unreachable"


class Unanswered(OutboundError):
    """The connection ended, or time ran out, before the answer had come."""

    default_code = "outbound_unanswered"


class Outbound(Protocol):
    """The one way out. Whatever it is asked for, it connects only to addresses that this deployment allows: it looks at the address that
    it then connects to, for every redirect anew. Raises `OutboundError`, and nothing else but CancelledError."""

    async def send(self, outgoing: Outgoing) -> Incoming: ...

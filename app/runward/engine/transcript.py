"""A run's messages in a leg's memory: read once, when first needed, then carried along."""

from __future__ import annotations

from collections.abc import Sequence

from runward.core.messages import Message
from runward.engine.encoding import message_of
from runward.engine.hold import Hold
from runward.engine.patience import patiently
from runward.engine.services import Services


class Transcript:
    """The messages of one run as far as they are durable."""

    def __init__(self, services: Services, hold: Hold, uid: str) -> None:
        self._services = services
        self._hold = hold
        self._uid = uid
        self._messages: list[Message] | None = None

    def add(self, messages: Sequence[Message]) -> None:
        """These messages have become durable."""
        if self._messages is not None:
            self._messages.extend(messages)

    async def messages(self) -> tuple[Message, ...]:
        """All of them, in order. Raises LeaseLost."""
        if self._messages is None:
            read = self._services.reads.messages
            rows = await patiently(lambda: read(self._uid, after=0, limit=None), hold=self._hold, clock=self._services.clock)
            self._messages = [message_of(row) for row in rows]
        return tuple(self._messages)

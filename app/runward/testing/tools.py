"""Tools and verifiers as they are, with the clock told while they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runward.core.runs.calls import ToolTraits
from runward.ports.tools import ProbeAnswer, Returned, Tool
from runward.testing.clock import VirtualClock


class WatchedTool:
    """A tool that slows virtual time down while it runs, because it may really wait."""

    def __init__(self, tool: Tool, clock: VirtualClock) -> None:
        self._tool = tool
        self._clock = clock

    @property
    def traits(self) -> ToolTraits:
        return self._tool.traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        return self._tool.refusal(arguments)

    async def invoke(self, arguments: Mapping[str, Any], context: Any) -> Returned:
        self._clock.tools_running += 1
        try:
            return await self._tool.invoke(arguments, context)
        finally:
            self._clock.tools_running -= 1

    async def project(self, raw: Any, context: Any) -> Returned:
        return await self._tool.project(raw, context)

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> ProbeAnswer:
        return await self._tool.probe(idempotency_key, arguments, context)

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool:
        return await self._tool.evidence_holds(evidence, context)


def watched(verify: Callable[..., Awaitable[Any]], clock: VirtualClock) -> Callable[..., Awaitable[Any]]:
    """A verifier that slows virtual time down in the same way."""

    async def verifying(*arguments: Any) -> Any:
        clock.tools_running += 1
        try:
            return await verify(*arguments)
        finally:
            clock.tools_running -= 1

    return verifying

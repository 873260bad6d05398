"""The agents callers can name: those of this process, and those that workers published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from runward.agents.models import CHOSEN
from runward.agents.registry import Registry
from runward.agents.rules import Policy
from runward.agents.schemas import Schema
from runward.core.errors import Invalid, Problem
from runward.core.runs.limits import Limits
from runward.engine.services import Services
from runward.ports.directory import PublishedAgent

FRESH_SECONDS = 5.0
"""How long a list of published agents is good for. A name that is not in it is looked up again at once: its worker may just have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One version of an agent, as far as creating a run needs it. `model` is None where the agent chooses it in the first leg.
    `typed`: its answers have a type, `verified`: and somebody looks at them. `guards_input`: guardrails look at its input.
    `overhead_tokens` and `max_output_tokens` are what each model call takes."""

    name: str
    version: str
    fingerprint: str
    limits: Limits
    model: str | None
    fallbacks: tuple[str, ...]
    tools: frozenset[str]
    typed: bool
    verified: bool
    guards_input: bool
    policy: Policy
    overhead_tokens: int
    max_output_tokens: int | None
    context_schema: Mapping[str, Any] | None
    manifest: Mapping[str, Any]

    def output_schema(self, tool_name: str) -> Mapping[str, Any] | None:
        """What a result of this tool has to fit; None where anything does."""
        tool = self.tool(tool_name)
        return None if tool is None else tool["output_schema"]

    def tool(self, tool_name: str) -> Mapping[str, Any] | None:
        """What the manifest says of a tool."""
        return next((tool for tool in self.manifest["tools"] if tool["name"] == tool_name), None)


class Catalog:
    """Finds agents by name and version. Workers publish what they can drive, so an API process without the code knows them too."""

    def __init__(self, services: Services, registry: Registry) -> None:
        self._services = services
        self._local = [_listed(entry.manifest.to_json()) for entry in registry.agents]
        self._published: Sequence[Listed] = ()
        self._read_at: float | None = None
        self._schemas: dict[str, Schema] = {}

    async def find(self, name: str, version: str | None) -> Listed | None:
        """The version asked for, or the one defined last. This process's own agents come first."""
        found = _pick(self._local, name, version) or _pick(await self._known(FRESH_SECONDS), name, version)
        return found or _pick(await self._known(0), name, version)

    async def bound(self, fingerprint: str) -> Listed | None:
        """The agent with this binding, whichever its name; None when nobody has published it."""
        for known in (self._local, await self._known(FRESH_SECONDS)):
            for listed in known:
                if listed.fingerprint == fingerprint:
                    return listed
        return None

    async def all(self) -> Sequence[Listed]:
        """Every version of every agent, by name, in the order they were defined."""
        seen = {(listed.name, listed.version): listed for listed in await self._known(FRESH_SECONDS)}
        seen |= {(listed.name, listed.version): listed for listed in self._local}
        return sorted(seen.values(), key=lambda listed: listed.name)

    def check_context(self, listed: Listed, context: Mapping[str, Any] | None) -> None:
        """Raises Invalid when a run's context does not fit the agent's model. Values are never echoed."""
        if listed.context_schema is None:
            return
        schema = self._schemas.get(listed.fingerprint)
        if schema is None:
            of = f"The context_schema of agent {listed.name!r}"
            schema = self._schemas[listed.fingerprint] = Schema(listed.context_schema, of=of)
        mismatches = schema.mismatches({} if context is None else dict(context))
        if mismatches:
            message = f"The context does not fit the agent {listed.name!r}. Its context_schema says what does."
            problems = [Problem(pointer=f"/context{each.pointer}", code="invalid_context", detail=each.message) for each in mismatches]
            raise Invalid(message, code="invalid_context", problems=problems)

    async def _known(self, fresh_seconds: float) -> Sequence[Listed]:
        now = self._services.clock.monotonic()
        if self._read_at is None or now - self._read_at >= fresh_seconds:
            self._published = [_listed(json.loads(agent.manifest)) for agent in await self._services.directory.agents()]
            self._read_at = now
        return self._published


def published(registry: Registry) -> list[PublishedAgent]:
    """A process's agents as it publishes them."""
    return [
        PublishedAgent(
            name=entry.agent.name,
            version=entry.agent.version,
            fingerprint=entry.binding,
            place=entry.place,
            manifest=json.dumps(entry.manifest.to_json(), ensure_ascii=False, separators=(",", ":")),
            published_at=0,
        )
        for entry in registry.agents
    ]


def _pick(agents: Iterable[Listed], name: str, version: str | None) -> Listed | None:
    found = [listed for listed in agents if listed.name == name and version in (None, listed.version)]
    return found[-1] if found else None


def _listed(manifest: Mapping[str, Any]) -> Listed:
    names = {field.name for field in fields(Limits)}
    model = manifest["models"][0]
    return Listed(
        name=manifest["name"],
        version=manifest["version"],
        fingerprint=manifest["fingerprint"],
        limits=Limits(**{name: value for name, value in manifest["limits"].items() if name in names}),
        model=None if model == CHOSEN else model,
        fallbacks=tuple(manifest["models"][1:]),
        tools=frozenset(tool["name"] for tool in manifest["tools"]),
        typed=manifest["output_schema"] is not None,
        verified=manifest["verified"],
        guards_input="on_input" in manifest.get("guardrails", {}),
        policy=Policy(**manifest["policy"]),
        overhead_tokens=manifest.get("overhead_tokens", 0),  # another version of the service may have published it
        max_output_tokens=manifest.get("max_output_tokens"),
        context_schema=manifest["context_schema"],
        manifest=manifest,
    )

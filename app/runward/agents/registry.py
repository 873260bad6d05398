"""The agents of a process: by name and version, and by binding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runward.agents.agent import Agent
from runward.agents.binding import fingerprint
from runward.agents.manifest import Manifest, manifest
from runward.core.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An agent with its binding, manifest, and place: versions of one name in the order they were defined."""

    agent: Agent
    binding: str
    manifest: Manifest
    place: int


class Registry:
    """Agents by name, version and binding. Several versions of a name may be there; the one defined last is the default.

    Raises DefinitionError when a name and version come twice with different bindings, when two agents accept the same older binding, and
    when a handoff names an agent that is not there. The same agent twice counts once.
    """

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._by_version: dict[tuple[str, str], Registered] = {}
        for place, agent in enumerate(agents):
            self._add(agent, place)
        self._defaults = {entry.agent.name: entry for entry in self._by_version.values()}
        self._by_binding = {entry.binding: entry for entry in self._by_version.values()}
        self._accept()
        for entry in self._by_version.values():
            for name in entry.agent.handoffs:
                if name not in self._defaults:
                    raise DefinitionError(f"Agent {entry.agent.name!r} hands over to {name!r}, and there is no such agent.")

    @property
    def agents(self) -> tuple[Registered, ...]:
        """All of them, as they were defined."""
        return tuple(self._by_version.values())

    @property
    def bindings(self) -> Mapping[str, Registered]:
        """Every binding these agents can serve, older ones they accept included, and who serves it."""
        return self._by_binding

    def find(self, name: str, version: str | None = None) -> Registered | None:
        """The agent of this name: the version asked for, or else the one defined last."""
        return self._defaults.get(name) if version is None else self._by_version.get((name, version))

    def serving(self, binding: str) -> Registered | None:
        """The agent that can drive runs of this binding (R41)."""
        return self._by_binding.get(binding)

    def _add(self, agent: Agent, place: int) -> None:
        key, binding = (agent.name, agent.version), fingerprint(agent)
        known = self._by_version.get(key)
        if known is not None and known.binding != binding:
            raise DefinitionError(
                f"Agent {agent.name!r} version {agent.version!r} is defined twice, and the two differ. Give one of them another version."
            )
        if known is None:
            self._by_version[key] = Registered(agent=agent, binding=binding, manifest=manifest(agent), place=place)

    def _accept(self) -> None:
        for entry in list(self._by_version.values()):
            for accepted in entry.agent.accepts:
                other = self._by_binding.get(accepted)
                if other is not None and accepted in other.agent.accepts and other is not entry:
                    both = " and ".join(f"{each.agent.name!r} version {each.agent.version!r}" for each in (other, entry))
                    raise DefinitionError(f"Agents {both} both accept {accepted}.")
                self._by_binding.setdefault(accepted, entry)

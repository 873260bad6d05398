"""What HTTP tools of a process share, and what is looked at before a worker starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runward.agents.elsewhere import HttpTool
from runward.agents.templates import is_header_value, references, with_arguments, with_references
from runward.core.errors import DefinitionError
from runward.core.text import is_clean
from runward.ports.outbound import Outbound, OutboundRefused
from runward.tools.destinations import Destinations, target_of
from runward.tools.known_secrets import KnownSecrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Outward:
    """The way out, the environment that `${NAME}` is looked up in, and who knows from there on what is secret."""

    client: Outbound
    environ: Mapping[str, str]
    secrets: KnownSecrets = field(default_factory=KnownSecrets)


def require_outward(tools: Iterable[tuple[str, HttpTool]], environ: Mapping[str, str], destinations: Destinations) -> None:
    """Refuses the start of a worker whose HTTP tools could not be called. `tools` are pairs of agent and tool. Raises DefinitionError,
    naming agent, tool, and the variable or setting."""
    found = [
        f"tool {tool.name!r} of agent {agent!r} needs {what}"
        for agent, tool in tools
        for what in (*missing_of(tool, environ), *_closed(tool, destinations))
    ]
    if found:
        raise DefinitionError("HTTP tools cannot be called: " + "; ".join(dict.fromkeys(found)) + ".", code="missing_setting")


def references_of(tool: HttpTool) -> list[str]:
    """The environment's variables that a tool names."""
    return references(tool.url, *tool.headers.values())


def missing_of(tool: HttpTool, environ: Mapping[str, str]) -> list[str]:
    """What the environment lacks for a tool, a phrase each that names the variable: it is not set, or cannot stand where it has to."""
    lacking = [f"the environment variable {name}, which is not set" for name in references_of(tool) if not environ.get(name)]
    lacking += [f"another {name}: it is not UTF-8" for name in references(tool.url) if not is_clean(environ.get(name, ""))]
    for header, text in tool.headers.items():
        names = references(text)
        if all(environ.get(name) for name in names) and not is_header_value(with_references(text, environ)):
            lacking.append(
                f"another {' and '.join(names)}: the header {header} must be printable ASCII in one line, without spaces around it"
            )
    return lacking


def _closed(tool: HttpTool, destinations: Destinations) -> list[str]:
    """What is known to be in the way of a tool's URL before any name is resolved."""
    try:
        destinations.admit(target_of(with_arguments(tool.url, reference=lambda _: "x", parameter=lambda _: "x")))
    except OutboundRefused as error:
        return [f"a place that it may call: {error.detail.removesuffix('.')}"]
    return []

"""The binding: a fingerprint of what code must provide to drive a run (semantics, section 1).

In it: the agent's name and version; the names of its model and fall-backs; for each tool its kind, the schema of its parameters without
descriptions, its effect and its approval's version; the schema of the output and whether something verifies it; the names of guardrails
by hook; the agents it hands over to. Limits, policy, instructions, settings and descriptions are not: they are copied into the run, or
read anew. Function bodies cannot be seen: that is what the version is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runward.agents.agent import Agent
from runward.agents.tools import AnyTool
from runward.core.ids import canonical_json, digest

_FORMAT: Final = 1
_PROSE: Final = frozenset({"title", "description", "examples", "$comment"})
"""Keywords that say something to readers, and nothing about what fits."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names, not keywords: a property may be called `description`."""
_VERBATIM: Final = frozenset({"const", "enum", "default"})
"""Keywords whose value is data, not a schema."""


def fingerprint(agent: Agent) -> str:
    """The binding of an agent: 32 hexadecimal digits."""
    return digest(canonical_json(bound(agent)))[:32]


def bound(agent: Agent) -> dict[str, Any]:
    """What the fingerprint is taken of."""
    output = agent.output
    return {
        "format": _FORMAT,
        "agent": agent.name,
        "version": agent.version,
        "models": list(agent.models),
        "tools": {tool.name: _tool(tool) for tool in agent.tools},
        "output": None if output is None else {"schema": without_prose(output.json_schema), "verified": output.verify is not None},
        "guardrails": agent.guardrails.names(),
        "handoffs": sorted(agent.handoffs),
    }


def without_prose(schema: Any) -> Any:
    """A JSON Schema without titles, descriptions and examples, and with `required` in order: what fits it is the same."""
    if isinstance(schema, list):
        return [without_prose(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _PROSE:
            continue
        if keyword in _BY_NAME and isinstance(value, Mapping):
            plain[keyword] = {name: without_prose(each) for name, each in value.items()}
        elif keyword == "required" and isinstance(value, list):
            plain[keyword] = sorted(value)
        else:
            plain[keyword] = value if keyword in _VERBATIM else without_prose(value)
    return plain


def _tool(tool: AnyTool) -> dict[str, Any]:
    approval = tool.approval
    return {
        "kind": tool.kind,
        "parameters": without_prose(tool.parameters),
        "effect": tool.traits.effect.value,
        "approval": None if approval is None else approval.version,
    }

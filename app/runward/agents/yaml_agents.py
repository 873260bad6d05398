"""Agents in a YAML file: no Python needed. Strict: what is not known is refused, and so is a key that comes twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from runward.agents.agent import Agent
from runward.agents.builtin import ask_user, durable_wait
from runward.agents.elsewhere import ClientTool, HttpTool
from runward.agents.models import ModelSettings
from runward.agents.output import Output
from runward.agents.rules import Policy
from runward.agents.tools import AnyTool
from runward.core.errors import DefinitionError
from runward.core.ids import canonical_json
from runward.core.runs.limits import Limits

MAX_BYTES = 1_048_576

_BUILTIN = {tool.name: tool for tool in (ask_user, durable_wait)}
_TEXTS = ("name", "version", "description", "model", "instructions")


def read_agents(path: Path, *, of: str) -> Sequence[Agent]:
    """The agents of a YAML file. Raises DefinitionError, beginning with `of` and naming the place."""
    if path.stat().st_size > MAX_BYTES:
        raise DefinitionError(f"{of}: it is larger than {MAX_BYTES} bytes.")
    try:
        document = yaml.load(path.read_text("utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{of}: it is not YAML: {_first_problem(error)}") from error
    top = _mapping(document, of, allowed=("agents",))
    listed = _sequence(top.get("agents"), f"{of}: agents")
    if not listed:
        raise DefinitionError(f"{of}: agents is empty.")
    return [_agent(entry, f"{of}: agents[{index}]") for index, entry in enumerate(listed)]


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} comes twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def _agent(entry: Any, of: str) -> Agent:
    allowed = (*_TEXTS, "fallback_models", "model_settings", "tools", "output", "limits", "policy", "accepts")
    given = _mapping(entry, of, allowed=allowed, required=("name", "model"))
    of = f"{of} ({given['name']})"
    for name in _TEXTS:
        if name in given and not isinstance(given[name], str):
            raise DefinitionError(f'{of}: {name} must be a text; put it in quotes ("1").')
    made: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    for name in ("fallback_models", "accepts"):
        if name in given:
            made[name] = _texts(given[name], f"{of}: {name}")
    for name, kind in (("model_settings", ModelSettings), ("limits", Limits), ("policy", Policy)):
        if name in given:
            made[name] = _value(kind, given[name], f"{of}: {name}")
    if "output" in given:
        made["output"] = _value(Output, given["output"], f"{of}: output", leave_out=("verify",))
    tools = _sequence(given.get("tools", []), f"{of}: tools")
    made["tools"] = [_tool(tool, f"{of}: tools[{index}]") for index, tool in enumerate(tools)]
    return _agent_of(made, of)


def _tool(entry: Any, of: str) -> AnyTool:
    if isinstance(entry, str) and entry in _BUILTIN:
        return _BUILTIN[entry]
    given = _mapping(entry, of, allowed=("http", "client", "mcp"))
    if len(given) != 1:
        raise DefinitionError(f"{of} must be one of http, client and mcp, or {' or '.join(_BUILTIN)}.")
    if "mcp" in given:
        raise DefinitionError(f"{of}: this version of the service has no MCP tools yet.")
    tool: AnyTool = _value(HttpTool if "http" in given else ClientTool, next(iter(given.values())), of)
    return tool


def _value(kind: type[Any], entry: Any, of: str, *, leave_out: Sequence[str] = ()) -> Any:
    """A mapping as one of the authoring values: its fields' types, without coercion, and then its own checks."""
    given = _mapping(entry, of, allowed=[each.name for each in fields(kind) if each.name not in leave_out])
    try:
        return TypeAdapter(kind).validate_json(canonical_json(given), strict=True)
    except DefinitionError as error:
        raise DefinitionError(f"{of}: {error.detail}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise DefinitionError(f"{of}: {'.'.join(map(str, first['loc'][:1]))}: {first['msg']}") from error
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{of}: it holds something that JSON does not know, a date perhaps; put it in quotes.") from error


def _agent_of(given: Mapping[str, Any], of: str) -> Agent:
    try:
        return Agent(**given)
    except DefinitionError as error:
        raise DefinitionError(f"{of}: {error.detail}") from error


def _mapping(value: Any, of: str, *, allowed: Sequence[str], required: Sequence[str] = ()) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{of} must be a mapping.")
    for name in value:
        if name not in allowed:
            raise DefinitionError(f"{of}: {name!r} is not known here; known are {', '.join(allowed)}.")
    for name in required:
        if name not in value:
            raise DefinitionError(f"{of}: {name} is missing.")
    return value


def _sequence(value: Any, of: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise DefinitionError(f"{of} must be a list.")
    return value


def _texts(value: Any, of: str) -> Sequence[str]:
    if not all(isinstance(each, str) for each in _sequence(value, of)):
        raise DefinitionError(f"{of} must be a list of texts.")
    return list(value)


def _first_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{getattr(error, 'problem', None) or 'it cannot be read'}"

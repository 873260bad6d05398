"""A function as a tool's parameters: its JSON Schema, and how checked JSON becomes the values it is annotated with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from runward.agents.annotations import UNRESOLVED, is_context, is_context_text, resolve
from runward.agents.docstrings import described
from runward.core.errors import DefinitionError
from runward.core.ids import canonical_json
from runward.core.text import shorten

Function = Callable[..., Any]


class _JsonSchema(GenerateJsonSchema):
    """Pydantic's schemas without titles made up from names, and without its warnings: a default that is no JSON is simply not shown."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as in its base

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. `key` is its field in the arguments model; None for the one that gets the context."""

    name: str
    key: str | None
    positional: bool
    annotation: Any = None
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a tool's function takes and returns. `model` are its arguments; `returns` is its return annotation, `UNRESOLVED` where there is
    none that can be resolved."""

    function: Function
    is_async: bool
    description: str
    parameters: tuple[Parameter, ...]
    model: type[BaseModel]
    returns: Any

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        schema = self.model.model_json_schema(schema_generator=_JsonSchema)
        schema.pop("title", None)
        return {"type": "object", "properties": {}, **schema}

    def build(self, arguments: Mapping[str, Any]) -> BaseModel:
        """The arguments as the annotated values. Raises pydantic.ValidationError, and whatever authors' own validators raise."""
        return self.model.model_validate_json(canonical_json(arguments))

    def bind(self, values: BaseModel, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self.parameters:
            value = context if parameter.key is None else getattr(values, parameter.key)
            if parameter.positional:
                positional.append(value)
            else:
                named[parameter.name] = value
        return positional, named


def read_signature(function: Function, namespace: Mapping[str, Any]) -> Signature:
    """The signature of a tool's function. `namespace` holds the names that were local where it was defined.

    Raises DefinitionError, naming the function and the parameter, for what cannot be a tool.
    """
    of = name_of(function)
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise DefinitionError(f"{of} is not a function or a bound method, so it cannot be a tool.")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(f"{of} is a generator, so it cannot be a tool: return a list instead of yielding.")
    description, documented = described(function)
    signature = inspect.signature(function)
    parameters = tuple(
        _parameter(parameter, _annotation(function, parameter, namespace, of), f"p{index}", documented)
        for index, parameter in enumerate(signature.parameters.values())
    )
    contexts = [parameter.name for parameter in parameters if parameter.key is None]
    if len(contexts) > 1:
        raise DefinitionError(f"{of}: parameters `{contexts[0]}` and `{contexts[1]}` both ask for the context; one is enough.")
    return Signature(
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        description=description,
        parameters=parameters,
        model=_model(parameters, of),
        returns=_returns(function, signature.return_annotation, namespace),
    )


def name_of(function: Function) -> str:
    """A function as errors name it: `shop.tools.refund`."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name


def _annotation(function: Function, parameter: inspect.Parameter, namespace: Mapping[str, Any], of: str) -> Any:
    """A parameter's type, or None for the one that gets the context."""
    what = f"{of}: parameter `{parameter.name}`"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise DefinitionError(f"{what} takes any number of arguments; a tool's parameters have to be named one by one.")
    if parameter.annotation is inspect.Parameter.empty:
        hint = " Make the tool from a bound method instead: tool(…)(shop.lookup)." if parameter.name in ("self", "cls") else ""
        raise DefinitionError(f"{what} has no type.{hint}")
    try:
        annotation = resolve(function, parameter.annotation, namespace)
    except Exception as error:
        if is_context_text(function, parameter.annotation, namespace):
            return None
        raise DefinitionError(f"{what}: its type {parameter.annotation!r} cannot be resolved at run time ({error}).") from error
    return None if is_context(annotation) else annotation


def _parameter(parameter: inspect.Parameter, annotation: Any, key: str, documented: Mapping[str, str]) -> Parameter:
    positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    if annotation is None:
        return Parameter(name=parameter.name, key=None, positional=positional)
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    info = FieldInfo.from_annotated_attribute(annotation, default)
    extra: dict[str, Any] = {}
    if not isinstance(info.validation_alias, str):
        extra["alias"] = parameter.name
    if info.description is None and parameter.name in documented:
        extra["description"] = documented[parameter.name]
    described = Annotated[annotation, Field(**extra)] if extra else annotation
    return Parameter(name=parameter.name, key=key, positional=positional, annotation=described, default=default)


def _model(parameters: Sequence[Parameter], of: str) -> type[BaseModel]:
    fields: dict[str, Any] = {each.key: (each.annotation, each.default) for each in parameters if each.key is not None}
    try:
        model = cast("type[BaseModel]", create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields))
        model.model_json_schema(schema_generator=_JsonSchema)
    except Exception as error:
        culprit = next((each.name for each in parameters if each.key is not None and not _representable(each.annotation)), None)
        where = f"parameter `{culprit}`" if culprit else "its parameters"
        raise DefinitionError(f"{of}: {where} cannot be described to a model: {_first_line(error)}") from error
    return model


def _representable(annotation: Any) -> bool:
    try:
        create_model("Arguments", it=(annotation, ...)).model_json_schema(schema_generator=_JsonSchema)
    except Exception:  # noqa: BLE001 - whatever a type raises when it is asked for its schema
        return False
    return True


def _returns(function: Function, annotation: Any, namespace: Mapping[str, Any]) -> Any:
    if annotation is inspect.Signature.empty:
        return UNRESOLVED
    try:
        return resolve(function, annotation, namespace)
    except Exception:  # noqa: BLE001 - a name only type checkers see, say: the result is then recorded by what it is
        return UNRESOLVED


def _first_line(error: Exception) -> str:
    return shorten(str(error).split("\n", 1)[0], 300)

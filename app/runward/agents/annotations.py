"""Annotations as types: written out, as strings, under `from __future__ import annotations`, and the ones that ask for the context."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from runward.agents.contexts import RunContext, ToolContext

UNRESOLVED: Final = object()
"""No annotation, or one that cannot be resolved at run time."""

_CONTEXTS = (RunContext, ToolContext)


def resolve(function: Callable[..., Any], annotation: Any, namespace: Mapping[str, Any]) -> Any:
    """An annotation of a function as a type. Raises whatever evaluating it raises, NameError above all."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, _globals(function), dict(namespace), include_extras=True)["it"]


def is_context(annotation: Any) -> bool:
    """Whether a resolved annotation asks for the context: `ToolContext`, with or without its types, or `None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_context(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(is_context(each) for each in get_args(annotation))
    return _is(origin or annotation)


def is_context_text(function: Callable[..., Any], annotation: Any, namespace: Mapping[str, Any]) -> bool:
    """The same for a string annotation that cannot be resolved as a whole, because names in it exist for type checkers only."""
    if not isinstance(annotation, str):
        return False
    try:
        heads = list(_heads(annotation))
    except SyntaxError:
        return False
    return any(_is_context_name(head, {**_globals(function), **namespace}) for head in heads)


def _heads(annotation: str | ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The names before the brackets: `ToolContext` of `ToolContext[Shop, ShopContext] | None`."""
    node = ast.parse(annotation.strip(), mode="eval").body if isinstance(annotation, str) else annotation
    match node:
        case ast.Constant(value=str() as inner):
            yield from _heads(inner)
        case ast.Name() | ast.Attribute():
            yield node
        case ast.Subscript():
            yield from _heads(node.value)
        case ast.BinOp():
            yield from _heads(node.left)
            yield from _heads(node.right)
        case _:
            return


def _is_context_name(node: ast.Name | ast.Attribute, names: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Name) and node.id in names:
        return _is(names[node.id])
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
        return _is(getattr(names[node.value.id], node.attr, None))
    return (node.id if isinstance(node, ast.Name) else node.attr) in {context.__name__ for context in _CONTEXTS}


def _is(value: Any) -> bool:
    return any(value is context for context in _CONTEXTS)


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    return getattr(inner, "__globals__", {})

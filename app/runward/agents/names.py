"""What names look like. Every check raises DefinitionError saying what is allowed."""

from __future__ import annotations

import re
from typing import Any

from runward.core.errors import DefinitionError
from runward.core.ids import is_id

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*:\S+\Z")


def check_id(value: Any, what: str) -> None:
    """Names and versions of agents, versions of approvals: what can stand in a URL."""
    if not isinstance(value, str) or not is_id(value):
        raise DefinitionError(
            f'{what} is {value!r}, but has to be a text of 1 to 128 letters, digits, ".", "_" or "-", starting with a letter or digit.'
        )


def check_tool_name(value: Any, what: str) -> None:
    """Names of tools and outputs: what every provider takes."""
    if not isinstance(value, str) or not _TOOL_NAME.match(value):
        raise DefinitionError(f"{what} is {value!r}, but has to be 1 to 64 letters, digits, `_` or `-`.")


def check_model_name(value: str, what: str) -> None:
    """Models by name: `provider:model`."""
    if not _MODEL_NAME.match(value):
        raise DefinitionError(f'{what} is {value!r}, but has to be "provider:model", such as "openai:gpt-5-mini".')

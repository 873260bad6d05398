"""A docstring as a description and what it says about each parameter: Google, NumPy or Sphinx style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

Style = Literal["google", "numpy", "sphinx"]

_STYLES: tuple[tuple[Style, re.Pattern[str]], ...] = (
    ("sphinx", re.compile(r"^[ \t]*:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b[^:\n]*:", re.MULTILINE)),
    ("numpy", re.compile(r"^[ \t]*(Other )?(Parameters|Returns|Yields|Raises|Warns)[ \t]*\n[ \t]*-{3,}[ \t]*$", re.MULTILINE)),
    (
        "google",
        re.compile(
            r"^[ \t]*((Keyword |Other )?(Args|Arguments|Params|Parameters)|Returns|Yields|Raises|Examples?|Notes?):[ \t]*\n[ \t]+\S",
            re.MULTILINE,
        ),
    ),
)


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a function's docstring says: the text before its sections, and a description for each parameter it names."""
    text = inspect.getdoc(function) or ""
    style = next((style for style, pattern in _STYLES if pattern.search(text)), None)
    return (text.strip(), {}) if style is None else _sections(text, style)


def _sections(text: str, style: Style) -> tuple[str, dict[str, str]]:
    import griffe  # only where a docstring has sections: its import costs more than a small tool module

    quiet: dict[Style, Any] = {"google": griffe.GoogleOptions, "numpy": griffe.NumpyOptions, "sphinx": griffe.SphinxOptions}
    sections = griffe.Docstring(text, lineno=1, parser=style, parser_options=quiet[style](warnings=False)).parse()
    description = "\n\n".join(section.value for section in sections if isinstance(section, griffe.DocstringSectionText))
    parameters: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionParameters):
            for parameter in section.value:
                parameters.setdefault(parameter.name, " ".join(parameter.description.split()))
    return description.strip(), parameters

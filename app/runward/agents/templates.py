"""URLs and headers of HTTP tools: `{parameter}` is filled by the model's arguments, `${NAME}` by the worker's environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from runward.core.errors import DefinitionError

OURS: Final = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "idempotency-key", "keep-alive", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that the service sets by itself, or that would change where a request ends and to whom it goes."""

_URL: Final = re.compile(r"https?://(?P<authority>[^\s/?#\\]+)(?P<rest>[/?][^\s#\\]*)?")
_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_SLOT: Final = re.compile(r"\$\{(?P<reference>[^{}]*)\}|\{(?P<parameter>[^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
MAX_TEMPLATE_LENGTH: Final = 4_096
_UNESCAPED: Final = 4
_DOTS: Final = re.compile(r"\.{1,2}(?![^;\s\x00-\x20\x7f])")
"""`.` or `..`, also with what some servers leave off before they look: parameters (`..;a=b`), and spaces and control characters."""


def check_url(url: Any, parameters: Mapping[str, Any], of: str, *, in_query: bool) -> None:
    """Raises DefinitionError, never showing the URL: it may hold what is secret. `in_query`: other arguments become a part of its query."""
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None or len(url) > MAX_TEMPLATE_LENGTH:
        raise DefinitionError(f"{of}: url must begin with http:// or https:// and a host, and have neither spaces nor `#` nor `\\`.")
    if "@" in found["authority"]:
        raise DefinitionError(f"{of}: url must not have a user in it; put credentials in headers.")
    if re.search(r"[{}]", found["authority"]):
        raise DefinitionError(f"{of}: url must name its host outright; only its path and its query have `{{…}}`.")
    _check_references(url, f"{of}: url")
    for parameter in placeholders(url):
        if parameter not in parameters.get("properties", {}) or parameter not in parameters.get("required", ()):
            raise DefinitionError(f"{of}: url needs `{parameter}`, which is not a required parameter.")
    if re.search(r"[{}]", _SLOT.sub("", url)):
        raise DefinitionError(f"{of}: url has a brace without its other half.")
    if has_dot_segments((found["rest"] or "").partition("?")[0]):
        raise DefinitionError(f"{of}: url must not have `.` or `..` as a part of its path.")
    names = query_names(url)
    if any("{" in name for name in names):
        raise DefinitionError(f"{of}: url must name what is in its query outright; only the values there have `{{…}}`.")
    for parameter in {*parameters.get("properties", {})} & names - {*placeholders(url)} if in_query else ():
        raise DefinitionError(f"{of}: url has a `{parameter}` in its query, and so has its parameters.")


def check_headers(headers: Any, of: str) -> None:
    """Raises DefinitionError, never showing a value."""
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise DefinitionError(f"{of}: headers must be a mapping of texts.")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise DefinitionError(f"{of}: {name!r} is not the name of a header.")
        if name.lower() in OURS:
            raise DefinitionError(f"{of}: the header {name} is the service's own to set.")
        if not is_header_value(value):
            raise DefinitionError(f"{of}: the header {name} must be printable ASCII in one line, without spaces around it.")
        _check_references(value, f"{of}: the header {name}")
    if len({name.lower() for name in headers}) < len(headers):
        raise DefinitionError(f"{of}: headers has a name twice.")


def is_header_value(text: str) -> bool:
    """Whether a header can have this value: no line ends in it, and nothing is lost of it on the way."""
    return _HEADER_VALUE.fullmatch(text) is not None and text == text.strip()


def has_dot_segments(path: str) -> bool:
    """Whether a path, however often it is unescaped, goes up or stands still somewhere."""
    for _ in range(_UNESCAPED):
        if any(_DOTS.match(segment) for segment in re.split(r"[/\\]", path)):
            return True
        path = unquote(path)
    return False


def references(*texts: str) -> list[str]:
    """The environment's variables that templates name, each once."""
    return list(dict.fromkeys(name for text in texts for name in _REFERENCE.findall(text)))


def placeholders(url: str) -> list[str]:
    """The parameters that a URL needs, each once."""
    return list(dict.fromkeys(slot["parameter"] for slot in _SLOT.finditer(url) if slot["parameter"] is not None))


def query_names(url: str) -> set[str]:
    """The names in a URL's query, which arguments must not say again: which of two counts is for each server to choose."""
    parts = url.partition("?")[2].split("&")
    return {unquote(name.replace("+", " ")) for name, has_value, _ in (part.partition("=") for part in parts) if has_value}


def with_references(text: str, values: Mapping[str, str]) -> str:
    """A header's value with those of the environment in it. What is put in is not looked at again."""
    return _REFERENCE.sub(lambda reference: values[reference[1]], text)


def with_arguments(url: str, reference: Callable[[str], str], parameter: Callable[[str], str]) -> str:
    """A URL with everything in its place. What is put in is not looked at again."""
    return _SLOT.sub(lambda slot: parameter(slot["parameter"]) if slot["reference"] is None else reference(slot["reference"]), url)


def _check_references(text: str, where: str) -> None:
    if "${" in _REFERENCE.sub("", text) or not all(_NAME.fullmatch(name) for name in references(text)):
        raise DefinitionError(f"{where} has a `${{…}}` that is not the name of an environment variable.")

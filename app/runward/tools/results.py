"""What a function returned, as JSON that can be stored, shown and, where something follows, rebuilt."""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from runward.agents.annotations import UNRESOLVED
from runward.agents.content import File, Text
from runward.agents.schemas import Schema
from runward.core.messages import FilePart
from runward.core.runs.calls import MAX_DEPTH
from runward.core.runs.receipts import to_text
from runward.core.text import clean_json, within_depth
from runward.ports.tools import BadResult, Returned

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


class Recorder:
    """Turns what one tool returns into JSON, by its return annotation where there is one, and back.

    `projected` says that something else is made of the result for the model: then files stay in the value, and what cannot be rebuilt into
    the annotation is refused at once rather than later.
    """

    def __init__(self, annotation: Any, *, output_schema: Mapping[str, Any] | None, max_bytes: int, projected: bool, of: str) -> None:
        self._adapter = _adapter(annotation)
        self._schema = None if output_schema is None else Schema(output_schema, of=f"{of}: output_schema")
        self._max_bytes = max_bytes
        self._projected = projected

    def record(self, value: Any) -> Returned:
        """The result as it is stored. Raises BadResult."""
        if isinstance(value, Text | File):
            value = [value]
        if isinstance(value, list | tuple) and any(isinstance(each, Text | File) for each in value):
            if not all(isinstance(each, Text | File) for each in value):
                _refuse("a list with Text or File in it must hold nothing else")
            if not self._projected:
                return self._with_files(value)
        return self._checked(self._json(value))

    def rebuild(self, raw: Any) -> Any:
        """A stored value as the function had returned it, as far as its annotation says. Raises BadResult."""
        if self._adapter is None:
            return raw
        try:
            return self._adapter.validate_json(to_text(raw))
        except ValidationError as error:
            raise BadResult("invalid_result", _told("it is not of the type the tool is annotated with")) from error

    def _with_files(self, parts: list[Text | File] | tuple[Text | File, ...]) -> Returned:
        texts = [part.text for part in parts if isinstance(part, Text)]
        files = tuple(_file(part) for part in parts if isinstance(part, File))
        return self._checked("\n".join(texts), files)

    def _json(self, value: Any) -> Any:
        adapter = self._adapter or _ANYTHING
        if isinstance(value, Iterator):
            _refuse("it is an iterator; return a list")
        try:
            dumped = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
            plain = adapter.dump_python(value, mode="python", by_alias=True, warnings=False)
        except Exception as error:
            raise BadResult("invalid_result", _told("it holds something that is not JSON")) from error
        if not within_depth(dumped, MAX_DEPTH):
            _refuse(f"it is nested deeper than {MAX_DEPTH}")
        _compare(plain, dumped)
        return dumped

    def _checked(self, value: Any, files: tuple[FilePart, ...] = ()) -> Returned:
        value = clean_json(value)
        try:
            text = to_text(value)
        except (TypeError, ValueError) as error:
            raise BadResult("invalid_result", _told("it holds a number that is not JSON")) from error
        size = len(text.encode()) + sum(len(file.model_dump_json(exclude_none=True)) for file in files)
        if size > self._max_bytes:
            raise BadResult("too_large", f"The tool ran, but its result is larger than {self._max_bytes} bytes.")
        complaint = self._schema.complaint(value) if self._schema else None
        if complaint is not None:
            _refuse(f"it does not fit the tool's output schema: {complaint}")
        if self._projected:
            self.rebuild(value)
        return Returned(value=value, text=text, files=files)


def _file(file: File) -> FilePart:
    data = None if file.data is None else base64.b64encode(file.data).decode("ascii")
    return FilePart(media_type=file.media_type, data=data, url=file.url, name=file.name)


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is UNRESOLVED or annotation is Any:
        return None
    try:
        return TypeAdapter(annotation)
    except Exception:  # noqa: BLE001 - a type Pydantic does not know: results are recorded by what they are
        return None


def _compare(plain: Any, dumped: Any) -> None:
    """Refuses what Pydantic would pass off as JSON by itself: NaN as null, bytes as text, keys that become equal as text.

    `plain` is the value as Python has it, `dumped` as JSON. Where an author's own serializer made something else of it, that stands.
    """
    match plain:
        case float() if not math.isfinite(plain):
            _refuse("it holds NaN or an infinite number")
        case Decimal() if not plain.is_finite():
            _refuse("it holds NaN or an infinite number")
        case bytes() | bytearray() if plain and dumped == bytes(plain).decode("utf-8", "replace"):
            _refuse("it holds bytes; return a File, or encode them")
        case Mapping() if isinstance(dumped, dict):
            if len(plain) == len(dumped):
                for inner, shown in zip(plain.values(), dumped.values(), strict=True):
                    _compare(inner, shown)
            elif len({str(key) for key in plain}) < len(plain):
                _refuse("it has keys that are the same as text")
        case list() | tuple() | set() | frozenset() | deque() if isinstance(dumped, list) and len(plain) == len(dumped):
            for inner, shown in zip(plain, dumped, strict=True):
                _compare(inner, shown)
        case Iterator():
            _refuse("it holds an iterator; return a list")


def _refuse(why: str) -> NoReturn:
    raise BadResult("invalid_result", _told(why))


def _told(why: str) -> str:
    return f"The tool ran, but its result cannot be recorded: {why}."

"""Takes secrets and personal data out of texts: one set of rules for approvals, failures, logs and guardrails.

Every rule takes time in proportion to the text, whatever is in it: runs of characters are bounded, or begin where no earlier one could have
begun, or are found by `str.find`. A test holds them to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runward.core.errors import DefinitionError

MARK: Final = "[redacted "
"""How what stands in the place of something begins; the kind and `]` follow."""
SHORTEST_VALUE: Final = 8
"""Shorter values are not looked for: they would be found in any text."""

SHORTEST_FIND: Final = 6
"""Nothing shorter is taken out by its shape."""

_EMAIL = re.compile(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])")
_PHONE = re.compile(
    r"(?<![\w+])\+\d(?:[ ().-]{0,2}\d){7,14}(?!\d)"  # international, with its plus
    r"|(?<![\w.-])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"  # North American, with its separators
)
_CARD = re.compile(r"(?<![\d.])(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5})(?!\d)")
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA|AROA)[A-Z0-9]{16}(?![A-Z0-9])"
    r"|AIza[A-Za-z0-9_-]{35}"
    r"|npm_[A-Za-z0-9]{30,}|hf_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{16,}"
    r"|rw_[0-9a-f]{6,32}_[A-Za-z0-9_-]{16,}"
    r")"
)
_JWT = re.compile(r"(?<![A-Za-z0-9_-])(?:eyJ|rwt_)[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{2,}(?:\.[A-Za-z0-9_-]*)?")
_BEARER = re.compile(r"(?<![A-Za-z])((?:[Bb]earer|BEARER|[Bb]asic|BASIC)[ \t]{1,4})[A-Za-z0-9._~+/=-]{16,}")
_IN_URL = re.compile(r"(?<=://)([^\s/:@]{0,256}:)[^\s/@]{1,256}(?=@)")
_BLOCK_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----")
_BLOCK_ENDS = re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----")
_NAMED = re.compile(
    r"(?:.*[_-])?(?:password|passwd|passphrase|secret|secrets|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|authorization|access[_-]?token|refresh[_-]?token|auth[_-]?token|client[_-]?secret|secret[_-]?key)\Z",
    re.IGNORECASE,
)
_LONGEST_NAME = 64
_SMALLEST_CARD, _TOO_LARGE = 10**12, 10**19
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def _plain(pattern: re.Pattern[str], kind: str) -> Callable[[str], str]:
    mark = f"{MARK}{kind}]"
    return lambda text: pattern.sub(mark, text)


def _behind(pattern: re.Pattern[str], kind: str) -> Callable[[str], str]:
    """What follows the pattern's first group goes, the group stays."""
    mark = f"{MARK}{kind}]"
    return lambda text: pattern.sub(lambda found: found[1] + mark, text)


def _cards(text: str) -> str:
    """Numbers of 13 to 19 digits with a right check digit. One that has a wrong one may hold the beginning of another that has not."""
    kept, copied, looked = [], 0, 0
    while (found := _CARD.search(text, looked)) is not None:
        if not _checks(found[0]):
            looked = found.start() + 1
            continue
        kept += [text[copied : found.start()], f"{MARK}card]"]
        copied = looked = found.end()
    return "".join((*kept, text[copied:])) if kept else text


def _checks(number: str) -> bool:
    """Whether a number's last digit is the one that Luhn's formula gives, and its digits are not all the same."""
    digits = [ord(digit) - 48 for digit in number if digit not in " -"]
    total = sum(digits[-1::-2]) + sum(_DOUBLED[digit] for digit in digits[-2::-2])
    return 13 <= len(digits) <= 19 and total % 10 == 0 and len({*digits}) > 1


def _blocks(text: str) -> str:
    """Private keys, from their first line to their last; to the end of a text that breaks off before."""
    kept, copied = [], 0
    while (begins := _BLOCK_BEGINS.search(text, copied)) is not None:
        kept += [text[copied : begins.start()], f"{MARK}private_key]"]
        ends = _BLOCK_ENDS.search(text, begins.end())
        copied = len(text) if ends is None else ends.end()
    return "".join((*kept, text[copied:])) if kept else text


RULES: Final[Mapping[str, Callable[[str], str]]] = {
    "private_key": _blocks,
    "password": _behind(_IN_URL, "password"),
    "token": lambda text: _plain(_JWT, "token")(_behind(_BEARER, "token")(text)),
    "key": _plain(_KEY, "key"),
    "email": _plain(_EMAIL, "email"),
    "card": _cards,
    "phone": _plain(_PHONE, "phone"),
}
"""Each rule by what it takes out, in the order in which they are asked: later ones do not see what earlier ones have taken."""
SECRET_KINDS: Final = ("private_key", "password", "token", "key")
PERSONAL_KINDS: Final = ("email", "card", "phone")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Takes out what is of some kinds, and some values wherever they stand. `password` also means values in JSON that are named so.

    Raises DefinitionError for a kind that is none.
    """

    kinds: tuple[str, ...] = SECRET_KINDS
    values: tuple[str, ...] = field(default=(), repr=False)
    _found: re.Pattern[str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in RULES]
        if unknown:
            raise DefinitionError(f"There is no rule for {unknown[0]!r}. What can be taken out: {', '.join(RULES)}.")
        object.__setattr__(self, "kinds", tuple(kind for kind in RULES if kind in self.kinds))
        longest_first = sorted({value for value in self.values if len(value) >= SHORTEST_VALUE}, key=len, reverse=True)
        if longest_first:
            object.__setattr__(self, "_found", re.compile("|".join(map(re.escape, longest_first))))

    def text(self, text: str) -> str:
        """The text with a mark in place of whatever was taken out."""
        if len(text) < SHORTEST_FIND:
            return text
        if self._found is not None:
            text = self._found.sub(f"{MARK}secret]", text)
        for kind in self.kinds:
            text = RULES[kind](text)
        return text

    def json(self, value: Any) -> Any:
        """The same for every text in a JSON value, keys but for names left as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._named(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        if isinstance(value, int) and "card" in self.kinds and _SMALLEST_CARD <= value < _TOO_LARGE and _checks(str(value)):
            return f"{MARK}card]"
        return value

    def _named(self, key: str, value: Any) -> Any:
        named = "password" in self.kinds and len(key) <= _LONGEST_NAME and _NAMED.match(key) is not None
        if named and isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            return f"{MARK}password]"
        return self.json(value)


def shown_arguments(arguments: str, redactor: Redactor | None = None) -> Any:
    """A call's arguments, kept as JSON text, as people see them: verbatim but for secrets."""
    return (redactor or SECRETS).json(json.loads(arguments))


def holds_mark(value: Any) -> bool:
    """Whether a JSON value holds what stands in the place of something that was taken out."""
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, Mapping):
        return any(map(holds_mark, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_mark, value))


SECRETS: Final = Redactor()
"""Takes out what looks like a secret, whoever's it is."""


def knowing(values: Iterable[str], kinds: Iterable[str] = ()) -> Redactor:
    """The same, and besides these values, the secrets that a process was started with, and what is of these kinds."""
    return Redactor(kinds=(*SECRET_KINDS, *kinds), values=tuple(values))

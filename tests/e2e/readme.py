"""Reads README.md: its console blocks as commands with the output they show, and its other blocks as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"

VOLATILE = (
    r'"at":"[^"]+"',
    r'"delta":"[^"]*"',  # how much text waits for company depends on the machine
    r'"seq":\d+',
    r"id: \d+",
    r"Last-Event-ID: \d+",
)
"""What the page shows of one run, and another run says differently. The pattern stands for whatever matches it."""


END_OF_COMMAND = re.compile(r"(?<!\\)\n")
"""A line that does not go on in the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command as the page shows it, with its output; `…` in the output stands for anything, lines included."""

    command: str
    output: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the command's real output has to look like."""
        anything = "\N{HORIZONTAL ELLIPSIS}"
        pieces = re.split(rf"({anything}|{'|'.join(VOLATILE)})", self.output)
        return re.compile("".join(_pattern(piece, anything) for piece in pieces), re.DOTALL)


def _pattern(piece: str, anything: str) -> str:
    if piece == anything:
        return ".*"
    return next((kind for kind in VOLATILE if re.fullmatch(kind, piece)), re.escape(piece))


def section(title: str) -> str:
    """The text under a heading."""
    return README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)


def shown(text: str) -> list[Shown]:
    """The commands of the console blocks, in order."""
    parts = [part for block in blocks(text, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(command=command, output=output.rstrip()) for command, output in (END_OF_COMMAND.split(part, 1) for part in parts)]

"""Reads README.md, and pages like it: their console blocks as commands with the output they show, which are tried against a service, and
their other blocks as text."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.programs import clean_environment

HERE = "http://127.0.0.1:8000"
"""Where the pages find the service."""
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


def section(title: str, page: Path = README) -> str:
    """The text under a heading."""
    return page.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)


def shown_by(text: str) -> list[Shown]:
    """The commands of the console blocks, in order."""
    parts = [part for block in blocks(text, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(command=command, output=output.rstrip()) for command, output in (END_OF_COMMAND.split(part, 1) for part in parts)]


def printed(command: str, url: str, folder: Path) -> str:
    """What a command of a page prints, asked of the service at `url`."""
    environment = {**clean_environment(), "no_proxy": "127.0.0.1"}
    line = command.replace(HERE, url)
    done = subprocess.run(["bash", "-c", line], env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout.rstrip()


def differences(title: str, url: str, folder: Path, page: Path = README) -> list[str]:
    """The commands of a section that print something else than it shows. All of them are run, in order."""
    said = [(shown, printed(shown.command, url, folder)) for shown in shown_by(section(title, page))]
    assert said, f"no command under {title!r}"
    return [f"$ {shown.command}\nprints\n{text}\nand should\n{shown.output}" for shown, text in said if not shown.pattern.fullmatch(text)]

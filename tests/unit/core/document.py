"""The generated parts of docs/semantics.md, from the tables of the core.

`.venv/bin/python -m tests.unit.core.document` writes them anew, after a table has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

from runward.core.runs.calls import AFTER, Effect, Then
from runward.core.runs.transitions import CALL, RUN, mermaid

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "semantics.md"

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- /generated -->)", re.DOTALL)

WORDS = {
    Then.ASK: "ask the user",
    Then.FAIL_UNCERTAIN: "fail, effect uncertain",
    Then.TRY_AGAIN: "try again",
    Then.START_OVER: "start over",
}


def blocks() -> dict[str, str]:
    """The generated parts by name."""
    return {"run": fenced(mermaid(RUN)), "call": fenced(mermaid(CALL)), "after": after_table()}


def fenced(diagram: str) -> str:
    return f"```mermaid\n{diagram}\n```\n"


def after_table() -> str:
    """The table `AFTER` as Markdown."""
    repeatable = ", ".join(f"`{effect}`" for effect in Effect if effect.repeatable)
    others = ", ".join(f"`{effect}`" for effect in Effect if not effect.repeatable)
    rows = [f"| `{how}` | {spoken(row.repeatable)} | {spoken(row.others)} |" for how, row in AFTER.items()]
    return "\n".join([f"| the attempt ended | {repeatable} | {others} |", "| --- | --- | --- |", *rows, ""])


def spoken(then: Then) -> str:
    return WORDS.get(then, then.value)


def written(text: str) -> str:
    """The document with its generated parts as they are today."""
    today = blocks()
    return BLOCK.sub(lambda match: match[1] + today[match[2]] + match[3], text)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))

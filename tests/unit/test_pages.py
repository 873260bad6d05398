"""README.md and the pages of docs/ lead only to what is there, and name numbers of the code as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runward.engine import journal

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

PLACE = re.compile(r"`((?:core|ports|engine|stores|api|models|agents|tools|tests|app|docs|openapi)/[\w./-]+|\w+/\w+\.py)`")
"""A file or folder of the repository, or of the package, as the pages name it."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To files that are there, and to headings that they have."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.+?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_places_in_the_code_are_there(page: Path) -> None:
    named = PLACE.findall(page.read_text())
    assert [place for place in named if not (ROOT / place).exists() and not (ROOT / "app" / "runward" / place).exists()] == []


def test_concepts_has_the_numbers_of_the_journal() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text()
    first, group = round(journal.FIRST_DELAY_SECONDS * 1000), round(journal.GROUP_SECONDS * 1000)
    assert f"wait {first} ms for company, then a group follows at most every {group} ms" in text

"""`docs/reliability.md` names every fault point as it is."""

from __future__ import annotations

import re
from pathlib import Path

from runward.engine.probes import PLACES, WRITES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_fault_point_is_documented() -> None:
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|$", section("Fault points"), re.MULTILINE)
    writes = {f"`before_{name}`, `after_{name}`": what for name, what in WRITES.items()}
    assert dict(rows) == writes | {f"`{name}`": what for name, what in PLACES.items()}

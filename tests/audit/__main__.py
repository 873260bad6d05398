"""`python -m tests.audit`: lists licences and known vulnerabilities, and says what could not be looked at.

Exit codes: 0, all was looked at and nothing found. 1, something was found. 2, nothing was found, but not all was looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.audit.licences import licences_of
from tests.audit.locked import LOCK, locked
from tests.audit.vulnerabilities import vulnerabilities_of

NOTHING, FOUND, NOT_ALL = 0, 1, 2


def audited(lock: Path = LOCK) -> tuple[int, list[str]]:
    """The exit code, and what there is to say."""
    pinned = locked(lock.read_text())
    packages, others = [each for each in pinned if each.here], [each.name for each in pinned if not each.here]
    parts = (licences_of(packages), vulnerabilities_of(packages, lock))
    said = [line for part in parts for line in (*part.listed, "")]
    said += [f"Not for this machine, and not looked at: {', '.join(others)}.", ""] if others else []
    said += [f"FOUND: {line}" for part in parts for line in part.found]
    said += [f"NOT LOOKED AT: {line}" for part in parts for line in part.unseen]
    if any(part.found for part in parts):
        return FOUND, said
    return (NOT_ALL if any(part.unseen for part in parts) else NOTHING), said


if __name__ == "__main__":
    code, said = audited()
    print("\n".join(said))
    sys.exit(code)

"""The packages of requirements.lock, and what an audit says about them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Final

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements.lock"

_ENTRY = re.compile(r"^([a-z0-9-]+)==([^\s;\\]+)(?: ; ([^\\\n]+))?", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A package as the lock pins it. `serves`: the service needs it, not only whoever develops it. `here`: this machine needs it."""

    name: str
    version: str
    serves: bool
    here: bool

    @property
    def whose(self) -> str:
        return "service" if self.serves else "development"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of the audit lists, what it found to be wrong, and what it could not look at."""

    listed: list[str]
    found: list[str]
    unseen: list[str]


def locked(text: str) -> list[Locked]:
    """What a lock pins."""
    serving = needed(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    return [
        Locked(name=name, version=version, serves=name in serving, here=not marker or Marker(marker.strip()).evaluate())
        for name, version, marker in _ENTRY.findall(text)
    ]


def needed(requirements: Iterable[str]) -> set[str]:
    """The packages that these requirements, and those of what they name, bring along here."""
    found: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        requirement, extra = left.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *sorted(requirement.extras)):
            if (name, wanted) not in found:
                found.add((name, wanted))
                left += [(Requirement(text), wanted) for text in brought_by(name)]
    return {name for name, _ in found}


def brought_by(name: str) -> Iterable[str]:
    """What a package says that it needs; nothing, where it is not installed."""
    try:
        return requires(name) or ()
    except PackageNotFoundError:
        return ()


def is_installed(package: Locked) -> bool:
    """Whether it is here in the version of the lock: what another version says is not about this one."""
    try:
        return distribution(package.name).version == package.version
    except PackageNotFoundError:
        return False

"""Licences, as the installed packages state them themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageMetadata, distribution
from typing import Final

from tests.audit.locked import Locked, Part, is_installed

KNOWN: Final = frozenset(
    {
        "0BSD", "Apache Software License", "Apache-2.0", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC",
        "ISC License (ISCL)", "MIT", "MIT License", "MIT-0", "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "PSF-2.0",
        "Python Software Foundation License",
    }
)  # fmt: skip
"""Licences whose packages may be used, unchanged, in a service of any kind. Another one is for people to read first."""

NO_LICENCE: Final = frozenset({"DFSG approved", "OSI Approved"})
"""What some packages say beside their licence."""

_LONGEST = 80


def licences_of(packages: Sequence[Locked]) -> Part:
    """Each licence with its packages, those of the service first. Found: one that nobody has read yet, or none at all."""
    stated = {package: licence_in(distribution(package.name).metadata) for package in packages if is_installed(package)}
    listed = ["Licences, as the packages state them:"]
    for licence in sorted({*stated.values()}):
        for whose in ("service", "development"):
            names = [package.name for package, said in stated.items() if said == licence and package.whose == whose]
            listed += [f"  {licence or 'none stated'} ({whose}): {', '.join(names)}"] if names else []
    return Part(
        listed=listed,
        found=[f"{each.name} {each.version}: {_complaint(licence)}" for each, licence in stated.items() if not is_known(licence)],
        unseen=[f"the licence of {each.name} {each.version}: it is not installed here" for each in packages if each not in stated],
    )


def licence_in(metadata: PackageMetadata) -> str:
    """What a package says of its licence: as an expression, else as classifiers, else in words; nothing where it says nothing."""
    expression = "".join(metadata.get_all("License-Expression") or ())
    classified = [text.split(" :: ")[-1] for text in metadata.get_all("Classifier") or () if text.startswith("License :: ")]
    named = [text for text in classified if text not in NO_LICENCE]
    words = "".join(metadata.get_all("License") or ()).strip().partition("\n")[0].strip()
    return expression or " OR ".join(sorted(named)) or words[:_LONGEST]


def is_known(licence: str) -> bool:
    """Whether every name in an expression is of a licence that may be used, so also whichever of them is chosen."""
    names = re.split(r"\s+(?:AND|OR)\s+", licence)
    return all(name in KNOWN or name.strip("()") in KNOWN for name in names)


def _complaint(licence: str) -> str:
    return f"{licence!r} is not one of the licences in tests/audit/licences.py; read it" if licence else "it states no licence"

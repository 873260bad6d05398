"""What tests of agents share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that a test's agents were loaded from do not outlive it, nor does what it put on the import path."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]

"""Fixtures of the door's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.desk import Desk, desk
from tests.api.house import House, house


@pytest.fixture
async def open_house() -> AsyncIterator[House]:
    """A service with a worker, and no keys."""
    async with house() as made:
        yield made


@pytest.fixture
async def quiet_house() -> AsyncIterator[House]:
    """A service without a worker: runs stay as they are put."""
    async with house(worker=False) as made:
        yield made


@pytest.fixture
async def open_desk() -> AsyncIterator[Desk]:
    """A service whose runs wait for people and clients, and no keys."""
    async with desk() as made:
        yield made

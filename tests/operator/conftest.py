"""What tests of several subjects need."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[World]:
    """A world that agents can connect to."""
    found = World()
    found.apply()
    await found.serve()
    yield found
    await found.close()

"""What tests of several subjects need."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Harness]:
    """A harness that agents can connect to."""
    found = Harness()
    found.apply()
    await found.serve()
    yield found
    await found.close()

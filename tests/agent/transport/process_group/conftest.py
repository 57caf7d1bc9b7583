"""Faults that tests order must happen: else a test of what follows them would test nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.agent.transport.process_group import faulty


@pytest.fixture(autouse=True)
def orders() -> Iterator[None]:
    """Fail the test if a group that was to hang or fail has not."""
    faulty.MADE.clear()
    yield
    idle = [vars(made) for made in faulty.MADE if made.is_idle]
    assert not idle, f"groups that have neither hung nor failed: {idle}"

"""What tests of several subjects need."""

from __future__ import annotations

import pytest

from .desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()

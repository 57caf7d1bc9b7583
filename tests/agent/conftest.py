"""One thread and deterministic kernels, as workers have them; helpers of this folder by name."""

from __future__ import annotations

import pytest

from bamboo_agent.setup.determinism import make_deterministic


@pytest.fixture(autouse=True)
def deterministic():
    make_deterministic()

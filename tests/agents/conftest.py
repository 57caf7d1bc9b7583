"""One thread and deterministic kernels, as workers have them; helpers of this folder by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from bamboo_agent.worker import make_deterministic


@pytest.fixture(autouse=True)
def deterministic():
    make_deterministic()

"""Cases of a test that take turns from commit to commit (see CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_turn(share: int, cases: Iterable[Any]) -> list[Any]:
    """Of these cases one in ``share`` runs. A tuple is a case of several arguments."""
    mark = pytest.mark.rotating(share)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases
    ]

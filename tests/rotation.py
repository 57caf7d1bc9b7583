"""Cases of a test that take turns from commit to commit (see CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_turn(share: int, cases: Iterable[Any]) -> list[Any]:
    """One in ``share`` of these cases runs. A tuple is a case of several arguments. ValueError if
    there is none: the test would never run."""
    if not (cases := list(cases)):
        raise ValueError("there is no case that could have its turn; give at least one")
    mark = pytest.mark.rotating(share)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases
    ]

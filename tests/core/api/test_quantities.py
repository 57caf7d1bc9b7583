"""Quantities of Kubernetes as numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bamboo_core.api import quantities


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), (3, 3), ("500m", 0.5), ("1k", 1000), ("2Ki", 2048), ("1.5Gi", 1.5 * 2**30),
     ("1.5e3", 1500), ("1E2", 100), ("1E", 10**18), ("5e-1", 0.5)],
)  # fmt: skip
def test_quantities(text: str | int, number: float) -> None:
    assert quantities.parse(text) == number


def test_huge_exponents_are_fast() -> None:
    assert quantities.parse("1e9999999999") == 10**99
    assert quantities.parse("1E-9999999999") == Fraction(1, 10**99)


@pytest.mark.parametrize(
    "text",
    ["", "1x", "3/0", "1/3", "nan", "inf", "1_0", " 1", "\u0663", "1e3Ki", ".", "1e", "Gi", "--1",
     "m", "9" * 5000, "1/0e1", float("inf"), "1e" + "9" * 5000],
)  # fmt: skip
def test_texts_that_are_not_quantities(text: str | float) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantities.parse(text)

"""The schedules that come with Bamboo: their formulas, and arguments that are refused."""

from __future__ import annotations

import math

import pytest

from bamboo_agent.schedules import constant, cosine, linear

STEPS = range(130)


def warmed(step, rest):
    return (step + 1) / 20 if step < 20 else rest(min(1.0, (step - 20) / 80))


@pytest.mark.parametrize(
    ("schedule", "rest"),
    [
        (constant(warmup_steps=20), lambda x: 1.0),
        (linear(total_steps=100, warmup_steps=20, final=0.2), lambda x: 1 - 0.8 * x),
        (
            cosine(total_steps=100, warmup_steps=20, final=0.2),
            lambda x: 0.2 + 0.8 * (1 + math.cos(math.pi * x)) / 2,
        ),
    ],
)
def test_the_formulas(schedule, rest):
    assert [schedule(step) for step in STEPS] == pytest.approx(
        [warmed(step, rest) for step in STEPS], abs=1e-14
    )


def test_the_ends_are_exact():
    assert [constant()(0), linear(total_steps=9)(0), cosine(total_steps=9)(0)] == [1.0] * 3
    for final in (0.0, 0.1):
        for make in (linear, cosine):
            found = make(total_steps=10, final=final)
            assert found(10) == pytest.approx(final, abs=1e-15)
            assert found(10) == found(11) == found(10**9)
    assert cosine(total_steps=10)(10) == 0.0


@pytest.mark.parametrize(
    ("make", "args", "complaint"),
    [
        (constant, {"warmup_steps": -1}, "warmup_steps is -1; it must be at least 0"),
        (linear, {"total_steps": 5, "warmup_steps": 5}, "total_steps is 5; it must be more than"),
        (cosine, {"total_steps": 0}, "total_steps is 0; it must be more than warmup_steps, 0"),
        (constant, {"warmup_steps": "10"}, "warmup_steps is '10'; it must be a whole number"),
        (cosine, {"total_steps": 5, "final": 1.5}, "final is 1.5; it must be from 0 to 1"),
        (linear, {"total_steps": 5, "final": -0.5}, "final is -0.5; it must be from 0 to 1"),
    ],
)
def test_arguments_that_are_out_of_range(make, args, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(**args)

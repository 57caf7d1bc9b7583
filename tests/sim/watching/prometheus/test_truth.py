"""A run whose metrics are wrong is found out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bamboo_sim.watching.prometheus import truth
from bamboo_sim.watching.prometheus.queries import Span
from bamboo_sim.watching.prometheus.server import Series

RUN = truth.Truth("ns", "job", 32, 4, 3, 1, {"a": 1.0, "b": 2.0}, 5.0)
SPAN = Span(0.0, 20.0, 10.0)


@dataclass
class Answers:
    """A Prometheus that answers a query by the first word of these that is in it."""

    by_word: dict[str, list[Series]] = field(default_factory=dict)

    def query_range(self, expr: str, start: float, end: float, step_s: float) -> list[Series]:
        del start, end, step_s
        return next((v for word, v in self.by_word.items() if word in expr), [])


def flat(value: float, **labels: str) -> Series:
    return Series(labels, [(0.0, value), (10.0, value), (20.0, value)])


def honest() -> Answers:
    return Answers(
        {
            "resets": [],
            "repeated_steps": [flat(1.0)],
            "steps_total": [flat(33.0)],
            'noticed="true"': [flat(1.0)],
            'noticed="false"': [flat(2.0)],
            "pauses_total": [flat(2.0)],
            "tasks_redone": [flat(5.0)],
            "bamboo_job_cost": [flat(6.0)],
            "on_demand": [flat(20.0)],
            "bamboo_job_workers": [flat(2.0, zone="a"), flat(2.0, zone="b")],
            "up{": [flat(1.0, instance="x")],
        }
    )


def answer(word: str, *series: Series) -> Callable[[Answers], None]:
    return lambda answers: answers.by_word.__setitem__(word, list(series))


def test_the_truth() -> None:
    answers: Any = honest()
    assert truth.wrong(answers, RUN, SPAN) == []
    calm = replace(RUN, lost=0, noticed=0)
    answers.by_word |= {'noticed="true"': [flat(0.0)], 'noticed="false"': [flat(0.0)]}
    answers.by_word |= {"pauses_total": [flat(0.0)], "tasks_redone": [flat(0.0)]}
    assert truth.wrong(answers, calm, SPAN) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (answer("repeated_steps", flat(2.0)), "steps: 31, not 32"),
        (answer('noticed="true"', flat(0.0)), "losses with notice: 0, not 1"),
        (answer('noticed="false"', flat(3.0)), "losses without: 3, not 2"),
        (
            answer("resets", flat(1.0, state="Recovering")),
            "bamboo_job_time_seconds_total fell: .*Recovering",
        ),
        (answer("pauses_total"), "no pause"),
        (answer("tasks_redone", flat(0.0)), "no task was done again"),
        (answer("bamboo_job_cost", flat(7.0)), r"\$7.00 an hour for nodes that cost \$6.00"),
        (answer("on_demand", flat(30.0)), "6 nodes cost money at once, for 4 agents"),
        (answer("on_demand", flat(15.0)), "never did 4 agents on as many nodes"),
        (answer("up{"), "agents never scraped: all"),
        (answer("up{", flat(1.0, instance="x"), flat(0.0, instance="y")), "scraped: y"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Answers], None], words: str) -> None:
    answers: Any = honest()
    change(answers)
    found = truth.wrong(answers, RUN, SPAN)
    assert any(re.search(words, text) for text in found)

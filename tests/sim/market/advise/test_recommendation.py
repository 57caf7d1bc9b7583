"""What is recommended, and what is said where nothing will do."""

from __future__ import annotations

from math import inf
from typing import Any, cast

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.advise.candidates import Candidate
from bamboo_sim.market.advise.recommendation import Wish, advice
from bamboo_sim.market.advise.search import Answer, Result, Trial
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.policies.base.formula import Grid


class Asked:
    """What a refusal reads of a question."""

    samples = 1e6


def result(stages: int, *trials: tuple[float, float], steady: int = 0) -> Result:
    candidate = Candidate(Grid(1, stages), RedundancyMode.NONE, steady)
    return Result(candidate, tuple(Trial(*each) for each in trials))


SLOW = result(2, (10.0, 10.0), (12.0, 12.0))
MIDDLE = result(4, (5.0, 20.0), (7.0, 28.0))
STEADY = result(6, (4.0, 70.0), (4.0, 70.0), steady=6)
NEVER = result(8, (inf, 5.0), (3.0, 5.0))


def answer(*results: Result) -> Answer:
    asked = cast("Any", Asked())
    return Answer(asked, results or (STEADY, MIDDLE, SLOW, NEVER), tried=50)


def test_without_a_wish_it_is_the_cheapest() -> None:
    found = advice(answer(), Wish())
    assert found.best is SLOW
    assert found.why[0] == (
        "Take 1 x 2 in mode None on 2 spot nodes: 11.00 h and 11.00 dollars in the mean."
    )
    assert "cheapest of the 3 computed candidates; 50 were guessed" in found.why[1]


def test_a_deadline_takes_the_cheapest_that_keeps_it() -> None:
    found = advice(answer(), Wish(deadline_h=8))
    assert found.best is MIDDLE
    assert found.why[0].endswith("; 2 of 2 histories end within 8 h.")
    text = " ".join(found.why)
    assert "Next cheaper, but it is late in 100% of histories: 1 x 2 in mode None" in text
    assert "The fastest: 1 x 6 in mode None on 6 nodes on demand, 4.00 h, 70.00 dollars." in text
    assert "The cheapest without spot nodes costs 2.9 times as much" in text


def test_a_deadline_must_be_kept_by_enough_histories() -> None:
    assert advice(answer(), Wish(deadline_h=6)).best is STEADY
    assert advice(answer(), Wish(deadline_h=6, sure=0.5)).best is MIDDLE


def test_a_budget_alone_takes_the_fastest_that_it_pays() -> None:
    found = advice(answer(), Wish(budget=30))
    assert found.best is MIDDLE
    assert found.why[0].endswith("; 2 of 2 cost at most 30 dollars.")
    assert "It is the fastest of the 2 computed candidates that keep this in 95%" in found.why[1]
    assert advice(answer(), Wish(budget=30, deadline_h=30)).best is SLOW


def test_a_history_that_never_ends_is_neither_in_time_nor_paid() -> None:
    assert not Wish().is_met(NEVER)
    assert NEVER not in answer().front


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (
            Wish(deadline_h=3.5),
            "--deadline 3.5 cannot be met in 95% of 2 histories; the fastest that was found is"
            " 1 x 6 in mode None on 6 nodes on demand, 4.00 h, 70.00 dollars. Give --deadline 4,",
        ),
        (
            Wish(budget=9),
            "--budget 9 is not enough in 95% of 2 histories; the cheapest that was found is 1 x 2"
            " in mode None on 2 spot nodes, 11.00 h, 11.00 dollars. Give --budget 12,",
        ),
        (
            Wish(deadline_h=8, budget=15),
            "--deadline 8 and --budget 15 cannot both be kept in 95% of 2 histories; the cheapest"
            " in time is 1 x 4 in mode None on 4 spot nodes, 6.00 h, 24.00 dollars. Give --budget"
            " 28, or a later --deadline.",
        ),
    ],
)
def test_what_cannot_be_kept_is_named_with_what_was_found(wish: Wish, said: str) -> None:
    with pytest.raises(MarketError) as error:
        advice(answer(), wish)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("wish", [Wish(deadline_h=3.5), Wish(budget=9), Wish(8, 15)])
def test_the_remedy_that_is_named_works(wish: Wish) -> None:
    with pytest.raises(MarketError) as error:
        advice(answer(), wish)
    option, value = str(error.value).split("Give --")[1].split(",")[0].split()
    changed = {"deadline_h" if option == "deadline" else option: float(value)}
    assert advice(answer(), Wish(**{**vars(wish), **changed}))


def test_a_job_that_nothing_ends_is_refused() -> None:
    with pytest.raises(MarketError, match=r"no candidate trains 1e\+06 samples within 60 days"):
        advice(answer(result(2, (inf, 1.0))), Wish())


def test_the_front_has_no_one_that_another_beats() -> None:
    dear = result(5, (6.5, 30.0), (6.5, 30.0))
    front = answer(STEADY, MIDDLE, dear, SLOW, NEVER).front
    assert front == [STEADY, MIDDLE, SLOW]


def test_mixed_and_single_zones_are_said() -> None:
    mixed = Candidate(Grid(2, 4), RedundancyMode.REPLICA, 2, ("east",))
    assert mixed.name == "2 x 4 in mode Replica on 6 spot nodes and 2 on demand in east"

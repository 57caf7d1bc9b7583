"""Each effect in a round of a soak is told for one of its faults only."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bamboo_sim.fleet.injection.effects import OPERATOR, Effect
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.soak import kinds
from bamboo_sim.soak.kinds import Injector


class Operator:
    """Takes orders, and does nothing."""

    def hold(self, agent: str) -> None: ...
    def let_go(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """The faults of a fleet whose agents run nowhere."""
    made = Faults(tmp_path / "faults")
    yield made
    made.close()


def injector(
    faults: Faults, agents: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> kinds.Injector:
    """An injector for whose faults no time passes. agents: a letter each."""

    async def at_once(_: Injector, least_s: float, most_s: float) -> float:
        return least_s

    def nothing(*_: object) -> None: ...

    monkeypatch.setattr(Injector, "_pass", at_once)
    signals = ("kill", "kill_worker", "terminate", "freeze", "thaw", "hang")
    fleet = SimpleNamespace(
        faults=faults,
        operator=Operator(),
        plan=lambda: SimpleNamespace(live=tuple(agents)),
        **dict.fromkeys(signals, nothing),
    )
    return Injector(cast(LocalFleet, fleet), random.Random(seed))


def credited(made: Injector) -> list[str]:
    """Kinds of the faults that have acted."""
    return [fault.kind for fault, times in made.acted() if times]


def acts_once(faults: Faults, victim: str, effect: Effect) -> None:
    """Something happens to a victim that looks like a fault."""
    faults.counted.count(victim, effect)


@pytest.mark.parametrize(
    ("chosen", "effect"),
    [
        (("cut", "cut_one_way"), Effect.LOST_SEGMENT),
        (("cut_one_way", "cut"), Effect.LOST_SEGMENT),
        (("cut", "cut"), Effect.LOST_SEGMENT),
        (("reset", "reset_agent"), Effect.RESET),
        (("reset_agent", "reset"), Effect.RESET),
        (("truncate", "truncate"), Effect.CUT_FRAME),
        (("bad_disk", "bad_disk"), Effect.FAILED_DISK),
    ],
)
@pytest.mark.parametrize("seed", range(5))
async def test_one_effect_counts_for_one_fault(
    chosen: tuple[str, ...],
    effect: Effect,
    seed: int,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = injector(faults, "ab", seed, monkeypatch)
    for kind in chosen:
        await made.inject(kind)
    for victim in "ab":
        acts_once(faults, victim, effect)
    assert credited(made) == [chosen[0]]
    assert made.acted()[1][0].text == f"{chosen[1]}: no agent is left for it"


async def test_cuts_that_meet_are_judged_by_the_agents_that_only_one_of_them_has(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = injector(faults, "abc", 1, monkeypatch)
    await made.inject("cut")
    await made.inject("cut")
    first, second = (fault for fault, _ in made.acted())
    (shared,) = set(first.victims) & set(second.victims)
    acts_once(faults, shared, Effect.LOST_SEGMENT)
    assert credited(made) == []
    (own,) = set(second.victims) - {shared}
    acts_once(faults, own, Effect.LOST_SEGMENT)
    assert [times for _, times in made.acted()] == [0, 1]


@pytest.mark.parametrize("agents", ["ab", "abc", "abcde"])
async def test_no_round_counts_an_effect_twice(
    agents: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    meetings = Counter[tuple[str, ...]]()
    for seed in range(300):
        chosen = kinds.choose(random.Random(seed))
        made = injector(faults, agents, seed, monkeypatch)
        made._fleet.operator.writes = None  # type: ignore[assignment]
        await asyncio.gather(*(made.inject(kind) for kind in chosen))
        for victim in (*agents, OPERATOR):
            for effect in Effect:
                before = dict(made.acted())
                acts_once(faults, victim, effect)
                risen = [fault for fault, times in made.acted() if times > before[fault]]
                assert len(risen) <= 1, (chosen, victim, effect)
        hit = [fault for fault, _ in made.acted() if fault.victims]
        assert {fault.kind for fault in hit} == set(credited(made)), chosen
        meetings[tuple(sorted(fault.kind for fault in hit))] += 1
        made.heal()
    assert len(meetings) > 100


def test_a_trickle_is_the_only_fault_of_its_round_and_comes_often_enough() -> None:
    rounds = [kinds.choose(random.Random(seed)) for seed in range(600)]
    found = [chosen for chosen in rounds if "trickle" in chosen]
    assert all(chosen == ["trickle"] for chosen in found)
    assert len(found) >= 60


async def test_a_trickle_has_two_victims(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    made = injector(faults, "ab", 1, monkeypatch)
    await made.inject("trickle")
    assert faults.state.rate("a", "b") == faults.state.rate("b", "a") == 1.0
    assert credited(made) == []
    acts_once(faults, "b", Effect.TRICKLED)
    assert credited(made) == ["trickle"]
    made.heal()
    assert faults.state.rate("a", "b") == 0.0

"""Each effect in a round of a soak is told for one of its faults only."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.injection.effects import OPERATOR, Effect
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.fleet.local_operator import Writes
from bamboo_sim.soak import kinds
from bamboo_sim.soak.job import MOST_ROUNDS
from bamboo_sim.soak.kinds import Injector


class Operator:
    """Takes orders, and does nothing. outcome: with which a job ends that is to be suspended."""

    def __init__(self, outcome: Outcome = Outcome.SUSPENDED) -> None:
        self.writes = Writes()
        self.arbiter: object = None
        self.over: SimpleNamespace | None = None
        self.goals: list[bool] = []
        self.outcome = outcome

    def hold(self, *agents: str) -> None: ...
    def refuse(self, *agents: str) -> None: ...
    def admit(self, agent: str) -> None: ...
    def let_go(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def change_goal(self, *, suspended: bool) -> None:
        self.goals.append(suspended)
        self.over = SimpleNamespace(outcome=self.outcome) if suspended else None


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """The faults of a fleet whose agents run nowhere."""
    (tmp_path / kinds.VOLUME).mkdir()
    made = Faults(tmp_path / "faults")
    yield made
    made.close()


def injector(
    faults: Faults,
    agents: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    losing: Callable[[AgentId], None] = lambda _: None,
    operator: Operator | None = None,
) -> kinds.Injector:
    """An injector for whose faults no time passes. agents: a letter each."""

    async def at_once(_: Injector, least_s: float, most_s: float) -> float:
        return least_s

    async def never(_: Injector, condition: object, most_s: float) -> float:
        return 0.0

    def nothing(*_: object) -> None: ...

    monkeypatch.setattr(Injector, "_pass", at_once)
    monkeypatch.setattr(Injector, "_until", never)
    signals = ("kill", "kill_worker", "terminate", "freeze", "thaw", "hang")
    fleet = SimpleNamespace(
        faults=faults,
        folder=faults.folder,
        spec=SimpleNamespace(training=SimpleNamespace(steps=9)),
        committed_step=8,
        exits={},
        pods={},
        operator=Operator() if operator is None else operator,
        plan=lambda: SimpleNamespace(live=tuple(agents)),
        **dict.fromkeys(signals, nothing),
    )
    return Injector(cast(LocalFleet, fleet), random.Random(seed), losing)


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
        (("folder_away", "folder_away"), Effect.ABSENT_FOLDER),
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
    for seed in range(400):
        chosen = kinds.choose(random.Random(seed))
        made = injector(faults, agents, seed, monkeypatch)
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


@pytest.mark.parametrize("kind", ["trickle", "blip_in_suspension"])
def test_some_faults_are_the_only_ones_of_their_rounds(kind: str) -> None:
    rounds = [kinds.choose(random.Random(seed)) for seed in range(600)]
    found = [chosen for chosen in rounds if kind in chosen]
    assert found
    assert all(chosen == [kind] for chosen in found)


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("trickle", 60),
        ("blip_in_suspension", 60),
        ("refuse_sessions", 65),
        ("folder_away", 80),
        ("truncate", 80),
    ],
)
def test_new_kinds_come_often_enough(kind: str, least: int) -> None:
    """At least 75 of 600 rounds are the last ones of their jobs. Some faults have no effect."""
    last = 600 // (MOST_ROUNDS + 1)
    assert last >= 75
    rounds = [kinds.choose(random.Random(seed)) for seed in range(600 - last)]
    assert sum(kind in chosen for chosen in rounds) >= least


async def test_losses_are_told_before_they_happen(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[AgentId]()
    made = injector(faults, "abcdefgh", 1, monkeypatch, losing=told.append)
    for kind in (*kinds.LOSSES, "notice", "freeze"):
        await made.inject(kind)
    assert len(told) == len(kinds.LOSSES)
    assert set(told) == made.doomed
    (left,) = (fault.victims[0] for fault, _ in made.acted() if fault.kind == "notice")
    assert made.going == {left}


async def test_a_worker_that_stands_still_for_long_may_be_killed(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set[tuple[str, bool]]()
    for seed in range(20):
        made = injector(faults, "a", seed, monkeypatch)

        async def long(*_: object) -> float:
            return kinds.INSTRUCTION_FLOOR_S + 1.0

        monkeypatch.setattr(Injector, "_pass", long)
        await made.inject("freeze")
        ((fault, _),) = made.acted()
        found.add((fault.text.split()[1], made.going == {"a"}))
    assert found == {("both", False), ("worker", True), ("supervisor", False)}


async def test_a_trickle_has_two_victims(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    made = injector(faults, "ab", 1, monkeypatch)
    await made.inject("trickle")
    assert faults.state.rate("a", "b") == faults.state.rate("b", "a") == 1.0
    assert credited(made) == []
    acts_once(faults, "b", Effect.TRICKLED)
    assert credited(made) == ["trickle"]
    made.heal()
    assert faults.state.rate("a", "b") == 0.0


async def test_refused_sessions_come_back_one_by_one(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    class Door(Operator):
        def refuse(self, *agents: str) -> None:
            told.append(f"refuse {len(agents)}")

        def admit(self, agent: str) -> None:
            told.append(f"admit {agent}")

    made = injector(faults, "ab", 1, monkeypatch, operator=Door())
    await made.inject("refuse_sessions")
    assert told[0] == "refuse 2"
    assert set(told[1:]) == {"admit a", "admit b"}
    assert made.refused == {"a": kinds.LEAST_AWAY_S, "b": kinds.LEAST_AWAY_S}
    assert credited(made) == []
    acts_once(faults, "a", Effect.REFUSED)
    assert credited(made) == ["refuse_sessions"]


async def test_the_storage_of_agents_that_come_meanwhile_counts(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = injector(faults, "ab", 1, monkeypatch)
    for kind in ("folder_away", "kill"):
        await made.inject(kind)
    acts_once(faults, "new", Effect.KILLED)
    assert credited(made) == []
    acts_once(faults, "new", Effect.ABSENT_FOLDER)
    assert credited(made) == ["folder_away"]


async def test_a_folder_is_away_until_it_heals(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = injector(faults, "ab", 1, monkeypatch)
    await made.inject("folder_away")
    assert not (tmp_path / kinds.VOLUME).exists()
    acts_once(faults, "b", Effect.ABSENT_FOLDER)
    assert credited(made) == ["folder_away"]
    made.heal()
    assert (tmp_path / kinds.VOLUME).exists()


async def test_a_full_disk_counts_for_the_last_write_only(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = injector(faults, "ab", 1, monkeypatch)
    waits = 0

    async def until(_: Injector, condition: object, most_s: float) -> float:
        nonlocal waits
        waits += 1
        if waits == 1:  # for the last step
            acts_once(faults, "a", Effect.FULL_DISK)
        return 0.0

    monkeypatch.setattr(Injector, "_until", until)
    await made.inject(kinds.LAST)
    assert waits == 2
    assert faults.state.disk.is_full
    assert credited(made) == []
    acts_once(faults, "b", Effect.FULL_DISK)
    assert credited(made) == [kinds.LAST]
    made.heal()
    assert not faults.state.disk.is_full


@pytest.mark.parametrize(
    ("outcome", "is_held", "counts"),
    [
        (Outcome.SUSPENDED, True, True),
        (Outcome.SUSPENDED, False, False),
        (Outcome.FAILED, True, False),
    ],
)
async def test_a_blip_counts_if_it_meets_a_suspension(
    outcome: Outcome,
    is_held: bool,
    counts: bool,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = Operator(outcome)
    made = injector(faults, "ab", 1, monkeypatch, operator=operator)

    async def passed(_: Injector, least_s: float, most_s: float) -> float:
        if is_held or not operator.goals:
            acts_once(faults, "a", Effect.HELD)
        return least_s

    monkeypatch.setattr(Injector, "_pass", passed)
    await made.inject("blip_in_suspension")
    assert credited(made) == (["blip_in_suspension"] if counts else [])
    is_resumed = outcome is Outcome.SUSPENDED
    assert operator.goals == ([True, False] if is_resumed else [True])
    assert (operator.over is None) is is_resumed

"""A short slice of the exploration; ``scripts/explore`` runs all of it."""

import gc
import os
import sys
import weakref
from itertools import chain
from math import inf
from time import time
from unittest.mock import patch

import pytest
from tests.rotation import in_turn

from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op
from bamboo_core.planning import planner
from bamboo_sim.programs import results_file
from bamboo_sim.protocol.checker.memory_bounds import most_gradients
from bamboo_sim.protocol.exploration import exhaustive_record
from bamboo_sim.protocol.exploration.detection import detect
from bamboo_sim.protocol.exploration.exhaustive import (
    Unit,
    every_second,
    every_single,
    fates,
    run,
    units,
)
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.exploration.time_budget import (
    AHEAD,
    AHEAD_SMALL,
    AHEAD_TIGHT,
    AHEAD_TIGHT_PAIR,
    AHEAD_TWICE,
    BACK_AND_FORTH,
    LEARNING,
    MEASURED,
    MOVING,
    NEW_OWNERS,
    OFTEN,
    PAIRS,
    PEERS,
    RESEATED,
    RESEATED_LATER,
    RESEATED_ZONES,
    SAVING,
    SHADOW,
    SLEEPING,
    SMALL,
    SPARE,
    THREE_ZONES,
    TURNING,
    TWO_ZONES,
    coarseness,
    grids,
    runs,
)
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.histories.branching import POLICIES, Part, inject, parts, prefixes
from bamboo_sim.protocol.histories.history import (
    History,
    advance,
    apply,
    explain,
    replay,
    shrink,
    violation,
)
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.planted.faults import FAULTS
from bamboo_sim.protocol.running.simulation import Simulation

SECONDS = float(os.environ.get("BAMBOO_EXPLORE_SECONDS", "0.2"))
SLICES = [
    ("singles", SMALL),
    ("singles", Job(1, 3, 2, steps=2)),
    ("seconds", SMALL),
    ("bulks", SMALL),
    ("bulks", Job(2, 3, 4, policy=SHADOW)),
    ("bulks", Job(2, 3, 4, policy=PEERS)),
    ("freezes", SMALL),
    ("zones", TWO_ZONES),
    ("zones", THREE_ZONES),
    ("operators", SMALL),
    ("partitions", SMALL),
    ("changes", SPARE),
    ("surplus", THREE_ZONES),
    ("replacements", MOVING),
    ("new-owners", NEW_OWNERS),
    ("learners", LEARNING),
    ("moves", RESEATED),
    ("moves", RESEATED_LATER),
    ("moves", RESEATED_ZONES),
    ("networks", MEASURED),
    ("regrids", TURNING),
    ("returns", BACK_AND_FORTH),
    ("restores", SAVING),
    ("absences", SAVING),
    ("suspensions", SLEEPING),
    ("raises", SAVING),
    ("fuzz", SPARE),
    ("farewells", SPARE),
    ("echoes", SAVING),
    ("lists", SAVING),
    ("finishes", SMALL),
    ("reports", MOVING),
    ("tears", SAVING),
    ("stops", SMALL),
    ("blips", MOVING),
    ("rests", SLEEPING),
    ("deaf", SMALL),
    ("folders", SAVING),
    ("attempts", OFTEN),
    ("space", SAVING),
    ("trickles", SMALL),
    ("singles", AHEAD),
    ("seconds", AHEAD_TWICE),
    ("seconds", AHEAD_TIGHT),
    ("seconds", AHEAD_TIGHT_PAIR),
]
# all others are planted in the exploration of CI, too
QUICK = ("S2", "S11", "C12", "H1", "R3", "P1", "P4", "M1", "K4", "K10", "T3", "T5", "W1", "F3")
QUICK += ("D1", "D6", "A1", "A2", "L3", "E2", "E3", "E6")


@pytest.mark.parametrize("policy", POLICIES)
def test_an_undisturbed_run_is_exact(policy):
    assert replay(History(Job(2, 3, 2), 1, policy)).outcome == "complete"


def test_every_policy_spreads_the_work_in_its_own_way_to_the_same_end():
    maps = set()
    policies = [x for x in RecoveryPolicy if x is not RecoveryPolicy.AUTO]  # it takes one of theirs
    for policy in policies:
        job = Job(2, 3, 4, policy=policy)
        world = replay(History(job, 1, "fifo", ((200, ("kill", "a01", 0)),)))
        assert world.outcome == "complete"  # judged: the symbols are those of any other run
        programs = world.arbiter.state.in_force.continuations.values()
        maps.add(tuple(sum(x.op is Op.F for x in c.steady) for c in programs))
    assert len(maps) == len(policies)


def test_a_spec_lives_as_long_as_plans_are_known_by_its_number():
    """Python reuses an id: another job would get the plans of a deleted one."""
    job = Job(2, 2, 2)
    assert replay(History(job, 1, "fifo")).outcome == "complete"
    spec = weakref.ref(job.arbiter_job.spec)
    del job
    gc.collect()
    assert spec() is not None


def test_equal_facts_are_planned_once():
    """Else most of an exploration's time goes to the planner."""
    history = History(Job(2, 2, 2, steps=3), 1, "fifo", ((200, ("kill", "a01", 0)),))
    replay(history)
    with patch.object(planner, "run", side_effect=AssertionError("planned again")):
        assert replay(history).outcome == "complete"


@pytest.mark.rotating(3)
@pytest.mark.parametrize(("family", "job"), SLICES, ids=str)
def test_no_history_breaks_the_promise(family, job):
    tally = Tally()
    base = History(job, 1)
    tally.run(FAMILIES[family](base, Part(7, 1)), base, until=time() + SECONDS)
    assert not tally.violations, explain(tally.violations[0][0])
    assert tally.cases


@pytest.mark.rotating(3)  # scripts/test looks for all of them in a later stage
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.row in QUICK], ids=lambda f: f.row)
def test_a_planted_fault_is_found(fault):
    assert detect(fault, 60.0, 3).text


def test_a_known_seed_comes_first():
    fault = next(f for f in FAULTS if f.row == "C2")
    found = detect(fault, 60.0, 3)
    again = detect(fault, 60.0, 10**6, known=found.seed)
    assert found.text
    assert (again.seed, again.history) == (found.seed, found.history)


def test_a_fault_is_found_while_files_are_away():
    """Without the fault such a history would wait for them for ever."""
    found = detect(next(f for f in FAULTS if f.row == "F24"), 60.0, 36)
    assert found.history is not None
    assert [fault[0] for _, fault in found.history.script] == ["folder away", "files back"]
    assert violation(found.history) is None


def test_a_history_replays_and_shrinks():
    fault = next(f for f in FAULTS if f.row == "S2")
    history = detect(fault, 60.0, 3).history
    assert history is not None
    with fault.planted():
        found = violation(history)
        assert found is not None
        assert violation(history) == found
        short = shrink(history)
        assert len(short.script) <= len(history.script)
        assert "deadlock" in (violation(short) or "")  # of the same kind
        assert "deadlock" in explain(history)
    assert violation(history) is None


def test_units_cover_the_whole_run():
    job = Job(1, 2, 2, steps=1)
    whole = sum(1 for _ in every_single(Unit("every single", job, 1)))
    parts = [run(Unit("every single", job, 1, part, 3))[1] for part in range(3)]
    assert sum(tally.cases for tally in parts) == whole
    assert not any(tally.violations for tally in parts)
    assert len(set().union(*(tally.histories for tally in parts))) == sum(
        tally.outcomes["complete"] for tally in parts
    )


def test_every_single_death_on_the_smallest_grid_that_computes_ahead():
    _, tally = run(Unit("every single", AHEAD_SMALL, 1))
    assert not tally.violations, explain(tally.violations[0][0])
    assert {"R", "F", "B"} <= {point[0] for point in tally.points}


def test_each_message_of_a_victim_is_lost_with_the_rest_of_its_stream():
    met = 0
    for _, world in prefixes(History(Job(2, 2, 2, steps=1), 3)):
        for name in sorted(world.nodes):
            sent = [m for m in world.network.messages if m[0] == name]
            for fate in fates(world, name)[2:]:
                other = world.copy()
                other.kill(name, fate=fate, is_seen=False)
                target = sent[fate - 3][1]
                left = [m for m in sent[: fate - 3] if m[1] == target]
                left += [m for m in sent if m[1] != target]
                found = [m for m in other.network.messages if m[0] == name]
                assert sorted(map(id, found)) == sorted(map(id, left))
                met += 1
    assert met > 20


def test_a_second_death_is_tried_until_training_goes_on():
    unit = Unit("every second", Job(1, 2, 2, steps=1), 3, 5, 40)
    gaps = [h.script[1][0] for h, _ in every_second(unit)]
    assert max(gaps) > 10
    assert set(gaps) == set(range(max(gaps) + 1))


@pytest.mark.parametrize("job", [PAIRS[2], PAIRS[0]], ids=str)
def test_the_explored_parts_rotate_with_the_seed(job):
    base, count = History(job, 1), coarseness("singles", job)
    seen = [events(base, next(parts(count, seed))) for seed in range(count)]
    everything = events(base, Part())
    assert sorted(chain(*seen)) == everything
    assert all(part[-1] > everything[-1] - count and part[0] < count for part in seen)
    assert sorted(chain(*(events(base, p) for p in parts(count, 5)))) == everything
    kills = [kill_points(job, next(parts(count, seed))) for seed in range(count)]
    assert len({frozenset(points) for points in kills}) > count // 2
    assert set().union(*kills) == kill_points(job, Part())


def events(base, part):
    """The events of the run without faults at which the part stops."""
    return [history.script[-1][0] for history, _ in prefixes(base, part, begun=False)]


def kill_points(job, part):
    """Where a part of the family kills agents."""
    found = set()
    for _, world in FAMILIES["singles"](History(job, 1), part):
        found.update(world.points)
    return found


def test_an_exhaustive_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path / "progress")
    monkeypatch.setattr(sys, "argv", ["explore"])
    job = Job(1, 2, 2, steps=1)
    first, second = (Unit("every single", job, 7, part, 2) for part in range(2))
    record = exhaustive_record.resume([first, second], 7)
    record.add(*run(first))
    record.write()
    again = exhaustive_record.resume([first, second], 8)
    assert (again.seed, set(again.units)) == (7, {str(first)})
    again.add(*run(second))
    row = again.by_row()[first.row]
    assert (row["units"], row["of"]) == (2, 2)
    assert row["cases"] == again.figures()["cases"] == run(Unit("every single", job, 7))[1].cases
    assert again.figures()["units_done"] == again.figures()["units"] == 2
    monkeypatch.setattr(results_file, "fingerprint", lambda _: "other code")
    assert exhaustive_record.resume([first, second], 8).units == {}
    with pytest.raises(SystemExit, match="has changed: run this again"):
        again.write()


def test_unit_names_are_unique():
    names = [str(unit) for unit in units(1)]
    assert len(names) == len(set(names))


def test_everything_is_in_the_units():
    rows = {unit.row for unit in units(1)}
    assert {f"every single {job}" for job in grids()} <= rows
    assert {f"every {two} {job}" for two in ("pair", "second") for job in PAIRS} <= rows
    assert {family for family, *_ in runs()} <= {row.split()[0] for row in rows} | {
        "singles",
        "pairs",
    }


def test_every_family_has_a_job_that_computes_ahead():
    assert {family for family, job, _ in runs() if job.eager} == FAMILIES.keys()


def test_the_deadlines_of_an_operator_whose_lease_stands_still_have_their_time():
    """They begin anew when it goes on: later than the world waits for others."""
    history = History(SMALL, 1, "fifo").then(0, ("lose continuation",))
    history = history.then(43, ("stand still", "lease", "", 40.0))
    ended = replay(history)
    assert ended.outcome == "complete"
    assert "lose continuation" in ended.effects


def test_a_corrupt_checkpoint_is_skipped():
    history = History(SAVING, 1, "fifo")
    world = Simulation(SAVING, 1, "fifo")
    while len(world.sealed) < 2:
        assert world.step()
    for name in SAVING.at_start:
        history = history.then(world.events if not history.script else 0, ("kill", name, 0))
    history = history.then(0, ("corrupt",))
    for name in ("b0", "b1", "b2", "b3"):
        history = history.then(0, ("start", name))
    ended = replay(history)
    assert ended.outcome == "restored"
    assert ended.sealed.effects["file wrong"]
    assert None not in ended.sealed.values()  # the fork has ruled it out, so it was deleted


def test_new_histories_are_distinct_and_have_a_new_fault_that_had_an_effect():
    met = History(SAVING, 1, "fifo").then(150, ("folder away", False))
    unmet = History(SMALL, 1, "fifo").then(50, ("folder away", False))  # it writes no files
    suspended = History(SMALL, 1, "fifo").then(50, ("suspend",))
    tally = Tally()
    for family, history in (
        ("folders", met), ("folders", met), ("folders", unmet),
        ("suspensions", suspended), ("fuzz", suspended),
    ):  # fmt: skip
        world = Simulation(history.job, history.seed, history.policy)
        for gap, fault in history.script:
            advance(world, gap)
            apply(world, fault)
        tally.run(iter([(history, world)]), history, until=inf, family=family)
    assert tally.effects == {"folder away": 2, "suspend": 2}
    assert tally.cases == 5
    assert len(tally.new) == 2
    assert not tally.violations


@pytest.mark.parametrize(
    ("pipelines", "chunks", "most"), [(1, 1, 2.0), (2, 2, 2.5), (4, 4, 2.75), (1, 2, 3.0)]
)
def test_gradient_buffers_of_an_undisturbed_step(pipelines, chunks, most):
    assert most_gradients(BatchShape(8, 1, chunks), pipelines) == most


def test_a_copy_is_independent():
    world = Simulation(SMALL, 3)
    advance(world, 90)
    copy = world.copy()
    apply(copy, ("kill", "a00", 0))
    assert "a00" in world.nodes
    assert copy.finish() == world.finish() == "complete"
    assert len(copy.nodes) == len(world.nodes) - 1


def test_an_agent_that_thaws_soon_keeps_its_seat_and_loses_it_otherwise():
    frozen = ("freeze", "a01")
    briefly = replay(History(SMALL, 1, "fifo", ((100, frozen), (4, ("thaw", "a01")))))
    assert briefly.outcome == "complete"
    assert set(briefly.plan.live) == set(SMALL.at_start)
    for_long = replay(History(SMALL, 1, "fifo", ((100, frozen), (300, ("thaw", "a01")))))
    assert for_long.outcome == "complete"
    assert for_long.now > briefly.now
    assert "a01" not in for_long.plan.live
    never = replay(History(SMALL, 1, "fifo", ((100, frozen),)))
    assert never.outcome == "complete"
    assert "a01" not in never.plan.live


def test_a_frozen_agent_can_die_with_and_without_its_messages():
    for fate in (0, 1):
        script = ((100, ("freeze", "a01")), (5, ("kill", "a01", fate)))
        world = replay(History(SMALL, 1, "fifo", script))
        assert world.outcome == "complete"
        assert not world.network.held
        assert not world.network.frozen


def test_a_judged_history_cannot_continue():
    at = History(SMALL, 3), Simulation(SMALL, 3)
    at[1].finish()
    with pytest.raises(AssertionError, match="has been judged"):
        inject(at, 0, ("kill", "a00", 0))


@pytest.mark.parametrize(
    "after", [50, 90, *in_turn(4, [x for x in range(30, 130, 4) if x not in (50, 90)])]
)
def test_a_session_that_is_broken_in_one_direction_holds_nothing_up(after):
    """The agent's heartbeats arrive, but messages to it do not."""
    outcomes = set()
    for seed in range(4):
        history = History(SMALL, seed, "late").then(after, ("cut", (OPERATOR, "a03")))
        outcomes.add(replay(history).outcome)
    assert outcomes <= {"complete", "restored"}

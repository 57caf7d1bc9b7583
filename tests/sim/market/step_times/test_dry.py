"""A step of a state agrees with the planner and with arithmetic, and what is no state has none."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.market.step_times.small import LAYER, job, model

from bamboo_core.api.spec import (
    Adjacency,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    PlacementSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.planning.displays import between_steps
from bamboo_sim.market.step_times.dry import Job, fits, has_copies, step_s
from bamboo_sim.market.step_times.models import GPT2_P3, PAPER, ModelProfile
from bamboo_sim.market.step_times.networks import Network

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
Holes = frozenset[tuple[int, int]]


def planned_s(asked: Job, pipelines: int, stages: int, holes: Holes) -> float:
    """The step of the production planner, run dry over the same network without latency."""
    profile = asked.model
    spec = JobSpec(
        model=ModelSpec("model:make"),
        data=DataSpec("data:make"),
        training=TrainingSpec(1000, profile.microbatches, 1, OptimizerSpec("optim:make")),
        pipelines=PipelinesSpec(pipelines, stages),
        worker=WorkerSpec("image"),
        redundancy=RedundancySpec(asked.mode),
        placement=PlacementSpec(Adjacency.CLUSTER),
        transport=TransportSpec(bandwidth_gbps=asked.network.gbps),
    )
    seats = tuple(
        tuple(None if (d, s) in holes else AgentId(f"{d}-{s}") for s in range(stages))
        for d in range(pipelines)
    )
    layers = profile.stages(stages)
    cut = tuple((s, s + 1) for s in range(stages))
    request = between_steps.request(spec, layers, cut, seats, memory_bytes=profile.memory_bytes)
    request = replace(request, batch=profile.batch)
    answer = between_steps.later(planner.compute(request))
    assert answer is not None
    assert answer[0].plan.pipelines == seats
    return between_steps.length(request, answer)


SILENT = replace(LAYER, output_bytes=0)


@pytest.mark.parametrize("gbps", [5.0, 100.0])
@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize(
    ("pipelines", "holes"),
    [
        (1, ()),
        (2, ()),
        (3, ()),
        (3, ((0, 0),)),
        (3, ((1, 2), (2, 2))),
        (2, ((0, 1), (1, 3))),
        (3, ((0, 0), (0, 1), (1, 2))),
    ],
)
@pytest.mark.parametrize("memory_bytes", [0, 10**12])
def test_a_step_takes_as_long_as_the_planner_says(
    pipelines: int,
    holes: tuple[tuple[int, int], ...],
    mode: RedundancyMode,
    gbps: float,
    memory_bytes: int,
) -> None:
    """12 micro-batches on 3 pipelines, so also on fewer than the job has, and on odd shares."""
    profile = ModelProfile("silent", (SILENT,) * 4, 12, 1, 3, memory_bytes)
    asked = Job(profile, mode, Network(gbps, 0.0))
    found = step_s(asked, pipelines, 4, frozenset(holes))
    assert found is not None
    assert found == pytest.approx(planned_s(asked, pipelines, 4, frozenset(holes)), rel=0.02)


def test_one_stage_alone_computes_its_batch_and_sends_nothing() -> None:
    asked = job(mode=NONE, profile=model(layers=1, microbatches=6))
    assert step_s(asked, 1, 1, frozenset()) == pytest.approx(6 * 0.030)


def test_time_of_a_stage_comes_on_top_of_its_layers() -> None:
    asked = job(mode=NONE, profile=model(layers=1, microbatches=6, stage_s=0.003))
    assert step_s(asked, 1, 1, frozenset()) == pytest.approx(6 * 0.033)


def test_an_output_and_a_latency_are_waited_for() -> None:
    """One micro-batch through two stages: its output and its gradient, 1 MB each over 1 GB/s."""
    whole = (replace(LAYER, can_split=False),) * 2
    once = job(mode=NONE, gbps=8.0, profile=ModelProfile("two", whole, 1, 1, 1))
    assert step_s(once, 1, 2, frozenset()) == pytest.approx(2 * 0.030 + 2 * 0.001)
    later = replace(once, network=Network(8.0, 0.1))
    least_s = 2 * 0.030 + 2 * 0.001 + 2 * 0.1
    found = step_s(later, 1, 2, frozenset())
    assert found is not None
    assert least_s <= found <= least_s + 2 * 0.1  # votes travel, too


@pytest.mark.parametrize("mode", [NONE, REPLICA, EAGER])
def test_exactly_the_patterns_without_a_copy_have_no_time(mode: RedundancyMode) -> None:
    """All patterns of 2 pipelines of 3 stages. Copies of a stage are in the seat before it."""
    seats = [(d, s) for d in range(2) for s in range(3)]
    asked = job(mode=mode, profile=model(layers=3, microbatches=4, pipelines=2))
    found = 0
    for count in range(len(seats) + 1):
        for holes in map(frozenset[tuple[int, int]], combinations(seats, count)):
            held = {s for d, s in seats if (d, s) not in holes}
            if mode.keeps_copies:
                held |= {(s + 1) % 3 for d, s in seats if (d, s) not in holes}
            assert has_copies(mode, 2, 3, holes) is (len(held) == 3)
            assert (step_s(asked, 2, 3, holes) is None) is (len(held) < 3)
            found += len(held) == 3
    assert 0 < found < 64


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_step_is_shorter_than_its_work(data: st.DataObject) -> None:
    """The mean over all agents of what is to be computed bounds every way to share it."""
    pipelines = data.draw(st.integers(1, 3))
    seats = st.tuples(st.integers(0, pipelines - 1), st.integers(0, 2))
    holes = data.draw(st.frozensets(seats, max_size=3))
    gbps = data.draw(st.sampled_from([1.0, 10.0, 100.0]))
    asked = job(gbps=gbps, profile=model(layers=3))
    found = step_s(asked, pipelines, 3, holes)
    live = pipelines * 3 - len(holes)
    if found is not None:
        assert found >= 12 * 3 * 0.030 / live * (1 - 1e-9)


def test_a_faster_network_makes_no_step_longer_than_by_a_little() -> None:
    """Other ways are taken then, by estimates."""
    holes = frozenset({(0, 1), (2, 3)})
    times = [step_s(job(gbps=x), 3, 4, holes) or 0.0 for x in (1.0, 10.0, 100.0)]
    assert times[0] > times[1] * 0.99 > times[2] * 0.98 > 0


def test_a_device_that_is_too_small_for_copies_fits_the_mode_without() -> None:
    """By the planner's estimate, of which the smallest device that fits is searched here."""
    kept = {
        mode: next(
            n
            for n in range(1, 10**4)
            if fits(job(mode=mode, profile=model(memory_bytes=n * 10**6)), 3, 4)
        )
        for mode in (NONE, REPLICA)
    }
    assert kept[NONE] < kept[REPLICA]
    short = model(memory_bytes=kept[NONE] * 10**6)
    assert step_s(job(mode=REPLICA, profile=short), 3, 4, frozenset()) is None
    assert step_s(job(mode=NONE, profile=short), 3, 4, frozenset()) is not None


def test_fewer_layers_than_stages_do_not_fit() -> None:
    assert step_s(job(), 2, 5, frozenset()) is None


def test_what_is_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match=r"pipelines is 4, and small has 1 to 3; raise model"):
        step_s(job(), 4, 4, frozenset())
    with pytest.raises(ValueError, match="stages is 0; give 1 or more"):
        step_s(job(), 1, 0, frozenset())
    with pytest.raises(ValueError, match=r"hole \(1, 4\) is no seat of 2 pipelines of 4 stages"):
        step_s(job(), 2, 4, frozenset({(1, 4)}))
    with pytest.raises(ValueError, match=r"network\.gbps is 0; give"):
        Network(0)
    with pytest.raises(ValueError, match=r"network\.latency_s is -1; give"):
        Network(10, -1)
    with pytest.raises(ValueError, match=r"model\.layers is empty; give"):
        ModelProfile("none", (), 1, 1, 1)
    with pytest.raises(ValueError, match=r"model\.samples_each is 0; give 1 or more"):
        ModelProfile("none", (LAYER,), 1, 0, 1)
    with pytest.raises(ValueError, match=r"model\.stage_s is -1; give 0 or more"):
        ModelProfile("none", (LAYER,), 1, 1, 1, stage_s=-1)
    with pytest.raises(ValueError, match="fewer than 3 pipelines"):
        ModelProfile("none", (LAYER,), 2, 1, 3)


@pytest.mark.parametrize("name", [*PAPER])
def test_the_models_of_the_paper_keep_their_layers_in_any_cut(name: str) -> None:
    profile = PAPER[name]
    for stages in range(1, 7):
        cut = profile.stages(stages)
        assert len(cut) == stages
        for field in ("forward_s", "backward_s", "parameter_bytes", "activation_bytes"):
            whole = sum(getattr(x, field) for x in profile.layers)
            assert sum(getattr(x, field) for x in cut) == pytest.approx(whole)


MEASURED = {(4, 8): 43.5, (2, 16): 41.4, (4, 7): 40.3, (2, 8): 29.5, (1, 16): 25.2, (1, 8): 17.3}
"""Samples per second that Parcae published, by pipelines and stages."""


@pytest.mark.parametrize(("pipelines", "stages"), [(1, 8), (2, 8), (4, 7), (4, 8)])
def test_gpt2_is_as_fast_as_was_published(pipelines: int, stages: int) -> None:
    """1F1B, as there: halves of backwards are not apart. The calibration says at most 10 %."""
    fused = replace(GPT2_P3, layers=tuple(replace(x, can_split=False) for x in GPT2_P3.layers))
    found = step_s(Job(fused, NONE, Network(10.0)), pipelines, stages, frozenset())
    assert found is not None
    assert GPT2_P3.samples / found == pytest.approx(MEASURED[pipelines, stages], rel=0.10)

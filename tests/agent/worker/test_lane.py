"""When a real worker computes ahead."""

from dataclasses import replace
from select import select

import pytest
from tests.agent.worker.test_disputes import FIRST, SECOND, plan
from tests.agent.worker.test_losses import assert_exact

from bamboo_agent.compute.checks import CorruptionError
from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Progress
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt


def test_what_comes_during_a_slice_goes_before_the_next_slice():
    """The others go on only while the last stage runs a slice, until they wait for it."""
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=2),
        redundancy=RedundancySpec(RedundancyMode.EAGER),
    )
    fleet = InProcessFleet(job, plans.names(2))
    decided = plan(fleet, FIRST)
    name = decided.pipelines[0][-1]
    worker = fleet.workers[name]
    do, begin = worker._do, worker._begin
    came, late = [], []

    def run(task):
        if task.op is Op.R:
            while fleet.turn(but={name}):
                pass
            came.append(_has_mail(worker))
        return do(task)

    def begun(task):
        late.append(task.op is Op.R and _has_mail(worker))
        begin(task)

    worker._do, worker._begin = run, begun
    while len(came) < 20:
        fleet.turn()
        while worker.turn():
            pass
    fleet.close()
    assert any(came)
    assert not any(late)


def _has_mail(worker):
    return bool(select([worker._transport], [], [], 0)[0])


def ring(stages=3):
    """A pipeline in mode Eager whose workers read their own samples, and what each has read."""
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=stages),
        redundancy=RedundancySpec(RedundancyMode.EAGER),
    )
    fleet, read = InProcessFleet(job, plans.names(stages)), {}
    for name, worker in fleet.workers.items():
        setup = worker.backend._setup
        worker.backend._setup = replace(setup, data=OwnData(setup.data, read.setdefault(name, [])))
    return fleet, read


class OwnData:
    """A worker's own samples. read: where it notes what it reads."""

    def __init__(self, data, read):
        self._data, self._read, self._here = data, read, set()

    def __getattr__(self, name):
        return getattr(self._data, name)

    def has(self, step, microbatch):
        return (step, microbatch) in self._here

    def training(self, step, microbatch):
        if not self.has(step, microbatch):
            self._here.add((step, microbatch))
            self._read.append((step, microbatch))
        return self._data.training(step, microbatch)


def watch(worker, note):
    """Call ``note`` with each instruction that the worker's back end runs."""
    run = worker.backend.run
    worker.backend.run = lambda task: note(task) or run(task)


def test_a_slice_reads_only_samples_that_the_program_reads_too():
    """The second of three computes the last stage ahead, but for the loss."""
    fleet, read = ring()
    ran = {name: [] for name in fleet.workers}
    for name, worker in fleet.workers.items():
        watch(worker, ran[name].append)
    first, second, last = plan(fleet, FIRST).pipelines[0]
    fleet.run_to_end(FIRST)
    fleet.close()
    layers = fleet.layers
    ahead = {name: {x.ranges[0] for x in ran[name] if x.op is Op.R} for name in ran}
    assert (layers - 2, layers - 1) in ahead[second]
    assert (layers - 1, layers) not in ahead[second]
    assert not read[second]
    assert (0, 1) in ahead[last]
    assert read[first]
    assert read[last]
    assert_exact(fleet)


def test_a_failed_slice_costs_nothing_but_itself():
    """Also if the agent then takes over the stage of which it has lost forwards."""
    fleet, _ = ring()
    failed = []

    def fail(task):
        if task.op is Op.R and len(failed) < 3 and task.ranges[0][0] > task.lo:
            failed.append(task)
            raise MemoryError("CUDA out of memory")

    decided = plan(fleet, FIRST)
    name, victim = decided.pipelines[0][:2]
    watch(fleet.workers[name], fail)
    fleet.wait(lambda: len(failed) == 3)
    fleet.kill(victim)
    plan(fleet, SECOND, before=decided)
    fleet.run_to_end(SECOND)
    fleet.close()
    figures = [m.ahead for a, m in fleet.messages if a == name and isinstance(m, Progress)]
    assert figures[-1].failed == 3
    assert figures[-1].slices >= 3
    assert_exact(fleet)


def test_wrong_bits_in_a_slice_are_no_failure_to_be_left_out():
    fleet, _ = ring()
    name = sorted(fleet.workers)[0]

    def fail(task):
        if task.op is Op.R:
            raise CorruptionError("two results")

    watch(fleet.workers[name], fail)
    plan(fleet, FIRST)
    with pytest.raises(CorruptionError):
        fleet.run_to_end(FIRST)
    fleet.close()

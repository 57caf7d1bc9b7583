"""When a real worker computes ahead."""

import time
from dataclasses import replace
from select import select

import pytest
from tests.agent.worker.test_disputes import FIRST, SECOND, plan
from tests.agent.worker.test_losses import assert_exact

from bamboo_agent.compute.checks import CorruptionError
from bamboo_agent.worker import event_log
from bamboo_agent.worker.shell import TaskError, Worker
from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.program import Op
from bamboo_core.protocol.execution.lane import Patience
from bamboo_core.protocol.messages import Progress, Stop
from bamboo_sim.fleet.logs.replay import divergence
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
    """A pipeline in mode Eager."""
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=stages),
        redundancy=RedundancySpec(RedundancyMode.EAGER),
    )
    return InProcessFleet(job, plans.names(stages))


class Unreadable:
    """Samples of a storage that this worker cannot read."""

    def __init__(self, data):
        self._data = data

    def __getattr__(self, name):
        return getattr(self._data, name)

    def part(self, part, step, microbatch):
        raise OSError(f"sample of step {step}, micro-batch {microbatch}: I/O error")


def watch(worker, note):
    """Call ``note`` with each instruction that the worker's back end runs."""
    run = worker.backend.run
    worker.backend.run = lambda task: note(task) or run(task)


def test_all_stages_are_computed_ahead_the_loss_included():
    fleet = ring()
    ran = {name: set() for name in fleet.workers}
    for name, worker in fleet.workers.items():
        watch(worker, ran[name].add)
    first, second, last = plan(fleet, FIRST).pipelines[0]
    fleet.run_to_end(FIRST)
    fleet.close()
    ahead = {name: {x.ranges[0] for x in ran[name] if x.op is Op.R} for name in ran}
    assert ahead[first]
    assert (fleet.layers - 1, fleet.layers) in ahead[second]
    assert (0, 1) in ahead[last]
    assert_exact(fleet)


def test_a_worker_with_a_clock_learns_its_waits_first_and_its_log_replays(tmp_path, monkeypatch):
    monkeypatch.setenv(event_log.VARIABLE, str(tmp_path))
    fleet = ring()
    for worker in fleet.workers.values():
        worker.executor.patience = Patience()
    ran = []
    for worker in fleet.workers.values():
        watch(worker, ran.append)
    plan(fleet, FIRST)
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_exact(fleet)
    assert 0 not in {x.step for x in ran if x.op is Op.R}
    logs = sorted(tmp_path.glob("*.jsonl"))
    assert len(logs) == 3
    for path in logs:
        assert divergence(path.read_text().splitlines()) is None


def test_a_worker_has_a_clock():
    fleet = ring(stages=2)
    worker = fleet.workers[sorted(fleet.workers)[0]]
    made = Worker(
        setup=worker.backend.state.setup,
        spec=fleet.job,
        transport=worker._transport,
        checkpoints=None,
        send=lambda message: None,
    )
    assert isinstance(made.executor.patience, Patience)
    before = time.monotonic()
    made.stop(Stop(FIRST))
    assert before <= made.executor.now <= time.monotonic()
    fleet.close()


def test_a_sample_that_only_a_slice_reads_costs_no_agent():
    fleet = ring()
    second = plan(fleet, FIRST).pipelines[0][1]
    state = fleet.workers[second].backend.state
    state.setup = replace(state.setup, data=Unreadable(state.setup.data))
    fleet.run_to_end(FIRST)
    fleet.close()
    figures = [m.ahead for a, m in fleet.messages if a == second and isinstance(m, Progress)]
    assert figures[-1].failed > 0
    assert_exact(fleet)


def test_a_failed_slice_costs_nothing_but_itself():
    """Also if the agent then takes over the stage of which it has lost forwards."""
    fleet = ring()
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
    fleet = ring()
    name = sorted(fleet.workers)[0]

    def fail(task):
        if task.op is Op.R:
            raise CorruptionError("two results")

    watch(fleet.workers[name], fail)
    plan(fleet, FIRST)
    with pytest.raises(CorruptionError):
        fleet.run_to_end(FIRST)
    fleet.close()


def test_a_forward_that_ends_the_process_fails_its_instruction():
    """sys.exit(0) in users' code must not look like the end of the job."""
    fleet = ring()
    name = sorted(fleet.workers)[0]

    def leave(task):
        if task.op is Op.F:
            raise SystemExit(0)

    watch(fleet.workers[name], leave)
    plan(fleet, FIRST)
    with pytest.raises(TaskError, match=r": SystemExit: 0$"):
        fleet.run_to_end(FIRST)
    fleet.close()

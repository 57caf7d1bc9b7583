"""Real tensors on devices that complete instructions some time after their issue."""

from __future__ import annotations

import functools
import json
import traceback
from pathlib import Path

import pytest
import torch
from tests.agent.worker.test_losses import assert_exact, lose, plan
from tests.rotation import in_turn
from torch.utils._python_dispatch import TorchDispatchMode

from bamboo_agent.ipc.activity import ActivityWriter
from bamboo_agent.worker import event_log
from bamboo_agent.worker.given import Given
from bamboo_agent.worker.shell import TaskError
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import Fence
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.protocol.execution.issued import ON_DEVICE
from bamboo_core.protocol.messages import Progress
from bamboo_sim.fleet.logs.replay import divergence
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.late_streams import BrokenStream, LateStream

FIRST = Fence(0, 1, 1)
NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER


def late(count, *, ahead, computes_late, seed=0):
    """The devices of so many agents."""
    return {
        name: LateStream(f"{seed} {name}", ahead=ahead, most=3, computes_late=computes_late)
        for name in plans.names(count)
    }


GRIDS = [((2, 2), NONE), ((1, 3), REPLICA), ((1, 3), EAGER), ((2, 2), EAGER)]
CASES = [(grid, mode, turns) for grid, mode in GRIDS for turns in (7, 19, 33, 55, 88, 120)]


@pytest.mark.parametrize(
    ("grid", "mode", "turns"),
    [((2, 2), NONE, 41), ((1, 3), REPLICA, 70), ((1, 3), EAGER, 60), *in_turn(6, CASES)],
)
@pytest.mark.parametrize("computes_late", [False, True])
def test_late_completions_and_a_loss_change_no_bit(grid, mode, turns, computes_late):
    streams = late(grid[0] * grid[1], ahead=2 + turns % 2, computes_late=computes_late, seed=turns)
    fleet = lose(grid, mode, victims=[turns % 4 % len(streams)], turns=[turns], streams=streams)
    assert_exact(fleet)
    assert sum(stream.late for stream in streams.values()) > 100


def one_stage(stream):
    """A fleet of one worker that has a plan."""
    fleet = InProcessFleet(tiny_gpt(), plans.names(1), lambda _: stream)
    plan(fleet, FIRST, grid=(1, 1), redundancy=NONE)
    return fleet, fleet.workers[plans.names(1)[0]]


def test_a_device_is_given_as_much_as_it_takes_and_logs_replay(tmp_path, monkeypatch):
    monkeypatch.setenv(event_log.VARIABLE, str(tmp_path))
    stream = LateStream("log", ahead=3, most=5, computes_late=True)
    given, give = [], stream.give
    stream.give = lambda work: given.append(len(stream._tasks)) or give(work)
    fleet, worker = one_stage(stream)
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_exact(fleet)
    assert max(given) == 2  # the third is given while it has two
    (log,) = tmp_path.glob("*.jsonl")
    lines = log.read_text().splitlines()
    assert json.loads(lines[0])["ahead"] == 3
    assert sum("issued" in json.loads(line) for line in lines) == len(given)
    assert divergence(lines) is None
    ran = sum(m.busy_s for _, m in fleet.messages if isinstance(m, Progress))
    assert 0 < worker.longest_s <= ran


def test_nothing_but_what_the_device_computes_is_issued_ahead():
    stream = LateStream("others", ahead=2, most=5, computes_late=True)
    fleet, worker = one_stage(stream)
    do = worker._do

    def watched(task):
        if task.op not in ON_DEVICE:
            assert not stream._tasks, f"{task} is performed while the device is busy"
            ran.add(task.op)
        return do(task)

    ran: set[Op] = set()
    worker._do = watched
    fleet.run_to_end(FIRST)
    fleet.close()
    assert ran >= {Op.INIT, Op.VOTE, Op.COMMIT}


def test_a_stop_is_answered_once_the_device_has_done_what_it_was_given():
    stream = LateStream("stop", ahead=3, most=9, computes_late=True)
    fleet, worker = one_stage(stream)
    while len(stream._tasks) < 2:
        fleet.turn()
    reports = fleet.stop(Fence(0, 1, 2))
    assert not stream._tasks
    report = reports[plans.names(1)[0]]
    assert report.items <= worker.backend.store.keys() | set(worker.executor.held)
    assert all(worker.backend.layers[x].version == v for x, v in report.versions.items())
    fleet.close()


def test_a_device_that_fails_ends_the_worker_and_the_instruction_is_named():
    fleet, _ = one_stage(BrokenStream("broken", ahead=2, after=5))
    with pytest.raises(TaskError, match=r"^[A-Z]+\[.*: device error: an illegal memory access"):
        fleet.run_to_end(FIRST)
    fleet.close()


def test_what_was_given_before_an_instruction_that_fails_counts():
    stream = LateStream("before", ahead=3, most=10**6, computes_late=False)
    fleet, worker = one_stage(stream)
    run, made = worker.backend.run, []

    def failing(task):
        if task.op in COMPUTE and len(stream._tasks) == 2:
            raise ValueError("the user's mistake")
        made.append(task)
        return run(task)

    worker.backend.run, completed = failing, []

    def turn():
        completed.append(worker.executor.completed)
        return fleet.turn()

    with pytest.raises(TaskError, match="the user's mistake"):
        fleet.wait(lambda: not turn())
    assert not stream._tasks
    assert worker.executor.completed == completed[-1] + 2
    fleet.close()


class Shown(ActivityWriter):
    """What the supervisor would see."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def run(self, instruction: Instruction) -> None:
        self.running.append(instruction.index)

    def issue(self, instruction: Instruction) -> None:
        assert instruction.op is Op.F

    def ran(self, elapsed_s: float) -> None:
        assert elapsed_s >= 0


class NoMeter:
    """Counts nothing."""

    def add(self, instruction: Instruction, elapsed_s: float) -> None:
        """Nothing."""


def test_the_supervisor_sees_the_oldest_instruction():
    shown, stream = Shown(), LateStream("seen", ahead=3, most=0, computes_late=True)
    given = Given(stream, NoMeter(), shown)
    for index in range(3):
        given.begin(Instruction(Op.F, index=index))
        given.issue(lambda: None)
    assert shown.running == [0]
    assert given.end_first(wait=True)
    assert shown.running == [0, 1]
    assert given.first().index == 1


ON_THE_HOST = {
    "optim.py:update",  # torch counts the steps of Adam on the host
    "targets.py:_equal",  # samples are looked at before they are copied
}


class Read(TorchDispatchMode):
    """Notes where values are copied to the host: on a GPU, Python would wait there."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            frames = [x for x in traceback.extract_stack() if "bamboo_agent" in x.filename]
            self.places.add(f"{Path(frames[-1].filename).name}:{frames[-1].name}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [NONE, REPLICA, EAGER])
def test_no_instruction_of_the_device_reads_a_value(mode):
    grid = (1, 1) if mode is NONE else (1, 2)
    fleet = InProcessFleet(tiny_gpt(), plans.names(grid[0] * grid[1]))
    read, ran = Read(), set()
    for worker in fleet.workers.values():
        worker._do = functools.partial(_noted, worker._do, read, ran)
    plan(fleet, FIRST, grid=grid, redundancy=mode)
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_exact(fleet)
    assert read.places <= ON_THE_HOST
    assert ran >= {Op.F, Op.B, Op.FOLD, Op.SLICE, Op.REDUCE, Op.UPDATE, Op.V}


def _noted(do, read, ran, task):
    if task.op not in ON_DEVICE:
        return do(task)
    ran.add(task.op)
    with read:
        return do(task)

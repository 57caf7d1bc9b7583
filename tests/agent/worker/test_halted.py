"""The user's code fails in mid-job: the worker keeps its state, and goes on with another plan."""

import errno
from dataclasses import replace

import pytest
import torch
from tests.agent.worker.test_disputes import FIRST, SECOND, plan
from tests.agent.worker.test_losses import assert_exact

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer
from bamboo_agent.data.batches import SampleError
from bamboo_agent.device.completions import HostStream
from bamboo_agent.losses.forms import LossError
from bamboo_agent.worker import failures
from bamboo_agent.worker.shell import TaskError
from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.program import Op
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Halted, LayerCost
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.late_streams import LateStream

TEXT = "m:f, sample 7, of micro-batch 2 of step 1: KeyError: 'text'"
STEP = {Op.F: 1, Op.V: 3}


def late():
    """A device that says later that it has done what it did at once, as a GPU's errors come."""
    return LateStream("halted", ahead=2, most=4, computes_late=False)


def grid(*, mode=RedundancyMode.NONE, stream=HostStream, stages=2):
    job = plans.grid_of(tiny_gpt(), pipelines=1, stages=stages)
    job = replace(job, redundancy=RedundancySpec(mode))
    return InProcessFleet(job, plans.names(stages), stream=lambda _: stream())


def fail(fleet, agent, is_it, error, *, times=1):
    """The agent's next forwards of this kind raise the error, after they have read and computed."""
    passes, left = fleet.workers[agent].backend.passes, [error] * times
    run = passes._run

    def raising(layers, task, *rest, **more):
        made = run(layers, task, *rest, **more)
        if left and task.step == STEP.get(task.op) and is_it(task):
            raise left.pop()
        return made

    passes._run = raising
    return left


def begun(fleet, agent):
    """The agent's worker, once it has its layers."""
    worker = fleet.workers[agent]
    fleet.wait(lambda: bool(worker.backend.layers))
    return worker


def halted(fleet):
    return [(a, m) for a, m in fleet.messages if isinstance(m, Halted)]


@pytest.mark.parametrize("stream", [HostStream, late])
@pytest.mark.parametrize(
    "mode", [RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER]
)
@pytest.mark.parametrize("op", [Op.F, Op.V])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_worker_goes_on_with_another_plan_and_equal_bits(stage, op, mode, stream):
    fleet = grid(mode=mode, stream=stream)
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][stage]
    left = fail(fleet, agent, lambda task: task.op is op, SampleError(TEXT))
    fleet.wait(lambda: bool(halted(fleet)))
    assert halted(fleet) == [(agent, Halted(FIRST, TEXT))]
    assert not left
    while fleet.turn():
        pass
    assert fleet.workers[agent].executor.is_over
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert len(halted(fleet)) == 1
    assert_exact(fleet)


def test_each_plan_tells_it_again():
    fleet = grid()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][1]
    fail(fleet, agent, lambda task: task.op is Op.F, LossError(TEXT), times=2)
    fleet.wait(lambda: bool(halted(fleet)))
    plan(fleet, SECOND, before=before)
    fleet.wait(lambda: len(halted(fleet)) == 2)
    fleet.close()
    assert [message.fence for _, message in halted(fleet)] == [FIRST, SECOND]


def caused_by(cause):
    error = SampleError(TEXT)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/7.png"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError("image file is truncated (3 bytes not processed)"),
        type("UnidentifiedImageError", (OSError,), {})("cannot identify image file"),
        type("FileNotFoundError", (OSError,), {})("[Errno 2] from a reading process"),
    ],
    ids=repr,
)
def test_a_file_of_a_sample_that_is_not_there_or_damaged_keeps_the_state(cause):
    fleet = grid()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][0]
    fail(fleet, agent, lambda task: task.op is Op.F, caused_by(cause))
    fleet.wait(lambda: bool(halted(fleet)))
    assert halted(fleet) == [(agent, Halted(FIRST, TEXT))]
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


OF_NODE = [
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    type("OSError", (OSError,), {})("[Errno 5] from a reading process"),
    ConnectionResetError("reset by peer"),
    TimeoutError("timed out"),
    MemoryError(),
]


@pytest.mark.parametrize(
    "error", [*map(caused_by, OF_NODE), RuntimeError("x"), MemoryError()], ids=repr
)
def test_other_errors_end_the_worker_as_before(error):
    """They may be the node's fault, and its memory's."""
    fleet = grid()
    agent = plan(fleet, FIRST).pipelines[0][0]
    fail(fleet, agent, lambda task: task.op is Op.F, error)
    with pytest.raises(TaskError) as found:
        fleet.run_to_end(FIRST)
    fleet.close()
    assert not halted(fleet)
    is_code = str(error) == "x"
    assert found.value.place.startswith("F[") == is_code == bool(found.value.place)


HALVES = {"backward": Op.B, "backward_input": Op.I, "backward_weight": Op.W}
SPLIT = LayerCost(1.0, 2.0, 1, 1, 1.0, 1.0, can_split=True)


@pytest.mark.parametrize("stream", [HostStream, late])
@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.EAGER])
@pytest.mark.parametrize("half", HALVES)
def test_a_backward_that_fails_half_way_leaves_no_wrong_sum(half, mode, stream, monkeypatch):
    stages, op = (2, Op.B) if half == "backward" else (4, HALVES[half])
    fleet = grid(mode=mode, stream=stream, stages=stages)
    costs = () if op is Op.B else (SPLIT,) * fleet.layers
    before = plan(fleet, FIRST, costs=costs)
    running, met = [], []
    for agent, worker in fleet.workers.items():

        def perform(task, agent=agent, run=worker.backend._perform[op]):
            running.append((agent, task))
            run(task)
            running.pop()

        worker.backend._perform[op] = perform
    run_half = getattr(stage, half)

    def raising(*arguments):
        found = run_half(*arguments)
        agent, task = running[-1] if running else (None, None)
        if task is None or met or task.step != 1 or task.index % 2 == 0:
            return found
        met.append((agent, task))
        for parameter in fleet.workers[agent].backend.state.summed(task.lo, task.hi):
            if parameter.grad is not None:
                parameter.grad.add_(1.0)  # autograd adds in place to what is there
        raise RuntimeError("77 is out of bounds")

    monkeypatch.setattr(stage, half, raising)
    fleet.wait(lambda: bool(halted(fleet)))
    ((agent, message),), ((guilty, task),) = halted(fleet), met
    assert agent == guilty
    which = f"micro-batch {task.index} of step 1"
    assert message.message == f"{which}, a backward: RuntimeError: 77 is out of bounds"
    plan(fleet, SECOND, before=before, costs=costs)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert len(halted(fleet)) == 1
    assert_exact(fleet)


class Raising(torch.autograd.Function):
    """The identity, whose backward raises the error as long as ``broken`` names a layer."""

    @staticmethod
    def forward(context, value, error, broken):
        context.error, context.broken = error, broken
        return value.view_as(value)

    @staticmethod
    def backward(context, gradient):
        if context.broken:
            raise context.error
        return gradient, None, None


@pytest.mark.parametrize("error", [IndexError("77 is out of bounds"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stage", [0, 1])
def test_an_error_in_a_backward_names_the_layer(stage, last, error, monkeypatch):
    fleet = grid()
    before = plan(fleet, FIRST)
    agent, call = before.pipelines[0][stage], Layer.call
    worker = begun(fleet, agent)
    lo, hi = before.wants[agent][0]
    index = hi - 1 if last else lo
    broken = [worker.backend.layers[index]]

    def broken_call(layer, *arguments):
        made = call(layer, *arguments)
        is_it = layer in broken and worker.executor.step == 1
        return Raising.apply(made, error, broken) if is_it else made

    monkeypatch.setattr(Layer, "call", broken_call)
    fleet.wait(lambda: bool(halted(fleet)))
    ((_, message),) = halted(fleet)
    kind = type(broken.pop().module).__name__
    which = f"micro-batch 0 of step 1, the backward of layer {index}, {kind}"
    assert message.message == f"{which}: {type(error).__name__}: {error}"
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "x"), RuntimeError("CUDA error: x")], ids=repr
)
def test_a_backward_that_meets_a_broken_node_ends_the_worker(error, monkeypatch):
    fleet = grid()
    plan(fleet, FIRST)

    def raising(*arguments):
        raise error

    for half in HALVES:
        monkeypatch.setattr(stage, half, raising)
    with pytest.raises(TaskError) as found:
        fleet.run_to_end(FIRST)
    fleet.close()
    assert not halted(fleet)
    assert not found.value.place


@pytest.mark.parametrize("place", [0, 1])
def test_a_step_without_a_learning_rate_is_not_committed(place):
    fleet = grid()
    before = plan(fleet, FIRST)
    guilty = before.pipelines[0][place]
    worker, (lo, _) = begun(fleet, guilty), before.wants[guilty][0]
    state, left = worker.backend.layers[lo].optimizer_state, [IndexError("list index")]

    def raising(step):
        if step == 2 and left:
            raise left.pop()
        return 1.0

    state._schedule, state._setter = raising, "m:schedule"
    fleet.wait(lambda: bool(halted(fleet)))
    ((agent, message),) = halted(fleet)
    assert agent == guilty
    assert message.message == (
        "spec.training.optimizer.schedule: the function of m:schedule raised IndexError: list index"
        " for step 2; it must give a number from 0 on"
    )
    assert max(worker.executor.commits) == 1
    assert set(worker.executor.versions.values()) == {2}
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


def test_an_error_in_an_update_names_the_layer():
    """Its state may be half changed, so its worker ends."""
    fleet = grid()
    agent = plan(fleet, FIRST).pipelines[0][0]
    layer = begun(fleet, agent).backend.layers[0]

    def raising():
        raise IndexError("77 is out of bounds")

    layer.optimizer.step = raising
    with pytest.raises(TaskError) as found:
        fleet.run_to_end(FIRST)
    fleet.close()
    kind = type(layer.module).__name__
    text = f"the update of step 0 by AdamW for layer 0, {kind}: IndexError: 77 is out of bounds"
    verdict = failures.judge(found.value, ready=True)
    assert (verdict.line, verdict.code) == (text, ExitCode.USER)


def raise_in_layer(fleet, agent, monkeypatch, is_it, error):
    """The agent's next call of such a layer raises: (index of the layer, its class)."""
    met, call = [], Layer.call

    def raising(layer, *arguments):
        worker = fleet.workers[agent]
        index = next((x for x, own in worker.backend.layers.items() if own is layer), None)
        if not met and index is not None and is_it(worker.executor.running, index):
            met.append((index, type(layer.module).__name__))
            raise error
        return call(layer, *arguments)

    monkeypatch.setattr(Layer, "call", raising)
    return met


ERRORS = [IndexError("77 is out of bounds"), SystemExit(3), FileNotFoundError("/masks/7.pt")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(("stage", "op"), [(0, Op.F), (1, Op.F), (1, Op.V)])
def test_an_error_in_a_layer_names_it(monkeypatch, stage, op, error):
    fleet = grid()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][stage]

    def is_it(task, index):
        return task.op is op and task.step == STEP[op] and index == task.hi - 1

    met = raise_in_layer(fleet, agent, monkeypatch, is_it, error)
    fleet.wait(lambda: bool(halted(fleet)))
    ((_, message),), ((index, kind),) = halted(fleet), met
    which = f"{'validation ' if op is Op.V else ''}micro-batch 0 of step {STEP[op]}"
    assert message.message == f"{which}, layer {index}, {kind}: {type(error).__name__}: {error}"
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


def test_an_error_in_the_loss_names_it():
    fleet = grid()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][1]
    state = fleet.workers[agent].backend.state
    model, left = state.setup.model, [IndexError("Target 77 is out of bounds.")]

    def raising(outputs, target):
        if left and fleet.workers[agent].executor.step == STEP[Op.F]:
            raise left.pop()
        return model.loss(outputs, target)

    state.setup = replace(state.setup, model=replace(model, loss=raising))
    fleet.wait(lambda: bool(halted(fleet)))
    ((_, message),) = halted(fleet)
    factories = tiny_gpt().model.factory, tiny_gpt().data.factory
    samples = ", ".join(map(str, state.setup.data.indices(1, 0)))
    assert message.message == (
        f"micro-batch 0 of step 1, the loss of {factories[0]}, with targets 2x16 int64 of"
        f" {factories[1]}, samples {samples}: IndexError: Target 77 is out of bounds"
    )
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "x")], ids=repr)
def test_a_layer_that_meets_a_broken_node_ends_the_worker(monkeypatch, error):
    fleet = grid()
    agent = plan(fleet, FIRST).pipelines[0][0]
    raise_in_layer(fleet, agent, monkeypatch, lambda task, index: True, error)
    with pytest.raises(TaskError):
        fleet.run_to_end(FIRST)
    fleet.close()
    assert not halted(fleet)

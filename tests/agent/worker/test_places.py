"""Where a worker is in the user's code, as its supervisor reads it once the process has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.agent.worker.test_disputes import FIRST, plan

from bamboo_agent.compute.layers import Layer
from bamboo_agent.device.completions import HostStream
from bamboo_agent.ipc import computed
from bamboo_agent.ipc.activity import ActivityWriter, read_place
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.model.program import Instruction, Op
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.late_streams import LateStream

STAGES = 2


def late():
    """A device that still has an older instruction when Python runs the next one, as a GPU."""
    return LateStream("places", ahead=2, most=4, computes_late=False)


class Watched:
    """A fleet, and the place of one of its workers whenever it is in the user's code."""

    def __init__(self, stage, stream, monkeypatch):
        job = plans.grid_of(tiny_gpt(), pipelines=1, stages=STAGES)
        self.fleet = InProcessFleet(job, plans.names(STAGES), stream=lambda _: stream())
        self.shared, self.seen, self.task = SharedProgress.create(), [], None
        self.agent = plan(self.fleet, FIRST).pipelines[0][stage]
        worker = self.fleet.workers[self.agent]
        worker._given._activity = writer = ActivityWriter(self.shared, 30.0)
        self.state = worker.backend.state
        setup = replace(self.state.setup, computed=writer.computed)
        self.state.setup = replace(setup, model=replace(setup.model, loss=self._loss(setup.model)))
        run = worker.backend.run

        def noting(task):
            self.task = task
            return run(task)

        worker.backend.run = noting
        call = Layer.call

        def calling(layer, *arguments):
            if index := [x for x, mine in worker.backend.layers.items() if mine is layer]:
                self._see(f", layer {index[0]} ({type(layer.module).__name__})")
            return call(layer, *arguments)

        monkeypatch.setattr(Layer, "call", calling)

    def _see(self, part):
        words = Instruction(*self.task[:5])  # which are in the memory
        self.seen.append((words.op, f"{words}{part}", read_place(self.shared)))

    def _loss(self, model):
        def loss(*given):
            self._see(", the loss")
            return model.loss(*given)

        return loss

    def run(self):
        self.fleet.run_to_end(FIRST)
        self.fleet.close()
        return self.seen


@pytest.mark.parametrize("stream", [HostStream, late])
@pytest.mark.parametrize("stage", range(STAGES))
def test_a_place_names_the_instruction_and_the_layer_that_python_runs(stage, stream, monkeypatch):
    """Not the instruction that the device computes meanwhile."""
    watched = Watched(stage, stream, monkeypatch)
    seen = watched.run()
    assert [found for _, _, found in seen] == [expected for _, expected, _ in seen]
    assert {op for op, _, _ in seen} == {Op.F, Op.V}
    assert ({found.rpartition(", ")[2] for *_, found in seen} >= {"the loss"}) == (stage == 1)
    assert computed.read(watched.shared.computed) == ""
    assert not watched.shared.issued[0]
    watched.shared.close()

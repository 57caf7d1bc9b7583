"""A data set on a slow storage is no hang of its agent, and its time is no measure of the agent."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from types import ModuleType

import pytest

from bamboo_agent.datasets.text import Windows, read_sources
from bamboo_agent.ipc import activity
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.api.spec import DataSpec, FactorySpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import ActivityKind, Progress
from bamboo_core.protocol.supervisor import Progressed
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

FLOOR_S = 30.0
READ_S = 1000.0
FENCE = Fence(0, 1, 1)
(ALONE,) = plans.names(1)


class Noted(activity.ActivityWriter):
    """Keeps how long each instruction has taken."""

    def __init__(self, shared: SharedProgress, floor_s: float) -> None:
        super().__init__(shared, floor_s)
        self.taken_s: list[float] = []

    def ran(self, elapsed_s: float) -> None:
        super().ran(elapsed_s)
        self.taken_s.append(elapsed_s)


class Storage:
    """What the supervisor sees whenever a sample is read, which takes very long."""

    def __init__(self) -> None:
        self.shared = SharedProgress.create()
        self.seen: list[Progressed] = []
        self.late_s = 0.0

    def read(self) -> None:
        self.late_s += READ_S
        self.seen.append(activity.read(self.shared, {}))


@pytest.fixture
def storage(monkeypatch):
    storage = Storage()

    class Slow(Windows):
        def __init__(self, split):
            super().__init__(read_sources(1600), 16, split)

        def __getitem__(self, index):
            storage.read()
            return super().__getitem__(index)

    made = ModuleType("users_data")
    vars(made).update(slow=Slow)
    monkeypatch.setitem(sys.modules, "users_data", made)
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + storage.late_s)
    yield storage
    storage.shared.close()


def test_an_instruction_that_reads_data_has_longer_and_is_not_measured_by_it(storage):
    validation = FactorySpec("users_data:slow", {"split": "validation"})
    job = replace(tiny_gpt(), data=DataSpec("users_data:slow", {"split": "train"}, validation))
    fleet = InProcessFleet(job, (ALONE,))
    worker = fleet.workers[ALONE]
    worker._given._activity = writer = Noted(storage.shared, FLOOR_S)
    storage.seen.clear()  # of the set-up
    decision = plans.decide(
        plans.grid_of(job, pipelines=1, stages=1),
        fence=FENCE,
        layers=fleet.layers,
        reports=fleet.stop(FENCE),
        batch=BatchShape(reference.G, 2, 4),
        validation_samples=fleet.validation_samples,
    )
    fleet.install(decision)
    fleet.run_to_end(FENCE)
    assert storage.seen
    assert {(x.kind, x.limit_s) for x in storage.seen} == {(ActivityKind.LOADING, 10 * FLOOR_S)}
    fields = {(x.instruction[0], x.instruction.rpartition(" of ")[2]) for x in storage.seen}
    assert fields == {("F", "spec.data"), ("V", "spec.data.validation")}
    assert all(re.search(r" reads sample \d+ of ", x.instruction) for x in storage.seen)
    assert all(0 < taken_s < READ_S for taken_s in writer.taken_s)
    assert worker.longest_s == max(writer.taken_s)
    steps = [m for _, m in fleet.messages if isinstance(m, Progress)]
    assert steps[0].busy_s > READ_S  # its peers wait for it all the same
    (forward,) = {limit for (op, _), limit in writer._limits_ns.items() if op == "F"}
    assert forward < READ_S * 1e9
    fleet.close()


def test_when_the_data_are_read_the_instruction_is_shown_again(storage):
    writer = activity.ActivityWriter(storage.shared, FLOOR_S)
    job = replace(tiny_gpt(), data=DataSpec("users_data:slow", {"split": "train"}))
    fleet = InProcessFleet(job, (ALONE,))
    worker = fleet.workers[ALONE]
    worker._given._activity = writer
    data = worker.backend.state.setup.data
    data.training(2, 3)
    assert activity.read(storage.shared, {}).kind is ActivityKind.RUNNING
    storage.seen.clear()
    worker._given._activity.rest()
    data.training(2, 3)  # still here
    assert not storage.seen
    assert activity.read(storage.shared, {}).kind is ActivityKind.IDLE
    fleet.close()

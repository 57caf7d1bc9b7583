"""An instruction waits for its samples without holding up its worker, which hears a STOP then."""

from __future__ import annotations

import pytest
from tests.agent.worker.test_disputes import FIRST, SECOND, plan
from tests.agent.worker.test_losses import assert_exact

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.needs import Part
from bamboo_agent.ipc import activity
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.worker.feeding import LOOK_S, Feeding
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import ActivityKind, Halted
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

ROOM = 4


class Reader:
    """A loader of this process, which has read something only once it is told to."""

    def __init__(self, data, *, reads):
        self._data, self.reads = data, reads
        self.wanted, self.here, self.taken = [], {}, []
        self.fails = {}  # name -> error

    def fileno(self):
        raise NotImplementedError

    due_in_s, slow = None, None

    def slow_sample(self, need):
        return self.slow if need in self.wanted else None

    @property
    def has_room(self):
        return len(self.wanted) + len(self.here) < ROOM

    def poll(self):
        if not (self.reads and self.wanted):
            return False
        need = self.wanted.pop(0)
        self.here[need] = self._data.made(need.step, need.microbatch)
        return True

    def is_wanted(self, need):
        return need in self.wanted or need in self.here

    def is_here(self, need):
        return need in self.here

    def want(self, need, *, first=False):
        if need in self.wanted:
            self.wanted.remove(need)
        self.wanted.insert(0 if first else len(self.wanted), need)

    def keep_only(self, needs):
        kept = set(needs)
        self.wanted = [need for need in self.wanted if need in kept]
        self.here = {need: made for need, made in self.here.items() if need in kept}

    def forget_before(self, step):
        self.keep_only(n for n in (*self.wanted, *self.here) if n.step is None or n.step >= step)

    def take(self, need):
        found = next((x for x in self.here if x[:2] == need[:2] and x.parts & need.parts), need)
        inputs, targets = self.here.pop(found, None) or self._data.made(need.step, need.microbatch)
        need = found
        self.taken.append(need)
        if error := self.fails.pop((need.step, need.microbatch), None):
            raise error
        both = {Part.INPUT: inputs, Part.TARGET: targets}
        return {part: both[part] for part in need.parts}

    def close(self):
        pass


class Fed(InProcessFleet):
    """Its workers have such readers, which may still have something to do."""

    def __init__(self, stages):
        self.readers = {}
        job = plans.grid_of(tiny_gpt(), pipelines=1, stages=stages)
        super().__init__(job, plans.names(stages))

    def turn(self, but=()):
        return super().turn(but) or any(x.reads and x.wanted for x in self.readers.values())


def fed(*, stages=2, reads=True):
    """A fleet, and the reader of each of its agents."""
    fleet = Fed(stages)
    readers = fleet.readers
    for agent, worker in fleet.workers.items():
        data = worker.backend.state.setup.data
        reader = readers[agent] = Reader(fleet._shared.data.watched(data._reading), reads=reads)
        data._cache = type(data._cache)()  # not that of all workers
        data.read_by(reader)
        worker._feeding = Feeding(reader, data, worker.executor)
    return fleet, readers


def test_stages_read_ahead_in_the_order_of_their_programs_and_only_their_parts():
    fleet, readers = fed()
    first, last = plan(fleet, FIRST).pipelines[0]
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_exact(fleet)
    for agent, part in ((first, Part.INPUT), (last, Part.TARGET)):
        taken = readers[agent].taken
        assert {need.parts for need in taken} == {part}
        training = [need[:2] for need in taken if need.step is not None]
        assert [step for step, _ in training] == sorted(step for step, _ in training)
        assert len(set(training)) == len(training)


def test_one_stage_takes_both_parts_at_once():
    fleet, readers = fed(stages=1)
    (agent,) = fleet.workers
    plan(fleet, FIRST)
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_exact(fleet)
    assert {need.parts for need in readers[agent].taken} == {Part.INPUT | Part.TARGET}


def test_what_is_wanted_is_bounded():
    fleet, readers = fed(reads=False)
    plan(fleet, FIRST)
    while fleet.turn():
        pass
    assert all(0 < len(reader.wanted) <= ROOM for reader in readers.values())
    fleet.close()


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stop_ends_a_wait_for_samples(stage):
    fleet, readers = fed()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][stage]
    fleet.wait(lambda: fleet.workers[agent].executor.step == 1)
    readers[agent].reads = False
    readers[agent].keep_only([])
    while fleet.turn():
        pass
    worker, shared = fleet.workers[agent], SharedProgress.create()
    assert worker._waits_for_data
    assert worker.due_in_s == LOOK_S  # the sample may be slow by then
    for readers[agent].slow, told in ((None, "data"), (17, "sample 17 of spec.data")):
        worker.describe_wait(activity.ActivityWriter(shared, 30.0))
        seen = activity.read(shared, {})
        assert seen.kind is ActivityKind.LOADING
        assert seen.instruction.endswith(f" reads {told}")
    shared.close()
    after = plan(fleet, SECOND, before=before)
    while fleet.turn():
        pass
    assert worker.executor.fence == SECOND
    readers[agent].reads = True
    fleet.run_to_end(SECOND)
    assert worker._feeding.waited_s > 0
    assert worker.due_in_s is None
    fleet.close()
    assert_exact(fleet)
    assert after


def test_an_error_halts_when_its_turn_comes():
    fleet, readers = fed()
    before = plan(fleet, FIRST)
    agent = before.pipelines[0][0]
    readers[agent].fails[1, 2] = SampleError("step 1, micro-batch 2: m:f, sample 7: ValueError: x")
    fleet.wait(lambda: any(isinstance(m, Halted) for _, m in fleet.messages))
    taken = [need.microbatch for need in readers[agent].taken if need.step == 1]
    assert taken[-1] == 2
    assert fleet.workers[agent].executor.running is None
    plan(fleet, SECOND, before=before)
    fleet.run_to_end(SECOND)
    fleet.close()
    assert_exact(fleet)


def test_without_a_loader_nothing_waits():
    fleet = InProcessFleet(plans.grid_of(tiny_gpt(), pipelines=1, stages=1), plans.names(1))
    (worker,) = fleet.workers.values()
    assert not worker._feeding.sources
    assert worker.due_in_s is None
    plan(fleet, FIRST)
    task = worker._pending
    assert task is not None
    assert not worker._waits_for_data
    assert task.op in (Op.INIT, Op.F)
    fleet.close()

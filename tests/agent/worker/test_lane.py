"""When a real worker computes ahead."""

from dataclasses import replace
from select import select

from tests.agent.worker.test_disputes import FIRST, plan

from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.program import Op
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

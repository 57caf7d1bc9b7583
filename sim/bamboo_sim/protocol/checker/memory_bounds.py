"""Upper bounds of what an agent may hold, which every history must respect.

Undisturbed steps (no seat empty, after the target step), per agent of stage s in D pipelines:

- activations: P - s, the cap of in-flight forwards. One that a leaving agent has handed over is
  its inputs alone until its backward begins, so it counts as a boundary tensor;
- forwards computed ahead: as many as the plan allows, or those that its recovery needs;
- boundary tensors: 2M, since an output replaces its input and a gradient its own, and M more that
  an agent one step ahead may send early; and M of what it computes ahead;
- gradient buffers: the sums of its leaves, of which it adds up what it can as soon as it can, and
  the slices that others sent to it for reduction; in the first step, also slices of an agent that
  was one step ahead under the previous plan.

In other steps, activations are capped at P + 8 and one reserved. The rest is bounded only by the
item names of a step, since many leaf sums may arrive before a slow collector folds the first.
"""

from __future__ import annotations

from functools import lru_cache

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape, running
from bamboo_core.placement.plan import Pipeline, Plan
from bamboo_core.protocol.executor import Executor
from bamboo_core.scheduling.sharing.orders import undisturbed
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node

_EXTRA = 8
_ROUNDING = 1e-9
_ACTIVATION, _BOUNDARY, _SUM, _SLICE, _PREFIX = range(5)
_GROUPS = {
    Kind.ACT: _ACTIVATION,
    Kind.OUT: _BOUNDARY,
    Kind.INGRAD: _BOUNDARY,
    Kind.PART: _SUM,
    Kind.SUM: _SUM,
    Kind.PIECE: _SLICE,
    Kind.PREFIX: _PREFIX,
}


def check_memory(node: Node, plan: Plan) -> None:
    """Raise a Violation if the agent holds too much. plan: the newest durable one."""
    executor = node.executor
    counts = [0.0] * 5
    for item, is_received in executor.held.items():
        group = _BOUNDARY if is_received and item[0] is Kind.ACT else _GROUPS.get(item[0])
        if group is not None:
            counts[group] += 1 / item.slices if group == _SLICE else 1
    if counts[_ACTIVATION] > len(plan.cut) + _EXTRA + 1:
        raise Violation(f"{node.name} holds {counts[_ACTIVATION]:g} activations")
    if executor.directive is not None and counts[_PREFIX] > _most_ahead(executor):
        raise Violation(f"{node.name} has computed {counts[_PREFIX]:g} forwards ahead")
    if any(i.kind is Kind.PREFIX and i.step <= executor.ended for i in executor.held):
        raise Violation(f"{node.name} keeps what it computed ahead in an ended step")
    if executor.step > plan.target and plan.fence == executor.fence == executor.installed:
        stages = _stages(plan.pipelines)
        if stages is not None and node.name in stages:
            _check_undisturbed(node, plan, stages[node.name], counts)


def _most_ahead(executor: Executor) -> int:
    """Forwards computed ahead that the plan allows, or that the program needs of an older plan."""
    assert executor.directive is not None
    needed = sum(item in executor._continued for item in executor.held)
    return max(needed, executor.directive.lane_limit)


@lru_cache
def _stages(pipelines: tuple[Pipeline, ...]) -> dict[AgentId, int] | None:
    """Agent -> stage; None if a seat is empty."""
    found = {a: s for pipeline in pipelines for s, a in enumerate(pipeline) if a is not None}
    return found if len(found) == len(pipelines) * len(pipelines[0]) else None


def _check_undisturbed(node: Node, plan: Plan, stage: int, counts: list[float]) -> None:
    batch, pipelines = plan.batch, len(plan.pipelines)
    held = {
        "activations": counts[_ACTIVATION],
        "boundary tensors": counts[_BOUNDARY],
        "gradient buffers": counts[_SUM] + counts[_SLICE],
    }
    rest = node.executor.continuation
    per_pipeline = max(map(len, undisturbed(batch, pipelines))) * batch.leaf_size
    most = {
        "activations": len(plan.cut) - stage,
        "boundary tensors": (4 if rest is not None and rest.lane else 3) * per_pipeline,
        "gradient buffers": most_gradients(batch, pipelines)
        + (_ahead(batch) if node.executor.step == plan.target + 1 else 0),
    }
    for what, count in held.items():
        if count > most[what] + _ROUNDING:
            raise Violation(f"{node.name} holds {count:g} {what}, more than {most[what]:g}")


def _ahead(batch: BatchShape) -> float:
    """Buffers for slices of agents one step ahead, on any grid."""
    return max(_received(batch, d) for d in range(1, batch.leaves + 1))


def most_gradients(batch: BatchShape, pipelines: int) -> float:
    """Most buffers of a stage's size on an agent in an undisturbed step, for any message order."""
    own = max(max(running(batch, leaves)[1]) for leaves in undisturbed(batch, pipelines))
    is_growing = batch.leaf_size > 1  # a leaf that is not done yet
    return own + is_growing + _received(batch, pipelines)


@lru_cache
def _received(batch: BatchShape, pipelines: int) -> float:
    """Buffers for slices of others' sums."""
    sent = [len(running(batch, leaves)[0]) for leaves in undisturbed(batch, pipelines)]
    return (sum(sent) - min(sent)) / pipelines

"""Small plans for tests of the closure and the executor: D x P agents named ``d-s``."""

from __future__ import annotations

from bamboo_core.graph.closure import Goals, Holdings, Periodic
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape


def name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def goals(
    pipelines=2,
    stages=2,
    *,
    microbatches=2,
    leaf_size=1,
    target=1,
    last=9,
    layers_per_stage=1,
    replica=True,
    split=False,
    periodic=None,
    **more,
) -> Goals:
    chunks = 1
    while chunks < pipelines:
        chunks *= 2
    batch = BatchShape(pipelines * microbatches, leaf_size, chunks)
    n = layers_per_stage
    cut = tuple((s * n, s * n + n) for s in range(stages))
    wants = {}
    for d in range(pipelines):
        for s in range(stages):
            wanted = {cut[s], cut[(s + 1) % stages]} if replica else {cut[s]}
            wants[name(d, s)] = tuple(sorted(wanted))
    assignment = {
        (s, leaf): name(leaf * pipelines // batch.leaves, s)
        for s in range(stages)
        for leaf in range(batch.leaves)
    }
    plan = {
        "batch": batch,
        "cut": cut,
        "wants": wants,
        "assignment": assignment,
        "coordinator": name(0, 0),
        "target": target,
        "last": last,
        "split": split,
        "periodic": periodic or Periodic(),
    }
    return Goals(**(plan | more))


def relative(holdings: dict[AgentId, Holdings], target: int) -> dict[AgentId, list[Item]]:
    """Holdings in the form of the dry run: items with steps relative to the target."""
    out = {}
    for agent, held in holdings.items():
        items = [Item.ver(v - target, x) for x, v in held.versions.items()]
        items += [i._replace(step=i.step - target) for i in held.items]
        items += [Item.commit(k - target) for k in held.commits]
        out[agent] = items
    return out

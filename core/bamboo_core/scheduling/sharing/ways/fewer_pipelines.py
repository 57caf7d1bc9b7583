"""FewerPipelines: as many pipelines compute as have an agent of its own in every stage; the others
stay idle, and no pipeline has a gap."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.dealing import pipelines_of
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def computing(step: StepWork) -> int:
    """Pipelines that have an agent of their own in every stage, wherever it has its seat."""
    return min(len(step.peers(s)) for s in step.stages)


def fewer_pipelines(step: StepWork) -> WorkMap | None:
    """All leaves are dealt anew. None: a stage has no agent of its own, or leaves have begun."""
    seated = [step.peers(s) for s in step.stages]
    count = computing(step)
    if not count or step.is_begun:
        return None
    full = sorted(range(len(step.seats)), key=lambda d: -sum(a is not None for a in step.seats[d]))
    kept = sorted(full[:count])
    rows = []
    for stage, agents in zip(step.stages, seated, strict=True):
        at_home = [step.seats[d][stage] for d in kept]
        spare = [a for a in agents if a not in at_home]
        rows.append([a if a in agents else spare.pop(0) for a in at_home])
    dealt = pipelines_of(step.batch, count)
    return {(s, leaf): row[d] for s, row in enumerate(rows) for leaf, d in enumerate(dealt)}

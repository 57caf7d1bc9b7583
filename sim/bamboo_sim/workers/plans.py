"""Plans by the production planner from the reports of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bamboo_core.api.spec import JobSpec, PipelinesSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.ties import Ties
from bamboo_core.placement.plan import Plan
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Continuations, Decision, Participant, PlanRequest
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    LayerCost,
    Manifest,
    Peer,
    Question,
)


@dataclass(frozen=True)
class Decided:
    """A plan with both parts of its programs."""

    plan: Plan
    directives: Mapping[AgentId, Directive]
    continuations: Mapping[AgentId, Continuation]


def grid_of(job: JobSpec, *, pipelines: int, stages: int) -> JobSpec:
    """The same job on another grid."""
    return replace(job, pipelines=PipelinesSpec(pipelines, stages, min=1, max=max(4, pipelines)))


def names(count: int, prefix: str = "a") -> tuple[AgentId, ...]:
    return tuple(AgentId(f"{prefix}{i:02d}") for i in range(count))


def decide(
    job: JobSpec,
    *,
    fence: Fence,
    layers: int,
    reports: Mapping[AgentId, AgentReport],
    batch: BatchShape,
    before: Plan | None = None,
    manifest: Manifest | None = None,
    peers: Sequence[Peer] = (),
    validation_samples: int = 0,
    is_last: bool = False,
    costs: tuple[LayerCost, ...] = (),
    memory_bytes: int = 0,
    question: Question | None = None,
    ties: Ties = (),
) -> Decided:
    """The planner's decision. AssertionError with its answer if it has no plan.

    before: the plan in force; is_last: suspend after the target step; memory_bytes:
    of the smallest device, 0 if unlimited; agents in ``question`` only send what they hold.
    """
    questioned = question.agents if question is not None else frozenset()
    known = {peer.agent: peer for peer in peers}
    participants = {}
    for i, agent in enumerate(sorted(reports)):
        peer = known.get(agent, Peer(agent, "", "", b""))
        participants[agent] = Participant(
            f"z{i % 3}", f"n{i}", peer.data_address, peer.liveness_address, peer.key
        )
    request = PlanRequest(
        fence=fence,
        spec=job,
        batch=batch,
        layers=layers,
        costs=costs,
        validation_samples=validation_samples,
        pipelines=job.pipelines.count,
        grid=before.pipelines if before else (),
        cut=before.cut if before else (),
        step_cut=before.step_cut if before else (),
        target=before.target if before else 0,
        participants=participants,
        reports=dict(reports),
        draining=questioned,
        short_notice=questioned,
        manifests=(manifest,) if manifest else (),
        base=manifest.step - 1 if manifest else -1,
        has_voter=before is not None,
        is_full=before is None,
        is_last=is_last,
        memory_bytes=memory_bytes,
        question=question,
        ties=ties,
    )
    result, *rest = planner.compute(request)
    assert isinstance(result, Decision), result
    continuations = next((x for x in rest if isinstance(x, Continuations)), Continuations({}))
    return Decided(result.plan, result.directives, continuations.directives)

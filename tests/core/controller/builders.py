"""Specs and views for tests: valid by default, every field can be changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bamboo_core.api.spec import (
    Adjacency,
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    PlacementSpec,
    PoolSpec,
    RedundancyMode,
    RedundancySpec,
    RunPolicy,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
)
from bamboo_core.controller.view import (
    JobView,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
    pod_name,
)

JOB = JobView("ns", "job", "uid-1", generation=1, created_at=0.0)


def spec(
    *,
    count: int = 1,
    stages: int = 2,
    adjacency: Adjacency = Adjacency.ALTERNATE,
    zones: tuple[str, ...] = (),
    pools: tuple[PoolSpec, ...] = (),
    run_policy: RunPolicy | None = None,
    suspend: bool = False,
    worker: WorkerSpec | None = None,
    redundancy: RedundancyMode = RedundancyMode.NONE,
    checkpoint: CheckpointSpec | None = None,
    transport: TransportSpec | None = None,
) -> JobSpec:
    """A small job."""
    return JobSpec(
        model=ModelSpec("m:build"),
        data=DataSpec("d:build"),
        training=TrainingSpec(10, 64, 2, OptimizerSpec("torch.optim:SGD")),
        pipelines=PipelinesSpec(count=count, stages=stages),
        worker=worker if worker is not None else WorkerSpec("agent:1"),
        placement=PlacementSpec(adjacency, zones, pools),
        run_policy=run_policy if run_policy is not None else RunPolicy(),
        suspend=suspend,
        redundancy=RedundancySpec(redundancy),
        checkpoint=checkpoint,
        transport=transport if transport is not None else TransportSpec(),
    )


def manifest(**changes: Any) -> dict[str, Any]:
    """A BambooJob as the API server stores it; keys of ``changes`` are fields of spec."""
    body: dict[str, Any] = {
        "model": {"factory": "m:build", "args": {"layers": 4}},
        "data": {"factory": "d:build"},
        "training": {
            "steps": 10,
            "globalBatchSize": 64,
            "microBatchSize": 2,
            "optimizer": {"factory": "torch.optim:SGD", "args": {"lr": 0.1}},
        },
        "pipelines": {"count": 1, "stages": 2},
        "worker": {"image": "agent:1"},
    }
    return {
        "apiVersion": "bamboo.dev/v1alpha1",
        "kind": "BambooJob",
        "metadata": {"name": "job", "namespace": "ns"},
        "spec": body | changes,
    }


def nodes(**agents: int) -> tuple[NodeView, ...]:
    """One ready node in each zone, with room for so many agents."""
    return tuple(
        NodeView(f"node-{zone}", f"machine-{zone}", zone, agents=n) for zone, n in agents.items()
    )


def pod(
    pipeline: int = 0,
    stage: int = 0,
    incarnation: int = 0,
    *,
    phase: PodPhase = PodPhase.RUNNING,
    zone: str = "a",
    node: str | None = None,
    created_at: float = 0.0,
    **changes: Any,
) -> PodView:
    """A pod of JOB, on the node of its zone."""
    slot = Slot(pipeline, stage)
    name = pod_name(JOB.name, slot, incarnation)
    return PodView(
        name=name,
        uid=f"uid-{name}",
        slot=slot,
        incarnation=incarnation,
        phase=phase,
        created_at=created_at,
        zone=zone,
        node=f"node-{zone}" if node is None else node,
        **changes,
    )


def having_heard(training: TrainingView, pods: Iterable[PodView]) -> TrainingView:
    """All of these agents have been connected at some time."""
    return replace(training, heard={pod.agent: "" for pod in pods})

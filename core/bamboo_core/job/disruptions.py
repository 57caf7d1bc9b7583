"""How many agents an eviction, as by ``kubectl drain``, must leave at work."""

from __future__ import annotations

from bamboo_core.controller.view import ClusterView, PodPhase, TrainingView


def least_available(view: ClusterView, training: TrainingView) -> int | None:
    """Running pods that must stay; None: none has to, since there is no training to disturb.

    One may leave. The next one may when the plan does without it: a budget that waited for its
    replacement would block a drain for as long as there is no other node. But the last member
    stays until there is another one to hand over to: no other live copy exists (ADR 33).
    """
    if not training.planned:
        return None
    alive = [pod for pod in view.pods if pod.is_alive]
    running = [pod.agent for pod in alive if pod.phase is PodPhase.RUNNING]
    is_losing = not training.members <= {pod.agent for pod in alive}
    is_last = len(training.members.intersection(running)) == 1
    must_wait = training.recovering or is_losing or is_last
    return len(running) if must_wait else max(0, len(running) - 1)

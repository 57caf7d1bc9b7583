"""Starts that fail, and agents that are not heard, in the words of the condition Stalled."""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_core.controller import shortage
from bamboo_core.controller.ends import awaited_pods
from bamboo_core.controller.failures import FailedStarts
from bamboo_core.controller.view import ClusterView, Memory, Slot, TrainingView
from bamboo_core.model.counts import counted


def are_failing(view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether seats wait for agents since starts fail. One kill may be that of a node that goes.

    Where agents that were heard have been killed, others take part and may be killed, too. Once
    they have committed a step with all of them, nothing is stuck; the count goes on.
    """
    starts = memory.failures.starts
    if not starts.slots or (starts.were_heard and starts.rounds <= 1):
        return False
    if training.progress.committed + 1 <= starts.step:
        return True
    at_work = training.members & training.connected
    there = {pod.slot for pod in view.staying(training) if pod.agent in at_work}
    return not {Slot(*slot) for slot in starts.slots} <= there


def failing(starts: FailedStarts, now: float) -> str:
    """What has failed and how often, the last one with its remedy, and when new pods come."""
    what = "agents end soon after their start" if starts.were_heard else ""
    text = (
        f"{what or 'pods end before their agents are heard'}, in"
        f" {counted(starts.rounds, 'round')} of new pods"
        f" without success, for {counted(len(starts.slots), 'seat')}; the last: {starts.message}"
    )
    if now < starts.until:
        text += f"; new pods for them come at {shortage.instant(starts.until)}"
    return text


def not_heard(silent: Sequence[str]) -> str:
    """Agents that run and have not connected."""
    count = counted(len(silent), "agent")
    verb = "runs" if len(silent) == 1 else "run"
    return (
        f"{count} {verb} for over {awaited_pods.SILENT_S:.0f} s and never connected, the first:"
        f" {silent[0]}; kubectl logs {silent[0]} shows why: if spec.worker.podTemplate has a"
        " command, it must start the agent, and the network must let it reach the operator"
    )

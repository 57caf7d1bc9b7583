"""How deleted pods have ended. No LIST can show that any more, but the event of the deletion does.

A dismissed agent's pod may be deleted within a moment of its end. Without this, an agent that is
killed for its memory, and so has no last words, would fail again and again without being counted.
And a pod that the scheduler takes away while its image is pulled would be a failed start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bamboo_core.controller.view import PodPhase
from bamboo_operator.kube import object_views
from bamboo_operator.kube.api import Object

MOST = 1024
"""Pods of all jobs."""
_OVER = (PodPhase.SUCCEEDED, PodPhase.FAILED)


class DeletedPods:
    """Ended pods that no reconcile has seen. Each is shown until it was counted, and only once."""

    def __init__(self) -> None:
        self._pods: dict[str, Object] = {}  # by UID
        self._counted: dict[str, None] = {}  # UIDs, oldest first

    def deleted(self, pod: Object) -> None:
        """A watch event: the pod in its last state."""
        uid = pod["metadata"]["uid"]
        if _says_why(pod) and uid not in self._counted:
            self._pods[uid] = _over(pod)
            _limit(self._pods)

    def of(self, namespace: str, labels: str, listed: Iterable[Object]) -> list[Object]:
        """Pods of a job beside those that are listed. labels: selector of the job's pods."""
        known = {pod["metadata"]["uid"] for pod in listed}
        name, _, value = labels.partition("=")
        return [
            pod
            for uid, pod in self._pods.items()
            if uid not in known
            and pod["metadata"]["namespace"] == namespace
            and (pod["metadata"].get("labels") or {}).get(name) == value
        ]

    def counted(self, pods: Iterable[Object]) -> None:
        """A reconcile has counted those that have ended."""
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if object_views.has_exit_code(pod) or _phase(pod) in _OVER:
                self._pods.pop(uid, None)
                self._counted[uid] = None
        _limit(self._counted)


def _says_why(pod: Object) -> bool:
    """Whether the status tells how the pod has ended, though its containers may never have run."""
    is_told = object_views.has_exit_code(pod) or object_views.is_disrupted(pod)
    return is_told or bool((pod.get("status") or {}).get("reason"))


def _over(pod: Object) -> Object:
    """The same pod, in a phase that says that nothing of it runs: it is deleted."""
    if _phase(pod) in _OVER:
        return pod
    return pod | {"status": pod["status"] | {"phase": PodPhase.FAILED}}


def _phase(pod: Object) -> Any:
    return (pod.get("status") or {}).get("phase")


def _limit(values: dict[str, Object] | dict[str, None]) -> None:
    while len(values) > MOST:
        values.pop(next(iter(values)))

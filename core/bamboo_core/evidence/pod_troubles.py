"""What a pod's status says against it beside the state of the agent's container. Pure.

The reasons are those of the kubelet and of the controllers of Kubernetes; they are part of no API,
so one that is not known says nothing certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

NO_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)
"""Why a container waits whose image cannot be had."""
CANNOT_START = NO_IMAGE | {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "PostStartHookError",
    "PreCreateHookError",
    "PreStartHookError",
    "RunContainerError",
}
"""Why a container waits that will not start by itself."""
LACKS = "CreateContainerConfigError"
"""Why a container waits whose Secret or ConfigMap is not there, or lacks a key: the only reason of
which the kubelet's own words name an object. Other words may be those of a program."""
ENDS_AGAIN = "CrashLoopBackOff"
"""Why a container waits that the kubelet starts again and again. Between its ends it runs."""
EVICTED = "Evicted"
"""The kubelet has ended the pod, since it or its node uses too much of something."""
DEADLINE = "DeadlineExceeded"
"""The pod's own activeDeadlineSeconds are over."""

_WITH_NODE = frozenset({"NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""Reasons of pods that end with their node, or for a pod that the node needs more."""
_UNKNOWN_ENDS = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of containers of which nobody has seen the end, as after a reboot."""
_OF_NODE = ("The node was low on resource", "The node had condition")
"""Beginnings of the messages of pods that were evicted because of their node."""
_BY_SIGNAL = (137, 143)  # SIGKILL, SIGTERM
_OOM_KILLED = "OOMKilled"
_VOLUMES_S = 180.0
"""Time after which a pod is stuck whose volumes are not mounted: only its events tell why."""
_START_S = 480.0
"""The same for one that pulls an image, or waits for a sidecar. The alert comes 5 minutes later."""
_WORK_S = 3000.0
"""The same for one whose init container works and has not failed: it may load data. With the alert
5 minutes later, one that never ends is told within an hour."""
_MISSING = re.compile(
    r'\b(?P<kind>persistentvolumeclaim|secret|configmap) "(?P<name>[^"]+)"'
    r" (?P<state>not found|is being deleted|bound to non-existent persistentvolume)",
    flags=re.I,
)
_UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
_NO_KEY = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)")
_MADE_BY_KUBERNETES = {"ConfigMap kube-root-ca.crt": {"ca.crt"}}
"""Objects of every namespace, and their keys: they are not what a pod waits for."""
_SOURCES = (
    ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
    ("Secret", "secret", "secretName"),
    ("Secret", "secret", "name"),  # in a projected volume
    ("ConfigMap", "configMap", "name"),
)
_KINDS = {
    "persistentvolumeclaim": "PersistentVolumeClaim",
    "secret": "Secret",
    "configmap": "ConfigMap",
}


class Missing(NamedTuple):
    """An object that a pod names and that is not there, or not whole."""

    kind: str
    name: str
    lack: str  # in words


@dataclass(frozen=True)
class PodTrouble:
    """The pod as a whole, and the first of its other containers that has failed or cannot start."""

    reason: str = ""  # of the pod's status, such as Evicted
    message: str = ""
    is_disrupted: bool = False  # a controller, the scheduler or the node takes it away
    container: str = ""  # empty: none of the others is in trouble
    state: str = ""  # why it waits, or how it has ended, in one word
    words: str = ""  # its message
    exit_code: int | None = None  # of its end; None: it waits
    is_over: bool = False  # it has failed, and the kubelet does not start it again
    runs_on: bool = False  # an ordinary container beside the agent's has not ended
    has_volumes: bool | None = None  # they are mounted, and the network is there; None: not told
    awaited: str = ""  # the init container that runs and that the agent's container waits for
    works: bool = False  # this one ends when its work is done, and has not failed

    @property
    def is_of_container(self) -> bool:
        """Another container has ended by its own fault, so that the agent cannot start."""
        code = self.exit_code
        return code is not None and not is_killed(code, self.state)

    @property
    def is_of_pod(self) -> bool:
        """The pod itself has used too much, or run for too long, whatever its node."""
        if self.reason == EVICTED:
            return not (self.is_disrupted or self.message.startswith(_OF_NODE))
        return self.reason == DEADLINE

    @property
    def ends_with_node(self) -> bool:
        """The pod ends because of its node or of other pods: nothing is wrong with it.

        The kubelet marks pods that it evicts as disrupted, too. But these would use up the next
        node in the same way.
        """
        return self.reason in _WITH_NODE or (self.is_disrupted and self.reason != EVICTED)


NO_TROUBLE = PodTrouble()


def needed(template: Mapping[str, Any]) -> list[str]:
    """The objects without which the volumes of a pod template cannot be mounted, in words, with the
    keys that they must have. While one is missing, only the pod's events tell."""
    found = set[str]()
    for volume in _parts(_part(template, "spec"), "volumes"):
        for source in (volume, *_parts(_part(volume, "projected"), "sources")):
            for kind, key, name in _SOURCES:
                told = _part(source, key)
                if not told.get(name) or told.get("optional"):
                    continue
                item = f"{kind} {told[name]}"
                keys = sorted({str(each.get("key")) for each in told.get("items") or []})
                if item in _MADE_BY_KUBERNETES and _MADE_BY_KUBERNETES[item].issuperset(keys):
                    continue
                found.add(f"{item} with {', '.join(keys)}" if keys else item)
    return sorted(found)


def stuck_at(trouble: PodTrouble, waiting: str, started_at: float | None) -> float | None:
    """When a pod is stuck, if the agent's container still waits then; None: never, since it does
    not wait, or something else in the status says why.

    waiting: why the agent's container waits. started_at: when the pod has come to its node.
    """
    if not waiting or started_at is None or {waiting, trouble.state} & CANNOT_START:
        return None
    return started_at + _patience_s(trouble)


def _patience_s(trouble: PodTrouble) -> float:
    if trouble.has_volumes is False:
        return _VOLUMES_S
    return _WORK_S if trouble.works else _START_S


def delay(trouble: PodTrouble, pod: str) -> str:
    """Why a pod is stuck after this time, in words."""
    minutes = f"for over {_patience_s(trouble) / 60:.0f} minutes"
    if trouble.has_volumes is False:
        return (
            f"its volumes are not mounted, or its network is not there, {minutes}: kubectl describe"
            f" pod {pod} shows the cause"
        )
    if trouble.awaited:
        return (
            f"container {trouble.awaited} goes first, and has not let the agent start {minutes}:"
            f" kubectl logs {pod} -c {trouble.awaited} shows what it does"
        )
    return (
        f"no container has started {minutes}, as while an image is pulled: kubectl describe pod"
        f" {pod} shows the cause"
    )


def _part(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = given.get(key)
    return found if isinstance(found, dict) else {}


def _parts(given: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of a list. What is of another type is left to the API server."""
    found = given.get(key)
    return [x for x in found if isinstance(x, dict)] if isinstance(found, list) else []


def is_killed(code: int | None, reason: str) -> bool:
    """Whether somebody else has ended the container: neither itself nor its memory limit."""
    return code in _BY_SIGNAL and reason != _OOM_KILLED


def is_unseen(reason: str) -> bool:
    """Whether nobody has seen how the container ended, since its node was started again."""
    return reason in _UNKNOWN_ENDS


def missing(message: str) -> Missing | None:
    """The object that is not there, by the words of the scheduler or the kubelet; None: they name
    none."""
    if found := _MISSING.search(message):
        lack = "does not exist" if found["state"].lower() == "not found" else found["state"]
        return Missing(_KINDS[found["kind"].lower()], found["name"], lack)
    if _UNBOUND in message:
        return Missing("a PersistentVolumeClaim", "of the pods", "is not bound to a volume")
    if found := _NO_KEY.search(message):
        name = found["name"].rpartition("/")[2]
        return Missing(found["kind"], name, f"has no key {found['key']}")
    return None

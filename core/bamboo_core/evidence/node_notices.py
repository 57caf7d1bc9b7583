"""Notices of a node's end, from its taints and conditions. Pure.

A notice of a node is a notice to every agent on it: they hand over in order, as soon as others can
replace them, or shortly before the node goes if it is known when. A hint only says that the node is
less safe than others; no agent leaves for it.

The keys are those of the public documentation of each tool, which docs/notices.md names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

LEAVING_TAINT = "bamboo.dev/leaving"
"""Set by Bamboo's own DaemonSet. For its value see :func:`leaving`."""
AT_RISK_TAINT = "bamboo.dev/at-risk"
"""The same for a hint; the value is empty."""
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
SHUTDOWN_TEXT = "node is shutting down"
"""The kubelet's message in the condition Ready while it shuts the node down in order."""

_LEAVING = re.compile("([0-9]{1,15})(?:-([0-9]{1,9}))?")

_SPOT_ITN = "aws-node-termination-handler/spot-itn"
_SPOT_ITN_S = 100.0
"""EC2 gives notice 120 s before; the rest is for the way from EC2 to the taint."""

_ENDS = frozenset(
    {
        LEAVING_TAINT,
        _SPOT_ITN,
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "cloud.google.com/impending-node-termination",
        "remediator.kubernetes.azure.com/unschedulable",
        "remediator.aks.microsoft.com/unschedulable",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        UNSCHEDULABLE_TAINT,
    }
)
_HINTS = frozenset(
    {
        AT_RISK_TAINT,
        "aws-node-termination-handler/rebalance-recommendation",
        "DeletionCandidateOfClusterAutoscaler",
    }
)
_OLD_KARPENTER = ("karpenter.sh/disruption", "disrupting")


class Taint(NamedTuple):
    """A taint. since: seconds since 1970, if the API server says it."""

    key: str
    value: str = ""
    since: float | None = None


@dataclass(frozen=True)
class NodeNotice:
    """A notice that a node will end.

    leaves_at: seconds since 1970. lead_s: the most seconds that are left when it is first seen,
    since clocks differ. inf: unknown.
    """

    reason: str
    leaves_at: float = inf
    lead_s: float = inf
    is_hint: bool = False

    def left_s(self, now: float) -> float:
        """Seconds that are left if the notice is first seen at ``now``; inf: unknown."""
        return max(0.0, min(self.lead_s, self.leaves_at - now))


def find(
    taints: Iterable[Taint], *, is_unschedulable: bool, ready_message: str
) -> NodeNotice | None:
    """The node's notice; of several the one that ends soonest, and a hint only without another."""
    found = [notice for taint in taints if (notice := _of_taint(taint)) is not None]
    if is_unschedulable:
        found.append(NodeNotice("it is cordoned"))
    if SHUTDOWN_TEXT in ready_message:
        found.append(NodeNotice("its kubelet shuts down"))
    return min(found, key=lambda x: (x.is_hint, x.leaves_at, x.lead_s, x.reason), default=None)


def leaving(ends_at: float, now: float) -> str:
    """The value of the taint of a node that goes then: END-LEAD, by the API server's clock.

    END is in seconds since 1970. LEAD is the seconds that were left ``now``, when it was written:
    whoever reads it with a wrong clock never counts with more.
    """
    return f"{int(ends_at)}-{max(0, int(ends_at - now))}"


def left_by(value: str) -> tuple[float, float] | None:
    """END and LEAD of such a value; a LEAD that an older version has not written is inf. None: it
    is none."""
    found = _LEAVING.fullmatch(value)
    return found and (float(found[1]), float(found[2] or inf))


def is_notice(taint: Taint) -> bool:
    """Whether the taint says something about the node's end."""
    return _of_taint(taint) is not None


def _of_taint(taint: Taint) -> NodeNotice | None:
    reason = f"it has the taint {taint.key}"
    if taint.key in _HINTS:
        return NodeNotice(reason, is_hint=True)
    if taint.key == LEAVING_TAINT and (end := left_by(taint.value)) is not None:
        return NodeNotice(reason, *end)
    if taint.key == _SPOT_ITN:
        leaves_at = inf if taint.since is None else taint.since + _SPOT_ITN_S
        return NodeNotice(reason, leaves_at, _SPOT_ITN_S)
    is_end = taint.key in _ENDS or (taint.key, taint.value) == _OLD_KARPENTER
    return NodeNotice(reason) if is_end else None

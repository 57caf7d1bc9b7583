"""Taints and conditions of a node: which of them announce its end, and when it will go."""

from __future__ import annotations

from math import inf

import pytest

from bamboo_core.evidence.node_notices import (
    AT_RISK_TAINT,
    LEAVING_TAINT,
    SHUTDOWN_TEXT,
    NodeNotice,
    Taint,
    find,
    is_notice,
    leaving,
)

_SPOT = "aws-node-termination-handler/spot-itn"
_NEUTRAL = Taint("nvidia.com/gpu", "present")


def found(*taints: Taint, is_unschedulable: bool = False, message: str = "") -> NodeNotice | None:
    return find(taints, is_unschedulable=is_unschedulable, ready_message=message)


def test_a_node_without_notices() -> None:
    assert found(_NEUTRAL, message="container runtime is down") is None
    assert not is_notice(_NEUTRAL)


@pytest.mark.parametrize(
    ("taint", "leaves_at", "lead_s"),
    [
        (Taint(LEAVING_TAINT, "160-30"), 160.0, 30.0),
        (Taint(LEAVING_TAINT, leaving(160.9, 40.0)), 160.0, 120.0),
        (Taint(LEAVING_TAINT, leaving(160.9, 170.0)), 160.0, 0.0),
        (Taint(LEAVING_TAINT, "160"), 160.0, inf),  # of an older version
        (Taint(LEAVING_TAINT, "160-"), inf, inf),
        (Taint(LEAVING_TAINT, "١٦٠-٣٠"), inf, inf),
        (Taint(LEAVING_TAINT, "soon"), inf, inf),
        (Taint(LEAVING_TAINT), inf, inf),
        (Taint(_SPOT, since=50.0), 150.0, 100.0),
        (Taint(_SPOT), inf, 100.0),
        (Taint("karpenter.sh/disruption", "disrupting"), inf, inf),
        (Taint("ToBeDeletedByClusterAutoscaler", "1700000000"), inf, inf),
    ],
)
def test_a_taint_that_announces_the_end(taint: Taint, leaves_at: float, lead_s: float) -> None:
    reason = f"it has the taint {taint.key}"
    assert found(_NEUTRAL, taint) == NodeNotice(reason, leaves_at, lead_s)
    assert is_notice(taint)


def test_a_hint() -> None:
    hint = NodeNotice(f"it has the taint {AT_RISK_TAINT}", is_hint=True)
    assert found(Taint(AT_RISK_TAINT)) == hint
    assert is_notice(Taint(AT_RISK_TAINT))


def test_karpenters_old_taint_counts_only_with_its_value() -> None:
    assert found(Taint("karpenter.sh/disruption", "other")) is None


def test_a_cordoned_node_and_a_kubelet_that_shuts_down() -> None:
    assert found(is_unschedulable=True) == NodeNotice("it is cordoned")
    words = NodeNotice("its kubelet shuts down")
    assert found(message=f"kubelet: {SHUTDOWN_TEXT}.") == words


def test_the_notice_that_ends_soonest_counts() -> None:
    late, soon = Taint(LEAVING_TAINT, "300"), Taint(_SPOT, since=50.0)
    notice = found(late, soon, is_unschedulable=True)
    assert notice is not None
    assert notice.leaves_at == 150.0


def test_a_hint_counts_only_without_a_notice() -> None:
    notice = found(Taint(AT_RISK_TAINT), is_unschedulable=True)
    assert notice == NodeNotice("it is cordoned")


@pytest.mark.parametrize(
    ("notice", "left_s"),
    [
        (NodeNotice("x", leaves_at=130.0), 30.0),
        (NodeNotice("x", leaves_at=90.0), 0.0),
        (NodeNotice("x", lead_s=100.0), 100.0),
        (NodeNotice("x"), inf),
    ],
)
def test_seconds_that_are_left(notice: NodeNotice, left_s: float) -> None:
    assert notice.left_s(100.0) == left_s

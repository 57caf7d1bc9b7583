"""Remedies that change what agents are made from say whether the job must be suspended first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.controller import lifecycle, shortage
from bamboo_core.controller.lifecycle import status_of
from bamboo_core.controller.view import ClusterView, Memory, TrainingView
from bamboo_core.evidence.pod_troubles import Missing

from .builders import JOB, nodes, spec

pytestmark = pytest.mark.parametrize("has_state", [True, False])


def changing(change: str, has_state: bool) -> str:
    """The API server takes it at once while no agent holds the job's state."""
    if not has_state:
        return change
    return (
        "set spec.suspend to true, wait until the condition Suspended is true,"
        f" {change}, and set spec.suspend to false"
    )


def test_nodes_that_do_not_suit(has_state: bool) -> None:
    wrong = replace(nodes(a=1)[0], suits=False, agents=0, lacks="no label gpu=a100")
    training = TrainingView(has_state=has_state)
    found = status_of(spec(), ClusterView((wrong,)), training, Memory(), job=JOB, now=50.0)
    (line,) = [c for c in found.conditions if c.type == ConditionType.CAPACITY_AVAILABLE]
    assert "the node selector in spec.worker.podTemplate" in line.message
    said = "spec.worker and spec.placement can change while the job is suspended"
    assert line.message.endswith(f"; {said}") == has_state
    assert (said in line.message) == has_state


@pytest.mark.parametrize(
    ("message", "way", "change"),
    [
        (
            "exceeded quota",
            "remove what forbids them",
            "change spec.worker or spec.placement",
        ),
        (
            'pods "x" is forbidden: no PriorityClass with name high was found',
            "create the PriorityClass high",
            "name another one in spec.worker.podTemplate",
        ),
    ],
)
def test_pods_that_the_api_server_rejects(
    message: str, way: str, change: str, has_state: bool
) -> None:
    line = lifecycle.rejected((), message, has_state=has_state, now=60.0)[0]
    assert (line.type, line.status, line.reason) == ("Accepted", False, Reason.POD_REJECTED)
    remedy = f"{way}; or {changing(change, has_state)}"
    assert line.message == f"pods: the API server rejects them: {message}: {remedy}"


def test_an_object_that_is_missing(has_state: bool) -> None:
    missing = Missing("Secret", "keys", "does not exist")
    text = shortage.absent(missing, "ns", TrainingView(has_state=has_state))
    change = changing("name another one in spec.worker", has_state)
    assert text == (
        "Secret keys in namespace ns does not exist: create or repair it, and the pods go on by"
        f" themselves; or {change}"
    )

"""What the status of a pod says beside the agent's container."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.evidence import pod_troubles
from bamboo_core.evidence.pod_troubles import Missing, PodTrouble


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (
            '0/6 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/6',
            Missing("PersistentVolumeClaim", "data", "does not exist"),
        ),
        (
            '0/3 nodes are available: persistentvolumeclaim "data" is being deleted.',
            Missing("PersistentVolumeClaim", "data", "is being deleted"),
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            Missing("a PersistentVolumeClaim", "of the pods", "is not bound to a volume"),
        ),
        ('secret "s3" not found', Missing("Secret", "s3", "does not exist")),
        ('configmap "settings" not found', Missing("ConfigMap", "settings", "does not exist")),
        (
            "couldn't find key user in Secret ns/s3",
            Missing("Secret", "s3", "has no key user"),
        ),
        ("0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", None),
        ('image "secret" not found', None),
        ('Back-off pulling image "secret": not found', None),
        ("", None),
    ],
)
def test_missing_objects(message: str, missing: Missing | None) -> None:
    assert pod_troubles.missing(message) == missing


def test_what_kubernetes_makes_is_nothing_that_a_volume_lacks() -> None:
    def needed(**items: Any) -> list[str]:
        source = {"name": "kube-root-ca.crt", **items}
        volumes = [
            {"name": "a", "projected": {"sources": [{"configMap": source}]}},
            {"name": "b", "secret": {"secretName": "s3", "items": [{"key": "id"}]}},
        ]
        return pod_troubles.needed({"spec": {"volumes": volumes}})

    secret = "Secret s3 with id"
    assert needed() == needed(items=[{"key": "ca.crt", "path": "x"}]) == [secret]
    wrong = needed(items=[{"key": "nokey", "path": "x"}])
    assert wrong == ["ConfigMap kube-root-ca.crt with nokey", secret]


@pytest.mark.parametrize(
    ("trouble", "ends_with_node", "is_of_pod"),
    [
        (PodTrouble("Terminated", "Pod was terminated in response to node shutdown"), True, False),
        (PodTrouble("Preempting", "to make room for a critical pod", True), True, False),
        (PodTrouble(is_disrupted=True), True, False),
        (PodTrouble("Evicted", "The node was low on resource: memory.", True), False, False),
        (PodTrouble("Evicted", "The node was low on resource: memory."), False, False),
        (PodTrouble("Evicted", "The node had condition: [DiskPressure]."), False, False),
        (PodTrouble("Evicted", 'Usage of EmptyDir volume "x" exceeds the limit'), False, True),
        (PodTrouble("DeadlineExceeded", "Pod was active on the node too long"), False, True),
        (PodTrouble("OutOfcpu", "Node didn't have enough resource"), False, False),
        (PodTrouble(), False, False),
    ],
)
def test_causes_of_ends(trouble: PodTrouble, ends_with_node: bool, is_of_pod: bool) -> None:
    assert (trouble.ends_with_node, trouble.is_of_pod) == (ends_with_node, is_of_pod)


@pytest.mark.parametrize(
    ("code", "reason", "is_killed", "is_unseen"),
    [
        (137, "Error", True, False),
        (143, "Error", True, False),
        (137, "OOMKilled", False, False),
        (139, "Error", False, False),
        (0, "Completed", False, False),
        (255, "Unknown", False, True),
        (137, "ContainerStatusUnknown", True, True),
        (None, "", False, False),
    ],
)
def test_ends_of_containers(
    code: int | None, reason: str, is_killed: bool, is_unseen: bool
) -> None:
    assert pod_troubles.is_killed(code, reason) is is_killed
    assert pod_troubles.is_unseen(reason) is is_unseen


@pytest.mark.parametrize(
    ("trouble", "minutes"),
    [
        (PodTrouble(has_volumes=False), 3),
        (PodTrouble(has_volumes=True), 8),
        (PodTrouble(has_volumes=True, awaited="proxy"), 8),
        (PodTrouble(has_volumes=True, awaited="fetch", works=True), 50),
        (PodTrouble(awaited="fetch", works=True), 50),
    ],
)
def test_a_pod_is_stuck_after_a_time_that_its_work_may_take(
    trouble: PodTrouble, minutes: int
) -> None:
    """An init container that loaded data for longer than 8 minutes was told as stuck."""
    assert pod_troubles.stuck_at(trouble, "PodInitializing", 100.0) == 100.0 + 60 * minutes
    assert f"for over {minutes} minutes" in pod_troubles.delay(trouble, "pod")
    assert pod_troubles.stuck_at(trouble, "PodInitializing", None) is None
    assert pod_troubles.stuck_at(trouble, "", 100.0) is None


def test_what_the_volumes_of_a_template_need() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "s3"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "c", "configMap": {"name": "maybe", "optional": True}},
        {"name": "d", "projected": {"sources": [{"secret": {"name": "t"}}, {"secret": {}}]}},
        {"name": "e", "emptyDir": {}},
        {"name": "f", "secret": {"secretName": "s3"}},
    ]
    assert pod_troubles.needed({"spec": {"volumes": volumes}}) == [
        "PersistentVolumeClaim data", "Secret s3", "Secret t",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "template",
    [{}, {"spec": None}, {"spec": {"volumes": [{"secret": "x"}, {"projected": "x"}]}}],
)
def test_a_template_without_volumes_that_can_be_read_needs_nothing(template: Any) -> None:
    assert pod_troubles.needed(template) == []


@pytest.mark.parametrize("wrong", ["text", 5, True, [5, "text", None], {"a": 1}])
def test_parts_of_a_template_that_are_of_a_wrong_type_need_nothing(wrong: Any) -> None:
    kept = {"secret": {"secretName": "s3"}}
    for volumes in (wrong, [{"projected": {"sources": wrong}}], [{"projected": wrong}]):
        assert pod_troubles.needed({"spec": {"volumes": volumes}}) == []
    both = [{"projected": {"sources": wrong}}, kept]
    assert pod_troubles.needed({"spec": {"volumes": both}}) == ["Secret s3"]

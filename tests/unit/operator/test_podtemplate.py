"""What a pod template may not say."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.podtemplate import problems


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"kind": "Pod"}, "t.kind"),
        ({"spec": []}, "t.spec"),
        ({"spec": {"restartPolicy": "Always"}}, "t.spec.restartPolicy"),
        ({"spec": {"nodeName": "n"}}, "t.spec.nodeName"),
        ({"spec": {"hostNetwork": True}}, "t.spec.hostNetwork"),
        ({"spec": {"hostPID": True}}, "t.spec.hostPID"),
        ({"spec": {"volumes": "v"}}, "t.spec.volumes"),
        ({"spec": {"volumes": [{"name": "v", "hostPath": {}}]}}, "t.spec.volumes[0].hostPath"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "t.spec.volumes[0].name"),
        ({"spec": {"containers": [{"image": "i"}]}}, "t.spec.containers[0].name"),
        (
            {"spec": {"containers": [{"name": "x", "securityContext": {"privileged": True}}]}},
            "t.spec.containers[0].securityContext.privileged",
        ),
        (
            {"spec": {"initContainers": [{"name": "x", "env": [{"name": "BAMBOO_JOB"}]}]}},
            "t.spec.initContainers[0].env[0].name",
        ),
    ],
)
def test_refused(template: dict[str, Any], field: str) -> None:
    assert [problem.field for problem in problems(template, path="t")] == [field]


def test_accepted() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "hostNetwork": False,
            "containers": [{"name": "agent", "volumeMounts": []}, {"name": "sidecar"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        },
    }
    assert problems(template, path="t") == []
    assert problems({}, path="t") == []

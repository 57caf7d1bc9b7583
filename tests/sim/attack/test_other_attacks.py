"""Samples of the attacks on liveness, health and metrics, and by manifests.

benchmarks/security.py runs all of them.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.rotation import in_turn

from bamboo_operator.monitoring import bounded_http
from bamboo_sim.attack import health_ports, inputs, liveness_port, made_manifests, manifests
from bamboo_sim.attack.pod_checks import faults

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SEEDS = in_turn(16, range(16))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_liveness_port(seed: int) -> None:
    found = liveness_port.run(100, seed)
    assert found["breaches"] == {}, found["told"]
    assert sum(found["cases"].values()) == 100


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ports_for_health_and_metrics(seed: int) -> None:
    found = health_ports.run(100, seed, silent=2 * bounded_http.MOST)
    assert found["breaches"] == {}, found["told"]
    assert set(found["cases"]) == {"agent", "health", "metrics"}
    assert sum(found["cases"].values()) >= 100


@pytest.mark.parametrize("seed", SEEDS)
def test_manifests(seed: int) -> None:
    found = manifests.run(100, seed)
    assert found["breaches"] == {}, found["told"]
    assert sum(found["cases"].values()) == 100
    assert set(found["cases"]) == {"accepted", "refused"}
    assert found["pods"] > 0


def test_the_same_seed_gives_the_same_texts() -> None:
    def some(seed: int) -> list[object]:
        rng = random.Random(seed)
        made = [made_manifests.text(rng, "job", "ns") for _ in range(20)]
        return [*made, inputs.request(rng), inputs.greeting(rng, "a")]

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_a_valid_manifest_is_valid() -> None:
    body = json.loads(made_manifests.valid("job", "ns"))
    assert not isinstance(manifests.reading.from_manifest(body), list)


def pod(**spec: Any) -> dict[str, Any]:
    """A pod with which nothing is wrong, but for these fields."""
    secured = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    agent = {"name": "agent", "env": [{"name": "BAMBOO_JOB", "value": "ns/job"}]}
    body: dict[str, Any] = {
        "containers": [agent | {"securityContext": secured}],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    meta = {
        "name": "job-p0-s0-i0", "namespace": "ns", "labels": {"bamboo.dev/job": "job"},
        "annotations": {},
        "ownerReferences": [{"name": "job", "uid": "uid-job", "controller": True}],
    }  # fmt: skip
    return {"metadata": meta, "spec": body | spec}


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"automountServiceAccountToken": None}, "token"),
        ({"securityContext": {"runAsNonRoot": None}}, "runAsNonRoot"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "db"}}]}, "Secret 'db'"),
        ({"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "db"}}]}]}, "'db'"),
        ({"tolerations": [{"operator": "Exists"}]}, "toleration"),
        ({"containers": [{"name": "agent", "env": []}]}, "capabilities"),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{"namespaceSelector": {}}]}}}, "namespaces"),
        ({"affinity": {"podAffinity": {REQUIRED: [{"namespaces": ["b"]}]}}}, "namespaces"),
        (
            {"affinity": {"podAffinity": {"x": [{"podAffinityTerm": {"namespaceSelector": {}}}]}}},
            "namespaces",
        ),
        ({"nodeSelector": {"x y": "1"}}, "nodeSelector"),
        ({"nodeSelector": {"x": "zone a"}}, "nodeSelector"),
    ],
)
def test_a_pod_with_too_much_is_noticed(spec: dict[str, Any], word: str) -> None:
    assert faults(pod(), job="job", namespace="ns") == []
    assert word in "; ".join(faults(pod(**spec), job="job", namespace="ns"))

"""Values that the API server would refuse at the installation: values.schema.json refuses them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from .chart import CHART, helm

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
LONG = "a" * 64
RULE = {"key": "gpu", "operator": "Exists"}
TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
WEIGHTS = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"

REFUSED: list[tuple[str, Any]] = [
    *(
        (place, value)
        for place in ("image.repository", "notices.daemonSet.image.repository")
        for value in ("", "a b", "Bamboo", "registry/bamboo:1.0", "registry//bamboo", "a" * 256)
    ),
    ("image.tag", "v 1"),
    ("image.tag", "-1"),
    ("image.tag", "a" * 129),
    ("image.digest", "sha256:1"),
    ("imagePullSecrets", [{"name": "My_Secret"}]),
    ("fullnameOverride", "Bamboo"),
    ("fullnameOverride", "1st"),
    ("fullnameOverride", "a" * 50),
    ("nameOverride", "under_score"),
    ("namespaces", [LONG]),
    ("serviceAccount.name", "X_Y"),
    ("serviceAccount.name", "a..b"),
    ("serviceAccount.name", "a" * 254),
    ("serviceAccount.annotations", {"a b": "c"}),
    ("priorityClassName", "High Priority"),
    ("revisionHistoryLimit", -1),
    ("commonLabels", {"team": "a b"}),
    ("commonLabels", {"team": LONG}),
    ("commonLabels", {"/team": "a"}),
    ("commonLabels", {LONG: "a"}),
    ("commonLabels", {"app.kubernetes.io/name": "mine"}),
    ("commonLabels", {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}),
    ("podLabels", {"Example.com/team": "a"}),
    ("podLabels", {"app.kubernetes.io/instance": "mine"}),
    ("podLabels", {"team": 1}),
    ("commonAnnotations", {"-a": "b"}),
    ("commonAnnotations", {"a": True}),
    ("podAnnotations", {"a/b/c": "d"}),
    ("nodeSelector", {"a": "-"}),
    ("nodeSelector", {"a!": "b"}),
    ("notices.daemonSet.nodeSelector", {"a b": "c"}),
    ("prices", [{"labels": {"a": "b c"}, "dollarsPerHour": 1}]),
    *(
        (place, [toleration])
        for place in ("tolerations", "notices.daemonSet.tolerations")
        for toleration in (
            {"operator": "Exist"},
            {"key": "a b", "operator": "Exists"},
            {"key": "a", "operator": "Exists", "value": "b"},
            {"key": "a", "effect": "NoSchedul"},
            {"key": "a", "value": "b c"},
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5},
            {"value": "a"},
            {"operator": "Equal"},
            {"key": "a", "seconds": 1},
        )
    ),
    *(
        (f"{place}.{kind}", amount)
        for place in ("resources", "notices.daemonSet.resources")
        for kind in ("requests", "limits")
        for amount in (
            {"memory": "1Gb"}, {"memory": "1K"}, {"memory": "1ki"}, {"memory": -1}, {"cpu": "-1"},
            {"cpu": "one"}, {"memory": ""}, {"gpu": 1}, {"Memory": "1Gi"}, {"nvidia.com/": 1},
        )
    ),
    ("ports.health", 70_000),
    ("ports.agents", "9443"),
    ("networkPolicy.apiServer.ports", [0]),
    ("networkPolicy.apiServer.ports", []),
    ("networkPolicy.dns.ports", ["dns tcp"]),
    ("networkPolicy.dns.to", [{}]),
    ("networkPolicy.metadataServer.cidrs", ["169.254.169.254"]),
    ("networkPolicy.metadataServer.cidrs", ["fd00::/129"]),
    ("networkPolicy.metadataServer.cidrs", ["300.0.0.0/8"]),
    ("networkPolicy.metadataServer.cidrs", ["10.256.0.0/16"]),
    ("networkPolicy.metricsFrom", [{"ipBlock": {"cidr": "10.0.0.0/33"}}]),
    ("networkPolicy.metricsFrom", [{"podSelector": {"matchLabels": {"a": "b c"}}}]),
    ("networkPolicy.agents.namespaces", ["team_a"]),
    *(
        (f"networkPolicy.{part}.extraEgress", [rule])
        for part in ("operator", "agents")
        for rule in (
            {"from": []},
            {"ports": [{"port": 65536}]},
            {"ports": [{"protocol": "tcp", "port": 1}]},
            {"ports": [{"port": "storage-of-a-team"}]},
            {"ports": [{"endPort": 5}]},
            {"ports": [{"port": "nfs", "endPort": 5}]},
            {"to": [{"ipBlock": {"cidr": "10.0.0.0"}}]},
            {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]},
        )
    ),
    ("podSecurityContext", {"runAsUser": -1}),
    ("podSecurityContext", {"runAsUser": "nobody"}),
    ("podSecurityContext", {"runAsUsr": 1}),
    ("podSecurityContext", {"seccompProfile": {"type": "Default"}}),
    ("podSecurityContext", {"fsGroupChangePolicy": "Never"}),
    ("podSecurityContext", {"sysctls": [{"name": "Net Core", "value": "1"}]}),
    ("podSecurityContext", {"sysctls": [{"name": "net.core.somaxconn", "value": 1}]}),
    ("containerSecurityContext", {"privileged": True, "allowPrivilegeEscalation": False}),
    ("containerSecurityContext",
     {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}),
    ("containerSecurityContext", {"capabilities": {"drop": "ALL"}}),
    ("containerSecurityContext", {"fsGroup": 1}),
    ("containerSecurityContext", {"privileged": "yes"}),
    ("extraEnv", [{"name": "A B"}]),
    ("extraEnv", [{"name": "A", "value": 1}]),
    *(
        ("extraEnv", [{"name": "A", "valueFrom": {"fieldRef": reference}}])
        for reference in (
            {}, {"fieldPath": "spec.node"}, {"fieldPath": "metadata.labels"},
            {"fieldPath": "status.podIPx"},
        )
    ),
    ("extraEnv", [{"name": "A", "valueFrom": {}}]),
    ("extraVolumes", [{"name": "X_Y", "emptyDir": {}}]),
    ("extraVolumes", [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
    ("extraVolumeMounts", [{"name": "v", "mountPath": "a:b"}]),
    ("extraVolumeMounts", [{"name": "v", "mountPath": ""}]),
    ("extraObjects", [{"kind": "ConfigMap", "metadata": {"name": "a"}}]),
    ("extraObjects", [""]),
    *(
        (f"affinity.{kind}.{rules}", [value])
        for kind in ("podAffinity", "podAntiAffinity")
        for rules, value in (
            ("requiredDuringSchedulingIgnoredDuringExecution", {"labelSelector": {}}),
            ("requiredDuringSchedulingIgnoredDuringExecution", {"topologyKey": "a b"}),
            ("preferredDuringSchedulingIgnoredDuringExecution",
             {"weight": 1, "podAffinityTerm": {}}),
            ("preferredDuringSchedulingIgnoredDuringExecution",
             {"weight": 0, "podAffinityTerm": {"topologyKey": "zone"}}),
        )
    ),
    (TERMS, []),
    (TERMS, [{"matchExpressions": [{**RULE, "operator": "Is"}]}]),
    (TERMS, [{"matchExpressions": [{**RULE, "operator": "In"}]}]),
    (TERMS, [{"matchExpressions": [{**RULE, "operator": "In", "values": []}]}]),
    (TERMS, [{"matchExpressions": [{**RULE, "values": ["a"]}]}]),
    (WEIGHTS, [{"weight": 0, "preference": {"matchExpressions": [RULE]}}]),
    (WEIGHTS, [{"weight": 101, "preference": {"matchExpressions": [RULE]}}]),
]  # fmt: skip

TAKEN: list[tuple[str, Any]] = [
    *(
        ("image.repository", value)
        for value in (
            "bamboo-operator", "REGISTRY/bamboo-operator", "registry.example.com:5000/a/b_c/d.e",
            "localhost:5000/bamboo", "[fd00::1]:5000/bamboo", "europe-docker.pkg.dev/p-1/r/x--y",
        )
    ),
    ("image.tag", "1.0.0-rc.1_b"),
    ("fullnameOverride", ""),
    ("serviceAccount.name", "a.b-c"),
    ("imagePullSecrets", [{"name": "my.secret"}]),
    ("tolerations", [{"operator": "Exists"}]),
    ("tolerations", [{"key": "example.com/gpu", "value": "a", "effect": "NoExecute",
                      "tolerationSeconds": 60}]),
    ("tolerations", [{"key": "gpu", "operator": "Equal", "value": ""}]),
    *(
        ("resources.limits", amount)
        for amount in (
            {"memory": "1.5Gi"}, {"memory": 1073741824}, {"cpu": 0.5}, {"cpu": "1e3"},
            {"nvidia.com/gpu": 1}, {"hugepages-2Mi": "4Mi"}, {"ephemeral-storage": "1k"},
        )
    ),
    ("commonLabels", {"example.com/Team_a": "b.C"}),
    ("podAnnotations", {"example.com/a": "any text: at all"}),
    ("podSecurityContext", {"runAsUser": None, "fsGroup": 5, "seccompProfile": None}),
    ("networkPolicy.agents.extraEgress", [{}, {"to": [{"ipBlock": {"cidr": "fd00::/8"}}]}]),
    ("networkPolicy.agents.extraEgress", [{"ports": [{"port": 1, "endPort": 9}, {"port": "nfs"}]}]),
    ("extraObjects", ["kind: {{ .Release.Name }}"]),
    ("networkPolicy.metadataServer.cidrs", ["169.254.169.254/32", "255.249.199.0/24"]),
    ("podSecurityContext", {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}),
    ("podSecurityContext", {"sysctls": [{"name": "net/ipv4/conf/eth0.1/x", "value": "1"}]}),
    ("containerSecurityContext", {"privileged": True, "allowPrivilegeEscalation": None}),
    ("containerSecurityContext", {"privileged": False, "allowPrivilegeEscalation": False}),
    ("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
     [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]),
    *(
        ("extraEnv", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
        for path in (
            "metadata.name", "metadata.labels['a/b']", "status.hostIP", "spec.serviceAccountName",
        )
    ),
    ("extraEnv", [{"name": "a.b-c", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
    (TERMS, [{"matchExpressions": [RULE], "matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]),
]  # fmt: skip


@pytest.mark.parametrize("place", ["podAnnotations", "serviceAccount.annotations"])
def test_annotations_are_no_longer_than_kubernetes_takes(place: str, tmp_path: Path) -> None:
    """256 KiB of keys and values of an object."""
    for size, is_refused in ((2**18 - 1, False), (2**18, True)):
        text = tmp_path / "text"
        text.write_text("b" * size)
        done = helm("template", "bamboo", str(CHART), f"--set-file={place}.a={text}")
        assert bool(done.returncode) == is_refused, done.stderr[-300:]
        assert is_refused == (f"{place} has {size + 1} bytes" in done.stderr)


def found(place: str, value: Any) -> list[str]:
    """The places that the schema refuses if this value has that place."""
    values = copy.deepcopy(VALUES)
    *way, last = place.split(".")
    node = values
    for name in way:
        node = node.setdefault(name, {})
    node[last] = value
    return [
        ".".join(map(str, error.absolute_path))
        for error in Draft7Validator(SCHEMA).iter_errors(values)
    ]


def name_of(case: Any) -> str:
    return json.dumps(case)[:60]


@pytest.mark.parametrize(("place", "value"), REFUSED, ids=name_of)
def test_a_value_that_the_api_server_would_refuse(place: str, value: Any) -> None:
    places = found(place, value)
    assert places
    assert [other for other in places if not f"{other}.".startswith(f"{place}.")] == []


@pytest.mark.parametrize(("place", "value"), TAKEN, ids=name_of)
def test_a_value_that_it_would_take(place: str, value: Any) -> None:
    assert found(place, value) == []


def test_the_schema_itself_is_valid() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert found("logLevel", "info") == []


def test_helm_agrees() -> None:
    """Its expressions are those of Go. It names every place in one answer."""
    last = {place: value for place, value in REFUSED}
    given = [f"--set-json={place}={json.dumps(value)}" for place, value in last.items()]
    done = helm("template", "bamboo", str(CHART), *given)
    assert done.returncode != 0
    missed = [place for place in last if f"/{place.replace('.', '/')}" not in done.stderr]
    assert missed == []


VOLUME, MOUNT = {"name": "v", "emptyDir": {}}, {"name": "v", "mountPath": "/v"}


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "2000M"}},
         "resources.requests.memory is 2Gi, which is more than its limit 2000M"),
        ("resources", {"requests": {"memory": 4294967296}, "limits": {"memory": "2Gi"}},
         "which is more than its limit 2Gi"),
        ("resources", {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}},
         "resources.requests.cpu is 1500m, which is more than its limit 1"),
        ("notices.daemonSet.resources",
         {"requests": {"memory": "1e9"}, "limits": {"memory": "900Mi"}},
         "notices.daemonSet.resources.requests.memory is 1e9, which is more"),
        ("extraVolumes", [VOLUME, VOLUME], "extraVolumes has two volumes of the name v"),
        ("extraVolumeMounts", [MOUNT], "extraVolumeMounts names v, and extraVolumes has no"),
        ("resources", {"requests": {"nvidia.com/gpu": 1}},
         "resources.requests.nvidia.com/gpu has no limit; set resources.limits.nvidia.com/gpu to"),
        ("resources", {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": "2"}},
         "resources.requests.nvidia.com/gpu is 1 and its limit 2; make them equal"),
        ("podSecurityContext.sysctls",
         [{"name": "a.b", "value": "1"}, {"name": "a.b", "value": "2"}],
         "podSecurityContext.sysctls has a.b twice; remove one of them"),
    ],
)  # fmt: skip
def test_values_that_do_not_go_together_are_refused(place: str, value: Any, words: str) -> None:
    """A schema sees one value at a time."""
    done = helm("template", "bamboo", str(CHART), f"--set-json={place}={json.dumps(value)}")
    assert done.returncode != 0
    assert words in done.stderr


def test_one_path_for_two_mounts_is_refused() -> None:
    given = {"extraVolumes": [VOLUME], "extraVolumeMounts": [MOUNT, MOUNT | {"readOnly": True}]}
    values = [f"--set-json={place}={json.dumps(value)}" for place, value in given.items()]
    done = helm("template", "bamboo", str(CHART), *values)
    assert done.returncode != 0
    assert "extraVolumeMounts has two mounts at the path /v; choose another path" in done.stderr


def test_values_that_go_together_are_taken() -> None:
    given = {
        "resources": {
            "requests": {"cpu": "1.5", "memory": "1Gi", "ephemeral-storage": "1k"},
            "limits": {"cpu": 1.5, "memory": 1073741824, "ephemeral-storage": "1Ki"},
        },
        "extraVolumes": [VOLUME, VOLUME | {"name": "w"}],
        "extraVolumeMounts": [MOUNT, MOUNT | {"mountPath": "/w"}],
    }
    values = [f"--set-json={place}={json.dumps(value)}" for place, value in given.items()]
    done = helm("template", "bamboo", str(CHART), *values)
    assert done.returncode == 0, done.stderr

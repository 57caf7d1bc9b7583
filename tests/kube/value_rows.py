"""Values of the chart that the API server judges: some it takes, some it refuses."""

from __future__ import annotations

from typing import Any

Row = tuple[str, Any]

CONTEXT, MOUNTS, VOLUMES = "containerSecurityContext", "extraVolumeMounts", "extraVolumes"
DAEMON = "notices.daemonSet"
LONG = "a" * 64
ADMIN, DOTTED = {"add": ["SYS_ADMIN"]}, {"add": ["CAP_SYS_ADMIN"]}
QUIET, LOUD = {"allowPrivilegeEscalation": False}, {"allowPrivilegeEscalation": True}


def volumes(*names: str) -> list[dict[str, Any]]:
    """Empty volumes of these names."""
    return [{"name": name, "emptyDir": {}} for name in names]


def mounts(*paths: str, **more: Any) -> list[dict[str, Any]]:
    """Mounts of the volume ``v`` at these places."""
    return [{"name": "v", "mountPath": path, **more} for path in paths]


def env(**source: Any) -> list[dict[str, Any]]:
    """A variable with this source."""
    return [{"name": "A", "valueFrom": source}]


MAIN: list[Row] = [
    *(
        (CONTEXT, {**escalation, **privilege, "capabilities": capabilities})
        for escalation in ({}, QUIET, LOUD)
        for privilege in ({}, {"privileged": False}, {"privileged": True})
        for capabilities in ({"drop": ["ALL"]}, ADMIN, DOTTED)
    ),
    *(
        (MOUNTS, mounts(*paths))
        for paths in (("/a", "/b"), ("/a", "/a"), ("/a", "/a/"), ("/a", "/a/b"))
    ),
]
"""Rows that the chart took and the API server refused, and others beside them."""

CONTEXTS: list[Row] = [
    *(
        (CONTEXT, {"capabilities": {"add": ["NET_ADMIN", *more]}, **QUIET})
        for more in ([], ["SYS_ADMIN"], ["ALL"], ["sys_admin"])
    ),
    (CONTEXT, {"capabilities": {"drop": ["SYS_ADMIN"]}, **QUIET}),
    (CONTEXT, {"runAsUser": 0, "runAsNonRoot": True}),
    (CONTEXT, {"procMount": "Unmasked"}),
    *(
        (place, {kind: profile})
        for place in (CONTEXT, "podSecurityContext")
        for kind in ("seccompProfile", "appArmorProfile")
        for profile in (
            {"type": "RuntimeDefault"}, {"type": "Unconfined"}, {"type": "Localhost"},
            {"type": "Localhost", "localhostProfile": "a/b"},
            {"type": "RuntimeDefault", "localhostProfile": "a/b"},
            {"type": "Localhost", "localhostProfile": "/a"},
            {"type": "Localhost", "localhostProfile": "a/../b"},
        )
    ),
    ("podSecurityContext", {"runAsUser": 2**31 - 1, "fsGroup": 0}),
    ("podSecurityContext", {"runAsUser": 2**31}),
    ("podSecurityContext", {"supplementalGroups": [0, -1]}),
    ("podSecurityContext", {"seLinuxOptions": {"level": "s0"}}),
    ("podSecurityContext", {"seLinuxOptions": {"levl": "s0"}}),
    *(
        ("podSecurityContext", {"sysctls": [{"name": name, "value": "1"} for name in names]})
        for names in (["a.b"], ["a.b", "a.b"], ["a.b", "a/b"], ["A.b"])
    ),
    ("podSecurityContext", {"sysctls": [{"name": "a.b", "value": "1", "more": "2"}]}),
]  # fmt: skip

PODS: list[Row] = [
    *((VOLUMES, volumes(*names)) for names in (["v", "w"], ["v", "w", "v"], ["v", "X"])),
    (VOLUMES, [{"name": "v"}]),
    (VOLUMES, [{"name": "v", "hostPath": {}}]),
    (VOLUMES, [{"name": "v", "hostPath": {"path": "/a/../b"}}]),
    (VOLUMES, [{"name": "v", "hostPath": {"path": "/a", "type": "Folder"}}]),
    (VOLUMES, [{"name": "v", "configMap": {"name": "c", "defaultMode": 512}}]),
    (VOLUMES, [{"name": "v", "configMap": {"name": "c", "items": [{"key": "a"}]}}]),
    (VOLUMES, [{"name": "v", "secret": {}}]),
    (VOLUMES, [{"name": "v", "secret": {"name": "s"}}]),
    (VOLUMES, [{"name": "v", "persistentVolumeClaim": {}}]),
    (VOLUMES, [{"name": "v", "csi": {}}]),
    (VOLUMES, [{"name": "v", "nothing": {}}]),
    (VOLUMES, [{"name": "v", "emptyDir": {"sizeLimit": "1Gb"}}]),
    (VOLUMES, [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
    *(
        (MOUNTS, mounts("/a", **more))
        for more in (
            {"subPath": "a"}, {"subPath": "/a"}, {"subPath": "a/../b"}, {"subPathExpr": "$(A)"},
            {"subPath": "a", "subPathExpr": "$(A)"}, {"mountPropagation": "None"},
            {"mountPropagation": "Both"}, {"mountPropagation": "both"}, {"readonly": True},
            {"readOnly": True, "recursiveReadOnly": "IfPossible"},
            {"recursiveReadOnly": "Enabled"}, {"readOnly": "yes"},
        )
    ),
    (MOUNTS, mounts("relative")),
    ("extraEnv", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    ("extraEnv", [{"name": "A", "value": "1"}, {"name": "B"}]),
    ("extraEnv", [{"name": "A=B"}]),
    ("extraEnv", [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"key": "k"}}}]),
    *(
        ("extraEnv", env(**{kind: reference}))
        for kind in ("secretKeyRef", "configMapKeyRef")
        for reference in (
            {"name": "a", "key": "k"}, {"name": "a"}, {"key": "k"}, {"name": "a", "key": "a b"},
            {"name": "A_B", "key": "k"}, {"name": "a", "key": "k", "optional": True},
            {"name": "a", "key": "k", "optinal": True},
        )
    ),
    *(
        ("extraEnv", env(resourceFieldRef=reference))
        for reference in (
            {"resource": "limits.cpu"}, {"resource": "limits.gpu"}, {},
            {"resource": "requests.memory", "divisor": "1Mi"},
            {"resource": "requests.memory", "divisor": "2Mi"},
        )
    ),
    ("extraEnv", env(fieldRef={"fieldPath": "metadata.name", "apiVersion": "v1"})),
    ("extraEnv", env(fieldRef={"fieldPath": "metadata.name", "apiVersion": "v2"})),
    ("extraEnv", env(nothing={})),
    ("ports.metrics", 8082),
]  # fmt: skip

LABELS: list[Row] = [
    *(
        (place, {key: value})
        for place in ("commonLabels", "podLabels", "nodeSelector", f"{DAEMON}.nodeSelector")
        for key, value in (
            ("a", "b"), ("example.com/a", "b.C_d"), ("a", ""), ("a", LONG), ("a", "-b"),
            ("a b", "c"), ("/a", "b"), ("a/b/c", "d"), (LONG, "a"), ("a", 1), ("a", True),
            (f"{'a.' * 126}aa/a", "b"), ("Example.com/a", "b"),
        )
    ),
    *(
        (place, {key: value})
        for place in ("commonAnnotations", "podAnnotations", "serviceAccount.annotations")
        for key, value in (
            ("a", "any: text"), ("Example.com/a", "b"), ("a b", "c"), ("a", 1), (LONG, "a"),
            ("a", "b" * 1000), (f"{'a.' * 126}aa/a", "b"),
        )
    ),
    *(
        (place, [toleration])
        for place in ("tolerations", f"{DAEMON}.tolerations")
        for toleration in (
            {}, {"operator": "Exists"}, {"key": "a", "operator": "Exists", "value": "b"},
            {"key": "a", "operator": "Exists", "value": ""}, {"key": "a", "operator": "Lt"},
            {"key": "a", "operator": "Lt", "value": "5"}, {"key": "a"}, {"key": ""},
            {"key": "", "operator": "Exists"}, {"operator": "Exists", "value": "a"},
            {"key": "a", "operator": ""}, {"key": "a", "effect": ""},
            {"key": "a", "effect": "NoExecute", "tolerationSeconds": -1},
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1},
            {"key": "a", "tolerationSeconds": 1}, {"key": "a", "value": "-b"},
        )
    ),
    *(
        ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
         [term])
        for term in (
            {}, {"matchExpressions": []},
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]},
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]},
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n", "m"]}]},
            {"matchFields": [{"key": "a", "operator": "In", "values": ["n"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
        )
    ),
    *(
        ("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution", [term])
        for term in (
            {"topologyKey": "zone"}, {"topologyKey": "zone", "namespaces": ["a"]},
            {"topologyKey": "zone", "namespaces": ["A"]}, {"topologyKey": "zone", "more": 1},
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b c"}}},
            {"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "a", "operator": "In"}]}},
            {"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "a", "operator": "Exists", "values": ["b"]}]}},
            {"topologyKey": "zone", "matchLabelKeys": ["a"]},
        )
    ),
]  # fmt: skip

AMOUNTS: list[Row] = [
    *(
        (f"{place}resources", amounts)
        for place in ("", f"{DAEMON}.")
        for amounts in (
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "0.1"}},
            {"requests": {"cpu": "101m"}, "limits": {"cpu": "0.1"}},
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}},
            {"requests": {"memory": "1e3"}, "limits": {"memory": "1k"}},
            {"requests": {"memory": "1E"}, "limits": {"memory": "1Ei"}},
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
            {"requests": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "500m"}},
            {"limits": {"hugepages-2Mi": "4Mi"}},
            {"requests": {"hugepages-2Mi": "4Mi"}}, {"limits": {"memory": "0.5"}},
            {"limits": {"memory": "1m"}}, {"limits": {"cpu": "0.0001"}}, {"limits": {"cpu": "1."}},
            {"limits": {"cpu": ".5"}}, {"limits": {"cpu": "+1"}}, {"limits": {"cpu": "1E"}},
            {"limits": {"memory": "1u"}}, {"limits": {"memory": "1n"}},
            {"limits": {"memory": "1e-3"}}, {"limits": {"memory": "1 Gi"}},
            {"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}},
        )
    ),
    *(("replicas", number) for number in (1, 2, -1)),
    *(("revisionHistoryLimit", number) for number in (0, 5, -1)),
    *(("ports.agents", number) for number in (1024, 65535, 65536, 0)),
    *(("priorityClassName", name) for name in ("a", "a.b", "A b")),
    *(("serviceAccount.name", name) for name in ("a", "a.b", "A_b")),
    *(("imagePullSecrets", [{"name": name}]) for name in ("a", "a.b")),
    ("imagePullSecrets", [{"name": "a"}, {"name": "a"}]),
    *(("topologySpread.zones", value) for value in ("DoNotSchedule", "", "Never")),
]  # fmt: skip

POLICY = "networkPolicy"
V4, V6 = "10.0.0.0/8", "fd00::/8"
NETWORKS: list[Row] = [
    *(
        (f"{POLICY}.metadataServer.cidrs", [cidr])
        for cidr in (
            V4, "10.0.0.1/8", "10.128.0.0/9", "10.64.0.0/9", "0.0.0.0/0", "1.0.0.0/0",
            "10.0.0.7/32", "10.0.0.7/31", "10.0.0.6/31", V6, "fd00::1/8", "fe00::/7", "fd00::/7",
            "::/0", "::1/128", "::1/127", "1:2:3:4:5:6:7:8/128", "1:2:3:4:5:6:7:8/127",
            "1:2:3:4::/64", "1:2:3:4::/62", "1:2:3:4:5::/64", "1::2::3/128", "1:2:3/64",
            "12345::/16", ":::/0", "AB::/16",
        )
    ),
    *(
        (f"{POLICY}.{place}", [{"ipBlock": {"cidr": cidr, "except": excepted}}])
        for place in ("metricsFrom", "dns.to", "apiServer.to")
        for cidr, excepted in (
            (V4, ["10.1.0.0/16"]), (V4, ["11.0.0.0/16"]), (V4, [V4]), (V4, ["0.0.0.0/0"]),
            (V4, ["10.1.0.1/16"]), (V4, ["fd00::/16"]), (V6, ["fd01::/16", "fe00::/16"]),
            (V6, ["fd01::/16"]), ("10.0.0.1/8", []), ("0.0.0.0/0", [V4]), ("::/0", [V6]),
        )
    ),
    *(
        (f"{POLICY}.{part}.extraEgress", [{"ports": [{"port": port, "endPort": end}]}])
        for part in ("operator", "agents")
        for port, end in ((80, 90), (80, 80), (80, 79), ("http", 90))
    ),
    *(
        (f"{POLICY}.{part}.extraEgress", [{"to": [{"ipBlock": {"cidr": cidr}}]}])
        for part in ("operator", "agents")
        for cidr in (V4, "10.0.0.1/8")
    ),
]  # fmt: skip

OBJECTS: list[Row] = [
    *(
        ("monitoring.boards.labels", {key: value})
        for key, value in (("a", "b"), ("a", "b c"), ("a b", "c"), ("a", LONG))
    ),
    *(
        ("monitoring.boards.annotations", {key: value})
        for key, value in (("a", "b c"), ("a b", "c"), (LONG, "a"))
    ),
    *(
        ("extraObjects", [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}])
        for name in ("a", "a.b", "A_b", "a-", "a" * 254)
    ),
]  # fmt: skip

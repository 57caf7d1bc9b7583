"""BambooJobs that nobody should write, as the API server would send them.

The same seed gives the same texts. Most begin as a valid job in which some values are replaced,
dropped, doubled or added; some values are traps, by which a pod would get more than it should.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

Object = dict[str, Any]
Path = tuple[str | int, ...]

_AGENT: Object = {
    "name": "agent",
    "env": [{"name": "A", "value": "1"}],
    "securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": True},
    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
}
_SIDECAR: Object = {
    "name": "beside",
    "image": "beside:1",
    "ports": [{"containerPort": 9000}],
    "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "bamboo-job-key", "key": "k"}}}],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "livenessProbe": {"httpGet": {"path": "/", "port": 9000}},
    "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
    "resources": {"limits": {"cpu": "500m"}},
}
_RULE: Object = {"key": "disk", "operator": "In", "values": ["ssd"]}
_AFFINITY: Object = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [_RULE]}]
        }
    },
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    },
}
_TEMPLATE: Object = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [_AGENT, _SIDECAR],
        "initContainers": [{"name": "first", "image": "first:1", "restartPolicy": "Always"}],
        "volumes": [
            {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "both", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
        ],
        "securityContext": {"fsGroup": 5},
        "affinity": _AFFINITY,
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccountName": "default",
        "priorityClassName": "low",
    },
}


def _least() -> Object:
    return {
        "model": {"factory": "m:build"},
        "data": {"factory": "d:build"},
        "training": {
            "steps": 10,
            "globalBatchSize": 64,
            "microBatchSize": 2,
            "optimizer": {"factory": "torch.optim:SGD"},
        },
        "pipelines": {"count": 1, "stages": 2},
        "worker": {"image": "agent:1"},
    }


def _full() -> Object:
    found = _least()
    found["model"]["args"] = {"layers": 4, "sizes": [1, 2, 3]}
    found["data"] |= {"args": {"path": "/data"}, "validation": {"factory": "d:other"}}
    found["training"] |= {"clipNorm": 1.5, "validateEvery": 5, "onNonFinite": {"skip": 3}}
    found["pipelines"] |= {"min": 1, "max": 4}
    found |= {
        "numerics": "Canonical",
        "seed": 7,
        "suspend": False,
        "redundancy": {"mode": "Replica", "hostMemory": "4Gi"},
        "recovery": {"policy": "Peers"},
        "placement": {
            "adjacency": "Alternate",
            "zones": ["a", "b", "c"],
            "pools": [{"zones": ["a", "b", "c"], "nodeSelector": {"pool": "a"}}],
            "onDemand": {
                "afterSeconds": 60,
                "maxShare": 0.5,
                "nodeSelector": {"pool": "b"},
            },
        },
        "transport": {"channel": "Tcp", "encryption": "Auto"},
        "corruption": {"mode": "Detect", "sample": 0.01},
        "checkpoint": {
            "uri": "file:///checkpoints",
            "everySteps": 5,
            "keep": 2,
            "best": {"metric": "top_5", "mode": "Max"},
            "from": {"job": "e36a-9f", "attempt": 0, "step": 4},
        },
        "runPolicy": {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 3600},
    }
    found["worker"] |= {
        "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "1"}, "requests": {"memory": "1Gi"}},
        "env": [{"name": "B", "value": "2"}],
        "gracePeriodSeconds": 20,
        "notices": ["Gce", "AwsSpot"],
        "podTemplate": copy.deepcopy(_TEMPLATE),
    }
    return found


_DEEP = "@nested@"
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1023, 1 << 31, 1 << 53, 1 << 63, 10**30, 10**400, 0.5, -0.0,
    1e308, "", "a", "NaN", "inf", "null", "true", "Off", "1e400",
    "1e-400", "1e999999999", "1/0", "1/3", "-1", "0", "1_0", "٣", "9" * 5000, "1Gi", "10Zi", "m",
    "1e", "1e5k", ".", "x" * 300, "x" * 70_000, "\ud800", "\x00", "é", "名", "a\nb", "a b", "a=b",
    "../..", "$(HOSTNAME)", "{{ x }}", "__class__", "default", "agent", [], {}, [[]], [None], [{}],
    [None] * 40, ["a", "a"], [1, 2], {"": ""}, {"a": {"b": []}}, {"a": None}, {"name": None},
    {"name": ["a"]}, [{"name": 1}], {"key": {}}, ["a"] * 2000, {"k" * 5000: 1}, _DEEP,
    [_DEEP], {"a": _DEEP},
)  # fmt: skip
_KEYS = (
    "",
    "extra",
    "name",
    "spec",
    "args",
    "a b",
    "__init__",
    "é",
    "x" * 5000,
    "BAMBOO_JOB",
    "\x00",
)
_DEPTHS = (50, 90, 95, 96, 97, 98, 99, 100, 101, 300, 900, 1500, 4900)

_POD: Path = ("worker", "podTemplate", "spec")
_META: Path = ("worker", "podTemplate", "metadata")
_IN_AGENT: Path = (*_POD, "containers", 0)
_BESIDE: Path = (*_POD, "containers", 1)
_SECURITY: Path = ("securityContext",)
_KEY: Object = {"secretKeyRef": {"name": "database", "key": "password"}}
_AGAINST: Path = (
    "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
)  # fmt: skip
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_FAR: Object = {"topologyKey": "a", "namespaceSelector": {"matchLabels": {"team": "b"}}}
_TRAPS: tuple[tuple[Path, Any], ...] = (
    ((*_POD, "hostNetwork"), True),
    ((*_POD, "hostPID"), True),
    ((*_POD, "hostIPC"), "true"),
    ((*_POD, "nodeName"), "node-a"),
    ((*_POD, "restartPolicy"), "Always"),
    ((*_POD, "hostname"), "other"),
    ((*_POD, "serviceAccountName"), "admin"),
    ((*_POD, "serviceAccount"), "admin"),
    ((*_POD, "automountServiceAccountToken"), True),
    ((*_POD, "automountServiceAccountToken"), None),
    ((*_POD, "ephemeralContainers"), [{"name": "e", "image": "i"}]),
    ((*_POD, "priorityClassName"), "system-node-critical"),
    ((*_POD, "tolerations"), [{"operator": "Exists"}]),
    ((*_POD, "tolerations"), [{"key": "node-role.kubernetes.io/control-plane"}]),
    ((*_POD, *_AGAINST), [{"topologyKey": "a", "namespaceSelector": {}}]),
    ((*_POD, *_AGAINST), [{"topologyKey": "a", "namespaces": ["victim"]}]),
    ((*_POD, "affinity", "podAffinity", _PREFERRED), [{"podAffinityTerm": _FAR}]),
    ((*_POD, "nodeSelector", "a b"), "1"),
    ((*_POD, "volumes", 0, "hostPath"), {"path": "/"}),
    ((*_POD, "volumes", 0, "nfs"), {"server": "x", "path": "/"}),
    ((*_POD, "volumes", 0, "secret"), {"secretName": "database"}),
    ((*_POD, "volumes", 0, "csi"), {"driver": "secrets-store.csi.k8s.io"}),
    ((*_POD, "volumes", 0, "name"), "bamboo-identity"),
    ((*_POD, "volumes", 1, "projected", "sources"), [{"secret": {"name": "database"}}]),
    ((*_POD, "volumes", 1, "projected", "sources"), [{"serviceAccountToken": {"path": "t"}}]),
    ((*_POD, *_SECURITY), {"runAsUser": 0}),
    ((*_POD, *_SECURITY), {"runAsUser": "0"}),
    ((*_POD, *_SECURITY), {"runAsNonRoot": False}),
    ((*_POD, *_SECURITY), {"runAsNonRoot": None}),
    ((*_POD, *_SECURITY), {"seccompProfile": {"type": "Unconfined"}}),
    ((*_POD, *_SECURITY), {"seccompProfile": None}),
    ((*_POD, *_SECURITY), {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    ((*_POD, *_SECURITY), {"seLinuxOptions": {"type": "spc_t"}}),
    ((*_POD, *_SECURITY), {"windowsOptions": {"hostProcess": True}}),
    ((*_IN_AGENT, *_SECURITY), {"privileged": True}),
    ((*_IN_AGENT, *_SECURITY), {"allowPrivilegeEscalation": None}),
    ((*_IN_AGENT, *_SECURITY), {"allowPrivilegeEscalation": True}),
    ((*_IN_AGENT, *_SECURITY), {"capabilities": {"add": ["SYS_ADMIN"]}}),
    ((*_IN_AGENT, *_SECURITY), {"capabilities": {"drop": []}}),
    ((*_IN_AGENT, *_SECURITY), {"capabilities": None}),
    ((*_IN_AGENT, *_SECURITY), {"capabilities": {"drop": None, "add": None}}),
    ((*_IN_AGENT, *_SECURITY), {"procMount": "Unmasked"}),
    ((*_IN_AGENT, *_SECURITY), None),
    ((*_IN_AGENT, "env"), [{"name": "BAMBOO_TOKEN_FILE", "value": "/x"}]),
    ((*_IN_AGENT, "env"), [{"name": "K", "valueFrom": _KEY}]),
    ((*_IN_AGENT, "envFrom"), [{"secretRef": {"name": "database"}}]),
    ((*_IN_AGENT, "ports"), [{"containerPort": 1, "hostPort": 1}]),
    ((*_IN_AGENT, "ports"), [{"containerPort": 1, "hostIP": "0.0.0.0"}]),
    ((*_IN_AGENT, "volumeDevices"), [{"name": "cache", "devicePath": "/dev/sda"}]),
    ((*_IN_AGENT, "lifecycle"), {"postStart": {"httpGet": {"host": "169.254.169.254"}}}),
    ((*_BESIDE, "name"), "agent"),
    ((*_BESIDE, "livenessProbe"), {"tcpSocket": {"host": "10.0.0.1", "port": 1}}),
    ((*_META, "name"), "other"),
    ((*_META, "namespace"), "kube-system"),
    ((*_META, "ownerReferences"), [{"kind": "BambooJob", "uid": "other", "controller": True}]),
    ((*_META, "annotations", "bamboo.dev/seal"), "0" * 64),
    ((*_META, "annotations", "bamboo.dev/on-demand"), "true"),
    ((*_META, "annotations", "bamboo.dev/avoids"), "node-a"),
    ((*_META, "annotations", "container.apparmor.security.beta.kubernetes.io/agent"), "unconfined"),
    ((*_META, "labels", "bamboo.dev/job"), "victim"),
    ((*_META, "labels", "bamboo.dev/stage"), "7"),
    (("worker", "env"), [{"name": "K", "valueFrom": _KEY}]),
    (("worker", "env"), [{"value": "nameless"}]),
    (("worker", "env"), [{"name": "BAMBOO_JOB", "value": "victim"}]),
    (("worker", "env"), [{"name": ["a"]}]),
    (("placement", "zones"), ["a", "b", "zone c"]),
    (("placement", "pools", 0, "zones"), ["a", "b", "c", "zone d"]),
    (("placement", "onDemand", "nodeSelector"), {"pool": "b@d value!"}),
    (("placement", "pools", 0, "nodeSelector", "topology.kubernetes.io/zone"), "z"),
    (("pipelines",), {"count": 1024, "stages": 256}),
    (("pipelines",), {"count": 4, "stages": 256, "max": 1024}),
)


def text(rng: random.Random, name: str, namespace: str) -> str:
    """A job with that name, as JSON."""
    spec: Any = _least() if rng.random() < 0.3 else _full()
    if rng.random() < 0.02:
        spec = copy.deepcopy(rng.choice(_ODD))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
        if isinstance(spec, dict):
            spec = _trapped(rng, spec) if rng.random() < 0.4 else _changed(rng, spec)
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1}
    body: Object = {"apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "metadata": meta}
    if rng.random() < 0.99:
        body["spec"] = spec
    words = json.dumps(body).split(json.dumps(_DEEP))
    return words[0] + "".join(_nested(rng) + word for word in words[1:])


def valid(name: str, namespace: str) -> str:
    """A job that must be accepted."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1}
    kind = {"apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob"}
    return json.dumps(kind | {"metadata": meta, "spec": _full()})


def _nested(rng: random.Random) -> str:
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    return opening * depth + "1" + closing * depth


def _places(value: Any, here: Path = ()) -> list[Path]:
    """The paths of all values inside."""
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list) and len(value) < 50:
        inside = list(enumerate(value))
    else:
        inside = []
    return [p for key, item in inside for p in [(*here, key), *_places(item, (*here, key))]]


def _changed(rng: random.Random, spec: Object) -> Object:
    """With one value replaced, dropped, wrapped, doubled or added."""
    places = _places(spec)
    if not places:
        return spec
    *way, end = rng.choice(places)
    last: Any = end
    owner: Any = spec
    for key in way:
        owner = owner[key]
    match rng.randrange(8):
        case 0:
            del owner[last]
        case 1:
            owner[last] = rng.choice(([owner[last]], {"a": owner[last]}))
        case 2 if isinstance(owner, dict):
            owner[rng.choice(_KEYS)] = copy.deepcopy(rng.choice(_ODD))
        case 2 | 3 if isinstance(owner, list):
            owner += [copy.deepcopy(owner[last])] * rng.choice((1, 1, 200))
        case 4 if isinstance(owner[last], str):
            at = rng.randrange(len(owner[last]) + 1)
            owner[last] = owner[last][:at] + str(rng.choice(_ODD))[:50] + owner[last][at:]
        case _:
            owner[last] = copy.deepcopy(rng.choice(_ODD))
    return spec


def _trapped(rng: random.Random, spec: Object) -> Object:
    """With one trap, if there is a place for it."""
    (*way, last), value = rng.choice(_TRAPS)
    owner: Any = spec
    for key in way:
        if isinstance(owner, dict) and isinstance(key, str):
            owner = owner.setdefault(key, {})
        elif isinstance(owner, list) and isinstance(key, int) and key < len(owner):
            owner = owner[key]
        else:
            return spec
    if isinstance(owner, dict):
        owner[last] = copy.deepcopy(value)
    return spec

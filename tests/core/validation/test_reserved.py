"""What belongs to Bamboo in an agent's pod cannot be taken by a template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.core.controller.builders import JOB, manifest, spec

from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_core.validation import reserved
from bamboo_core.validation.pod_rules import PodRules
from bamboo_core.validation.pod_template import problems
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.pods import manifests

ROOT = Path(__file__).resolve().parents[3]
PORT = reserved.HEALTH_PORT
_AGENT, _SIDECAR = "t.spec.containers[0]", "t.spec.containers[1]"


def on_agent(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "agent"} | fields]}}


def on_sidecar(**fields: Any) -> dict[str, Any]:
    sidecar = {"name": "proxy", "image": "i"} | fields
    return {"spec": {"containers": [{"name": "agent"}, sidecar]}}


def mounts(*paths: object) -> list[dict[str, Any]]:
    return [{"name": "v", "mountPath": path} for path in paths]


def volumes(*names: str) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": name, "emptyDir": {}} for name in names]}}


IDENTITY = {"name": "bamboo-identity", "mountPath": "/stolen"}
TAKEN: list[tuple[dict[str, Any], str, str]] = [
    (volumes("bamboo-identity"), "t.spec.volumes[0].name", "'bamboo-identity' is the name of the"),
    (volumes("a", "b", "a"), "t.spec.volumes[2].name", "of t.spec.volumes[0] too; choose another"),
    *(
        (on_agent(volumeMounts=mounts(path)), f"{_AGENT}.volumeMounts[0].mountPath", "its token")
        for path in (
            "/var/run/bamboo",
            "/var/run/bamboo/",
            "/var//run/../run/bamboo",
            "/run/bamboo",
            "/var/run/bamboo/cache",
        )
    ),
    *(
        (
            {"spec": {kind: [{"name": name, "image": "i", "volumeMounts": [IDENTITY]}]}},
            f"t.spec.{kind}[0].volumeMounts[0].name",
            "which is for the agent only; remove the mount",
        )
        for kind, name in (
            ("initContainers", "init"),
            ("containers", "proxy"),
            ("containers", "agent"),
        )
    ),
    (
        on_agent(volumeMounts=mounts("/data", "/a", "/data/")),
        f"{_AGENT}.volumeMounts[2].mountPath",
        f"'/data/' is the path of {_AGENT}.volumeMounts[0] too; choose another path",
    ),
    (on_sidecar(volumeMounts=mounts("/a", "/a")), f"{_SIDECAR}.volumeMounts[1].mountPath", "/a"),
    (
        on_sidecar(ports=[{"containerPort": PORT}]),
        f"{_SIDECAR}.ports[0].containerPort",
        f"{PORT} is the port of the agent's health and metrics too; choose another port",
    ),
    (on_agent(ports=[{"containerPort": PORT}]), f"{_AGENT}.ports[0].containerPort", "choose"),
    (
        on_sidecar(ports=[{"containerPort": 80, "hostPort": PORT, "protocol": "TCP"}]),
        f"{_SIDECAR}.ports[0].hostPort",
        "choose another port",
    ),
    (
        on_sidecar(ports=[{"containerPort": 80, "name": "bamboo-metrics"}]),
        f"{_SIDECAR}.ports[0].name",
        "choose another name",
    ),
    (
        {"spec": {"initContainers": [{"name": "x", "image": "i", "ports": [{"hostPort": PORT}]}]}},
        "t.spec.initContainers[0].ports[0].hostPort",
        "choose another port",
    ),
    (
        on_agent(envFrom=[{"prefix": "BAMBOO_", "configMapRef": {"name": "x"}}]),
        f"{_AGENT}.envFrom[0].prefix",
        "choose one without BAMBOO_",
    ),
]


@pytest.mark.parametrize(("template", "field", "words"), TAKEN)
@pytest.mark.parametrize("trusted", [False, True])
def test_what_is_taken_is_refused_with_field_and_remedy(
    template: dict[str, Any], field: str, words: str, trusted: bool
) -> None:
    """R25 and its siblings, also on a cluster where everything else is allowed."""
    (found,) = problems(template, path="t", rules=PodRules(trusted=trusted))
    assert found.field == field
    assert words in str(found)
    worker = {"image": "agent:1", "podTemplate": template}
    read = from_manifest(manifest(worker=worker), rules=PodRules(trusted=trusted))
    assert isinstance(read, list)


@pytest.mark.parametrize(
    "page",
    ["docs/your-code.md", "docs/troubleshooting.md", "core/bamboo_core/protocol/admission.py"],
)
def test_variables_that_a_page_tells_users_to_set_can_be_set(page: str) -> None:
    """Every job with BAMBOO_THREADS was refused, though an error asks for it."""
    told = set(re.findall("BAMBOO_[A-Z_]+", (ROOT / page).read_text()))
    assert told
    for name in told:
        variable = {"name": name, "value": "2"}
        read = from_manifest(manifest(worker={"image": "agent:1", "env": [variable]}))
        assert not isinstance(read, list), read
        assert problems(on_agent(env=[variable]), path="t") == []


@pytest.mark.parametrize(
    "template",
    [
        on_sidecar(ports=[{"containerPort": 8080}]),
        on_sidecar(ports=[{"containerPort": PORT, "protocol": "UDP"}]),
        on_sidecar(volumeMounts=mounts("/var/run/bamboo")),
        on_agent(volumeMounts=mounts("/var/run", "/var/run/bamboo-cache", "/a", "/a/b", 5)),
        on_agent(envFrom=[{"prefix": "MY_BAMBOO_", "configMapRef": {"name": "x"}}]),
        volumes("bamboo", "identity"),
    ],
)
def test_what_nobody_has_is_free(template: dict[str, Any]) -> None:
    assert problems(template, path="t") == []


def test_everything_that_the_operator_adds_to_a_pod_is_reserved() -> None:
    """A template with the same names is refused, whatever they will be."""
    pod = manifests.pod(
        spec(worker=WorkerSpec("agent:1")), JOB, CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "a"),
        operator_address="op:1", event_logs="/e",
    )  # fmt: skip
    (container,) = pod["spec"]["containers"]
    names = [volume["name"] for volume in pod["spec"]["volumes"]]
    own = [
        volumes(*names),
        on_agent(volumeMounts=container["volumeMounts"]),
        on_sidecar(ports=container["ports"]),
        *(on_agent(env=[variable]) for variable in container["env"]),
    ]
    assert len(own) > 15
    assert [template for template in own if not problems(template, path="t")] == []

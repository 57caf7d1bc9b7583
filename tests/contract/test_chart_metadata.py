"""Names, labels, annotations, security contexts and further objects that the chart's user sets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from bamboo_core.validation.pod_rules import RESTRICTED, problems

from .chart import CHART, helm, of_kind, render

WATCHER = ("--set", "notices.daemonSet.enabled=true")
EVERYTHING = (
    *WATCHER,
    "--set", "networkPolicy.enabled=true,namespaces={team-a}",
    "--set", "serviceAccount.annotations.own=1a",
    "--set", "monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true",
    "--set", "monitoring.rules.enabled=true,monitoring.boards.enabled=true",
    "--set", "monitoring.rules.runbooks=https://example.com/runbooks",
)  # fmt: skip


def pod_templates(*arguments: str) -> dict[str, dict[str, Any]]:
    """The pods of the operator, of the node watcher, and of `helm test`."""
    found = {
        body["kind"]: body["spec"]["template"]
        for body in render(*WATCHER, *arguments)
        if body["kind"] in ("Deployment", "DaemonSet")
    }
    (test,) = of_kind(render(*arguments), "Pod")
    return {**found, "Pod": test}


# ---------------------------------------------------------------- names


def test_the_full_name_takes_the_place_of_the_release_with_operator() -> None:
    given = ("--set", "fullnameOverride=trainer,nameOverride=ignored")
    objects = render(*EVERYTHING, *given)
    own = [body for body in objects if not body["metadata"]["name"].startswith("bamboo-")]
    assert own
    for body in own:
        assert body["metadata"]["name"].removeprefix("bamboo-system-").startswith("trainer")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["metadata"]["name"] == "trainer"
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert env["BAMBOO_ADVERTISE_ADDRESS"] == "trainer.bamboo-system.svc:9443"
    (daemon_set,) = of_kind(objects, "DaemonSet")
    assert daemon_set["metadata"]["name"] == "trainer-node-watcher"
    others = {body["metadata"]["name"] for body in objects} - {
        body["metadata"]["name"] for body in own
    }
    assert others == {
        "bamboo-view", "bamboo-edit", "bamboo-admin", "bamboo-system-trainer",
        "bamboo-system-trainer-node-watcher",
    }  # fmt: skip


def test_the_longest_names_are_names_of_services() -> None:
    """And the name of each other object is one that its kind may have."""
    for setting in ("fullnameOverride=" + "a" * 49, "nameOverride=" + "a" * 40):
        for body in render(*EVERYTHING, "--set", setting):
            assert len(body["metadata"]["name"]) <= 63 + len("bamboo-system-")
        (service,) = of_kind(render("--set", setting), "Service")
        assert len(service["metadata"]["name"]) <= 63


@pytest.mark.parametrize("release", ["my.release", "1st"])
def test_a_release_whose_name_no_service_may_have(release: str) -> None:
    """helm takes it, and the API server would refuse the Service only."""
    command = ("template", release, str(CHART), "--namespace", "ns")
    done = helm(*command)
    assert done.returncode != 0
    assert f"the operator's Service would be named {release}-operator, and" in done.stderr
    assert f"set fullnameOverride, or choose another name for the release than {release}" in (
        done.stderr
    )
    assert helm(*command, "--set", "fullnameOverride=bamboo-operator").returncode == 0


# ---------------------------------------------------------------- labels and annotations


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector() -> None:
    given = ("--set", "commonLabels.team=a,commonLabels.example\\.com/cost=b-1")
    wanted = {"team": "a", "example.com/cost": "b-1"}.items()
    for body in render(*EVERYTHING, *given):
        assert wanted <= body["metadata"]["labels"].items(), body["metadata"]["name"]
    for pod in pod_templates(*given).values():
        assert wanted <= pod["metadata"]["labels"].items()
    for kind in ("Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        for body in of_kind(render(*EVERYTHING, *given), kind):
            selector = body["spec"].get("selector", body["spec"].get("podSelector"))
            assert "team" not in json.dumps(selector), kind


def test_common_annotations_are_on_every_object() -> None:
    given = ("--set", "commonAnnotations.team=a,commonAnnotations.bamboo\\.dev/namespaces=x")
    for body in render(*EVERYTHING, *given):
        annotations = body["metadata"]["annotations"]
        assert annotations["team"] == "a", body["metadata"]["name"]
        own = {"Deployment": ("bamboo.dev/namespaces", "team-a"), "Pod": ("helm.sh/hook", "test")}
        name, value = own.get(body["kind"], ("team", "a"))
        assert annotations[name] == value
        if body["kind"] == "ServiceAccount" and body["metadata"]["name"] == "bamboo-operator":
            assert annotations["own"] == "1a"
    for pod in (*of_kind(render(*given), "Deployment"), *of_kind(render(*WATCHER), "DaemonSet")):
        assert "annotations" not in pod["spec"]["template"]["metadata"]


def test_without_annotations_there_is_no_such_field() -> None:
    bare = [body for body in render() if "annotations" not in body["metadata"]]
    assert {body["kind"] for body in bare} >= {"Service", "ServiceAccount", "ClusterRole", "Role"}


def test_labels_and_annotations_of_the_operators_pod() -> None:
    pods = pod_templates(
        "--set", "podLabels.team=a,commonLabels.team=b,podAnnotations.example\\.com/x=y"
    )
    assert pods["Deployment"]["metadata"]["labels"]["team"] == "a"
    assert pods["DaemonSet"]["metadata"]["labels"]["team"] == "b"
    assert pods["Deployment"]["metadata"]["annotations"] == {"example.com/x": "y"}
    assert "annotations" not in pods["DaemonSet"]["metadata"]
    (service,) = of_kind(render("--set", "podLabels.team=a"), "Service")
    labels = pods["Deployment"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels


@pytest.mark.parametrize("part", ["serviceMonitor", "podMonitor", "rules", "boards"])
def test_a_label_of_all_objects_and_of_one_is_refused(part: str) -> None:
    """YAML has no map with a key twice."""
    given = f"commonLabels.release=a,monitoring.{part}.labels.release=b"
    done = helm("template", "bamboo", str(CHART), "--set", given)
    assert done.returncode != 0
    words = f"commonLabels.release is a label in monitoring.{part}.labels, too; remove it from one"
    assert words in done.stderr


# ---------------------------------------------------------------- security contexts


def test_every_pod_is_restricted_by_default() -> None:
    """As the level `restricted` asks, and with a user of its own."""
    for kind, pod in pod_templates().items():
        spec = pod["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, kind  # fmt: skip
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, kind  # fmt: skip


def test_security_contexts_are_values() -> None:
    given = (
        "--set", "podSecurityContext.fsGroup=5,podSecurityContext.runAsUser=null",
        "--set", "containerSecurityContext.readOnlyRootFilesystem=null",
    )  # fmt: skip
    for pod in pod_templates(*given).values():
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True, "runAsGroup": 65532, "fsGroup": 5,
            "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        (container,) = pod["spec"]["containers"]
        assert "readOnlyRootFilesystem" not in container["securityContext"]
    without = pod_templates("--set", "podSecurityContext=null,containerSecurityContext=null")
    for pod in without.values():
        assert "securityContext" not in pod["spec"]
        assert "securityContext" not in pod["spec"]["containers"][0]


def test_on_openshift_the_cluster_chooses_the_users() -> None:
    """restricted-v2 refuses a pod that names a user outside the namespace's range."""
    for pod in pod_templates("--values", str(CHART / "values/openshift.yaml")).values():
        spec = pod["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        if not spec.get("hostNetwork"):
            bare = {"securityContext": spec["securityContext"], "containers": spec["containers"]}
            named = [{**bare["containers"][0], "name": "agent"}]
            found = problems({}, {**bare, "containers": named}, path="", rules=RESTRICTED)
            assert found == []


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_how_many_old_versions_are_kept(kind: str) -> None:
    def kept(*arguments: str) -> int:
        (body,) = of_kind(render(*WATCHER, *arguments), kind)
        return int(body["spec"]["revisionHistoryLimit"])

    assert kept() == 10
    assert kept("--set", "revisionHistoryLimit=0") == 0


# ---------------------------------------------------------------- further objects


def test_further_objects_are_rendered_as_templates() -> None:
    map_ = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-map", "namespace": "{{ .Release.Namespace }}"},
        "data": {"operator": '{{ include "bamboo.name" . }}', "plain": "true"},
    }  # fmt: skip
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Values.logLevel }}'}\n"
    objects = render("--set-json", f"extraObjects={json.dumps([map_, text])}")
    found = {body["metadata"]["name"]: body for body in of_kind(objects, "ConfigMap")}
    assert found.keys() == {"bamboo-map", "info"}
    assert found["bamboo-map"]["metadata"]["namespace"] == "bamboo-system"
    assert found["bamboo-map"]["data"] == {"operator": "bamboo-operator", "plain": "true"}
    assert of_kind(render(), "ConfigMap") == []


# ---------------------------------------------------------------- files of values


@pytest.mark.parametrize("file", sorted((CHART / "values").glob("*.yaml")), ids=lambda f: f.name)
def test_files_set_values_that_the_schema_knows(file: Any) -> None:
    """Without the defaults of values.yaml beneath them, so that no wrong name hides."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    errors = Draft7Validator(schema).iter_errors(yaml.safe_load(file.read_text()))
    assert [e.message for e in errors if e.validator != "required"] == []

"""What the chart promises: the same definition, few rights, values that are checked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.api.pod_rules import PodRules
from bamboo_core.api.pod_template import AGENT_CONTAINER
from bamboo_operator import app, config, manifests, tls

from .chart import CHART, helm, of_kind, render

ROOT = CHART.parents[1]


def test_the_definition_is_ours() -> None:
    """Helm wants a copy in the chart."""
    copy = CHART / "crds/bamboojobs.yaml"
    assert copy.read_text() == (ROOT / "crds/bamboojobs.yaml").read_text()


@pytest.mark.parametrize("values", [None, "devcluster-values.yaml"])
def test_lint(values: str | None) -> None:
    extra = [] if values is None else ["--values", str(CHART / values)]
    done = helm("lint", "--strict", str(CHART), *extra)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, part in schema["properties"].items():
        if part.get("additionalProperties") is False:
            assert values[name].keys() <= part["properties"].keys()


@pytest.mark.parametrize(
    "setting",
    [
        "unknown=1", "advertise=dns", "logLevel=loud", "workers=0", "ports.agents=80",
        "image.repository=", "image.digest=sha256:1", "image.pullPolicy=Sometimes",
        "agents.eventLogDirectory=logs", "namespaces={Big}", "rbac.make=true", "tolerations=x",
    ],
)  # fmt: skip
def test_wrong_values_are_refused(setting: str) -> None:
    done = helm("template", "bamboo", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert setting.split("=")[0].split(".")[-1] in done.stderr


def container(*arguments: str) -> dict[str, Any]:
    (deployment,) = of_kind(render(*arguments), "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_the_operator_reads_every_variable_that_the_chart_sets() -> None:
    source = Path(config.__file__).read_text()
    read = set(re.findall(r'"((?:BAMBOO|POD)_[A-Z_]+)"', source))
    every = container("--set", "agents.eventLogDirectory=/logs")
    assert {e["name"] for e in every["env"]} <= read


def test_agents_record_only_if_asked() -> None:
    def folder(*arguments: str) -> str | None:
        env = {e["name"]: e.get("value") for e in container(*arguments)["env"]}
        return env.get("BAMBOO_AGENT_EVENT_LOGS")

    assert folder() is None
    assert folder("--set", "agents.eventLogDirectory=/logs") == "/logs"


def test_how_agents_find_the_operator() -> None:
    def address(*arguments: str) -> str | None:
        env = {e["name"]: e.get("value") for e in container(*arguments)["env"]}
        return env.get("BAMBOO_ADVERTISE_ADDRESS")

    assert address() == "bamboo-operator.bamboo-system.svc:9443"
    assert address("--set", "advertise=podIP") is None


def test_a_digest_wins_over_the_tag() -> None:
    digest = "sha256:" + "a" * 64
    assert container()["image"] == "bamboo-operator:0.1.0"
    image = container("--set", f"image.digest={digest}", "--set", "image.tag=x")["image"]
    assert image == f"bamboo-operator@{digest}"


def test_the_operators_pod_is_restricted() -> None:
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = pod["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["terminationGracePeriodSeconds"] == 30


USER_ROLES = {"bamboo-view", "bamboo-edit", "bamboo-admin"}


def rules(*arguments: str) -> list[tuple[str, dict[str, Any]]]:
    """Those of the operator."""
    given = render(*arguments)
    objects = [body for body in given if body["metadata"]["name"] not in USER_ROLES]
    roles = of_kind(objects, "ClusterRole") + of_kind(objects, "Role")
    return [(role["kind"], rule) for role in roles for rule in role["rules"]]


def test_rights_are_few() -> None:
    """No wildcards; nothing that leads to more rights; secrets only by name."""
    for _, rule in rules():
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"impersonate", "escalate", "bind", "deletecollection"} & set(rule["verbs"])
        assert not {"pods/exec", "serviceaccounts/token"} & set(rule["resources"])
        if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
            assert rule["resourceNames"] == [tls.SECRET]
        if "nodes" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "list", "watch"}


def test_names_in_rights_are_those_in_the_code() -> None:
    named = {name for _, rule in rules() for name in rule.get("resourceNames", [])}
    assert named == {tls.SECRET, app.LEASE, manifests.CA_CONFIG_MAP}


def test_with_namespaces_nothing_of_jobs_is_cluster_wide() -> None:
    wide = [
        rule for kind, rule in rules("--set", "namespaces={team-a,team-b}") if kind == "ClusterRole"
    ]
    assert {r for rule in wide for r in rule["resources"]} == {"nodes", "tokenreviews", "leases"}
    objects = render("--set", "namespaces={team-a,team-b}")
    places = {role["metadata"]["namespace"] for role in of_kind(objects, "Role")}
    assert places == {"team-a", "team-b", "bamboo-system"}


def test_pod_templates_are_restricted_unless_the_chart_says_else() -> None:
    def env(*arguments: str) -> dict[str, Any]:
        return {e["name"]: e.get("value", "") for e in container(*arguments)["env"]}

    def pod_rules(*arguments: str) -> PodRules:
        return config.from_env({**env(*arguments), "POD_IP": "10.0.0.1"}).pod_rules

    assert pod_rules() == PodRules()
    given = ("--set", "podTemplate.trusted=true,podTemplate.secrets=null,podTemplate.csiDrivers={d}")
    assert pod_rules(*given) == PodRules(trusted=True, secrets=(), csi_drivers=("d",))


def test_roles_of_users_add_to_those_of_the_cluster() -> None:
    def roles(*arguments: str) -> dict[str, dict[str, Any]]:
        found = of_kind(render(*arguments), "ClusterRole")
        return {r["metadata"]["name"]: r for r in found if r["metadata"]["name"] in USER_ROLES}

    assert roles("--set", "userRoles.create=false") == {}
    found = roles()
    to = "rbac.authorization.k8s.io/aggregate-to-"
    added = {
        name: {k.removeprefix(to) for k in role["metadata"]["labels"] if k.startswith(to)}
        for name, role in found.items()
    }
    assert added == {
        "bamboo-view": {"view", "edit", "admin"},
        "bamboo-edit": {"edit", "admin"},
        "bamboo-admin": {"admin"},
    }
    verbs = {name: set(role["rules"][0]["verbs"]) for name, role in found.items()}
    assert verbs["bamboo-view"] == {"get", "list", "watch"}
    assert verbs["bamboo-edit"] == verbs["bamboo-view"] | {"create", "update", "patch", "delete"}
    for role in found.values():
        assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"bamboo.dev"}


def test_labels_and_selectors() -> None:
    for body in render():
        labels = body["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "bamboo"
    (service,) = of_kind(render(), "Service")
    (deployment,) = of_kind(render(), "Deployment")
    selector = service["spec"]["selector"]
    assert selector == deployment["spec"]["selector"]["matchLabels"]
    assert "app.kubernetes.io/version" not in selector


def test_the_name_of_the_agents_container_is_documented() -> None:
    text = (ROOT / "crds/bamboojobs.yaml").read_text()
    assert f"named {AGENT_CONTAINER}." in text

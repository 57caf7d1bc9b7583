"""What the chart promises: the same definition, few rights, values that are checked."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.api import limits
from bamboo_core.api.spec import AGENT_CONTAINER
from bamboo_core.validation.pod_rules import PodRules
from bamboo_operator import app, config
from bamboo_operator.admission.held_tasks import TaskLimits
from bamboo_operator.agents.servicer import AgentService, make_server
from bamboo_operator.trust import tls
from bamboo_operator.trust.bundle import CA_CONFIG_MAP

from .chart import CHART, helm, of_kind, render

ROOT = CHART.parents[1]


def test_the_definition_is_ours() -> None:
    """Helm wants a copy in the chart."""
    copy = CHART / "crds/bamboojobs.yaml"
    assert copy.read_text() == (ROOT / "crds/bamboojobs.yaml").read_text()


FILES = ["devcluster-values.yaml", *(f"values/{p.name}" for p in (CHART / "values").glob("*"))]


@pytest.mark.parametrize("values", [None, *sorted(FILES)])
def test_lint(values: str | None) -> None:
    """It also renders the templates and checks the values."""
    extra = [] if values is None else ["--values", str(CHART / values)]
    done = helm("lint", "--strict", str(CHART), *extra)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_for_clouds_keep_the_operator_off_spot_nodes() -> None:
    """They set what differs from values.yaml, and their comment is in the README."""
    files = sorted((CHART / "values").glob("*.yaml"))
    assert len(files) == 6
    common = yaml.safe_load((CHART / "values.yaml").read_text())
    for file in files:
        values = yaml.safe_load(file.read_text())
        assert values.keys() <= common.keys()
        (deployment,) = of_kind(render("--values", str(file)), "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        text = json.dumps(pod["affinity"]) + json.dumps(pod.get("nodeSelector", {}))
        is_required = "requiredDuring" in text or "kubernetes.azure.com/mode" in text
        assert is_required == (file.name not in ("kind.yaml", "openshift.yaml"))


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    del schema["properties"]["global"]

    def compare(path: str, value: Any, node: dict[str, Any]) -> None:
        is_open = node.get("additionalProperties") is not False or "patternProperties" in node
        if is_open or path == ".affinity":
            return
        assert value.keys() == node["properties"].keys(), path
        for name, part in value.items():
            compare(f"{path}.{name}", part, node["properties"][name])

    compare("", values, schema)


WRONG = {
    "unknown=1": "additional properties 'unknown'",
    "advertise=dns": "/advertise",
    "logLevel=loud": "/logLevel",
    "workers=0": "/workers",
    "replicas=0": "/replicas",
    "ports.agents=80": "/ports/agents",
    "image.repository=": "/image/repository",
    "image.digest=sha256:1": "/image/digest",
    "image.pullPolicy=Sometimes": "/image/pullPolicy",
    "nameOverride=UPPER": "/nameOverride",
    "agents.eventLogDirectory=logs": "/agents/eventLogDirectory",
    "namespaces={Big}": "/namespaces/0",
    "rbac.make=true": "/rbac': additional properties 'make'",
    "userRoles.create=yes": "/userRoles/create",
    "resources.limits.memory=abc": "/resources/limits/memory",
    "tolerations=x": "/tolerations",
    "affinity.x=y": "/affinity': additional properties 'x'",
    "topologySpread.zones=Always": "/topologySpread/zones",
    "podTemplate.trusted=maybe": "/podTemplate/trusted",
    "podTemplate.secrets={A*b}": "/podTemplate/secrets/0",
    "disruptionBudgets=some": "/disruptionBudgets",
    "tasks.most=0": "/tasks/most",
    "tasks.mostOfNamespace=many": "/tasks/mostOfNamespace",
    "kueue.enabled=v2": "/kueue/enabled",
    "networkPolicy.enabled=on": "/networkPolicy/enabled",
    "networkPolicy.metricsFrom[0].x=y": "/networkPolicy/metricsFrom/0': additional properties 'x'",
    "networkPolicy.metricsFrom[1].namespaceSelector.team=a": (
        "/networkPolicy/metricsFrom/1/namespaceSelector': additional properties 'team'"
    ),
    "networkPolicy.metricsFrom[2].podSelector.matchExpressions[0].key=a": (
        "/podSelector/matchExpressions/0': missing property 'operator'"
    ),
    "networkPolicy.metricsFrom[3].ipBlock.cidr=everybody": "/metricsFrom/3/ipBlock/cidr",
    "extraEnv={A}": "/extraEnv/0",
    "extraVolumes[0].emptyDir.medium=Memory": "/extraVolumes/0': missing property 'name'",
    "extraVolumeMounts[0].name=x": "/extraVolumeMounts/0': missing property 'mountPath'",
}


@pytest.mark.parametrize("same", ["agents=8080", "metrics=8081", "health=9443"])
def test_equal_ports_are_refused(same: str) -> None:
    done = helm("template", "bamboo", str(CHART), "--set", f"ports.{same}")
    assert done.returncode != 0
    name, number = same.split("=")
    assert f"ports.{name} {number}" in done.stderr
    assert "must differ; choose another for one of them" in done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "tasks.most=100",
            "tasks.mostOfNamespace 393216 is above tasks.most 100, so it would bound nothing;"
            " lower it, or raise tasks.most",
        ),
        (
            "extraEnv[0].name=A,extraEnv[1].name=BAMBOO_WORKERS,extraEnv[1].value=five",
            "extraEnv[1].name BAMBOO_WORKERS is set by the chart itself; remove it, and use the"
            " chart's own value for it",
        ),
        ("extraEnv[0].name=POD_IP", "extraEnv[0].name POD_IP is set by the chart itself"),
        ("prices[0].labels.a=b,prices[0].dollarsPerHour=1,extraEnv[0].name=BAMBOO_PRICES",
         "extraEnv[0].name BAMBOO_PRICES is set by the chart itself"),
    ],
)  # fmt: skip
def test_values_that_contradict_each_other_are_refused(setting: str, words: str) -> None:
    done = helm("template", "bamboo", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize(
    ("setting", "account"),
    [("create=false", "bamboo-operator"), ("create=false,serviceAccount.name=mine", "mine")],
)
def test_an_account_that_the_chart_does_not_make_is_named(setting: str, account: str) -> None:
    told = "the operator runs as service account"
    dry = ("install", "bamboo", str(CHART), "--dry-run=client", "--namespace", "ns")
    done = helm(*dry, "--set", f"serviceAccount.{setting}")
    assert done.returncode == 0, done.stderr
    assert f"{told} {account} of namespace ns, which this" in done.stdout
    assert told not in helm(*dry).stdout


def test_a_namespace_may_have_all_tasks() -> None:
    render("--set", "tasks.most=393216")


def test_wrong_values_are_refused() -> None:
    """helm names all of them at once, each with its place."""
    done = helm("template", "bamboo", str(CHART), *(f"--set={setting}" for setting in WRONG))
    assert done.returncode != 0
    assert [words for words in WRONG.values() if words not in done.stderr] == []
    found = [line for line in done.stderr.splitlines() if line.lstrip().startswith("- at ")]
    assert len([line for line in found if not line.endswith("validation failed")]) == len(WRONG)


def container(*arguments: str) -> dict[str, Any]:
    (deployment,) = of_kind(render(*arguments), "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_the_plans_that_are_held_fit_into_a_quarter_of_the_operators_memory() -> None:
    """By default, and the operator has the same defaults."""
    found = container()
    told = {variable["name"]: variable.get("value") for variable in found["env"]}
    most = TaskLimits()
    assert told["BAMBOO_MOST_TASKS"] == str(most.all_jobs)
    assert told["BAMBOO_MOST_TASKS_OF_NAMESPACE"] == str(most.namespace)
    assert limits.MOST_TASKS <= most.namespace < most.all_jobs
    assert found["resources"]["limits"]["memory"] == "1Gi"
    assert most.all_jobs * 300 < (1 << 30) / 4


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
    assert named == {tls.SECRET, app.LEASE, CA_CONFIG_MAP}


def test_with_namespaces_nothing_of_jobs_is_cluster_wide() -> None:
    wide = [
        rule for kind, rule in rules("--set", "namespaces={team-a,team-b}") if kind == "ClusterRole"
    ]
    seen = {r for rule in wide for r in rule["resources"]}
    assert seen == {
        "nodes", "tokenreviews", "subjectaccessreviews", "leases", "priorityclasses",
    }  # fmt: skip
    objects = render("--set", "namespaces={team-a,team-b}")
    places = {role["metadata"]["namespace"] for role in of_kind(objects, "Role")}
    assert places == {"team-a", "team-b", "bamboo-system"}


def test_rights_on_workloads_come_with_kueue() -> None:
    def of_kueue(*arguments: str) -> set[tuple[str, str]]:
        return {
            (resource, verb)
            for _, rule in rules(*arguments)
            if "kueue.x-k8s.io" in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert of_kueue() == set()
    assert of_kueue("--set", "kueue.enabled=true") == {
        ("resourceflavors", "get"),
        ("workloads/status", "update"),
        *(("workloads", verb) for verb in ("get", "list", "watch", "create", "delete")),
    }


def test_two_operators_spread_out_and_survive_a_drain() -> None:
    objects = render()
    (deployment,) = of_kind(objects, "Deployment")
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    labels = spec["template"]["metadata"]["labels"].items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert [s["topologyKey"].split("/")[1] for s in spread] == ["zone", "hostname"]
    for rule in spread:
        assert rule["labelSelector"]["matchLabels"].items() <= labels
    alone = render("--set", "replicas=1,topologySpread.zones=,topologySpread.nodes=")
    assert of_kind(alone, "PodDisruptionBudget") == []
    (deployment,) = of_kind(alone, "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert "topologySpreadConstraints" not in deployment["spec"]["template"]["spec"]


def test_extra_variables_and_volumes() -> None:
    given = (
        "--set", "extraEnv[0].name=A,extraEnv[0].value=b", "--set", "extraVolumes[0].name=v",
        "--set", "extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/v",
    )  # fmt: skip
    (deployment,) = of_kind(render(*given), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "v"}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "v", "mountPath": "/v"}]
    assert pod["containers"][0]["env"][-1] == {"name": "A", "value": "b"}


async def test_the_test_of_the_chart_connects_as_agents_do() -> None:
    """Its program runs here, against a server with an operator's certificate."""
    assert of_kind(render("--set", "advertise=podIP"), "Pod") == []
    (pod,) = of_kind(render(), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    identity = tls.issue(tls.make_authority())
    service = AgentService(None, None, on_refused=lambda code: None)  # type: ignore[arg-type]
    server, port = make_server(service, lambda: identity, "127.0.0.1:0")
    await server.start()
    program = container["args"][0].replace("bamboo-operator.bamboo-system.svc", "127.0.0.1")
    assert program.count("9443") == 1
    try:
        command = [sys.executable, "-c", program.replace("9443", str(port))]
        process = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        await server.stop(None)


def test_pod_templates_are_restricted_unless_the_chart_says_else() -> None:
    def env(*arguments: str) -> dict[str, Any]:
        return {e["name"]: e.get("value", "") for e in container(*arguments)["env"]}

    def pod_rules(*arguments: str) -> PodRules:
        return config.from_env({**env(*arguments), "POD_IP": "10.0.0.1"}).pod_rules

    assert pod_rules() == PodRules()
    given = (
        "--set",
        "podTemplate.trusted=true,podTemplate.secrets=null,podTemplate.csiDrivers={d}",
    )
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

"""Network policies of the chart: what the operator and agents can reach, and from where."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.core.controller import builders

from bamboo_agent.notices.client import ADDRESS
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView, Slot
from bamboo_core.validation import reserved
from bamboo_operator.pods import manifests

from .chart import CHART, helm, of_kind, render

ON = ("--set", "networkPolicy.enabled=true,namespaces={team-a,team-b}")
NAMES = {"app.kubernetes.io/name": "bamboo-agent", "app.kubernetes.io/part-of": "bamboo"}
AGENTS = {"podSelector": {"matchLabels": NAMES}}
DNS = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
SERVER = {"ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]}
STORAGE = {
    "to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"protocol": "TCP", "port": 2049}],
}  # fmt: skip


def policies(*arguments: str) -> list[dict[str, Any]]:
    """The operator's, if it has one, and those of agents."""
    found = of_kind(render(*arguments), "NetworkPolicy")
    for policy in found:
        kubernetes_validate.validate(policy, kubernetes_validate.latest_version(), strict=True)
    return found


def test_agents_are_let_in_and_nobody_else() -> None:
    assert policies() == []
    mine, *others = policies(*ON)
    first, *open_to_all = mine["spec"]["ingress"]
    assert first["ports"] == [{"protocol": "TCP", "port": 9443}]
    assert NAMES.items() <= manifests.labels(JobView("ns", "job", "uid", 1, 0.0)).items()
    assert first["from"][0] == AGENTS | {"namespaceSelector": {}}
    assert [rule["ports"][0]["port"] for rule in open_to_all] == [8080, 8081]
    assert [o["metadata"]["namespace"] for o in others] == ["team-a", "team-b"]
    for policy in others:
        assert policy["spec"]["podSelector"] == AGENTS["podSelector"]
        assert policy["spec"]["ingress"][0] == {"from": [AGENTS]}


def test_the_port_for_probes_and_metrics_is_that_of_the_agents_pods() -> None:
    action = CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "zone-a")
    pod = manifests.pod(builders.spec(), builders.JOB, action, operator_address="op:1")
    (port,) = [p for c in pod["spec"]["containers"] for p in c["ports"]]
    assert port["name"] == reserved.METRICS_PORT
    for policy in policies(*ON)[1:]:
        (opened,) = policy["spec"]["ingress"][1]["ports"]
        assert opened == {"protocol": "TCP", "port": port["containerPort"]}


def test_the_operator_reaches_dns_and_the_api_server_only() -> None:
    mine = policies(*ON)[0]["spec"]
    assert mine["policyTypes"] == ["Ingress", "Egress"]
    assert mine["egress"] == [DNS, SERVER]


def test_agents_reach_each_other_the_operator_dns_and_the_metadata_server_only() -> None:
    deployment, operators = of_kind(render(), "Deployment")[0], {"team-a": 0, "team-b": 0}
    for policy in policies(*ON)[1:]:
        operators[policy["metadata"]["namespace"]] += 1
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        each_other, operator, dns, metadata = spec["egress"]
        assert each_other == {"to": [AGENTS]}
        assert dns == DNS
        (peer,) = operator["to"]
        home = {"kubernetes.io/metadata.name": "bamboo-system"}
        assert peer["namespaceSelector"] == {"matchLabels": home}
        selector = peer["podSelector"]["matchLabels"]
        assert selector == deployment["spec"]["selector"]["matchLabels"]
        assert operator["ports"] == [{"protocol": "TCP", "port": 9443}]
        host, port = ADDRESS.split(":")
        assert {"ipBlock": {"cidr": f"{host}/32"}} in metadata["to"]
        assert {"ipBlock": {"cidr": "fd00:ec2::254/128"}} in metadata["to"]
        assert metadata["ports"] == [{"protocol": "TCP", "port": int(port)}]
    assert operators == {"team-a": 1, "team-b": 1}


@pytest.mark.parametrize("part", ["operator", "agents"])
def test_further_rules(part: str) -> None:
    extra = f"networkPolicy.{part}.extraEgress={json.dumps([STORAGE])}"
    mine, *others = policies(*ON, "--set-json", extra)
    last = {
        "operator": mine["spec"]["egress"][-1],
        "agents": others[1]["spec"]["egress"][-1],
    }
    other = "agents" if part == "operator" else "operator"
    assert last[part] == STORAGE
    assert last[other] != STORAGE


@pytest.mark.parametrize(
    ("off", "operator", "agents"),
    [
        ("operator.egress", ["Ingress"], ["Ingress", "Egress"]),
        ("operator.ingress", ["Egress"], ["Ingress", "Egress"]),
        ("agents.egress", ["Ingress", "Egress"], ["Ingress"]),
        ("agents.ingress", ["Ingress", "Egress"], ["Egress"]),
    ],
)
def test_each_direction_can_be_switched_off(
    off: str, operator: list[str], agents: list[str]
) -> None:
    mine, first, second = (p["spec"] for p in policies(*ON, "--set", f"networkPolicy.{off}=false"))
    assert mine["policyTypes"] == operator
    assert first["policyTypes"] == second["policyTypes"] == agents
    for spec in (mine, first):
        assert {kind.lower() for kind in spec["policyTypes"]} == spec.keys() & {"ingress", "egress"}


def test_a_part_without_directions_has_no_policy() -> None:
    bare = "networkPolicy.operator.ingress=false,networkPolicy.operator.egress=false"
    assert [p["metadata"]["namespace"] for p in policies(*ON, "--set", bare)] == [
        "team-a", "team-b",
    ]  # fmt: skip
    bare = bare.replace("operator", "agents")
    assert len(policies("--set", f"networkPolicy.enabled=true,{bare}")) == 1


def test_where_the_api_server_dns_and_the_metadata_server_are() -> None:
    server, names = {"ipBlock": {"cidr": "10.0.0.1/32"}}, {"namespaceSelector": {}}
    mine, agents, _ = policies(
        *ON, f"--set-json=networkPolicy.apiServer={json.dumps({'to': [server], 'ports': [8443]})}",
        f"--set-json=networkPolicy.dns={json.dumps({'to': [names], 'ports': [53, 5353]})}",
        "--set-json=networkPolicy.metadataServer.cidrs=[]",
    )  # fmt: skip
    dns, found = mine["spec"]["egress"]
    assert found == {"to": [server], "ports": [{"protocol": "TCP", "port": 8443}]}
    assert dns["to"] == [names]
    assert [port["port"] for port in dns["ports"]] == [53, 53, 5353, 5353]
    assert [rule for rule in agents["spec"]["egress"] if rule["to"] == [names]] == [dns]
    assert "ipBlock" not in json.dumps(agents["spec"])


def test_policies_for_agents_of_named_namespaces_while_all_are_served() -> None:
    given = "networkPolicy.enabled=true,networkPolicy.agents.namespaces={team-c}"
    _, *others = policies("--set", given)
    assert [o["metadata"]["namespace"] for o in others] == ["team-c"]
    _, *others = policies(*ON, "--set", given)
    assert [o["metadata"]["namespace"] for o in others] == ["team-c"]


def test_policies_without_a_namespace_of_agents_are_refused() -> None:
    """Agents would have none, although the values say that policies are enabled."""
    done = helm("template", "bamboo", str(CHART), "--set", "networkPolicy.enabled=true")
    assert done.returncode != 0
    assert "networkPolicy.enabled is true, but no agent would get a policy" in done.stderr
    assert "Name the namespaces of jobs in networkPolicy.agents.namespaces, or set" in done.stderr
    assert "networkPolicy.agents.enabled to false" in done.stderr
    off = "networkPolicy.enabled=true,networkPolicy.agents.enabled=false"
    assert len(policies("--set", off)) == 1


def test_the_notes_say_what_agents_can_reach() -> None:
    def notes(*arguments: str) -> str:
        dry = ("install", "bamboo", str(CHART), "--dry-run=client", "--namespace", "ns")
        done = helm(*dry, *arguments)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.partition("NOTES:")[2].split())

    assert "network policy" not in notes()
    off = "networkPolicy.enabled=true,networkPolicy.agents.enabled=false"
    assert "WARNING: agents have no network policy." in notes("--set", off)
    assert "agents of team-a, team-b reach only the operator, each other, DNS" in notes(*ON)
    ingress_only = notes(*ON, "--set", "networkPolicy.agents.egress=false")
    assert "reach only" not in ingress_only
    assert "no network policy" not in ingress_only


CLOUDS = [
    file for file in sorted((CHART / "values").glob("*.yaml"))
    if "networkPolicy" in yaml.safe_load(file.read_text())
]  # fmt: skip


def test_every_cloud_has_policies() -> None:
    assert [file.stem for file in CLOUDS] == [
        "aks", "eks-karpenter", "eks-managed", "gke-spot", "openshift",
    ]  # fmt: skip


@pytest.mark.parametrize("file", CLOUDS, ids=lambda file: file.name)
def test_a_clouds_file_says_that_agents_get_policies_by_name(file: Any) -> None:
    """The command in its comment gives them."""
    text = file.read_text()
    assert [p["metadata"]["namespace"] for p in policies("--values", str(file))] == [
        "bamboo-system"
    ]
    (command,) = [line for line in text.splitlines() if line.startswith("#   --set networkPolicy")]
    arguments = command.removeprefix("#   ").split()
    mine, agents = policies("--values", str(file), *arguments)
    assert agents["metadata"]["namespace"] == "team-a"
    assert agents["spec"]["policyTypes"] == mine["spec"]["policyTypes"] == ["Ingress", "Egress"]
    has_metadata = "169.254.169.254" in json.dumps(agents)
    assert has_metadata == (file.name != "eks-karpenter.yaml"), "the node watcher asks there"


@pytest.mark.parametrize(
    "peer",
    [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ],
)
def test_who_may_read_metrics(peer: dict[str, Any]) -> None:
    settings = {"enabled": True, "metricsFrom": [peer]}
    objects = render(
        "--set", "namespaces={team-a}", "--set-json", f"networkPolicy={json.dumps(settings)}"
    )  # fmt: skip
    found = of_kind(objects, "NetworkPolicy")
    assert len(found) == 2
    for policy, port in zip(found, (8080, reserved.HEALTH_PORT), strict=True):
        kubernetes_validate.validate(policy, kubernetes_validate.latest_version(), strict=True)
        (rule,) = [
            r for r in policy["spec"]["ingress"] if r.get("ports", [{}])[0].get("port") == port
        ]
        assert rule["from"] == [peer]


def test_an_address_and_a_selector_are_two_peers() -> None:
    """The API server refuses them in one, at the installation."""
    both = {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}
    given = f"networkPolicy.metricsFrom={json.dumps([both])}"
    done = helm("template", "bamboo", str(CHART), "--set-json", given)
    assert done.returncode != 0
    assert "/networkPolicy/metricsFrom/0" in done.stderr

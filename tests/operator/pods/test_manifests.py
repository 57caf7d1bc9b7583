"""The pods that the operator makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import JOB, spec

from bamboo_agent.supervisor.config import from_env
from bamboo_core.api.spec import Adjacency, NoticeSource, OnDemandSpec, PoolSpec, WorkerSpec
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_core.placement.node_pools import SPOT_LABELS
from bamboo_operator.kube import object_views
from bamboo_operator.kube.labels import JOB_UID_ANNOTATION, TEMPLATE_ANNOTATION
from bamboo_operator.pods import manifests
from bamboo_operator.trust.bundle import CA_CONFIG_MAP

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ACTION = CreatePod("job-p0-s1-i3", Slot(0, 1), 3, "zone-b")


def make(**worker: Any) -> dict[str, Any]:
    wanted = spec(worker=WorkerSpec("agent:1", **worker))
    return manifests.pod(wanted, JOB, ACTION, operator_address="op:9443")


def test_what_belongs_to_the_operator() -> None:
    pod = make(grace_period_s=20, resources={"limits": {"nvidia.com/gpu": 1}})
    body = pod["spec"]
    assert pod["metadata"]["name"] == "job-p0-s1-i3"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert body["restartPolicy"] == "Never"
    assert body["terminationGracePeriodSeconds"] == 20
    assert body["nodeSelector"] == {"topology.kubernetes.io/zone": "zone-b"}
    assert body["automountServiceAccountToken"] is False
    (container,) = body["containers"]
    assert (container["name"], container["image"]) == ("agent", "agent:1")
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_every_container_is_restricted_unless_the_template_says_else() -> None:
    template = {
        "spec": {
            "securityContext": {"fsGroup": 5},
            "initContainers": [{"name": "first"}],
            "containers": [
                {"name": "agent", "securityContext": {"readOnlyRootFilesystem": True}},
                {"name": "driver", "securityContext": {"privileged": True}},
            ],
        }
    }
    body = make(pod_template=template)["spec"]
    default = {"type": "RuntimeDefault"}
    assert body["securityContext"] == {
        "fsGroup": 5,
        "runAsNonRoot": True,
        "seccompProfile": default,
    }
    secured = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    agent, driver = body["containers"]
    assert agent["securityContext"] == secured | {"readOnlyRootFilesystem": True}
    assert driver["securityContext"] == {"privileged": True}
    assert [(c["name"], c["securityContext"]) for c in body["initContainers"]] == [
        ("first", secured)
    ]


def test_the_token_is_only_for_the_operator() -> None:
    (volume,) = make()["spec"]["volumes"]
    token, bundle = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "bamboo-operator"
    assert bundle["configMap"]["name"] == CA_CONFIG_MAP


def test_the_agent_can_read_its_environment(tmp_path: Any) -> None:
    """The names are those that the agent's own configuration asks for."""
    (container,) = make()["spec"]["containers"]
    env = {e["name"]: e.get("value") or "field" for e in container["env"]}
    for name in ("BAMBOO_TOKEN_FILE", "BAMBOO_CA_FILE"):
        path = tmp_path / name
        path.write_text("x")
        env[name] = str(path)
    found = from_env(env)
    assert found.operator_address == "op:9443"
    assert found.operator_name == "bamboo-operator"
    assert (found.job, found.zone, found.grace_s) == ("ns/job", "zone-b", 15.0)
    assert found.notices == (NoticeSource.AUTO,)


def test_the_agent_asks_for_notices_where_the_spec_says() -> None:
    sources = (NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE)
    (container,) = make(notices=sources)["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["BAMBOO_NOTICES"] == "AwsSpot,AwsRebalance"


def test_without_a_zone_there_is_no_selector() -> None:
    anywhere = CreatePod("job-p0-s1-i3", Slot(0, 1), 3, "")
    pod = manifests.pod(spec(), JOB, anywhere, operator_address="op:1")
    assert "nodeSelector" not in pod["spec"]


def test_the_users_environment_cannot_hide_ours() -> None:
    env = ({"name": "BAMBOO_JOB", "value": "other"}, {"name": "MINE", "value": "1"})
    (container,) = make(env=env)["spec"]["containers"]
    found = {e["name"]: e.get("value") for e in container["env"]}
    assert (found["BAMBOO_JOB"], found["MINE"]) == ("ns/job", "1")


def keys_from(*own: dict[str, Any], source: Sequence[dict[str, Any]] = (), **more: Any) -> str:
    agent = {"name": "agent", "env": list(own), "envFrom": [*source]}
    template = {"spec": {"containers": [{"name": "other", "envFrom": [_secret("not")]}, agent]}}
    containers = make(pod_template=template, **more)["spec"]["containers"]
    (container,) = (c for c in containers if c["name"] == "agent")
    found: dict[str, str] = {e["name"]: e.get("value", "") for e in container["env"]}
    return found["BAMBOO_KEYS_FROM"]


def _secret(name: str) -> dict[str, Any]:
    return {"secretRef": {"name": name}}


def _key(variable: str, name: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}


def test_the_agent_learns_which_secrets_have_the_keys_of_a_bucket() -> None:
    """Its errors name them."""
    both = _key("AWS_ACCESS_KEY_ID", "mine"), _key("AWS_SECRET_ACCESS_KEY", "mine")
    sources = [{"configMapRef": {"name": "settings"}}, _secret("bamboo-job-a"), _secret("b")]
    assert keys_from() == ""
    assert keys_from(source=sources) == "bamboo-job-a,b"
    assert keys_from(*both, source=sources) == "mine"
    assert keys_from(_key("OTHER", "mine"), source=sources) == "bamboo-job-a,b"
    assert keys_from(*both, env=(_key("AWS_SECRET_ACCESS_KEY", "spec"),)) == "mine,spec"
    assert keys_from({"name": "AWS_ACCESS_KEY_ID", "value": "K"}, source=sources) == ""


def test_agents_write_event_logs_if_asked() -> None:
    def folder(**asked: str) -> str | None:
        pod = manifests.pod(spec(), JOB, ACTION, operator_address="op:1", **asked)
        (container,) = pod["spec"]["containers"]
        found = {e["name"]: e.get("value") for e in container["env"]}
        return found.get("BAMBOO_EVENT_LOG")

    assert folder() is None
    assert folder(event_logs="/logs") == "/logs/ns/job/uid-1"


def test_the_agents_last_words_go_where_the_template_lets_the_kubelet_read_them() -> None:
    """They were lost: the agent wrote to the usual file, which was not there."""

    def file(**more: str) -> str | None:
        template = {"spec": {"containers": [{"name": "agent", **more}]}}
        (container,) = make(pod_template=template)["spec"]["containers"]
        return {e["name"]: e.get("value") for e in container["env"]}.get("BAMBOO_TERMINATION_FILE")

    assert file() is None
    assert file(terminationMessagePath="/dev/last-words") == "/dev/last-words"


def test_the_words_of_every_container_reach_the_status() -> None:
    """Those of init containers and sidecars were lost, unless the template asked for them."""
    own = {"name": "quiet", "image": "q", "terminationMessagePolicy": "File"}
    template = {
        "spec": {
            "initContainers": [{"name": "fetch", "image": "f"}],
            "containers": [{"name": "proxy", "image": "p"}, own],
        }
    }
    body = make(pod_template=template)["spec"]
    found = {
        container["name"]: container["terminationMessagePolicy"]
        for container in (*body["initContainers"], *body["containers"])
    }
    logs = "FallbackToLogsOnError"
    assert found == {"fetch": logs, "agent": logs, "proxy": logs, "quiet": "File"}


def test_the_template_is_merged_and_not_changed() -> None:
    template = {
        "metadata": {"labels": {"team": "x", "bamboo.dev/job": "y"}, "annotations": {"a": "b"}},
        "spec": {
            "serviceAccountName": "cloud",
            "tolerations": [{"key": "spot"}],
            "nodeSelector": {"gpu": "h100"},
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "containers": [
                {"name": "agent", "volumeMounts": [{"name": "cache", "mountPath": "/c"}]},
                {"name": "sidecar", "image": "s"},
            ],
        },
    }
    before = repr(template)
    pod = make(pod_template=template)
    body = pod["spec"]
    assert repr(template) == before
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["bamboo.dev/job"] == "job"
    notes = pod["metadata"]["annotations"]
    assert len(notes.pop(TEMPLATE_ANNOTATION)) == 16
    assert notes == {"a": "b", JOB_UID_ANNOTATION: JOB.uid}
    assert body["serviceAccountName"] == "cloud"
    assert body["nodeSelector"] == {"gpu": "h100", "topology.kubernetes.io/zone": "zone-b"}
    assert [v["name"] for v in body["volumes"]] == ["cache", "bamboo-identity"]
    assert [c["name"] for c in body["containers"]] == ["agent", "sidecar"]
    mounts = [m["mountPath"] for m in body["containers"][0]["volumeMounts"]]
    assert mounts == ["/c", "/var/run/bamboo"]


AVOIDING = CreatePod("job-p0-s1-i3", Slot(0, 1), 3, "zone-b", ("node-a", "node-b"))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_THERE = [
    {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("node-a", "node-b")
]


def avoiding(affinity: dict[str, Any] | None = None) -> dict[str, Any]:
    template = {} if affinity is None else {"spec": {"affinity": affinity}}
    wanted = spec(worker=WorkerSpec("agent:1", pod_template=template))
    return manifests.pod(wanted, JOB, AVOIDING, operator_address="op:9443")


def test_a_pod_avoids_nodes_by_name() -> None:
    pod = avoiding()
    terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [{"matchFields": NOT_THERE}]
    pod["metadata"]["uid"] = "uid"
    (view,) = object_views.pod_views([pod], JOB)
    assert view.avoids == {"node-a", "node-b"}
    assert "affinity" not in make()["spec"]


def test_the_users_affinity_stays() -> None:
    """Terms are alternatives, so that none may lead to a bad node; an empty one matches nothing."""
    wants = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-c"]}]}
    given = {
        "podAffinity": {"x": 1},
        "nodeAffinity": {"preferred": [1], REQUIRED: {"nodeSelectorTerms": [wants, {}, named]}},
    }
    before = repr(given)
    found = avoiding(given)["spec"]["affinity"]
    assert found["podAffinity"] == {"x": 1}
    assert found["nodeAffinity"]["preferred"] == [1]
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        wants | {"matchFields": NOT_THERE},
        {"matchFields": [*named["matchFields"], *NOT_THERE]},
    ]
    assert repr(given) == before
    empty: dict[str, Any] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}
    assert avoiding(empty)["spec"]["affinity"] == empty


@pytest.mark.parametrize(
    "name", ["bamboo.dev/avoids", "bamboo.dev/avoids-types", TEMPLATE_ANNOTATION]
)
def test_a_user_cannot_say_what_a_pod_avoids(name: str) -> None:
    pod = make(pod_template={"metadata": {"annotations": {name: "node-c"}}})
    notes = pod["metadata"]["annotations"]
    assert notes.pop(TEMPLATE_ANNOTATION) != "node-c"
    assert notes == {JOB_UID_ANNOTATION: JOB.uid}


def test_a_pod_avoids_instance_types_also_of_nodes_that_come_later() -> None:
    action = replace(AVOIDING, avoids=("node-a",), avoids_types=("c5.large", "m5.large"))
    pod = manifests.pod(spec(), JOB, action, operator_address="op:9443")
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    key, values = "node.kubernetes.io/instance-type", ["c5.large", "m5.large"]
    assert term == {
        "matchFields": NOT_THERE[:1],
        "matchExpressions": [{"key": key, "operator": "NotIn", "values": values}],
    }
    pod["metadata"]["uid"] = "uid"
    (view,) = object_views.pod_views([pod], JOB)
    assert (view.avoids, view.avoids_types) == ({"node-a"}, {"c5.large", "m5.large"})


def test_a_pod_without_a_zone_stays_away_from_its_neighbours() -> None:
    anywhere = CreatePod("job-p1-s0-i3", Slot(1, 0), 3, "", ("node-a",), apart=(1,))
    given = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}}  # fmt: skip
    worker = WorkerSpec("agent:1", pod_template={"spec": {"affinity": given}})
    pod = manifests.pod(spec(stages=4, worker=worker), JOB, anywhere, operator_address="op:1")
    affinity = pod["spec"]["affinity"]
    (rule,) = affinity["podAntiAffinity"][REQUIRED]
    assert rule["topologyKey"] == "topology.kubernetes.io/zone"
    selector = rule["labelSelector"]
    assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert selector["matchExpressions"] == [
        {"key": "bamboo.dev/stage", "operator": "In", "values": ["1", "3"]},
        {"key": "bamboo.dev/incarnation", "operator": "In", "values": ["1", "3"]},
    ]
    (term,) = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [rule["key"] for rule in term["matchExpressions"]] == ["gpu", ZONE_LABEL]
    assert [rule["values"] for rule in term["matchFields"]] == [["node-a"]]
    together = spec(adjacency=Adjacency.CLUSTER)
    body = manifests.pod(together, JOB, anywhere, operator_address="op:1")["spec"]
    assert "podAntiAffinity" not in body["affinity"]


def test_the_labels_of_the_zones_pool() -> None:
    pools = (PoolSpec(("zone-a",), {"pool": "x"}), PoolSpec(("zone-b",), {"pool": "y"}))
    pod = manifests.pod(spec(pools=pools), JOB, ACTION, operator_address="op:1")
    assert pod["spec"]["nodeSelector"] == {"pool": "y", ZONE_LABEL: "zone-b"}


def test_pools_of_the_devices_that_it_asks_for_are_tolerated() -> None:
    mine = {"key": "team", "operator": "Exists"}
    body = make(
        resources={"limits": {"nvidia.com/gpu": 1, "cpu": 2}},
        pod_template={"spec": {"tolerations": [mine]}},
    )["spec"]
    device = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert body["tolerations"] == [mine, device]
    assert "tolerations" not in make()["spec"]


def test_spot_nodes_only_unless_an_on_demand_node_will_do() -> None:
    """Labels of several clouds are alternatives, and so are the user's terms."""
    given = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}}  # fmt: skip
    worker = WorkerSpec("agent:1", pod_template={"spec": {"affinity": given}})
    wanted = spec(worker=worker)
    wanted = replace(wanted, placement=replace(wanted.placement, on_demand=OnDemandSpec()))
    pod = manifests.pod(wanted, JOB, ACTION, operator_address="op:1")
    terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    keys = [[rule["key"] for rule in term["matchExpressions"]] for term in terms]
    assert ["gpu", "cloud.google.com/gke-spot"] in keys
    assert ["gpu", "karpenter.sh/capacity-type"] in keys
    free = manifests.pod(wanted, JOB, replace(ACTION, is_on_demand=True), operator_address="op:1")
    assert free["spec"]["affinity"] == given
    free["metadata"]["uid"] = "uid"
    (view,) = object_views.pod_views([free], JOB)
    assert view.is_on_demand
    plain = replace(wanted, worker=WorkerSpec("agent:1"))
    body = manifests.pod(plain, JOB, ACTION, operator_address="op:1")["spec"]
    terms = body["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert len(terms) == len(SPOT_LABELS)


def test_an_on_demand_agent_needs_other_labels_than_those_of_the_spot_pool() -> None:
    """Those of the template stay, but for the ones that on-demand nodes have otherwise."""
    template = {"spec": {"nodeSelector": {"gpu": "a100", "capacity": "spot"}}}
    pools = (PoolSpec(("zone-b",), {"pool": "spot-a100"}),)
    wanted = spec(pools=pools, worker=WorkerSpec("agent:1", pod_template=template))
    rule = OnDemandSpec(node_selector={"pool": "a100", "capacity": "on-demand"})
    wanted = replace(wanted, placement=replace(wanted.placement, on_demand=rule))
    first = manifests.pod(wanted, JOB, ACTION, operator_address="op:1")
    zone = {ZONE_LABEL: "zone-b"}
    assert first["spec"]["nodeSelector"] == zone | {
        "gpu": "a100", "capacity": "spot", "pool": "spot-a100"
    }  # fmt: skip
    later = manifests.pod(wanted, JOB, replace(ACTION, is_on_demand=True), operator_address="op:1")
    assert later["spec"]["nodeSelector"] == zone | {
        "gpu": "a100", "capacity": "on-demand", "pool": "a100"
    }  # fmt: skip

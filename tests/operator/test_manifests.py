"""The pods that the operator makes."""

from __future__ import annotations

from typing import Any

from tests.core.controller.builders import JOB, spec

from bamboo_agent.supervisor.config import from_env
from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_operator import manifests, observe

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
    assert body["initContainers"] == [{"name": "first", "securityContext": secured}]


def test_the_token_is_only_for_the_operator() -> None:
    (volume,) = make()["spec"]["volumes"]
    token, bundle = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "bamboo-operator"
    assert bundle["configMap"]["name"] == manifests.CA_CONFIG_MAP


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


def test_without_a_zone_there_is_no_selector() -> None:
    anywhere = CreatePod("job-p0-s1-i3", Slot(0, 1), 3, "")
    pod = manifests.pod(spec(), JOB, anywhere, operator_address="op:1")
    assert "nodeSelector" not in pod["spec"]


def test_the_users_environment_cannot_hide_ours() -> None:
    env = ({"name": "BAMBOO_JOB", "value": "other"}, {"name": "MINE", "value": "1"})
    (container,) = make(env=env)["spec"]["containers"]
    found = {e["name"]: e.get("value") for e in container["env"]}
    assert (found["BAMBOO_JOB"], found["MINE"]) == ("ns/job", "1")


def test_agents_write_event_logs_if_asked() -> None:
    def folder(**asked: str) -> str | None:
        pod = manifests.pod(spec(), JOB, ACTION, operator_address="op:1", **asked)
        (container,) = pod["spec"]["containers"]
        found = {e["name"]: e.get("value") for e in container["env"]}
        return found.get("BAMBOO_EVENT_LOG")

    assert folder() is None
    assert folder(event_logs="/logs") == "/logs/ns/job/uid-1"


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
    assert pod["metadata"]["annotations"] == {"a": "b"}
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
    (view,) = observe.pod_views([pod], JOB)
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


def test_a_user_cannot_say_what_a_pod_avoids() -> None:
    pod = make(pod_template={"metadata": {"annotations": {"bamboo.dev/avoids": "node-c"}}})
    assert pod["metadata"]["annotations"] == {}

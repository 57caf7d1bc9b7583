"""The chart's DaemonSet that taints nodes on a notice of the cloud."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bamboo_agent import node_watcher
from bamboo_agent.supervisor.config import notice_sources
from bamboo_core.api.spec import NoticeSource

from .chart import CHART, helm, of_kind, render

ENABLED = ("--set", "notices.daemonSet.enabled=true")
NAME = "bamboo-node-watcher"
FILES = sorted((CHART / "values").glob("*.yaml"))


def own(*arguments: str) -> list[dict[str, Any]]:
    """The objects of the DaemonSet."""
    return [body for body in render(*arguments) if body["metadata"]["name"].endswith(NAME)]


def daemon_set(*arguments: str) -> dict[str, Any]:
    (found,) = of_kind(own(*ENABLED, *arguments), "DaemonSet")
    spec: dict[str, Any] = found["spec"]
    return spec


def test_it_is_off_unless_asked_for() -> None:
    assert own() == []
    kinds = [body["kind"] for body in own(*ENABLED)]
    assert kinds == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]


def test_it_runs_where_karpenter_keeps_pods_from_the_metadata_server() -> None:
    on = [file.name for file in FILES if own("--values", str(file))]
    assert on == ["eks-karpenter.yaml"]
    (found,) = of_kind(own("--values", str(FILES[1])), "DaemonSet")
    selector = found["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"karpenter.sh/capacity-type": "spot"}
    assert "enforce=privileged" in FILES[1].read_text()


def test_its_account_may_only_read_and_patch_nodes() -> None:
    (role,) = of_kind(own(*ENABLED), "ClusterRole")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    (binding,) = of_kind(own(*ENABLED), "ClusterRoleBinding")
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": "bamboo-system"}
    assert (binding["subjects"], binding["roleRef"]["name"]) == (
        [subject],
        role["metadata"]["name"],
    )
    assert daemon_set()["template"]["spec"]["serviceAccountName"] == NAME


def test_its_pod_has_the_nodes_network_and_nothing_else_of_the_node() -> None:
    pod = daemon_set()["template"]["spec"]
    assert pod["hostNetwork"] is True
    assert not {"hostPID", "hostIPC", "volumes"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert "ports" not in container
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_its_values() -> None:
    digest = "sha256:" + "a" * 64
    (container,) = daemon_set()["template"]["spec"]["containers"]
    assert container["image"] == "bamboo-agent:0.1.0"
    assert container["command"] == ["python", "-m", node_watcher.__name__]
    spec = daemon_set(
        *("--set", f"notices.daemonSet.image.digest={digest}"),
        *("--set", "notices.daemonSet.sources={AwsSpot,AwsRebalance}"),
        *("--set", "notices.daemonSet.nodeSelector.pool=spot"),
    )
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == f"bamboo-agent@{digest}"
    env = {e["name"]: e.get("value", "") for e in container["env"]}
    assert notice_sources(env) == (NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE)
    assert spec["template"]["spec"]["nodeSelector"] == {"pool": "spot"}


def test_the_operators_service_does_not_select_it() -> None:
    (service,) = of_kind(render(*ENABLED), "Service")
    labels = daemon_set()["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= labels.items()
    assert daemon_set()["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("setting", ["sources={Azur}", "sources=", "enabled=maybe", "image.tags=1"])
def test_wrong_values_are_refused(setting: str) -> None:
    done = helm("template", "bamboo", str(CHART), "--set", f"notices.daemonSet.{setting}")
    assert done.returncode != 0
    assert "daemonSet" in done.stderr


def test_the_schema_knows_every_source() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    daemon = schema["properties"]["notices"]["properties"]["daemonSet"]
    sources = daemon["properties"]["sources"]["items"]["enum"]
    assert sources == [x for x in NoticeSource if x is not NoticeSource.NONE]

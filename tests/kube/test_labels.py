"""Labels and names of containers: what we refuse against what the API server refuses."""

from __future__ import annotations

from typing import Any

from tests.core.controller.builders import spec

from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView, Slot
from bamboo_core.validation.pod_template import problems
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_operator.kube import api
from bamboo_operator.pods import manifests

_LONG = "a" * 63
_DNS = ".".join(["a" * 62] * 4) + "aa"
KEYS = (
    "", "a", "A9", "a-b_c.d", "0", "-a", "a.", "_", "é", "a b", "a\n", _LONG, _LONG + "a", "/a",
    "b/", "b/c/d", "B.dev/a", "b.dev/a", "b..c/a", "-b/a", "b_c/a", "1.2-3.x/0", f"{_DNS}/{_LONG}",
    f"{_DNS}a/a", "Ex.COM/Note",
)  # fmt: skip
VALUES = ("", "a", "A9", "a-b_c.d", "0", "-a", "a_", ".", "é", "b@d value!", "a/b", "a\n", _LONG,
          _LONG + "a")  # fmt: skip


def templates() -> list[dict[str, Any]]:
    """Each has one key, value or pair of names in one place."""
    found: list[dict[str, Any]] = []
    for labels in ([{key: "1"} for key in KEYS], [{"x": value} for value in VALUES]):
        found += [{"metadata": {"labels": x}} for x in labels]
        found += [{"spec": {"nodeSelector": x}} for x in labels]
    found += [{"metadata": {"annotations": {key: "any text!"}}} for key in KEYS]
    pairs = [("agent", "a"), ("a", "b"), ("a", "a")]
    for one, two in pairs:
        some = [{"name": one, "image": "i"}, {"name": two, "image": "i"}]
        if one != "agent":
            found.append({"spec": {"containers": some}})
        found += [
            {"spec": {"initContainers": some}},
            {"spec": {"containers": some[:1], "initContainers": some[1:]}},
        ]
    return found


async def test_what_is_refused_is_what_the_api_server_refuses(
    devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    view = JobView(devcluster_namespace, "job", "uid-1", 1, 0.0)
    action = CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "")
    path, dry = api.pods(devcluster_namespace), {"dryRun": "All", "fieldValidation": "Strict"}
    seen = set()
    for template in templates():
        ours = problems(template, path="t")
        worker = WorkerSpec("agent:1", pod_template=template)
        pod = manifests.pod(spec(worker=worker), view, action, operator_address="op:1")
        try:
            await devcluster_api.request("POST", path, pod, params=dry)
            theirs = ""
        except ApiError as error:
            theirs = str(error)
        assert bool(ours) == bool(theirs), (template, ours, theirs)
        seen.add(bool(ours))
    assert seen == {True, False}

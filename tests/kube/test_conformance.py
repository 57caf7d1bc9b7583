"""Manifests by kubeconform, with strict schemas that the API server publishes: the chart with every
value file, examples and jobs of the docs; and mistakes, which it refuses by name."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube import schemas
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.programs import binaries, kubeconform
from bamboo_devcluster.testing import wait_for

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/bamboo"
FILES = [CHART / "devcluster-values.yaml", *sorted((CHART / "values").glob("*.yaml"))]
JOB = "bamboo.dev/v1alpha1"
SERVED = (
    "v1", "apps/v1", "networking.k8s.io/v1", "policy/v1", "rbac.authorization.k8s.io/v1",
    "apiextensions.k8s.io/v1", JOB,
)  # fmt: skip
# The Prometheus operator's kinds, which the development cluster does not serve: nothing that may
# be built here brings their definitions. tests/contract/test_schemas.py checks them.
UNSERVED = {
    f"monitoring.coreos.com/v1/{k}" for k in ("ServiceMonitor", "PodMonitor", "PrometheusRule")
}
EVERYTHING = {
    "notices": {"daemonSet": {"enabled": True}},
    "kueue": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "agents": {
            "enabled": True, "namespaces": ["team-a"], "extraEgress": [{"ports": [{"port": 443}]}],
        },
        "operator": {"extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True},
        "rules": {"enabled": True, "runbooks": "https://example.com/run"},
        "boards": {"enabled": True},
    },
    "namespaces": ["team-a", "team-b"], "fullnameOverride": "all", "replicas": 2,
    "commonLabels": {"team": "a"}, "commonAnnotations": {"team": "a"}, "podLabels": {"team": "b"},
    "podSecurityContext": {"fsGroup": 7}, "containerSecurityContext": {"runAsUser": 7},
    "revisionHistoryLimit": 3, "imagePullSecrets": [{"name": "login"}],
    "tolerations": [{"operator": "Exists"}], "nodeSelector": {"pool": "calm"},
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}"}},
        "apiVersion: v1\nkind: Secret\nmetadata: {name: further}\nstringData: {a: b}",
    ],
}  # fmt: skip


@dataclass
class Verdict:
    """counts: by kubeconform's words. refused: the reason, by kind and name."""

    counts: dict[str, int]
    refused: dict[str, str] = field(default_factory=dict)

    def assert_passed(self, *, skipped: int = 0) -> None:
        valid = self.counts["valid"]
        assert self.counts == {"valid": valid, "invalid": 0, "errors": 0, "skipped": skipped}, (
            self.refused
        )
        assert valid > 0
        assert self.refused == {}


async def verdict(location: str, text: str, skip: set[str] = UNSERVED) -> Verdict:
    """Give a stream of manifests to kubeconform, and read what it says."""
    program = await asyncio.to_thread(kubeconform.ensure, print)
    done = await asyncio.to_thread(
        subprocess.run,
        [str(program), "-strict", "-summary", "-output", "json", "-schema-location", location,
         "-skip", ",".join(sorted(skip)), "-"],
        input=text, text=True, capture_output=True, check=False,
    )  # fmt: skip
    said = json.loads(done.stdout)
    found = Verdict(
        said["summary"],
        {f"{r['kind']}/{r['name']}": r["msg"] for r in said["resources"] or ()},
    )
    assert (done.returncode != 0) == bool(found.refused), done
    return found


def rendered(tmp_path: Path, values: Mapping[str, Any], *files: Path) -> str:
    own = tmp_path / "values.yaml"
    own.write_text(yaml.safe_dump(dict(values)))
    command = [str(binaries.ensure(print)["helm"]), "template", "bamboo", str(CHART)]
    for file in (*files, own):
        command += ["--values", str(file)]
    done = subprocess.run(
        [*command, "--namespace", "bamboo-system", "--include-crds"],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The chart with all that it can make."""
    return rendered(tmp_path_factory.mktemp("everything"), EVERYTHING)


_written: dict[Path, str] = {}  # locations of schemas, by the cluster's kubeconfig


@pytest.fixture
async def published(
    devcluster: Cluster,
    devcluster_api: KubeApi,
    definition: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The location of schemas of what the cluster serves, our resource included."""
    if devcluster.kubeconfig not in _written:
        # The server publishes a new resource a while after it serves it.
        await wait_for(devcluster_api, f"/openapi/v3/apis/{JOB}", has_job)
        folder = tmp_path_factory.mktemp("schemas")
        _written[devcluster.kubeconfig] = await schemas.write(devcluster_api, folder, SERVED)
    return _written[devcluster.kubeconfig]


def has_job(document: Any) -> bool:
    return document is not None and "bamboojob_v1alpha1.json" in schemas.of_document(
        document, *JOB.split("/")
    )


@pytest.mark.parametrize("file", [None, *FILES], ids=lambda file: file.stem if file else "none")
async def test_the_chart_conforms_with_each_clouds_values(
    published: str, tmp_path: Path, file: Path | None
) -> None:
    text = await asyncio.to_thread(rendered, tmp_path, {}, *([file] if file else []))
    found = await verdict(published, text)
    found.assert_passed()
    assert found.counts["valid"] >= 10


async def test_the_chart_conforms_with_everything_on(published: str, everything: str) -> None:
    found = await verdict(published, everything)
    found.assert_passed(skipped=len(UNSERVED))
    assert found.counts["valid"] >= 25


def jobs() -> dict[str, str]:
    """Every BambooJob that users read, by its file."""
    files = [*(ROOT / "examples").glob("*.yaml"), ROOT / "docs/reference/every-field.yaml"]
    found = {file.name: file.read_text() for file in files}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)):
            if re.search(r"^kind: BambooJob$", block, re.M):
                found[f"{page.name}-{number}"] = block
    return dict(sorted(found.items()))


@pytest.fixture
def ours() -> str:
    """The location that docs/installing.md names, for users without a cluster."""
    (found,) = re.findall(
        r"-schema-location '(docs/reference/.*?)'", (ROOT / "docs/installing.md").read_text()
    )
    return f"{ROOT}/{found}"


def test_there_are_jobs() -> None:
    assert {"quickstart.yaml", "gke-spot.yaml", "every-field.yaml"} <= set(jobs())
    assert any(name.startswith("README") for name in jobs())


@pytest.mark.parametrize("name", jobs())
async def test_jobs_that_users_read_conform(published: str, ours: str, name: str) -> None:
    found = await verdict(published, jobs()[name])
    found.assert_passed()
    only_jobs = [b for b in yaml.safe_load_all(jobs()[name]) if b and b["kind"] == "BambooJob"]
    (await verdict(ours, yaml.safe_dump_all(only_jobs))).assert_passed()


def body(kind: str, text: str) -> dict[str, Any]:
    """The first object of a kind."""
    found: dict[str, Any] = next(b for b in yaml.safe_load_all(text) if b and b["kind"] == kind)
    return found


Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("kind", "spoil", "words"),
    [
        ("Deployment", lambda b: b["spec"].update(replica=1), "'replica' not allowed"),
        ("Deployment", lambda b: b["spec"].update(replicas="two"), "got string, want integer"),
        ("Deployment", lambda b: b["metadata"].update(label={}), "'label' not allowed"),
        ("Deployment", lambda b: b["spec"].pop("selector"), "missing property 'selector'"),
        (
            "Deployment",
            lambda b: b["spec"]["template"]["spec"]["containers"][0].update(securityContxt={}),
            "'securityContxt' not allowed",
        ),
        ("NetworkPolicy", lambda b: b["spec"].update(egres=[]), "'egres' not allowed"),
        ("NetworkPolicy", lambda b: b["spec"].update(egress={}), "got object, want array"),
        ("PodDisruptionBudget", lambda b: b["spec"].update(minAvailable=[]), "got array"),
        ("ClusterRole", lambda b: b["rules"][0].update(verb=["get"]), "'verb' not allowed"),
        ("ConfigMap", lambda b: b.update(data={"a": 1}), "got number, want string"),
        (
            "CustomResourceDefinition",
            lambda b: b["spec"]["versions"][0].update(serve=True),
            "'serve' not allowed",
        ),
        ("ConfigMap", lambda b: b.update(kind="ConfgMap"), "could not find schema for ConfgMap"),
    ],
)
async def test_a_mistake_in_an_object_of_the_chart_is_refused(
    published: str, everything: str, kind: str, spoil: Spoil, words: str
) -> None:
    wrong = body(kind, everything)
    (await verdict(published, yaml.safe_dump(wrong))).assert_passed()
    spoil(wrong)
    found = await verdict(published, yaml.safe_dump(wrong))
    assert words in found.refused[f"{wrong['kind']}/{wrong['metadata']['name']}"]
    assert found.counts["valid"] == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: b["spec"].update(pipeline={}), "'pipeline' not allowed"),
        (lambda b: b["spec"]["training"].update(step=1), "'step' not allowed"),
        (lambda b: b["spec"]["training"].update(steps="10"), "got string, want integer"),
        (lambda b: b["spec"]["worker"].update(image=None), "got null, want string"),
        (lambda b: b["spec"].pop("model"), "missing property 'model'"),
        (lambda b: b["spec"].update(numerics="Exact"), "value must be"),
        (lambda b: b["spec"]["pipelines"].update(count=0), "minimum"),
    ],
)
async def test_a_mistake_in_a_job_is_refused(
    published: str, ours: str, spoil: Spoil, words: str
) -> None:
    wrong = body("BambooJob", (ROOT / "docs/reference/every-field.yaml").read_text())
    spoil(wrong)
    for location in (published, ours):
        found = await verdict(location, yaml.safe_dump(wrong))
        assert words in found.refused["BambooJob/my-model"]


async def test_what_nobody_describes_is_taken(published: str, ours: str) -> None:
    job = body("BambooJob", (ROOT / "docs/reference/every-field.yaml").read_text())
    job["spec"]["model"]["args"] = {"anything": [1, {"deep": None}]}
    job["spec"]["worker"]["podTemplate"] = {"metadata": None, "spec": {"hostNetwork": True}}
    for location in (published, ours):
        (await verdict(location, yaml.safe_dump(job))).assert_passed()

"""The chart refuses exactly the values that the API server would refuse."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.chart import CHART, helm
from tests.contract.test_chart_refusals import found
from tests.rotation import in_turn

from bamboo_devcluster.kube.client import ApiError, KubeApi

from . import value_rows

PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
DRY = {"dryRun": "All", "fieldValidation": "Strict"}
SETTINGS = [f"--set-json=extraVolumes={json.dumps(value_rows.volumes('v'))}",
            "--set=notices.daemonSet.enabled=true", "--set=monitoring.boards.enabled=true",
            "--set=networkPolicy.enabled=true",
            "--set=networkPolicy.agents.namespaces={jobs}"]  # fmt: skip


@pytest.fixture(scope="session")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart without its own checks."""
    chart = tmp_path_factory.mktemp("chart") / "bamboo"
    shutil.copytree(CHART, chart)
    (chart / "values.schema.json").unlink()
    (chart / "templates/guard.yaml").unlink()
    return chart


def objects(chart: Path, *given: str) -> list[dict[str, Any]]:
    done = helm("template", "bamboo", str(chart), *SETTINGS, *given)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body and body["kind"] in PATHS]


@cache
def usual(chart: Path) -> list[dict[str, Any]]:
    return objects(chart)


def changed(chart: Path, given: str) -> Iterator[dict[str, Any]]:
    """The objects that this setting changes."""
    before = usual(chart)
    return (body for body in objects(chart, given) if body not in before)


def refused(place: str, value: Any, given: str) -> str:
    """Why the chart refuses the value; empty: it takes it."""
    if places := found(place, value):
        return f"schema: {places}"
    done = helm("template", "bamboo", str(CHART), *SETTINGS, given)
    return done.stderr if done.returncode else ""


async def refused_by_server(api: KubeApi, namespace: str, body: dict[str, Any]) -> str:
    body["metadata"] |= {"namespace": namespace}
    try:
        await api.request("POST", PATHS[body["kind"]].format(namespace), body, params=DRY)
    except ApiError as error:
        return str(error)
    return ""


def name_of(case: Any) -> str:
    return json.dumps(case)[:90]


ROWS = [
    *value_rows.CONTEXTS,
    *value_rows.PODS,
    *value_rows.LABELS,
    *value_rows.AMOUNTS,
    *value_rows.NETWORKS,
    *value_rows.OBJECTS,
]


def test_there_are_rows_of_both_kinds() -> None:
    for rows in (value_rows.MAIN, ROWS):
        assert {bool(found(*row)) for row in rows} == {True, False}


def test_every_list_of_rows_is_asked() -> None:
    """A list that is not named above would be judged by nobody."""
    lists = {name: rows for name, rows in vars(value_rows).items() if isinstance(rows, list)}
    asked = [*value_rows.MAIN, *ROWS]
    assert {"MAIN", "OBJECTS"} < set(lists)
    assert not [name for name, rows in lists.items() if any(row not in asked for row in rows)]


@pytest.mark.parametrize(("place", "value"), [*value_rows.MAIN, *in_turn(8, ROWS)], ids=name_of)
async def test_the_chart_agrees_with_the_server(
    devcluster_api: KubeApi, devcluster_namespace: str, lenient: Path, place: str, value: Any
) -> None:
    given = f"--set-json={place}={json.dumps(value)}"
    ours = await asyncio.to_thread(refused, place, value, given)
    theirs = ""
    for body in await asyncio.to_thread(lambda: list(changed(lenient, given))):
        theirs += await refused_by_server(devcluster_api, devcluster_namespace, body)
    assert bool(ours) == bool(theirs), (ours, theirs)

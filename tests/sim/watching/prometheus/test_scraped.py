"""What Prometheus scrapes of a local cluster, and rules with other waits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE
from bamboo_sim.watching.definitions import rules
from bamboo_sim.watching.prometheus import scraped


def pod(namespace: str, address: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace},
        "status": {"podIP": address, "phase": phase},
    }


def test_targets_follow_the_pods_that_run(tmp_path: Path) -> None:
    pods = [
        pod(SYSTEM_NAMESPACE, "127.0.0.1"),
        pod("team", "127.0.0.3"),
        pod("team", "127.0.0.2"),
        pod("team", "127.0.0.4", "Succeeded"),
    ]
    programs = SimpleNamespace(kubectl=lambda *_: json.dumps({"items": pods}))
    local: Any = SimpleNamespace(programs=programs)
    targets = scraped.Targets(local, tmp_path)

    def written() -> dict[str, Any]:
        targets.look()
        return {
            name: json.loads(Path(file).read_text())[0]["targets"]
            for name, (file,) in targets.files.items()
        }

    assert written() == {
        "operator": ["127.0.0.1:8080"],
        "agents": ["127.0.0.2:21466", "127.0.0.3:21466"],
    }
    (group,) = json.loads(Path(targets.files["operator"][0]).read_text())
    assert group["labels"] == {"namespace": "bamboo-system"}
    del pods[1:]
    assert written()["agents"] == []


def test_one_alert_waits_less() -> None:
    def waits(text: str) -> dict[str, str]:
        alerts = yaml.safe_load(text)["groups"][1]["rules"]
        return {alert["alert"]: alert["for"] for alert in alerts}

    usual, name = waits(rules.text()), "BambooJobWaitsForCapacity"
    assert usual[name] == "30m"
    assert waits(scraped.with_waits(rules.text(), {name: "2s"})) == usual | {name: "2s"}
    with pytest.raises(KeyError, match="BambooNothing"):
        scraped.with_waits(rules.text(), {"BambooNothing": "2s"})

"""A Prometheus that scrapes the operators and agents of a local cluster, as pods come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE, LocalCluster
from bamboo_core.validation import reserved
from bamboo_sim.watching.definitions import boards, rules, source
from bamboo_sim.watching.prometheus import queries, rehearsal, server
from bamboo_sim.watching.prometheus.server import Series, Server

SCRAPE_S = 1.0
RATE_S = 15  # counters are written every 5 s
_PORTS = {"operator": 8080, "agents": reserved.HEALTH_PORT}  # the first is the chart's default
_LABELS = {"operator": source.LABELS, "agents": {}}


@dataclass
class Targets:
    """The addresses that Prometheus scrapes, in files that it reads again."""

    local: LocalCluster
    folder: Path
    known: dict[str, list[str]] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, list[str]]:
        """Name of each group -> its file."""
        return {name: [str(self.folder / f"{name}.json")] for name in ("operator", "agents")}

    def look(self) -> None:
        """Write the addresses of all pods that have one."""
        text = self.local.programs.kubectl(
            "get", "pods", "--all-namespaces", "--selector", "app.kubernetes.io/part-of=bamboo",
            "--output", "json",
        )  # fmt: skip
        found: dict[str, list[str]] = {name: [] for name in self.files}
        for pod in json.loads(text)["items"]:
            address = pod["status"].get("podIP")
            if address and pod["status"]["phase"] == "Running":
                is_operator = pod["metadata"]["namespace"] == SYSTEM_NAMESPACE
                group = "operator" if is_operator else "agents"
                found[group].append(f"{address}:{_PORTS[group]}")
        for name, addresses in found.items():
            if addresses != self.known.get(name):
                file = self.folder / f"{name}.json"
                new = file.with_suffix(".new")
                targets = {"targets": sorted(addresses), "labels": _LABELS[name]}
                new.write_text(json.dumps([targets]), encoding="utf-8")
                new.replace(file)
        self.known = found


def with_waits(text: str, waits: Mapping[str, str]) -> str:
    """The rules with other waits. KeyError names an alert that they do not have."""
    found = yaml.safe_load(text)
    alerts = {r["alert"]: r for g in found["groups"] for r in g["rules"] if "alert" in r}
    for name, wait in waits.items():
        alerts[name]["for"] = wait
    return str(yaml.safe_dump(found, sort_keys=False))


@contextmanager
def watched(
    local: LocalCluster, folder: Path, waits: Mapping[str, str] | None = None
) -> Iterator[tuple[Server, Targets]]:
    """A Prometheus that scrapes the cluster with the chart's rules, until the block ends.

    folder: new; for its files. waits: alert -> how long it waits here, such as ``2s``.
    """
    folder.mkdir()
    file = folder / "rules.yaml"
    file.write_text(with_waits(rules.text(), waits or {}), encoding="utf-8")
    targets = Targets(local, folder)
    targets.look()
    port = rehearsal.free_port()
    with server.running(
        folder, targets.files, port=port, rules=file, interval_s=SCRAPE_S
    ) as prometheus:
        yield prometheus, targets


def ask(
    prometheus: Server, namespace: str, job: str, span: queries.Span
) -> tuple[dict[str, dict[str, list[list[Series]]]], dict[str, list[Series]]]:
    """Answers of the panels by board, and of all queries of boards and rules by query."""
    chosen = rehearsal.variables(namespace, job, RATE_S)
    shown = {
        name: queries.ask_board(prometheus, board, chosen, span)
        for name, board in boards.every().items()
    }
    answers = {k: v for name, each in shown.items() for k, v in rehearsal.flat(name, each).items()}
    return shown, answers | queries.ask_rules(prometheus, span)

"""Boards, rules and alerts on the quick start's job, with a real Prometheus that scrapes it.

    python benchmarks/dashboards.py [--pictures]

The job of examples/quickstart.yaml loses agents as in the quick start. Every query of every panel,
and every series of the rules, must return data, and the values must be those of the run; no alert
may fire. Then the operator is taken away, and the alert BambooNoLeader must fire, after its two
minutes.

promtool tries the alerts on all cases and lives of sim/bamboo_sim/watching/proof: each must fire on
its fault, and none without one, as in a slow first step, a resume, a long interval of checkpoints,
an upgrade or a drain.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from bamboo_cli.estimate.manifest import read_spec
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.quickstart import job_file, local_cluster
from bamboo_cli.quickstart.injection import Injector
from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE, LocalCluster
from bamboo_cli.quickstart.session import Session
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_cli.run.faults import Fault
from bamboo_sim.programs import results_file
from bamboo_sim.watching.definitions import boards, rules
from bamboo_sim.watching.prometheus import picture, queries, rehearsal, truth
from bamboo_sim.watching.prometheus.scraped import SCRAPE_S, Targets, ask, watched
from bamboo_sim.watching.prometheus.server import Server
from bamboo_sim.watching.prometheus.truth import Truth
from bamboo_sim.watching.proof import verdict
from bamboo_sim.watching.proof.lives import FAULTS, HARMLESS

IMAGES = results_file.ROOT / "docs" / "images"
ALERT_S = 300.0
ZONE = "topology.kubernetes.io/zone"
SPOT, ON_DEMAND = {"zone-a": 1.10, "zone-b": 1.15, "zone-c": 1.25}, 3.67
PRICES = [
    {"labels": {ZONE: zone}, "dollarsPerHour": spot, "onDemandDollarsPerHour": ON_DEMAND}
    for zone, spot in SPOT.items()
]
ENDED_S = 30.0
BEFORE_S = 15.0  # that pictures show before the first step
NOTE = "prices are made up: $1.10 to $1.25 a node-hour by zone, $3.67 on demand"


def train(
    local: LocalCluster, console: Console, prometheus: Server, targets: Targets
) -> tuple[Truth, set[str]]:
    """Run the quick start's job with its losses: what happened, and the alerts that fired."""
    manifest = job_file.read_manifest(job_file.EXAMPLE)
    spec = read_spec(manifest, job_file.EXAMPLE)
    injector = Injector(local.cluster, job_file.faults_for(spec), time.time)
    fired: set[str] = set()

    def act(snapshot: Snapshot) -> None:
        injector.watch(snapshot)
        targets.look()
        fired.update(rehearsal.firing(prometheus))

    session = Session(local, console, 900.0)
    job = session.run(manifest, Stopwatch(), act)
    if job.ended != "Complete" or injector.left:
        raise RuntimeError(f"the job ended as {job.ended} with {len(injector.left)} faults left")
    lost = [hit.fault is Fault.NOTICED for hit in injector.hits for _ in hit.pods]
    found = Truth(
        job.namespace,
        job.name,
        steps=spec.training.steps,
        agents=spec.pipelines.count * spec.pipelines.stages,
        lost=len(lost),
        noticed=sum(lost),
        prices=SPOT,
        on_demand=ON_DEMAND,
    )
    prometheus.until(lambda p: truth.is_complete(p, found), ENDED_S, "the end of the job")
    return found, fired


def first_step(prometheus: Server, labels: str, span: queries.Span) -> float:
    """When the first step was committed."""
    expr = f"bamboo_job_steps_total{{{labels}}} > 0"
    return prometheus.query_range(expr, *span)[0].points[0][0]


def draw(shown: Mapping[str, Any], start: float, end: float) -> None:
    """The boards as pictures of the docs."""
    for name, board in boards.every().items():
        text = picture.picture(board, shown[name], start, end)
        (IMAGES / f"board-{name}.svg").write_text(text, encoding="utf-8")


def main() -> None:
    """Run the job, ask, write the file, print the figures."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--pictures", action="store_true", help="also draw docs/images/board-*.svg")
    options = parser.parse_args()
    console = Console()
    with local_cluster.provision(local_cluster.ClusterOptions(), console, Stopwatch()) as local:
        local.programs.helm(
            "upgrade", "bamboo", str(local_cluster.CHECKOUT / "charts/bamboo"),
            "--namespace", SYSTEM_NAMESPACE, "--reuse-values", "--wait", "--timeout", "90s",
            "--set-json", f"prices={json.dumps(PRICES)}",
        )  # fmt: skip
        with watched(local, local.checkpoints.parent / "prometheus") as (prometheus, targets):
            start = time.time()
            run, fired = train(local, console, prometheus, targets)
            span = queries.Span(start, time.time(), SCRAPE_S)
            wrong = truth.wrong(prometheus, run, span)
            shown, answers = ask(prometheus, run.namespace, run.job, span)
            begin = first_step(prometheus, run.labels, span) - BEFORE_S
            drawn, _ = ask(prometheus, run.namespace, run.job, span._replace(start=begin))
            local.programs.kubectl(
                "scale", "deployment", "--all", "--replicas=0", "--namespace", SYSTEM_NAMESPACE
            )
            gone = time.time()
            targets.look()
            prometheus.until(
                lambda p: "BambooNoLeader" in rehearsal.firing(p), ALERT_S, "BambooNoLeader"
            )
            alert_s = time.time() - gone
    missing = sorted(query for query, series in answers.items() if not series)
    judged = verdict.of_rules(rules.text())
    wrongly = [f"{life}: {name}" for life, names in judged.wrongly.items() for name in names]
    wrongly += [f"the quick start: {name}" for name in fired]
    figures = {
        "queries": len(answers),
        "queries_with_data": len(answers) - len(missing),
        "boards": len(shown),
        "panels": sum(len(panels) for panels in shown.values()),
        "wrong_values": len(wrong),
        "alerts": len(rules.ALERTS),
        "alerts_shown": len(judged.shown),
        "lives": len(HARMLESS) + len(FAULTS) + 1,
        "alerts_that_fired_wrongly": len(wrongly),
        "no_leader_alert_s": round(alert_s, 1),
    }
    samples = {
        "without_data": missing,
        "wrong": wrong,
        "not_shown": sorted({alert.name for alert in rules.ALERTS} - judged.shown),
        "fired_wrongly": sorted(wrongly),
        "run_s": round(gone - start, 1),
    }
    results_file.write("dashboards", samples=samples, figures=figures, note=NOTE)
    if options.pictures:
        draw(drawn, begin, span.end)
    print(json.dumps(figures | samples, indent=1))


if __name__ == "__main__":
    main()

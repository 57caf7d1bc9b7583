"""Boards and rules against a real Prometheus that holds two hours of a story.

The story's metrics are written into its store minute by minute, so nothing depends on how fast this
machine is. benchmarks/dashboards.py lets Prometheus scrape a real run instead.
"""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from bamboo_devcluster.programs import prometheus
from bamboo_sim.watching.definitions import boards, rules, source
from bamboo_sim.watching.prometheus import queries, server
from bamboo_sim.watching.prometheus.server import PrometheusError, Series, Server
from bamboo_sim.watching.prometheus.story import CALM, NAMESPACE, STORM, Story

ABSENCE = {"BambooNoLeader", "BambooOperatorMissing"}
"""Alerts that cannot fire while the story's operator exports all others."""
STEP_S = 60
MINUTES = 120
_RATE_S = 240  # Grafana takes four times the scrape interval
_EVALUATION_S = 0.2
_WAIT_S = 100.0


@dataclass
class Rehearsal:
    """What came of it."""

    answers: dict[str, list[Series]]  # by query
    fired: dict[str, set[str]] = field(default_factory=dict)  # alert -> jobs; "": the operator

    @property
    def without_data(self) -> list[str]:
        """Queries that returned nothing."""
        return sorted(query for query, series in self.answers.items() if not series)


def variables(namespace: str, job: str, rate_interval_s: int) -> dict[str, str]:
    """Grafana's variables."""
    return {
        "job_namespace": namespace,
        "training_job": job,
        "__rate_interval": f"{rate_interval_s}s",
    }


def without_waits(text: str) -> str:
    """The rules with alerts that fire at once."""
    return re.sub(r"\bfor: \d+[smh]", "for: 0s", text)


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def firing(asked: Server) -> dict[str, set[str]]:
    """Alert -> names of the jobs for which it fires now."""
    found: dict[str, set[str]] = {}
    for series in asked.query('ALERTS{alertstate="firing"}'):
        job = series.labels.get("training_job", "")
        found.setdefault(series.labels["alertname"], set()).add(job)
    return found


def samples(registry: CollectorRegistry, target: Mapping[str, str], at: float) -> Iterator[str]:
    """The samples of a scrape at that instant, as OpenMetrics text. target: its labels."""
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            labels = ",".join(f'{k}="{v}"' for k, v in {**sample.labels, **target}.items())
            yield f"{sample.name}{{{labels}}} {sample.value} {at:.3f}"


def record(folder: Path, end: float) -> None:
    """Fill Prometheus' store in the folder with the story until that instant.

    In the middle another operator begins to lead. PrometheusError if promtool does not take it.
    """
    now = start = end - STEP_S * MINUTES
    story = Story(lambda: now)
    lines: list[str] = []
    for minute in range(MINUTES + 1):
        now = start + STEP_S * minute
        operator, *agents = story.registries
        pod = f"operator-{int(2 * minute > MINUTES)}"
        lines += samples(operator, source.LABELS | {"pod": pod}, now)
        for number, agent in enumerate(agents):
            lines += samples(agent, {"pod": f"agent-{number}"}, now)
    file = folder / "story.txt"
    file.write_text("\n".join([*lines, "# EOF\n"]), encoding="utf-8")
    _make_blocks("the story", "openmetrics", str(file), str(folder / "data"))


def record_rules(folder: Path, file: Path, end: float) -> None:
    """Add what the recording rules would have recorded of the story."""
    with server.running(folder, {}, port=free_port()) as asked:
        _make_blocks(
            "the rules", "rules", f"--url={asked.url}", f"--start={end - STEP_S * MINUTES:.0f}",
            f"--end={end:.0f}", f"--eval-interval={STEP_S}s", f"--output-dir={folder / 'data'}",
            str(file),
        )  # fmt: skip


def _make_blocks(what: str, *arguments: str) -> None:
    program = prometheus.ensure(print)["promtool"]
    command = [str(program), "tsdb", "create-blocks-from", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PrometheusError(f"promtool does not take {what}: {done.stderr.strip()}")


def rehearse() -> Rehearsal:
    """Record the story and ask everything. PrometheusError says what failed."""
    end = time.time()
    with tempfile.TemporaryDirectory(prefix="bamboo-watching-") as name:
        folder = Path(name)
        record(folder, end)
        file = folder / "rules.yaml"
        file.write_text(without_waits(rules.text()), encoding="utf-8")
        record_rules(folder, file, end)
        with server.running(
            folder, {}, port=free_port(), rules=file, interval_s=_EVALUATION_S
        ) as asked:
            return _ask(asked)


def _ask(asked: Server) -> Rehearsal:
    expected = {alert.name for alert in rules.ALERTS} - ABSENCE

    def are_evaluated(s: Server) -> bool:
        return firing(s).keys() >= expected and all(map(s.query, rules.RECORDED))

    asked.until(are_evaluated, _WAIT_S, f"the alerts {', '.join(sorted(expected))}")
    found = Rehearsal({}, fired=firing(asked))
    now = time.time()  # series that are recorded of others exist only now
    span = queries.Span(now - STEP_S * MINUTES, now, STEP_S / 4)
    for job in (CALM, STORM):
        chosen = variables(NAMESPACE, job, _RATE_S)
        for name, board in boards.every().items():
            answered = queries.ask_board(asked, board, chosen, span)
            found.answers |= flat(f"{job}, {name}", answered)
    found.answers |= queries.ask_rules(asked, span)
    return found


def flat(where: str, answered: Mapping[str, list[list[Series]]]) -> dict[str, list[Series]]:
    """A board's answers, one entry for each query."""
    return {
        f"{where}: {title}, query {n}": series
        for title, each in answered.items()
        for n, series in enumerate(each, start=1)
    }

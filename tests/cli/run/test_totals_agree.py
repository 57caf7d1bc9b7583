"""The head, the tables, the text and the page of a report show the same totals."""

from __future__ import annotations

import copy
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import make_node, make_pod
from tests.cli.events import event

from bamboo_cli.job.listing import job_row
from bamboo_cli.run.figures import facts
from bamboo_cli.run.from_cluster import from_cluster
from bamboo_cli.run.model import InjectedLoss, Run, tally
from bamboo_cli.views.page import page
from bamboo_cli.views.terminal.jobs_table import jobs_view
from bamboo_cli.views.terminal.run_report import text_report
from bamboo_core.api.events import EventReason as Reason
from bamboo_core.api.events import RestoreCause
from bamboo_core.api.totals import PauseCause
from bamboo_core.controller.view import Slot

UNTIL = 10_000.0
ZONES = "abc"
AGENTS = [f"gpt-p{p}-s{s}-i{i}" for p in range(2) for s in range(4) for i in range(4)]


@dataclass
class History:
    """What happened, and what the operator has counted of it."""

    random: Random
    events: list[dict[str, Any]] = field(default_factory=list)
    lost: Counter[bool] = field(default_factory=Counter)  # by whether there was a notice
    pauses: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)  # type: ignore[type-arg]
    attempts: Counter[str] = field(default_factory=Counter)
    step: int = 0

    def play(self, count: int) -> None:
        """So many incidents, one after the other."""
        self.events.append(event(1.0, Reason.PLANNED, epoch=1, step=0, agents=",".join(AGENTS[:8])))
        left = self.random.sample(AGENTS, len(AGENTS))
        for number in range(count):
            at = 10.0 + (UNTIL - 100.0) * number / max(count, 1)
            self.step += self.random.randrange(1, 9)
            kind = self.random.choice(["seal", "loss", "notice", "failure", "pause", "attempt"])
            if kind in ("loss", "notice") and left:
                self._lose(at, left.pop(), is_noticed=kind == "notice")
            elif kind == "failure" and left:
                self._fail(at, left.pop())
            elif kind == "pause":
                self._pause(at, self.random.choice(list(PauseCause)), "")
            elif kind == "attempt":
                self._begin_attempt(at)
            else:
                self.events.append(event(at, Reason.CHECKPOINT_SEALED, step=self.step))

    def _lose(self, at: float, agent: str, *, is_noticed: bool) -> None:
        if is_noticed:
            self.events.append(event(at - 1.0, Reason.AGENT_LEAVING, agents=agent))
        self.events.append(event(at, Reason.AGENT_LOST, agents=agent))
        self.lost[is_noticed] += 1
        self._pause(at, PauseCause.NOTICE if is_noticed else PauseCause.LOSS, agent)

    def _fail(self, at: float, agent: str) -> None:
        """That is no loss."""
        self.events.append(event(at - 0.5, Reason.WORKER_FAILED, agents=agent, cause="TaskFailed"))
        self.events.append(event(at, Reason.AGENT_LOST, agents=agent))
        self._pause(at, PauseCause.FAILURE, agent)

    def _pause(self, at: float, cause: str, agents: str) -> None:
        seconds = self.random.choice([0.25, 1.5, 40.0])
        facts = {"epoch": 2 + len(self.events), "step": self.step}
        self.events += [
            event(at, Reason.STOPPED, epoch=facts["epoch"], agents=agents),
            event(at + seconds, Reason.RESUMED, pause_s=seconds, cause=cause, **facts),
        ]
        self.pauses[cause] += 1
        self.seconds[cause] += seconds  # type: ignore[assignment]

    def _begin_attempt(self, at: float) -> None:
        cause = self.random.choice(list(RestoreCause))
        self.attempts[cause] += 1
        attempt = self.attempts.total()
        self.events.append(
            event(at, Reason.RESTORING, attempt=attempt, step=self.step, cause=cause)
        )

    def job(self, training: dict[str, Any], *, is_late: bool) -> dict[str, Any]:
        """The job, with what the operator has written. is_late: it has not counted all losses."""
        found = copy.deepcopy(training)
        lost = self.lost.total() - (is_late and self.lost.total() > 0)
        found["status"] |= {
            "startTime": "1970-01-01T00:00:00Z",
            "attempt": self.attempts.total(),
            "losses": {"total": lost, "noticed": min(lost, self.lost[True])},
            "totals": {
                "attempts": dict(self.attempts),
                "pauses": [
                    {"cause": cause, "count": n, "seconds": {"Stop": self.seconds[cause]}}
                    for cause, n in self.pauses.items()
                ],
            },
            "cost": {
                "dollarsPerHour": 3.0, "onDemandDollarsPerHour": 9.0, "dollars": 1.52,
                "onDemandDollars": 4.0, "since": "1970-01-01T02:46:40Z", "pools": {"a": 1.0},
            },
        }  # fmt: skip
        found["status"]["progress"] |= {"step": self.step}
        return found


def look(seed: int, training: dict[str, Any]) -> tuple[History, Run, Mapping[str, float]]:
    """A run made at random. Of some, the first events are gone."""
    random = Random(seed)
    history = History(random)
    history.play(random.randrange(0, 40))
    gone = random.choice([0, 0, len(history.events) // 2, len(history.events)])
    manifest = history.job(training, is_late=random.random() < 0.3)
    nodes = [make_node(f"n{zone}", zone) for zone in ZONES]
    pods = [make_pod(agent, f"n{ZONES[n % 3]}") for n, agent in enumerate(AGENTS)]
    run = from_cluster(manifest, history.events[gone:], pods, nodes, [], UNTIL)
    return history, run, {"a": 1.0}


def texts(run: Run, prices: Mapping[str, float]) -> tuple[str, str]:
    """The report for a terminal, and the page."""
    out = io.StringIO()
    Console(file=out, width=400).print(text_report(run, prices))
    return out.getvalue(), page(run, prices)


def more(text: str, what: str) -> int:
    """How many a sentence names that no row of the list stands for."""
    found = re.search(rf"{what}(\d+)(?: more)?[ ,(].*no event tells of them", text)
    return int(found[1]) if found else 0


def before(text: str, heading: str) -> int:
    """How many older rows the caption below a table names."""
    table = text.partition(heading)[2]
    for following in ("paused at", "configuration"):
        table = table.partition(following)[0]
    found = re.search(r"and (\d+) before", table)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("seed", range(60))
def test_losses_and_pauses(training: dict[str, Any], seed: int) -> None:
    history, run, prices = look(seed, training)
    said, html = texts(run, prices)
    head = dict(facts(run))
    lost = int(head["agents lost since the start"].split()[0])
    paused = int(head["pauses since the start"].split(",")[0])
    assert lost == history.lost.total() or lost == history.lost.total() - 1
    assert paused == history.pauses.total()

    losses = page_section(html, "Losses")
    assert losses.count("<tr><td>") + more(losses, "<p>") == lost
    halts = page_section(html, "Pauses")
    assert halts.count("<tr><td>") + more(halts, "<p>") == paused
    if lost:
        assert f"<summary>{lost} agent" in losses
    if paused:
        assert f"<summary>{paused} pause" in halts
    for name in ("agents lost since the start", "pauses since the start"):
        assert f"<b>{head[name]}</b>{name}" in html
        assert re.search(rf"^{name} +{re.escape(head[name])} *$", said, re.M)

    rows = len(re.findall(r"UTC +gpt-\S+ +", said))
    assert rows + before(said, "lost at") + more(said, "losses: ") == lost
    rows = len(re.findall(r"UTC +\d+\.\d\d +", said))
    assert rows + before(said, "paused at") + more(said, "pauses: ") == paused

    causes = re.findall(r"(\d+) (\w+)[,)]", head["pauses since the start"])
    assert {cause: int(n) for n, cause in causes} == dict(history.pauses)
    hazard = re.findall(
        r'<td class="number">(\d+)</td><td class="number">[^<]*</td></tr>',
        page_section(html, "Hazard"),
    )
    assert sum(map(int, hazard)) == len(run.gone) == losses.count("<tr><td>")


@pytest.mark.parametrize(("listed", "counted"), [(86.54, 86.56), (86.56, 86.54), (720.0, 719.9)])
def test_top_and_the_report_tell_the_same_time_of_pauses(
    training: dict[str, Any], listed: float, counted: float
) -> None:
    """The operator rounds each event and each phase by itself."""
    history = History(Random(0))
    history.pauses, history.seconds = Counter(Loss=1), Counter(Loss=counted)  # type: ignore[arg-type]
    events = [
        event(9.0, Reason.PLANNED, epoch=1, step=0, agents=AGENTS[0]),
        event(10.0, Reason.STOPPED, epoch=2, agents=AGENTS[0]),
        event(10.0 + listed, Reason.RESUMED, epoch=2, step=9, pause_s=listed, cause="Loss"),
    ]
    manifest = history.job(training, is_late=False)
    run = from_cluster(manifest, events, [], [], [], UNTIL)
    out = io.StringIO()
    table = jobs_view([job_row(manifest, events, UNTIL)], UNTIL, has_namespaces=False)
    Console(file=out, width=400).print(table)
    shown = re.search(r" 1 \(([^)]+)\)", out.getvalue())
    assert shown is not None
    assert dict(facts(run))["pauses since the start"] == f"1, {shown[1]} in all (1 Loss)"
    longer = replace(run, job=replace(run.job, paused=()))
    assert longer.paused_s == pytest.approx(listed), "the status is older than the events"
    injected = replace(run, injected=[InjectedLoss(9.0, 9, Slot(0, 0), is_noticed=False)])
    assert injected.paused_s == pytest.approx(listed), "its pause begins with the fault"


def page_section(html: str, heading: str) -> str:
    return html.partition(f"<h2>{heading}</h2>")[2].partition("<h2>")[0]


@pytest.mark.parametrize("seed", range(60))
def test_resumes_are_no_restores(training: dict[str, Any], seed: int) -> None:
    history, run, _ = look(seed, training)
    restores = dict(facts(run))["restores"]
    resumed = history.attempts[RestoreCause.RESUMED]
    assert int(restores.split()[0].rstrip(",")) == history.attempts.total() - resumed
    assert dict(facts(run)).get("resumes", "0") == str(resumed)
    assert "restores or resumes before" not in dict(facts(run))


def test_attempts_that_an_earlier_operator_has_not_counted(training: dict[str, Any]) -> None:
    history, _, _ = look(3, training)
    history.attempts = Counter(LayerLost=1, Resumed=2)
    manifest = history.job(training, is_late=False)
    manifest["status"]["attempt"] = 5
    head = dict(facts(from_cluster(manifest, [], [], [], [], UNTIL)))
    assert head["restores"].startswith("1 (1 LayerLost)")
    assert (head["resumes"], head["restores or resumes before"]) == ("2", "2")


def test_what_auto_has_taken_is_told(training: dict[str, Any]) -> None:
    history, _, _ = look(3, training)
    manifest = history.job(training, is_late=False)
    manifest["spec"]["redundancy"] = {"mode": "Auto"}
    for protection, said in (
        (
            {"mode": "Replica", "reason": "losses are rare"},
            "Replica, taken by Auto: losses are rare",
        ),
        ({"mode": "Replica"}, "Replica, taken by Auto"),
        ({}, None),
    ):
        manifest["status"]["protection"] = protection
        run = from_cluster(manifest, [], [], [], [], UNTIL)
        assert dict(facts(run)).get("redundancy") == said
    manifest["spec"]["redundancy"] = {"mode": "Replica"}
    assert "redundancy" not in dict(facts(from_cluster(manifest, [], [], [], [], UNTIL)))


@pytest.mark.parametrize("seed", range(20))
def test_there_is_one_sum_of_money(training: dict[str, Any], seed: int) -> None:
    """The pods that are still known would have cost another one."""
    _, run, prices = look(seed, training)
    for said in texts(run, prices):
        assert "1.52" in said
        assert not re.findall(r"\d\.\d\d USD for", said)
        assert '<th class="number">USD</th>' not in said
    assert run.account is not None


@pytest.mark.parametrize("seed", range(200))
def test_a_tally_adds_up(seed: int) -> None:
    random = Random(seed)
    counted = {kind: random.randrange(4) for kind in "abc"}
    listed = random.choices("abcd", k=random.randrange(8))
    found = tally(counted, listed)
    assert found.total == max(sum(counted.values()), len(listed))
    assert found.total - found.unlisted == len(listed)
    assert all(found.by_kind[kind] >= n for kind, n in Counter(listed).items())

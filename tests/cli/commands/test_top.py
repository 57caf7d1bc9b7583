"""Jobs and agents with their figures."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType
from rich.errors import MarkupError
from tests.cli.conftest import make_node, make_pod, zoned_pods
from tests.cli.events import event
from tests.cli.fake_api import EVENTS_PATH, JOB_PATH, JOBS_PATH, PODS_PATH, Server

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.top import Top
from bamboo_cli.errors import CommandError
from bamboo_cli.job.listing import agent_rows, job_row
from bamboo_cli.main import cli
from bamboo_cli.views.terminal.console import make_console
from bamboo_cli.views.terminal.jobs_table import agents_view, jobs_view
from bamboo_core.api.events import EventReason as Reason

AGENT = "gpt-p0-s1-i0"
EVENTS = [
    event(10.0, Reason.AGENT_LOST, agents=AGENT),
    event(10.1, Reason.STOPPED, epoch=4, agents=AGENT),
    event(10.5, Reason.RESUMED, epoch=4, step=21, pause_s=0.4),
    event(20.0, Reason.STOPPED, epoch=5, agents="gpt-p1-s1-i0"),
    event(21.0, Reason.RESUMED, epoch=5, step=25, pause_s=1.1),
]


def shown(what: RenderableType, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


def test_a_job_with_its_figures(training: dict[str, Any]) -> None:
    training["status"] |= {
        "agentsSummary": "7/8",
        "agents": [{"zone": "a", "running": 3}, {"zone": "b", "running": 4}],
    }
    row = job_row(training, EVENTS)
    assert row.steps_per_s == pytest.approx(64.5 / 32)
    assert row.last_loss_at == 10.0
    line = shown(jobs_view([row], now=130.0, has_namespaces=True)).splitlines()[3]
    assert line.split() == [
        "team/gpt", "Running", "20/80", "2.02", "64.5", "2.5000", "7/8", "b:4", "a:3",
        "4", "(4.2", "s)", "2", "min", "ago",
    ]  # fmt: skip


def test_a_job_that_is_stalled_has_no_speed(training: dict[str, Any]) -> None:
    assert job_row(training, EVENTS).samples_per_s
    training["status"]["conditions"] = [{"type": "Stalled", "status": "True"}]
    assert job_row(training, EVENTS).samples_per_s is None


def test_an_agent_that_failed_by_itself_is_no_preemption(training: dict[str, Any]) -> None:
    failed = event(9.9, Reason.WORKER_FAILED, agents=AGENT)
    assert job_row(training, [failed, *EVENTS]).last_loss_at is None


def test_pauses_are_those_of_the_whole_life_though_events_are_gone(
    training: dict[str, Any],
) -> None:
    assert "4 (4.2 s)" in shown(jobs_view([job_row(training, [])], 0.0, has_namespaces=False))
    del training["status"]["totals"]
    assert "(0.0 s)" not in shown(jobs_view([job_row(training, [])], 0.0, has_namespaces=False))


def test_what_a_job_costs_where_the_operator_knows_prices(training: dict[str, Any]) -> None:
    assert "USD/h" not in shown(jobs_view([job_row(training, [])], 0.0, has_namespaces=False))
    training["status"]["cost"] = {"dollarsPerHour": 9.2}
    said = shown(jobs_view([job_row(training, [])], 0.0, has_namespaces=False))
    assert "USD/h" in said
    assert "9.20" in said
    training["status"]["cost"] |= {"unpricedNodes": 2}
    assert "9.20+?" in shown(jobs_view([job_row(training, [])], 0.0, has_namespaces=False))


def test_a_new_job_has_no_figures(manifest: dict[str, Any]) -> None:
    del manifest["status"]
    line = shown(jobs_view([job_row(manifest, [])], 0.0, has_namespaces=False)).splitlines()[3]
    assert line.split() == ["gpt", "Pending", "0/80", "-", "-", "-", "-", "-", "-"]


COLUMNS = ["job", "phase", "step", "agents", "loss", "pauses", "steps/s", "zones", "samples/s"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_a_narrow_terminal_splits_no_word_and_names_what_it_leaves_out(
    training: dict[str, Any], width: int
) -> None:
    training["status"] |= {
        "agentsSummary": "7/8",
        "agents": [{"zone": "europe-west4-a", "running": 3}, {"zone": "us-east1-b", "running": 4}],
        "cost": {"dollarsPerHour": 8.88},
    }
    row = job_row(training, EVENTS)
    whole = shown(jobs_view([row], 130.0, has_namespaces=True))
    narrow = shown(jobs_view([row], 130.0, has_namespaces=True), width)
    table, said, left_out = narrow.partition("A wider terminal also shows:")
    assert set(table.split()) - {"─" * n for n in range(200)} <= set(whole.split())
    assert bool(said) == (width < 130)
    for name in COLUMNS:
        assert (name in table.splitlines()[1].split()) != (name in re.split(r"[\s,.]+", left_out))


def test_an_agent_that_does_not_run_says_why_in_a_narrow_terminal(
    training: dict[str, Any],
) -> None:
    pods = zoned_pods("a")
    pods[0]["status"] = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}
    rows = agent_rows(training, pods, [], EVENTS, 60.0)
    assert "ErrImagePull" in shown(agents_view(job_row(training, EVENTS), rows, 60.0), 60)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_word_that_is_longer_than_a_line_is_folded_and_keeps_other_columns(
    training: dict[str, Any], width: int
) -> None:
    image = f"registry.example.com/team/trainer@sha256:{'0123456789abcdef' * 4}"
    pod = make_pod("gpt-p0-s0-i0", phase="Pending")
    message = f"no node has {image}"
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": message, "reason": "Unschedulable"}
    ]
    rows = agent_rows(training, [pod], [], EVENTS, 60.0)
    (trouble,) = (row.trouble for row in rows if row.trouble)
    assert image in trouble
    lines = shown(agents_view(job_row(training, EVENTS), rows, 60.0), width).splitlines()
    head = next(n for n, line in enumerate(lines) if "trouble" in line)
    begin = lines[head].index("trouble")
    assert image in "".join(line[begin:width].strip() for line in lines[head + 2 :])
    assert lines[head + 2].split()[0] == "gpt-p0-s0-i0"
    assert ("ready" in lines[head]) == (width == 80)


def test_many_zones_are_not_all_listed(manifest: dict[str, Any]) -> None:
    manifest["status"]["agents"] = [{"zone": f"z{n}", "running": n} for n in range(6)]
    said = shown(jobs_view([job_row(manifest, [])], 0.0, has_namespaces=False))
    assert "z5:5 z4:4 z3:3 z2:2 +2" in said


def test_a_speed_of_long_ago_is_not_shown(training: dict[str, Any]) -> None:
    """Nobody writes the status any more, and perhaps the job stands still."""
    training["status"]["progress"]["reportTime"] = "1970-01-01T00:00:00Z"
    fresh = shown(jobs_view([job_row(training, [], 50.0)], 50.0, has_namespaces=False))
    assert "64.5" in fresh
    said = shown(jobs_view([job_row(training, [], 300.0)], 300.0, has_namespaces=False))
    assert "64.5" not in said
    assert "2.02" not in said
    assert "Running 5 min ago" in said


def test_no_jobs() -> None:
    assert "bamboo top -A" in shown(jobs_view([], 0.0, has_namespaces=False))


def test_agents_with_zone_age_trouble_and_the_pauses_they_caused(
    training: dict[str, Any],
) -> None:
    pods = [make_pod("stranger"), *zoned_pods("a", "b")]
    pods[1]["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    pods[1]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    waiting = make_pod("gpt-p0-s2-i0", phase="Pending")
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/9 nodes"}
    ]
    stuck = make_pod("gpt-p0-s3-i0", "n3", phase="Pending", deletionTimestamp="x")
    stuck["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
    rows = agent_rows(training, [*pods, stuck, waiting], [], EVENTS, now=60.0)
    assert [(r.name, r.zone, r.node, r.phase, r.is_ready, r.age_s, r.trouble) for r in rows] == [
        ("gpt-p0-s0-i0", "a", "n0", "Running", True, 60.0, ""),
        (AGENT, "b", "n1", "Running", False, None, ""),
        ("gpt-p0-s2-i0", "", "", "Pending", False, None, "0/9 nodes"),
        ("gpt-p0-s3-i0", "", "n3", "Terminating", False, None, "ErrImagePull"),
    ]
    assert [(r.pauses.count, r.pauses.seconds) for r in rows] == [
        (0, 0.0), (1, 0.4), (0, 0.0), (0, 0.0),
    ]  # fmt: skip
    said = shown(agents_view(job_row(training, EVENTS), rows, 60.0))
    assert "1 (0.4 s)" in said
    assert "0/9 nodes" in said


@pytest.mark.parametrize(
    ("node", "change", "trouble"),
    [
        ("n0", {}, ""),
        ("n1", {}, "starts, or waits for the next plan"),
        ("n2", {}, "node n2 is not ready"),
        ("n3", {}, "node n3 is gone"),
        ("n0", {"terminated": {"exitCode": 137}}, "ended with exit code 137"),
        ("n0", {"terminated": {"exitCode": 0}}, ""),
    ],
)
def test_an_agent_is_ready_when_it_takes_part(
    training: dict[str, Any], node: str, change: dict[str, Any], trouble: str
) -> None:
    """Its pod is ready as soon as its container runs, and stays so for a while on a lost node. So
    an agent that was killed while it built its set-up was shown as ready until it was replaced."""
    pod = make_pod("gpt-p0-s0-i7" if node == "n1" else "gpt-p0-s0-i0", node)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    pod["status"]["containerStatuses"] = [{"name": "agent", "state": change}]
    nodes = [make_node("n0", "a"), make_node("n1", "a"), make_node("n2", "a", ready=False)]
    (row,) = agent_rows(training, [pod], nodes, [], 60.0)
    assert (row.is_ready, row.trouble) == (not trouble, trouble)
    del training["status"]["arbiter"]  # no plan has been made
    (row,) = agent_rows(training, [pod], nodes, [], 60.0)
    assert (row.is_ready, row.trouble) == (False, trouble or "starts, or waits for the next plan")
    (row,) = agent_rows(training, [pod], [], [], 60.0)  # the user may not see nodes
    assert "node" not in row.trouble


def test_agents_of_a_job_that_has_ended_do_not_wait(training: dict[str, Any]) -> None:
    training["status"]["conditions"] = [
        {"type": "Complete", "status": "True", "reason": "StepsReached", "message": ""}
    ]
    del training["status"]["arbiter"]
    (row,) = agent_rows(training, [make_pod(AGENT, "n0")], [], [], 60.0)
    assert row.trouble == ""


def test_facts_that_cannot_be_read_say_nothing_of_agents(training: dict[str, Any]) -> None:
    training["status"]["arbiter"] = {"plan": "of another version"}
    (row,) = agent_rows(training, [make_pod(AGENT, "n0")], [], [], 60.0)
    assert row.trouble == ""


def test_a_job_and_all_namespaces_contradict_each_other(kubeconfig: Path) -> None:
    with pytest.raises(CommandError, match="-A shows the jobs of all namespaces"):
        Top(Place(kubeconfig=kubeconfig), "gpt", Console(), is_everywhere=True)


@pytest.fixture
def run(server: Server, kubeconfig: Path, training: dict[str, Any]) -> Callable[..., Any]:
    events = [
        one | {"involvedObject": {"uid": "u1"}, "lastTimestamp": one["eventTime"]} for one in EVENTS
    ]
    server.answers |= {
        JOB_PATH: (200, training),
        JOBS_PATH: (200, {"items": [training]}),
        JOBS_PATH.replace("/namespaces/team", ""): (200, {"items": [training]}),
        PODS_PATH: (200, {"items": zoned_pods("a", "b")}),
        EVENTS_PATH: (200, {"items": events}),
        "/api/v1/events": (200, {"items": events}),
    }

    def invoke(*more: str) -> Any:
        return CliRunner(env={"COLUMNS": "200"}).invoke(
            cli, ["top", *more, "--kubeconfig", str(kubeconfig)]
        )

    return invoke


@pytest.mark.parametrize("more", [(), ("-A",), ("gpt",)])
def test_the_command(run: Callable[..., Any], more: tuple[str, ...]) -> None:
    result = run(*more)
    assert result.exit_code == 0, result.exception
    assert "20/80" in result.output
    assert "2.02" in result.output
    assert ("team/gpt" in result.output) == bool(more)
    assert ("gpt-p0-s1-i0" in result.output) == (more == ("gpt",))


@pytest.mark.parametrize("text", ["plugin said [/etc/x] no", "it is [red] :boom:"])
@pytest.mark.parametrize("command", ["top", "explain", "report", "status"])
def test_texts_of_the_cluster_are_shown_as_they_are(
    run: Callable[..., Any],
    server: Server,
    kubeconfig: Path,
    training: dict[str, Any],
    command: str,
    text: str,
) -> None:
    """Brackets are no markup, and colons make no pictures."""
    del run
    waiting = make_pod("gpt-p0-s2-i0", phase="Pending")
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": text}]
    server.answers[PODS_PATH] = (200, {"items": [*zoned_pods("a", text), waiting]})
    ended = {"type": "Failed", "status": "True", "reason": "X", "message": text}
    cost = {"nodes": [{"pool": text, "zone": "a", "dollarsPerHour": 1.0}]}
    training["status"] |= {"conditions": [ended], "cost": cost, "phase": "Failed"}
    result = CliRunner(env={"COLUMNS": "400"}).invoke(
        cli, [command, "gpt", "--kubeconfig", str(kubeconfig)]
    )
    assert not isinstance(result.exception, MarkupError)
    assert text in result.output


def forbidden(what: str) -> tuple[int, dict[str, Any]]:
    return 403, {"kind": "Status", "code": 403, "message": f"{what} is forbidden: no"}


@pytest.mark.parametrize("command", [("top",), ("top", "gpt"), ("top", "-A"), ("report", "gpt")])
def test_without_the_right_to_list_events(
    run: Callable[..., Any], server: Server, kubeconfig: Path, command: tuple[str, ...]
) -> None:
    del run
    server.answers |= {
        EVENTS_PATH: forbidden("events"), "/api/v1/events": forbidden("events"),
    }  # fmt: skip
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        cli, [*command, "--kubeconfig", str(kubeconfig)]
    )
    assert result.exit_code == 0, result.exception
    assert "without the right to list events" in " ".join(result.output.split())
    assert "events is forbidden" in result.output
    assert "gpt" in result.output.replace("events is forbidden", "")


def test_without_the_definition(run: Callable[..., Any], server: Server) -> None:
    del server.answers[JOBS_PATH]
    assert "install Bamboo's chart" in str(run().exception)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_it_refreshes(run: Callable[..., Any], kubeconfig: Path, is_terminal: bool) -> None:
    del run
    looks = []

    def pause(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=is_terminal)
    screen = Top(Place(kubeconfig=kubeconfig), None, console, clock=lambda: 60.0, pause=pause)
    with pytest.raises(KeyboardInterrupt):
        screen.watch()
    assert out.getvalue().count("20/80") == 3 + is_terminal  # the screen stays at the end


@pytest.mark.parametrize(("columns", "width"), [({}, 10_000), ({"COLUMNS": "90"}, 90)])
def test_rows_that_a_program_reads_stay_one_line(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, str], width: int
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, value in columns.items():
        monkeypatch.setenv(name, value)
    assert make_console(has_rows=True).width == width


def test_the_agents_of_a_job_that_stands_still_come_with_the_cause(
    training: dict[str, Any],
) -> None:
    row = job_row(training, [])
    assert "Stalled" not in shown(agents_view(row, [], 0.0))
    text = "the checkpoint of step 32 is not written: tries again for 59 minutes, at $7.50 an hour"
    stalled = {"type": "Stalled", "status": "True", "reason": "LastWriteWaits", "message": text}
    training["status"]["conditions"].append(stalled)
    said = " ".join(shown(agents_view(job_row(training, []), [], 0.0)).split())
    assert f"Stalled (LastWriteWaits): {text}" in said


def test_what_agents_measure_of_the_network_comes_with_them(training: dict[str, Any]) -> None:
    assert "Network" not in shown(agents_view(job_row(training, []), [], 0.0))
    training["status"]["transport"] = {"plannedGbps": 10.0, "measuredGbps": 9.4}
    said = " ".join(shown(agents_view(job_row(training, []), [], 0.0)).split())
    assert "Network: agents measure 9.4 Gb/s between them, plans count with 10" in said

"""Preemptions by the user: which agents, how, and what is said about them."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.cli.conftest import make_pod, zoned_pods
from tests.cli.events import event
from tests.cli.fake_api import EVENTS_PATH, JOB_PATH, PODS_PATH, Server

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.preempt import Preemption
from bamboo_cli.errors import CommandError
from bamboo_cli.job.pods import agent_zones
from bamboo_cli.job.state import read_job
from bamboo_cli.job.victims import Choice, check, running, victims
from bamboo_cli.main import cli
from bamboo_cli.run.consequence import consequence, consequences_text
from bamboo_cli.run.faults import Fault
from bamboo_core.api.events import EventReason as Reason

ZONES = ("a", "b", "a", "b", "b", "c", "b", "c")
AGENT, OTHER = "gpt-p0-s1-i0", "gpt-p0-s3-i0"


def chosen(training: dict[str, Any], choice: Choice) -> list[str]:
    pods = zoned_pods(*ZONES)
    agents = running(training, pods, agent_zones(pods, []))
    return [seat.pod for seat in victims("gpt", agents, choice, random.Random(1))]


def test_all_agents_of_a_zone(training: dict[str, Any]) -> None:
    assert chosen(training, Choice(zone="c")) == ["gpt-p1-s1-i0", "gpt-p1-s3-i0"]


@pytest.mark.parametrize("name", ["gpt-p0-s1-i0", "p0-s1-i0", "p0-s1"])
def test_one_agent_by_name(training: dict[str, Any], name: str) -> None:
    assert chosen(training, Choice(agent=name)) == [AGENT]


@pytest.mark.parametrize(
    ("choice", "count"), [(Choice(), 1), (Choice(count=3), 3), (Choice(zone="b", count=2), 2)]
)
def test_a_number_of_agents(training: dict[str, Any], choice: Choice, count: int) -> None:
    found = chosen(training, choice)
    assert len(set(found)) == count
    zones = agent_zones(zoned_pods(*ZONES), [])
    assert choice.zone is None or {zones[pod] for pod in found} == {"b"}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(zone="x"), '--zone "x": no agent runs there; zones with agents: a, b, c.'),
        (Choice(agent="p7-s7"), '--agent "p7-s7": no such agent runs; running are gpt-p0-s0-i0,'),
        (Choice(count=9), "--count 9 is too many: 8 agents run there."),
        (Choice(zone="c", count=3), "--count 3 is too many: 2 agents run there."),
        (Choice(agent=""), '--agent "": no such agent runs; running are gpt-p0-s0-i0,'),
        (Choice(zone=""), '--zone "": no agent runs there; zones with agents: a, b, c.'),
    ],
)
def test_a_choice_that_nobody_meets(training: dict[str, Any], choice: Choice, words: str) -> None:
    with pytest.raises(CommandError) as refused:
        chosen(training, choice)
    assert words in str(refused.value)


def test_one_agent_is_told_in_the_singular(training: dict[str, Any]) -> None:
    agents = running(training, zoned_pods("a"), {})
    with pytest.raises(CommandError, match="--count 2 is too many: 1 agent runs there"):
        victims("gpt", agents, Choice(count=2), random.Random(1))
    with pytest.raises(CommandError, match=r"no such agent runs; running are gpt-p0-s0-i0[.]$"):
        victims("gpt", agents, Choice(agent="x"), random.Random(1))
    with pytest.raises(CommandError, match=r'--zone "": .*; zones with agents: none is known'):
        victims("gpt", agents, Choice(zone=""), random.Random(1))


@pytest.mark.parametrize("choice", [Choice(agent="a", zone="z"), Choice(agent="a", count=1)])
def test_options_that_contradict_each_other(choice: Choice) -> None:
    with pytest.raises(CommandError, match="without --zone and --count"):
        check(choice)


def test_a_job_without_running_agents_has_none_to_lose(training: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="no agent of the job runs; `bamboo explain gpt`"):
        running(training, [make_pod("gpt-p0-s0-i0", phase="Pending")], {})
    training["status"]["conditions"][1]["status"] = "True"
    with pytest.raises(CommandError, match="the job is Complete"):
        running(training, zoned_pods(*ZONES), {})


def recovered(at: float, agent: str, epoch: int) -> list[dict[str, Any]]:
    """The agent is lost at an instant, and training goes on 0.5 s later."""
    return [
        event(at, Reason.AGENT_LOST, agents=agent),
        event(at + 0.1, Reason.STOPPED, epoch=epoch, agents=agent),
        event(at + 0.3, Reason.PLANNED, epoch=epoch, step=21, pipelines=2, stages=4,
              agents="x,y", empty_seats=1),
        event(at + 0.5, Reason.RESUMED, epoch=epoch, step=21, pause_s=0.4),
    ]  # fmt: skip


def test_the_pause_is_read_from_the_operators_events(training: dict[str, Any]) -> None:
    events = recovered(10.0, AGENT, 4)
    found = consequence(AGENT, Fault.SILENT, events)
    assert (found.is_known, found.is_over) == (True, True)
    assert consequences_text([found], read_job(training), events) == (
        "Training stood still for 0.50 s and went on with 2 x 4 from step 21, 2 agents, 1 seat"
        " empty."
    )
    noticed = consequence(AGENT, Fault.NOTICED, events)
    assert noticed.pause is not None
    assert noticed.pause.seconds == pytest.approx(0.4)


def test_the_pauses_of_two_losses_are_added_but_counted_once(training: dict[str, Any]) -> None:
    apart = [*recovered(10.0, AGENT, 4), *recovered(12.0, OTHER, 5)]
    found = [consequence(agent, Fault.SILENT, apart) for agent in (AGENT, OTHER)]
    assert consequences_text(found, read_job(training), apart).startswith(
        "Training stood still for 1.00 s"
    )
    both = [
        event(10.0, Reason.AGENT_LOST, agents=AGENT),
        event(10.1, Reason.STOPPED, epoch=4, agents=f"{AGENT},{OTHER}"),
        event(10.6, Reason.RESUMED, epoch=4, step=21),
    ]
    found = [consequence(agent, Fault.SILENT, both) for agent in (AGENT, OTHER)]
    assert consequences_text(found, read_job(training), both) == (
        "Training stood still for 0.60 s."
    )


def test_what_is_not_over_yet(training: dict[str, Any]) -> None:
    assert not consequence(AGENT, Fault.SILENT, []).is_known
    stopped = recovered(10.0, AGENT, 4)[:3]
    found = consequence(AGENT, Fault.SILENT, stopped)
    assert (found.is_known, found.is_over, found.pause) == (True, False, None)


def test_a_leaving_agent_is_still_there(training: dict[str, Any]) -> None:
    """Its notice comes seconds before training stops for it."""
    leaving = event(10.0, Reason.AGENT_LEAVING, agents=AGENT, lead_s=15, source="node")
    found = consequence(AGENT, Fault.NOTICED, [leaving])
    assert (found.is_known, found.is_over) == (True, False)
    events = [leaving, *recovered(18.0, AGENT, 4)]
    found = consequence(AGENT, Fault.NOTICED, events)
    assert found.is_over
    assert consequences_text([found], read_job(training), events).startswith(
        "Training stood still for 0.40 s"
    )


def test_an_agent_for_which_nothing_waits(training: dict[str, Any]) -> None:
    events = [event(10.0, Reason.AGENT_LEFT, agents=AGENT)]
    found = consequence(AGENT, Fault.NOTICED, events)
    assert found.is_over
    assert consequences_text([found], read_job(training), events).startswith(
        "Training did not stop"
    )


def test_a_restore_is_named(training: dict[str, Any]) -> None:
    restoring = event(11.0, Reason.RESTORING, attempt=1, step=10, repeated_steps=11)
    text = consequences_text([], read_job(training), [restoring])
    assert text.endswith("It was restored from step 10; 11 steps are repeated.")
    once = event(11.0, Reason.RESTORING, attempt=1, step=10, repeated_steps=1)
    text = consequences_text([], read_job(training), [once])
    assert text.endswith("from step 10; 1 step is repeated.")
    earlier = event(1.0, Reason.RESTORING, attempt=0, step=10, repeated_steps=11)
    assert "restored" not in consequences_text([], read_job(training), [earlier])


@pytest.fixture
def cluster(server: Server, training: dict[str, Any]) -> Server:
    """The training job, whose deleted pods are lost and replaced at once."""
    pods = zoned_pods(*ZONES)
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-of-{pod['metadata']['name']}"
    server.answers[JOB_PATH] = (200, training)
    server.answers[PODS_PATH] = (200, {"items": pods})
    server.answers["/api/v1/nodes"] = (200, {"items": []})
    events: list[dict[str, Any]] = []
    server.answers[EVENTS_PATH] = (200, {"items": events})

    def lose(path: str) -> None:
        for one in recovered(10.0 + len(events), path.rpartition("/")[2], 4 + len(events)):
            events.append(one | {"lastTimestamp": one["eventTime"]})

    server.on_delete = lose
    return server


def announce(cluster: Server) -> None:
    """The deleted pod only says that it leaves."""
    leaving = event(10.0, Reason.AGENT_LEAVING, agents=AGENT, lead_s=15, source="node")
    items = cluster.answers[EVENTS_PATH][1]["items"]
    cluster.on_delete = lambda path: items.append(leaving | {"lastTimestamp": leaving["eventTime"]})


def preemption(kubeconfig: Path, training: dict[str, Any], said: io.StringIO) -> Preemption:
    """Its waits commit a step."""
    times = iter(range(1000))

    def step(_: float) -> None:
        training["status"]["progress"]["step"] += 1

    console = Console(file=said, width=160)
    place = Place(kubeconfig=kubeconfig)
    return Preemption(place, "gpt", console, now=lambda: float(next(times)), pause=step)


def test_a_whole_drill(cluster: Server, kubeconfig: Path, training: dict[str, Any]) -> None:
    said = io.StringIO()
    one = preemption(kubeconfig, training, said)
    one.run(one.choose(Choice(agent="p0-s1")), Fault.SILENT, timeout_s=60)
    ((path, options),) = cluster.deleted
    assert path == f"{PODS_PATH}/{AGENT}"
    assert options["gracePeriodSeconds"] == 0
    assert options["preconditions"] == {"uid": f"uid-of-{AGENT}"}
    lines = said.getvalue().splitlines()
    assert lines[0] == f"{AGENT} (zone b, node n1)"
    assert lines[1].startswith("training goes on: 2 x 4 with 7 agents")
    assert lines[2] == f"deleted {AGENT}"
    assert lines[3].startswith("Training stood still for 0.50 s")


def test_with_notice_the_pod_keeps_its_grace_period(
    cluster: Server, kubeconfig: Path, training: dict[str, Any]
) -> None:
    one = preemption(kubeconfig, training, io.StringIO())
    one.run(one.choose(Choice(agent="p0-s1")), Fault.NOTICED, timeout_s=60)
    assert "gracePeriodSeconds" not in cluster.deleted[0][1]


@pytest.mark.parametrize("code", [404, 409])
def test_a_pod_that_is_gone_already(
    cluster: Server, kubeconfig: Path, training: dict[str, Any], code: int
) -> None:
    cluster.answers[f"DELETE {PODS_PATH}/{AGENT}"] = (code, {"message": "no"})
    said = io.StringIO()
    one = preemption(kubeconfig, training, said)
    one.run(one.choose(Choice(agent="p0-s1")), Fault.SILENT, timeout_s=60)
    assert said.getvalue().endswith(f"{AGENT} was gone already\n")


def test_a_job_that_does_not_go_on(
    cluster: Server, kubeconfig: Path, training: dict[str, Any]
) -> None:
    cluster.on_delete = lambda path: None
    one = preemption(kubeconfig, training, io.StringIO())
    with pytest.raises(CommandError) as late:
        one.run(one.choose(Choice(agent="p0-s1")), Fault.SILENT, timeout_s=3)
    said = str(late.value)
    assert "3 s after the loss, and no event tells that gpt-p0-s1-i0 left" in said
    assert said.endswith("`bamboo explain gpt` says more.")


def test_a_job_that_does_not_go_on_without_a_leaving_agent(
    cluster: Server, kubeconfig: Path, training: dict[str, Any]
) -> None:
    announce(cluster)
    one = preemption(kubeconfig, training, io.StringIO())
    with pytest.raises(CommandError, match="does not go on without gpt-p0-s1-i0 yet"):
        one.run(one.choose(Choice(agent="p0-s1")), Fault.NOTICED, timeout_s=3)


def test_a_job_that_ends_before_an_agent_has_left(
    cluster: Server, kubeconfig: Path, training: dict[str, Any]
) -> None:
    announce(cluster)
    said = io.StringIO()
    one = preemption(kubeconfig, training, said)
    chosen = one.choose(Choice(agent="p0-s1"))
    training["status"]["conditions"][1]["status"] = "True"
    one.run(chosen, Fault.NOTICED, timeout_s=60)
    assert said.getvalue().endswith("The job is Complete; it ended before all of them were gone.\n")


def test_the_command_asks_first(cluster: Server, kubeconfig: Path) -> None:
    arguments = ["preempt", "gpt", "--agent", "p0-s1", "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(cli, arguments, input="n\n")
    assert (result.exit_code, cluster.deleted) == (1, [])
    assert "Delete these pods? [y/N]" in result.output


def test_nobody_answers(cluster: Server, kubeconfig: Path) -> None:
    arguments = ["preempt", "gpt", "--agent", "p0-s1", "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(cli, arguments, input="")
    assert (result.exit_code, cluster.deleted) == (1, [])
    assert "nothing is deleted; give --yes where nobody can answer" in str(result.exception)


def test_the_command_may_be_forbidden(cluster: Server, kubeconfig: Path) -> None:
    cluster.answers[f"DELETE {PODS_PATH}/{AGENT}"] = (403, {"message": "pods is forbidden"})
    arguments = ["preempt", "gpt", "--agent", "p0-s1", "--yes", "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(cli, arguments)
    assert "the API server refused the request: pods is forbidden" in str(result.exception)

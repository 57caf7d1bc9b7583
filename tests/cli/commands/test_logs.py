"""The agents' logs: cut into lines, merged by time, with step and loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.conftest import make_pod
from tests.cli.fake_api import JOB_PATH, PODS_PATH, Server

from bamboo_cli.cluster.log_lines import Line, Writer, merged, read_line, split_lines
from bamboo_cli.cluster.log_streams import MOST_FOLLOWED, Streams, newest
from bamboo_cli.commands.logs import started
from bamboo_cli.errors import ClusterError, CommandError, NodeSilentError, NotReadyError
from bamboo_cli.main import cli


def sent(second: int, message: str, **more: Any) -> str:
    """A line of an agent, as the API server sends it."""
    said = json.dumps({"level": "info", "message": message, **more})
    return f"2026-01-01T08:00:{second:02}.123456789Z {said}\n"


def test_pieces_become_lines() -> None:
    assert list(split_lines([b"a", b"b\nc\n", b"", b"d"])) == ["ab", "c", "d"]
    assert list(split_lines([])) == []
    assert list(split_lines([b"\xff\n"])) == ["\ufffd"]


def test_a_long_line_is_cut_and_never_held_whole() -> None:
    pieces = [b"x" * 5, b"y" * 5, b"z" * 5 + b"\nshort\n"]
    assert list(split_lines(pieces, most=8)) == ["xxxxxyyy", "short"]
    assert list(split_lines([b"x" * 100 + b"\nab"], most=8)) == ["x" * 8, "ab"]


@pytest.mark.parametrize("size", [3, 100])
def test_a_long_line_is_cut_between_two_characters(size: int) -> None:
    for text, most, head in (
        ("层层层", 8, "层层"),
        ("层层层", 6, "层层"),
        ("\U0001f600" * 3, 7, "\U0001f600"),
        ("aé", 2, "a"),
    ):
        line = text.encode() + b"\nb\n"
        pieces = [line[at : at + size] for at in range(0, len(line), size)]
        assert list(split_lines(pieces, most)) == [head, "b"]
    assert list(split_lines([b"\x80" * 9], most=8)) == ["\ufffd" * 5]


def test_time_and_text_are_read() -> None:
    assert read_line("a", "2026-01-01T08:00:01.5Z hello you") == Line(
        "2026-01-01T08:00:01.5Z", "a", "hello you"
    )
    assert read_line("a", "hello you") == Line("", "a", "hello you")


def test_logs_are_merged_by_time() -> None:
    def lines(agent: str, *seconds: int) -> list[Line]:
        return [Line(f"2026-01-01T08:00:{s:02}.0Z", agent, str(s)) for s in seconds]

    found = merged([lines("a", 1, 4), lines("b", 2, 3, 5)])
    assert [(line.agent, line.text) for line in found] == [
        ("a", "1"), ("b", "2"), ("b", "3"), ("a", "4"), ("b", "5"),
    ]  # fmt: skip


def test_lines_have_agent_step_and_loss() -> None:
    writer = Writer("gpt")

    def write(text: str, agent: str = "gpt-p0-s1-i0") -> str:
        return writer.write(read_line(agent, text.rstrip()))

    assert write(sent(1, "ready")) == "08:00:01.123 p0-s1-i0 | ready"
    assert write(sent(2, "step 7 committed", step=7, loss=2.5)) == (
        "08:00:02.123 p0-s1-i0 step 7 loss 2.5000 | step 7 committed"
    )
    assert write(sent(3, "slow", level="warning")) == (
        "08:00:03.123 p0-s1-i0 step 7 loss 2.5000 | WARNING: slow"
    )
    assert write(sent(3, "other"), "gpt-p1-s0-i3") == "08:00:03.123 p1-s0-i3 | other"
    assert write(sent(4, "died", traceback="Traceback:\n x")).endswith("| died\nTraceback:\n x")


@pytest.mark.parametrize("text", ["plain words", "[1]", '{"other": 1}', "[" * 100_000])
def test_what_others_print_is_shown_as_it_is(text: str) -> None:
    line = Line("2026-01-01T08:00:01Z", "gpt-p0-s0-i0", text)
    assert Writer("gpt").write(line) == f"08:00:01.000 p0-s0-i0 | {text}"


@pytest.mark.parametrize(
    "text", ["\x1b]0;title\x07a\tb\x9b2J", json.dumps({"message": "\x1b]0;title\x07a\tb\x9b2J"})]
)
def test_a_terminal_obeys_no_agent(text: str) -> None:
    line = Line("2026-01-01T08:00:01Z", "gpt-p0-s0-i0", text)
    assert Writer("gpt").write(line) == "08:00:01.000 p0-s0-i0 | ]0;titlea\tb2J"


class FakeLogs:
    """Logs from a table; each read of a pod takes the next of its entries."""

    def __init__(self, **logs: list[bytes | Exception]) -> None:
        self.logs = {pod.replace("_", "-"): entries for pod, entries in logs.items()}

    def log(
        self, namespace: str, pod: str, *, tail: int | None, is_followed: bool = False
    ) -> Iterator[bytes]:
        entry = self.logs[pod].pop(0)
        if isinstance(entry, Exception):
            raise entry
        yield entry


def test_pods_without_a_log_are_left_out() -> None:
    kube = FakeLogs(a=[sent(2, "x").encode()], b=[NotReadyError("starting")])
    assert [line.agent for line in newest(kube, "team", ["a", "b"], 5, pytest.fail)] == ["a"]


def test_a_node_that_does_not_answer_does_not_hide_the_other_agents() -> None:
    kube = FakeLogs(a=[sent(2, "x").encode()], b=[NodeSilentError("connection refused")])
    said: list[str] = []
    assert [line.agent for line in newest(kube, "team", ["a", "b"], 5, said.append)] == ["a"]
    assert said == ["b is left out, since its node does not answer: connection refused"]


def following(kube: FakeLogs, looks: list[tuple[list[str], bool]]) -> Streams:
    """Each look takes the next entry; the last one stays."""

    def find() -> tuple[list[str], bool]:
        for thread in streams._threads.values():
            thread.join()  # so that what each look finds is certain
        return looks.pop(0) if len(looks) > 1 else looks[0]

    times = iter(range(100_000))
    streams = Streams(kube, "team", find, 5, now=lambda: float(next(times)))
    return streams


def test_followed_logs_are_opened_again_without_repeated_lines() -> None:
    first = sent(1, "one").encode()
    kube = FakeLogs(
        a=[first, first + sent(3, "three").encode()], b=[NotReadyError("no"), sent(2, "x").encode()]
    )
    looks = [(["a"], False), (["a", "b"], False), (["b"], False), (["a", "b"], True)]
    found = list(following(kube, looks).lines())
    assert sorted((line.agent, line.time[17:19]) for line in found) == [
        ("a", "01"), ("a", "03"), ("b", "02"),
    ]  # fmt: skip


def test_followed_lines_of_one_time_are_all_shown_once() -> None:
    first = sent(1, "Traceback:") + sent(1, "  line 1") + sent(1, "ValueError: x")
    again = first + sent(1, "late") + sent(2, "next") + sent(2, "next")
    kube = FakeLogs(a=[text.encode() for text in (first, first, again, again)])
    looks = [*[(["a"], False)] * 4, (["a"], True)]
    found = [json.loads(line.text)["message"] for line in following(kube, looks).lines()]
    assert found == ["Traceback:", "  line 1", "ValueError: x", "late", "next", "next"]


def test_followed_lines_that_come_late_or_without_a_time_are_shown() -> None:
    first = sent(2, "two") + sent(1, "one") + "no time\n"
    kube = FakeLogs(a=[first.encode(), (first + sent(4, "four") + sent(3, "three")).encode()])
    found = list(following(kube, [(["a"], False), (["a"], False), (["a"], True)]).lines())
    assert sorted(line.time[17:19] for line in found) == ["", "", "01", "02", "03", "04"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ClusterError("refused"), "refused"),
        (KeyError("x"), "the log of a cannot be read .KeyError"),
    ],
)
def test_an_error_of_one_log_ends_the_command(error: Exception, words: str) -> None:
    kube = FakeLogs(a=[error])
    with pytest.raises(ClusterError, match=words):
        list(following(kube, [(["a"], False)]).lines())


def test_too_many_logs_to_follow() -> None:
    pods = [f"a{n}" for n in range(MOST_FOLLOWED + 1)]
    with pytest.raises(CommandError, match="65 agents are too many to follow"):
        list(following(FakeLogs(), [(pods, False)]).lines())


def test_agents_by_name() -> None:
    pods = [
        make_pod("gpt-p0-s0-i0"),
        make_pod("gpt-p0-s0-i4", phase="Succeeded"),
        make_pod("gpt-p0-s1-i1", phase="Pending"),
        make_pod("another"),
    ]
    assert started("gpt", pods, None) == {"gpt-p0-s0-i0": "Running", "gpt-p0-s0-i4": "Succeeded"}
    assert list(started("gpt", pods, "p0-s0-i4")) == ["gpt-p0-s0-i4"]
    assert list(started("gpt", pods, "p0-s0")) == ["gpt-p0-s0-i0", "gpt-p0-s0-i4"]
    with pytest.raises(
        CommandError, match='--agent "x": no such agent has started; there are gpt-'
    ):
        started("gpt", pods, "x")
    with pytest.raises(CommandError, match=r'--agent "": .* there are gpt-p0-s0-i0, gpt-p0-s0-i4'):
        started("gpt", pods, "")
    with pytest.raises(CommandError, match="no agent of the job has started; `bamboo explain gpt`"):
        started("gpt", pods[2:], None)
    assert started("gpt", [], "x", is_needed=False) == {}


@pytest.fixture
def two_agents(server: Server) -> Server:
    pods = [make_pod("gpt-p0-s0-i0"), make_pod("gpt-p0-s1-i0")]
    server.answers[PODS_PATH] = (200, {"items": pods})
    server.answers[f"{PODS_PATH}/gpt-p0-s0-i0/log"] = (
        200, (sent(1, "first") + sent(3, "step", step=7, loss=2.5)).encode(),
    )  # fmt: skip
    server.answers[f"{PODS_PATH}/gpt-p0-s1-i0/log"] = (200, sent(2, "second").encode())
    return server


@pytest.fixture
def run(kubeconfig: Path) -> Callable[..., Any]:
    def invoke(*more: str) -> Any:
        return CliRunner().invoke(cli, ["logs", "gpt", *more, "--kubeconfig", str(kubeconfig)])

    return invoke


def test_the_command(two_agents: Server, run: Callable[..., Any]) -> None:
    assert run().output.splitlines() == [
        "08:00:01.123 p0-s0-i0 | first",
        "08:00:02.123 p0-s1-i0 | second",
        "08:00:03.123 p0-s0-i0 step 7 loss 2.5000 | step",
    ]
    asked = next(path for path in two_agents.asked if path.partition("?")[0].endswith("/log"))
    assert {"container=agent", "timestamps=true", "tailLines=20"} <= set(
        asked.partition("?")[2].split("&")
    )


def test_the_command_follows_until_the_job_ends(
    two_agents: Server, run: Callable[..., Any], manifest: dict[str, Any]
) -> None:
    manifest["status"]["conditions"][1]["status"] = "True"
    two_agents.answers[JOB_PATH] = (200, manifest)
    ended = [make_pod("gpt-p0-s0-i0", phase="Succeeded"), make_pod("gpt-p0-s1-i0")]
    two_agents.answers[PODS_PATH] = (200, {"items": ended})
    assert len(run("-f").output.splitlines()) == 3
    assert len(run("-f", "--agent", "p0-s0").output.splitlines()) == 2


def test_logs_of_a_job_that_has_ended_are_gone_with_its_pods(
    two_agents: Server, run: Callable[..., Any], manifest: dict[str, Any]
) -> None:
    manifest["status"]["conditions"][1]["status"] = "True"
    two_agents.answers[JOB_PATH] = (200, manifest)
    two_agents.answers[PODS_PATH] = (200, {"items": []})
    assert "no pod of gpt is left, so its logs are gone; `bamboo report" in str(run().exception)


def test_the_command_may_be_refused(two_agents: Server, run: Callable[..., Any]) -> None:
    answer = (403, {"message": "pods/log is forbidden"})
    two_agents.answers[f"{PODS_PATH}/gpt-p0-s0-i0/log"] = answer
    assert "refused the request: pods/log is forbidden" in str(run().exception)


def test_the_other_agents_are_shown_if_a_node_is_dead(
    two_agents: Server, run: Callable[..., Any]
) -> None:
    answer = (500, {"message": 'Get "https://10.0.0.1:10250/": connection refused'})
    two_agents.answers[f"{PODS_PATH}/gpt-p0-s0-i0/log"] = answer
    done = run()
    assert done.exception is None
    assert done.stdout.splitlines() == ["08:00:02.123 p0-s1-i0 | second"]
    assert "gpt-p0-s0-i0 is left out, since its node does not answer: Get" in done.stderr


def test_a_container_that_waits_has_no_log(two_agents: Server, run: Callable[..., Any]) -> None:
    two_agents.answers[f"{PODS_PATH}/gpt-p0-s0-i0/log"] = (400, {"message": "is waiting to start"})
    assert run().output.splitlines() == ["08:00:02.123 p0-s1-i0 | second"]

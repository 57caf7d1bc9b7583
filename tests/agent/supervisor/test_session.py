"""A supervisor process and its operator."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.agent.supervisor.conftest import Start
from tests.agent.supervisor.fake_operator import WELCOME, FakeOperator, until

from bamboo_agent.local.certificates import Authority
from bamboo_agent.supervisor.event_log import divergences
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import (
    AgentReport,
    Directive,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Notice,
    Ready,
    Reconnect,
    Release,
    Stop,
    Welcome,
)
from bamboo_proto.v1 import agent_pb2 as pb

FENCE = Fence(0, 1, 1)
IN_TURN = pytest.mark.rotating(3)


def directive(fence: Fence) -> Directive:
    return Directive(fence, 0, 4, (), ((0, 1),), BatchShape(1, 1, 1), AgentId("job-0-0"), key=b"k")


async def test_hello_welcome_ready_work_release(
    operator: FakeOperator, start: Start, environment: dict[str, str]
) -> None:
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    hello, ready = stream.of(Hello)[0], stream.of(Ready)[0]
    assert (hello.agent, hello.pod_uid, hello.node) == ("job-0-0", "pod-uid", "node-a")
    assert hello.zone == "zone-a"
    assert hello.data_address == ready.fingerprint.data  # the worker got the socket
    assert not hello.has_state
    stream.say(Stop(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(AgentReport)))
    stream.say(directive(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(Finished)))
    await until(lambda: any(beat.progress_word == 7 for beat in stream.of(Heartbeat)))
    stream.say(Release(0, "the job is complete"))
    assert await agent.exit_code() == 0
    assert stream.said[0] == hello


async def test_torch_is_not_loaded_and_memory_is_small(
    operator: FakeOperator, start: Start
) -> None:
    agent = await start()
    await operator.stream()
    assert "torch" not in _proc(agent.process.pid, "maps")
    resident_kb = int(_proc(agent.process.pid, "status").split("VmRSS:")[1].split()[0])
    assert resident_kb < 100_000


async def test_the_session_is_opened_again_with_the_state(
    operator: FakeOperator, start: Start
) -> None:
    await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 5)))
    await until(lambda: bool(stream.of(AgentReport)))
    await operator.stop()
    await operator.start()
    again = await operator.stream(1)
    hello = again.of(Hello)[0]
    assert hello.fence == Fence(0, 1, 5)
    assert hello.has_state
    await until(lambda: bool(again.of(Ready)))


async def test_what_was_said_into_a_stream_that_broke_is_said_again(
    operator: FakeOperator, start: Start
) -> None:
    await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(FENCE))
    await until(lambda: bool(stream.of(AgentReport)))
    stream.say(directive(FENCE))
    await until(lambda: bool(stream.of(Finished)))
    for number in (1, 2):
        await operator.stop()
        await operator.start()
        again = await operator.stream(number)
        await until(lambda again=again: again.of(Finished) == [Finished(FENCE)])
        assert again.said.index(Finished(FENCE)) > again.said.index(again.of(Ready)[0])


async def test_a_supervisor_that_was_frozen_gives_its_worker_the_time_that_is_left(
    operator: FakeOperator, start: Start
) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "job": "ns/second"})
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(FENCE))
    await until(lambda: "stopped by" in agent.log)
    agent.send(signal.SIGSTOP)
    thaws_at = time.monotonic() + 3.0  # longer than a worker may take to report
    await until(lambda: time.monotonic() > thaws_at)
    beats = len(stream.of(Heartbeat))
    agent.send(signal.SIGCONT)
    await until(lambda: len(stream.of(Heartbeat)) > beats)
    stream.say(Stop(FENCE))
    await until(lambda: bool(stream.of(AgentReport)))
    assert "no report in time" not in agent.log


@IN_TURN
async def test_the_token_is_read_again(
    operator: FakeOperator, start: Start, tmp_path: Path
) -> None:
    await start()
    await operator.stream()
    (tmp_path / "token").write_text("rotated")
    operator.token = "rotated"
    operator.streams[0].end()
    assert (await operator.stream(1)).metadata["authorization"] == "Bearer rotated"


async def test_a_refused_token_is_explained_and_tried_again(
    operator: FakeOperator, start: Start, tmp_path: Path
) -> None:
    operator.token = "another"
    agent = await start()
    await until(lambda: "it rejects the token" in agent.log)
    assert str(tmp_path / "token") in agent.log
    assert agent.log.count("it rejects the token") == 1
    operator.token = "token"
    await operator.stream()


@IN_TURN
async def test_an_authority_that_is_not_the_operators_is_explained(
    operator: FakeOperator, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(Authority("another CA").bundle)
    agent = await start()
    await until(lambda: "is not signed by" in agent.log)
    assert "BAMBOO_CA_FILE" in agent.log
    assert not operator.streams


@IN_TURN
async def test_a_name_that_the_certificate_does_not_carry(
    operator: FakeOperator, start: Start
) -> None:
    agent = await start(BAMBOO_OPERATOR_NAME="elsewhere")
    await until(lambda: "is for another host" in agent.log)
    assert not operator.streams


@IN_TURN
async def test_the_name_in_the_certificate_may_be_configured(
    operator: FakeOperator, start: Start
) -> None:
    await start(BAMBOO_OPERATOR_NAME="operator")
    await operator.stream()


@IN_TURN
async def test_an_operator_that_is_away_is_explained(operator: FakeOperator, start: Start) -> None:
    await operator.stop()
    agent = await start()
    await until(lambda: "no session with the operator" in agent.log)
    assert operator.address in agent.log
    await operator.start()
    await operator.stream()


async def test_words_that_are_not_in_the_protocol_end_the_session(
    operator: FakeOperator, start: Start
) -> None:
    agent = await start()
    (await operator.stream()).say(pb.OperatorMessage(stop=pb.Stop()))
    await until(lambda: "stop.fence: is missing" in agent.log)
    await operator.stream(1)


async def test_a_lower_fence_is_refused(operator: FakeOperator, start: Start) -> None:
    await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 2, 7)))
    await until(lambda: len(stream.of(AgentReport)) == 1)
    stream.say(Stop(Fence(0, 2, 6)))
    stream.say(directive(Fence(0, 2, 6)))
    stream.say(Stop(Fence(0, 2, 8)))
    await until(lambda: len(stream.of(AgentReport)) == 2)
    assert [report.fence.epoch for report in stream.of(AgentReport)] == [7, 8]
    assert not stream.of(Finished)


async def test_a_leader_of_an_older_term_is_left(operator: FakeOperator, start: Start) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "term": 9})
    await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 9, 1)))
    await until(lambda: bool(stream.of(AgentReport)))
    operator.welcome = Welcome(**{**vars(WELCOME), "term": 8})
    stream.end()
    stale = await operator.stream(1)
    await until(lambda: stale.is_closed)
    operator.welcome = Welcome(**{**vars(WELCOME), "term": 10})
    newest = await operator.stream(2)
    await until(lambda: bool(newest.of(Heartbeat)))


async def test_reconnect_is_obeyed(operator: FakeOperator, start: Start) -> None:
    await start()
    stream = await operator.stream()
    asked_at = time.monotonic()
    stream.say(Reconnect(1.0))
    await operator.stream(1)
    assert time.monotonic() - asked_at >= 1.0


async def test_without_operator_the_lease_ends(operator: FakeOperator, start: Start) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "lease_s": 1.0})
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    await operator.stop()
    assert await agent.exit_code() == 3


@IN_TURN
async def test_sigterm_without_a_part_in_the_plan(operator: FakeOperator, start: Start) -> None:
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    agent.send(signal.SIGTERM)
    assert await agent.exit_code() == 143
    assert stream.of(Notice) == [Notice(3.0, "SIGTERM")]


@IN_TURN
async def test_sigterm_in_the_plan_waits_for_the_end_of_the_grace(
    operator: FakeOperator, start: Start
) -> None:
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 1)))
    stream.say(directive(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(Finished)))
    agent.send(signal.SIGTERM)
    await until(lambda: bool(stream.of(Notice)))
    beats = len(stream.of(Heartbeat))
    await until(lambda: len(stream.of(Heartbeat)) > beats)  # still there
    assert await agent.exit_code() == 143


async def test_sigterm_in_the_plan_ends_when_it_has_left(
    operator: FakeOperator, start: Start
) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "job": "ns/leave"})
    agent = await start(BAMBOO_GRACE_S="600")
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(AgentReport)))
    agent.send(signal.SIGTERM)
    stream.say(directive(Fence(0, 1, 1)))
    assert await agent.exit_code() == 143


@pytest.mark.parametrize(
    ("job", "code", "failure"),
    [
        pytest.param(
            *("ns/raise", 1),
            Failure("WorkerExited", "RuntimeError: the model is broken", False, 1),
            marks=IN_TURN,
        ),
        (
            "ns/crash",
            1,
            Failure("WorkerExited", "Fatal Python error: Segmentation fault", False, 139),
        ),
        (
            "ns/user",
            2,
            Failure("WorkerExited", "spec.model.factory: no module named 'nowhere'", True, 2),
        ),
    ],
)
async def test_a_worker_that_ends_is_a_failure_with_the_essential_line(
    operator: FakeOperator, start: Start, job: str, code: int, failure: Failure, tmp_path: Path
) -> None:
    (tmp_path / "termination").touch()
    operator.welcome = Welcome(**{**vars(WELCOME), "job": job})
    agent = await start()
    assert await agent.exit_code() == code
    assert operator.streams[0].of(Failure) == [failure]
    assert failure.message in agent.log
    assert failure.message in (tmp_path / "termination").read_text()


@IN_TURN
async def test_a_worker_that_speaks_nonsense_is_killed(
    operator: FakeOperator, start: Start
) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "job": "ns/garbage"})
    agent = await start()
    assert await agent.exit_code() == 1
    assert "AgentMessage: 3 bytes are not such a message" in agent.log
    assert operator.streams[0].of(Failure)[0].exit_code == 137


async def test_a_worker_whose_child_lives_on(operator: FakeOperator, start: Start) -> None:
    """Whoever else holds the pipe: the worker's end is seen."""
    operator.welcome = Welcome(**{**vars(WELCOME), "job": "ns/orphan"})
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Failure)), deadline_s=10.0)
    async with asyncio.timeout(10.0):
        assert await agent.process.wait() == 1


@IN_TURN
async def test_a_worker_module_that_does_not_exist(operator: FakeOperator, start: Start) -> None:
    agent = await start("tests.agent.supervisor.nowhere")
    assert await agent.exit_code() == 1
    assert "nowhere" in operator.streams[0].of(Failure)[0].message


async def test_an_overdue_worker_is_killed(operator: FakeOperator, start: Start) -> None:
    operator.welcome = Welcome(**{**vars(WELCOME), "job": "ns/silent"})
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 1)))
    assert await agent.exit_code() == 1
    assert "no report in time after STOP" in agent.log
    assert stream.of(Failure)[0].message == "the worker was killed by SIGKILL"


async def test_killed_workers_and_supervisors(operator: FakeOperator, start: Start) -> None:
    """The worker's death is told within a second; the supervisor takes its worker along."""
    first = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    worker = int(stream.of(Ready)[0].fingerprint.code)
    os.kill(worker, signal.SIGKILL)
    await until(lambda: bool(stream.of(Failure)), deadline_s=2.0)
    assert stream.of(Failure)[0].exit_code == 137
    assert await first.exit_code() == 1

    second = await start()
    stream = await operator.stream(1)
    await until(lambda: bool(stream.of(Ready)))
    worker = int(stream.of(Ready)[0].fingerprint.code)
    second.send(signal.SIGKILL)
    await until(lambda: not _is_alive(worker), deadline_s=5.0)


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _is_alive(pid: int) -> bool:
    try:
        return _proc(pid, "stat").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_logs_are_json_with_job_agent_and_fence(operator: FakeOperator, start: Start) -> None:
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 4)))
    await until(lambda: bool(stream.of(AgentReport)))
    stream.say(Release(0, "enough"))
    await agent.exit_code()
    line = json.loads(agent.log.splitlines()[-1])
    assert line["message"] == "exit 0: enough"
    assert (line["job"], line["agent"], line["fence"]) == ("ns/job", "job-0-0", "0.1.4")
    assert line["level"] == "info"


async def test_what_happened_replays(operator: FakeOperator, start: Start, tmp_path: Path) -> None:
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(AgentReport)))
    stream.say(directive(Fence(0, 1, 1)))
    await until(lambda: bool(stream.of(Finished)))
    agent.send(signal.SIGTERM)
    await agent.exit_code()
    path = tmp_path / "events" / "supervisors" / "job-0-0.jsonl"
    assert divergences(path) == []
    _forget(path, "FromOperator")
    assert "recorded" in divergences(path)[0]


def _forget(path: Path, event: str) -> None:
    """Cut the first event of that kind out of a log."""
    lines = path.read_text().splitlines(keepends=True)
    lines.pop(next(n for n, line in enumerate(lines) if f'"{event}"' in line))
    path.write_text("".join(lines))


async def test_the_socket_of_the_data_is_not_kept_open(
    operator: FakeOperator, start: Start
) -> None:
    """When only the worker dies, peers are refused at once instead of waiting in a backlog."""
    agent = await start()
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    host, port = stream.of(Hello)[0].data_address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    agent.send(signal.SIGSTOP)
    os.kill(int(stream.of(Ready)[0].fingerprint.code), signal.SIGKILL)
    await until(lambda: _is_refused(host, int(port)))


def _is_refused(host: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == errno.ECONNREFUSED

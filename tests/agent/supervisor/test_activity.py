"""What the worker does, as the operator hears it from real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.agent.supervisor import hanging
from tests.agent.supervisor.conftest import Start
from tests.agent.supervisor.fake_operator import WELCOME, FakeOperator, Stream, until

from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
    to_json,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    Activity,
    ActivityKind,
    AgentReport,
    Failure,
    Heartbeat,
    Hello,
    Peer,
    Ready,
    Stop,
)
from bamboo_sim.workers import plans

FIRST, SECOND = AgentId("job-0-0"), AgentId("job-0-1")
FENCE = Fence(0, 1, 1)
READY_S = 60.0  # both processes import torch


def job() -> JobSpec:
    here = "tests.agent.supervisor.hanging"
    return JobSpec(
        model=ModelSpec(f"{here}:model"),
        data=DataSpec(f"{here}:Points"),
        training=TrainingSpec(
            steps=3,
            global_batch_size=4,
            micro_batch_size=1,
            optimizer=OptimizerSpec("torch.optim:SGD", {"lr": 0.1}),
        ),
        pipelines=PipelinesSpec(1, 2),
        worker=WorkerSpec("none"),
    )


def activities(stream: Stream, kind: ActivityKind) -> list[Activity]:
    found = (beat.activity for beat in stream.of(Heartbeat))
    return [x for x in found if x is not None and x.kind is kind]


def direct(streams: dict[AgentId, Stream]) -> None:
    """Hand out a plan in which the first agent computes the first layer."""
    hellos = {agent: stream.of(Hello)[0] for agent, stream in streams.items()}
    peers = [Peer(a, x.data_address, x.liveness_address, a.encode()) for a, x in hellos.items()]
    decided = plans.decide(
        job(),
        fence=FENCE,
        layers=2,
        reports={agent: stream.of(AgentReport)[0] for agent, stream in streams.items()},
        batch=BatchShape(4, 1, 2),
        peers=peers,
    )
    assert decided.plan.seats[FIRST].stage == 0
    for agent, stream in streams.items():
        stream.say(decided.directives[agent])
        stream.say(decided.continuations[agent])


async def test_a_hang_names_its_instruction_and_who_waits_for_it(
    operator: FakeOperator, start: Start, tmp_path: Path
) -> None:
    """Both workers run torch; the main thread of the first is blocked."""
    operator.welcome = replace(WELCOME, spec_json=to_json(job()), instruction_floor_s=0.1)
    hangs = tmp_path / "hangs"
    for agent in (FIRST, SECOND):
        await start("bamboo_agent.worker.main", BAMBOO_AGENT=agent, **{hanging.FILE: str(hangs)})
    await until(lambda: len(operator.streams) == 2, deadline_s=READY_S)
    await until(lambda: all(s.of(Ready) for s in operator.streams), deadline_s=READY_S)
    streams = {stream.of(Hello)[0].agent: stream for stream in operator.streams}
    await until(lambda: all(activities(s, ActivityKind.IDLE) for s in operator.streams))
    hangs.touch()
    for stream in operator.streams:
        stream.say(Stop(FENCE))
    await until(lambda: all(s.of(AgentReport) for s in operator.streams))
    direct(streams)
    first, second = streams[FIRST], streams[SECOND]
    await until(lambda: len(activities(first, ActivityKind.RUNNING)) > 5)
    assert hanging.hung(hangs).exists()
    *_, before, stuck = activities(first, ActivityKind.RUNNING)
    assert stuck.instruction.startswith("F[0:1] m0")
    assert stuck.limit_s == 1.0  # it has never run: ten floors
    assert stuck.age_s > before.age_s > 1.0
    await until(lambda: len(activities(second, ActivityKind.WAITING)) > 5)
    waiting = activities(second, ActivityKind.WAITING)[-1]
    assert waiting.instruction == f"RECV (out[1]) <{FIRST}"
    assert waiting.peer == FIRST
    assert waiting.age_s > 1.0


async def test_a_worker_that_never_gets_ready(operator: FakeOperator, start: Start) -> None:
    operator.welcome = replace(WELCOME, job="ns/slow", start_s=2.0)
    agent = await start()
    stream = await operator.stream()
    assert await agent.exit_code() == ExitCode.FAILED
    (failure,) = stream.of(Failure)
    assert failure.reason == "StartDeadlineExceeded"
    assert "spec.model.factory" in failure.message
    starting = activities(stream, ActivityKind.STARTING)
    assert starting
    assert starting[-1].limit_s == 2.0

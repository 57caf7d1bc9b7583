"""A supervisor's process, a metadata server and an operator: the way of a notice."""

from __future__ import annotations

import signal

import pytest
from tests.agent.notices.metadata_server import Answer, Ec2, Gce, MetadataServer
from tests.agent.supervisor.conftest import Start
from tests.agent.supervisor.fake_operator import FakeOperator, Stream, until

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Directive, Finished, Heartbeat, Notice, Ready, Stop

FENCE = Fence(0, 1, 1)


async def planned(stream: Stream) -> None:
    """The agent is in a plan."""
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(FENCE))
    shape = BatchShape(1, 1, 1)
    stream.say(Directive(FENCE, 0, 4, (), ((0, 1),), shape, AgentId("job-0-0"), key=b"k"))
    await until(lambda: bool(stream.of(Finished)))


async def test_a_preemption_reaches_the_operator_while_the_agent_works(
    operator: FakeOperator, start: Start
) -> None:
    cloud = Gce()
    await cloud.start()
    agent = await start(BAMBOO_NOTICES="Auto", BAMBOO_METADATA_ADDRESS=cloud.address)
    stream = await operator.stream()
    await planned(stream)
    await until(lambda: any(b"preempted?wait_for_change" in head for head in cloud.heads))
    assert stream.of(Notice) == []
    await cloud.change("preempted", "TRUE")
    await until(lambda: bool(stream.of(Notice)))
    assert stream.of(Notice) == [Notice(30.0, "Compute Engine preempts the VM", "Gce")]
    beats = len(stream.of(Heartbeat))
    await until(lambda: len(stream.of(Heartbeat)) > beats)  # it goes on until it may leave
    assert agent.process.returncode is None
    stream.end()
    again = await operator.stream(1)
    await until(lambda: bool(again.of(Notice)))
    (repeated,) = again.of(Notice)
    assert 0 < repeated.lead_s < 30
    assert repeated.source == "Gce"
    await cloud.stop()


async def test_a_recommendation_is_passed_on_as_a_hint(
    operator: FakeOperator, start: Start
) -> None:
    cloud = Ec2()
    cloud.documents["events/recommendations/rebalance"] = '{"noticeTime": "2026-01-02T03:04:05Z"}'
    await cloud.start()
    await start(BAMBOO_NOTICES="AwsSpot,AwsRebalance", BAMBOO_METADATA_ADDRESS=cloud.address)
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Notice)))
    hint = Notice(0.0, "EC2 recommends to rebalance", "AwsRebalance", is_hint=True)
    assert stream.of(Notice) == [hint]
    await cloud.stop()


@pytest.mark.rotating(2)
@pytest.mark.parametrize(
    "answer", [Answer(500), Answer(200, "TRUE"), Answer(raw=b"\0\xff" * 50), None]
)
async def test_a_broken_metadata_server_does_not_disturb_the_agent(
    operator: FakeOperator, start: Start, answer: Answer | None
) -> None:
    """None: it accepts connections and never answers. It is not even found to be a cloud's."""
    cloud = MetadataServer()
    cloud.broken, cloud.is_hanging = answer, answer is None
    await cloud.start()
    agent = await start(BAMBOO_NOTICES="Auto", BAMBOO_METADATA_ADDRESS=cloud.address)
    stream = await operator.stream()
    await planned(stream)
    await until(lambda: len(cloud.heads) >= 3)
    beats = len(stream.of(Heartbeat))
    await until(lambda: len(stream.of(Heartbeat)) > beats + 1)
    assert stream.of(Notice) == []
    await cloud.stop()
    agent.send(signal.SIGTERM)
    await until(lambda: bool(stream.of(Notice)))
    assert stream.of(Notice)[0].source == ""

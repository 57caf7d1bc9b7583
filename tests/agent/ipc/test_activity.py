"""What the worker does, through shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from bamboo_agent.ipc.activity import ActivityWriter, hash_of, pair_writer, read, read_place
from bamboo_agent.ipc.shared_progress import MOST_PAIRS, SharedProgress
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import ActivityKind
from bamboo_core.protocol.supervisor import Progressed

A, B = AgentId("job-0-0"), AgentId("job-0-1")
NAMES = {hash_of(agent): agent for agent in (A, B)}
FORWARD = Instruction(Op.F, 7, 0, 4, 3)
FLOOR_S = 30.0


class Ends:
    def __init__(self) -> None:
        self.workers = SharedProgress.create()
        self.supervisors = SharedProgress(os.dup(self.workers.fd))
        self.writer = ActivityWriter(self.workers, FLOOR_S)

    def read(self) -> Progressed:
        return read(self.supervisors, NAMES)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.workers.close()
    made.supervisors.close()


def test_a_worker_that_has_written_nothing_is_idle(ends: Ends) -> None:
    assert ends.read() == Progressed(0, 0)


def test_an_instruction_that_runs_is_named_as_in_programs(ends: Ends) -> None:
    ends.workers.progress, ends.workers.step, ends.workers.longest_s = 41, 7, 0.25
    ends.writer.run(FORWARD)
    assert ends.read() == Progressed(
        41, 7, 0.25, ActivityKind.RUNNING, 10 * FLOOR_S, str(FORWARD), None
    )
    assert ends.read().instruction == "F[0:4] m3 @7"


@pytest.mark.parametrize("op", list(Op))
def test_every_instruction_can_be_written(ends: Ends, op: Op) -> None:
    ends.writer.run(Instruction(op, 7, 1, 2))
    assert ends.read().instruction == str(Instruction(op, 7, 1, 2))


@pytest.mark.parametrize(
    "item",
    [
        Item.out(7, 4, 3),
        Item.piece(7, (0, 4), (1, 3), 2, 4),
        Item.vote(7, B),
        Item.commit(7),
        Item.ver(7, 3),
        Item.file(7, 3),
    ],
)
def test_a_wait_names_the_item_and_its_sender(ends: Ends, item: Item) -> None:
    receive = Instruction(Op.RECV, 7, item=item, peer=B)
    ends.writer.wait_for(receive, B)
    found = ends.read()
    assert (found.kind, found.peer, found.limit_s) == (ActivityKind.WAITING, B, 0.0)
    assert found.instruction == str(receive)


def test_nothing_of_a_wait_is_left_when_an_instruction_runs(ends: Ends) -> None:
    ends.writer.wait_for(Instruction(Op.RECV, 7, item=Item.vote(7, B), peer=B), B)
    ends.writer.run(FORWARD)
    assert (ends.read().peer, ends.read().instruction) == (None, str(FORWARD))


def test_other_waits(ends: Ends) -> None:
    ends.writer.run(FORWARD)
    for wait, kind in (
        (ends.writer.wait_for_operator, ActivityKind.WAITING),
        (ends.writer.rest, ActivityKind.IDLE),
    ):
        wait()
        assert ends.read() == Progressed(0, 0, kind=kind)


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        (Instruction(Op.SAVE, 4, 0, 2), "SAVE[0:2] @4 waits for storage"),
        (Instruction(Op.LOAD, 4, 0, 2), "LOAD[0:2] @4 waits for storage"),
        (None, "the end waits for storage"),
    ],
)
def test_a_wait_for_storage_has_no_limit(
    ends: Ends, instruction: Instruction | None, text: str
) -> None:
    ends.writer.run(FORWARD)
    ends.writer.wait_for_storage(instruction)
    assert ends.read() == Progressed(0, 0, kind=ActivityKind.LOADING, instruction=text)


def test_reading_data_has_a_limit_of_its_own(ends: Ends) -> None:
    ends.writer.run(FORWARD)
    ends.writer.ran(0.1)
    ends.writer.run(FORWARD)
    ends.writer.read_data()
    reading = "F[0:4] m3 @7 reads data"
    assert ends.read() == Progressed(0, 0, 0.0, ActivityKind.LOADING, 10 * FLOOR_S, reading)
    ends.writer.read_data(0)
    assert ends.read().instruction == "F[0:4] m3 @7 reads sample 0 of spec.data"
    ends.writer.read_data()
    assert ends.read().instruction == reading
    ends.writer.go_on()
    assert ends.read() == Progressed(0, 0, 0.0, ActivityKind.RUNNING, FLOOR_S, str(FORWARD))


def test_a_sample_of_the_validation_is_named_as_such(ends: Ends) -> None:
    """After a wait for an item, of which nothing may stay."""
    ends.writer.wait_for(Instruction(Op.RECV, 7, item=Item.vote(7, B), peer=B), B)
    ends.writer.run(Instruction(Op.V, 7, 0, 4, 3))
    ends.writer.read_data(41)
    assert ends.read().instruction == "V[0:4] m3 @7 reads sample 41 of spec.data.validation"
    ends.writer.read_data()
    assert ends.read().instruction == "V[0:4] m3 @7 reads data"


def test_a_wait_for_data_names_the_sample_that_another_process_reads(ends: Ends) -> None:
    """After a wait for an item, of which nothing may stay."""
    ends.writer.wait_for(Instruction(Op.RECV, 7, item=Item.vote(7, B), peer=B), B)
    ends.writer.wait_for_data(FORWARD)
    far = 100 * FLOOR_S
    reads = "F[0:4] m3 @7 reads data"
    assert ends.read() == Progressed(0, 0, 0.0, ActivityKind.LOADING, far, reads)
    ends.writer.wait_for_data(FORWARD, 17)
    reads = "F[0:4] m3 @7 reads sample 17 of spec.data"
    assert ends.read() == Progressed(0, 0, 0.0, ActivityKind.LOADING, far, reads)
    ends.writer.wait_for_data(Instruction(Op.V, 7, 0, 4, 3), 0)
    assert ends.read().instruction == "V[0:4] m3 @7 reads sample 0 of spec.data.validation"
    ends.writer.run(FORWARD)
    assert ends.read().instruction == "F[0:4] m3 @7"


class Block:
    """A layer."""


Vast = type("Ü" * 100, (), {})


def test_a_place_names_what_python_runs_and_the_layer(ends: Ends) -> None:
    """A GPU may still compute an older instruction, which the activity tells."""

    def place() -> str:
        return read_place(ends.supervisors)

    assert place() == ""
    ends.writer.run(FORWARD)
    assert place() == "F[0:4] m3 @7"
    ends.writer.issue(FORWARD._replace(index=4))
    ends.writer.computed.begin_layer(3, Block())
    assert place() == "F[0:4] m4 @7, layer 3 (Block)"
    assert ends.read().instruction == "F[0:4] m3 @7"
    ends.writer.computed.begin_loss()
    assert place() == "F[0:4] m4 @7, the loss"
    ends.writer.computed.begin_layer(12, Vast())
    assert place().startswith("F[0:4] m4 @7, layer 12 (ÜÜÜ")
    assert place().endswith("Ü...")
    ends.writer.read_data(0)
    assert place() == "F[0:4] m4 @7 reads sample 0 of spec.data"
    ends.writer.go_on()
    ends.writer.computed.end()
    assert place() == "F[0:4] m4 @7"
    ends.writer.issued()
    assert place() == "F[0:4] m3 @7"


def test_a_set_up_is_at_the_place_of_its_factory_or_layer(ends: Ends) -> None:
    ends.writer.computed.begin("spec.model.factory mine:build")
    assert read_place(ends.supervisors) == "spec.model.factory mine:build"
    ends.writer.computed.begin_layer(3, Block())
    assert read_place(ends.supervisors) == "layer 3 (Block)"
    ends.writer.computed.end()
    assert read_place(ends.supervisors) == ""


def test_a_worker_that_waits_is_at_no_place(ends: Ends) -> None:
    for wait in (
        lambda: ends.writer.wait_for(Instruction(Op.RECV, 7, peer=B), B),
        ends.writer.wait_for_operator,
        lambda: ends.writer.wait_for_storage(Instruction(Op.SAVE, 4, 0, 2)),
        lambda: ends.writer.wait_for_data(FORWARD),
        ends.writer.rest,
    ):
        ends.writer.run(FORWARD)
        wait()
        assert read_place(ends.supervisors) == ""


def test_an_agent_that_the_supervisor_does_not_know_yet_has_no_name(ends: Ends) -> None:
    ends.writer.wait_for(Instruction(Op.RECV, 7, peer=AgentId("new")), AgentId("new"))
    assert ends.read().peer is None


def test_the_limit_follows_from_what_was_measured(ends: Ends) -> None:
    limits = []
    for elapsed_s in (0.1, 2.0, 0.1, 0.1):
        ends.writer.run(FORWARD)
        limits.append(ends.read().limit_s)
        ends.writer.ran(elapsed_s)
    assert limits == [10 * FLOOR_S, FLOOR_S, 40.0, 40.0]
    ends.writer.run(FORWARD._replace(hi=2))
    assert ends.read().limit_s == 10 * FLOOR_S  # another shape may compile


@pytest.mark.parametrize("op", [Op.INIT, Op.LOAD, Op.SAVE])
def test_storage_and_initial_weights_always_have_longer(ends: Ends, op: Op) -> None:
    for elapsed_s in (0.1, 20.0):
        ends.writer.run(Instruction(op, 0, 0, 4))
        assert ends.read().limit_s == 10 * FLOOR_S
        ends.writer.ran(elapsed_s)
    ends.writer.run(Instruction(op, 0, 0, 4))
    assert ends.read().limit_s == 400.0
    assert ends.read().kind is ActivityKind.RUNNING


def test_traffic_is_counted(ends: Ends) -> None:
    ends.workers.count_traffic()
    assert ends.read().traffic == 1


def test_a_wait_says_what_has_come_from_its_peer(ends: Ends) -> None:
    write = pair_writer(ends.workers)
    write(0, A, 100, False)
    write(MOST_PAIRS - 1, B, 30, True)
    ends.writer.wait_for(Instruction(Op.RECV, 7, peer=B), B)
    assert (ends.read().received, ends.read().is_coming) == (30, True)
    write(5, B, 4, False)  # its next connection
    assert (ends.read().received, ends.read().is_coming) == (34, True)
    ends.writer.wait_for(Instruction(Op.RECV, 7, peer=A), A)
    assert (ends.read().received, ends.read().is_coming) == (100, False)
    write(0, AgentId(""), 0, False)
    assert (ends.read().received, ends.read().is_coming) == (0, False)
    ends.writer.run(FORWARD)
    assert (ends.read().received, ends.read().is_coming) == (0, False)
    assert ends.workers.refused == 0


def test_what_has_come_over_a_link_without_a_place_is_not_known(ends: Ends) -> None:
    write = pair_writer(ends.workers)
    for place in range(MOST_PAIRS):
        write(place, AgentId(f"job-1-{place}"), 100, True)
    ends.writer.wait_for(Instruction(Op.RECV, 7, peer=B), B)
    assert (ends.read().received, ends.read().is_coming) == (None, False)
    write(7, AgentId(""), 0, False)
    assert (ends.read().received, ends.read().is_coming) == (0, False)
    write(7, B, 30, True)
    assert (ends.read().received, ends.read().is_coming) == (30, True)


def test_it_costs_next_to_nothing(ends: Ends) -> None:
    """A plain loop over instructions pays this for each; the bound is ten times what is usual."""
    best_s = min(_seconds_of_1000(ends.writer) for _ in range(20))
    assert best_s / 1000 < 15e-6


def _seconds_of_1000(writer: ActivityWriter) -> float:
    started = time.perf_counter()
    for _ in range(1000):
        writer.issue(FORWARD)
        writer.run(FORWARD)
        writer.computed.begin_layer(3, writer)
        writer.computed.end()
        writer.issued()
        writer.ran(0.01)
    return time.perf_counter() - started

"""Before a checkpoint is sealed, agents on two nodes look at its files."""

from __future__ import annotations

import select
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path

import pytest
from tests.agent.storage.test_checkpoint import BATCH, FIRST, RECORD, start
from tests.agent.worker.test_equality import assert_equal

from bamboo_agent.payloads.frames import Frame
from bamboo_agent.storage import reader, sealer
from bamboo_agent.storage.checkpoint import Checkpoints, Header, UnreachableError
from bamboo_agent.storage.reader import Looked, Reader
from bamboo_agent.storage.sealer import Sealer, Sealing
from bamboo_agent.storage.sight import Look, Seen, of_frame, to_frame
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Listed, Mark, Peer, Sealed
from bamboo_sim.workers import plans
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

DEADLINE_S = 60.0
HEADER = Header(0, 3, 7, BATCH)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(f"file://{tmp_path}", "uid")


@pytest.fixture
def prompt(monkeypatch):
    """Agents look again at once."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    monkeypatch.setattr(reader, "MOST_PAUSE_S", 1e-3)


@pytest.fixture
def rare(monkeypatch):
    """Agents look again in an hour."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(reader, "MOST_PAUSE_S", 3600.0)


def files(checkpoints, layers=2):
    return [
        checkpoints.write_layer(attempt=0, step=3, layer=x, record=RECORD) for x in range(layers)
    ]


def look_at(records):
    return Look(0, 3, tuple(record.num_bytes for record in records))


class Blind:
    """These checkpoints are not seen in the given number of looks."""

    def __init__(self, checkpoints, looks):
        self.left = looks
        self._list = checkpoints._list
        checkpoints._list = self

    def __call__(self, folder):
        if "step-" in folder and self.left > 0:
            self.left -= 1
            return None
        return self._list(folder)


# ---------------------------------------------------------------- one look


def test_a_look_names_the_first_file_that_is_not_there_with_its_bytes(checkpoints):
    look = look_at(records := files(checkpoints))
    assert checkpoints.missing(look) == ""
    assert checkpoints.missing(Look(0, 3, (*look.sizes, 5))).endswith("/layer-0002.safetensors")
    Path(records[1].path).write_bytes(b"short")
    assert checkpoints.missing(look) == records[1].path
    Path(records[0].path).unlink()
    assert checkpoints.missing(look) == records[0].path
    other = checkpoints.missing(replace(look, step=4))
    assert other.endswith("step-00000004/layer-0000.safetensors")


def test_nothing_is_seen_in_a_folder_that_cannot_be_listed(checkpoints, monkeypatch, caplog):
    records = files(checkpoints)

    def fail(folder):
        raise UnreachableError(f"listing {folder} failed: Connection timed out")

    monkeypatch.setattr(checkpoints, "_list", fail)
    assert checkpoints.missing(look_at(records)) == records[0].path
    assert "Connection timed out" in caplog.text


def test_a_reader_answers_an_agent(checkpoints):
    look, busy = look_at(files(checkpoints)), Reader(checkpoints)
    busy.look(AgentId("a"), look)
    assert select.select([busy], [], [], DEADLINE_S)[0]
    assert busy.poll() == [Looked(AgentId("a"), Seen(0, 3, ""))]
    busy.close()


@pytest.mark.parametrize("word", [Look(1, 4, (5, 6)), Seen(1, 4, "/c/file"), Seen(1, 4, "")])
def test_words_travel_as_frames_that_an_earlier_version_drops(word):
    frame = to_frame(word, AgentId("a"), FIRST)
    assert of_frame(frame) == word
    assert not Executor(AgentId("b"), 2, fence=FIRST).accepts(frame.item, FIRST)


@pytest.mark.parametrize(
    "meta",
    [{}, {"attempt": 0, "step": 3}, {"attempt": 0, "step": "3", "missing": ""},
     {"attempt": 0, "step": 3, "sizes": 7}, {"attempt": 0, "step": 3, "sizes": [-1]}],
)  # fmt: skip
def test_a_malformed_word_is_dropped_by_the_executor(meta):
    frame = replace(to_frame(Seen(0, 3, ""), AgentId("a"), FIRST), meta=meta)
    assert of_frame(frame) is None
    assert not Executor(AgentId("b"), 2, fence=FIRST).accepts(frame.item, FIRST)


def test_an_item_of_the_program_is_no_word():
    assert of_frame(Frame(Item.vote(0, AgentId("a")), FIRST)) is None


# ---------------------------------------------------------------- one sealer


class Asked:
    """A sealer and what it has said."""

    def __init__(self, checkpoints, *, node="n0", has_others=True, look_s=0.0):
        self.records = files(checkpoints)
        self.look = look_at(self.records)
        self.sealer = Sealer(checkpoints, AgentId("a"))
        self.sealer.meet(node, has_others=has_others)
        self.sealer.limit(look_s)
        self.sealer.seal(HEADER, self.records)
        self.questions, self.sealed = 0, None

    def hear(self):
        assert select.select([self.sealer], [], [], DEADLINE_S)[0]
        for word in self.sealer.poll():
            if isinstance(word, Sealing):
                self.sealed = word
            else:
                assert word == self.look
                self.questions += 1

    def question(self):
        before = self.questions
        while self.questions == before:
            self.hear()

    def end(self):
        while self.sealed is None:
            self.hear()
        assert not self.sealer.is_busy
        self.sealer.close()
        return self.sealed.is_seen_once, self.sealed.unseen


@pytest.mark.parametrize(("node", "is_once"), [("n0", True), ("", False)])
def test_without_another_node_nobody_is_asked(checkpoints, node, is_once):
    asked = Asked(checkpoints, node=node, has_others=False)
    assert asked.end() == (is_once, "")
    assert asked.questions == 0


def test_the_answer_of_another_node_lets_it_seal_at_once(checkpoints, rare):
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 2, ""))  # of another checkpoint
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")
    assert asked.questions == 1


def test_it_asks_again_while_the_files_are_not_seen(checkpoints, prompt):
    asked = Asked(checkpoints)
    for _ in range(3):
        asked.question()
        asked.sealer.hear("n1", Seen(0, 3, asked.records[1].path))
    assert asked.sealed is None
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_a_new_plan_lets_it_ask_again_at_once(checkpoints, rare):
    """The answer may be lost with the plan before it."""
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.meet("n0", has_others=True)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_its_own_view_may_be_late(checkpoints, prompt):
    blind = Blind(checkpoints, 3)
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")
    assert blind.left == 0


def test_after_75_s_it_seals_and_says_which_node_lacks_what(
    checkpoints, prompt, monkeypatch, caplog
):
    monkeypatch.setattr(sealer, "LOOK_S", 0.05)
    asked = Asked(checkpoints)
    asked.question()
    path = asked.records[1].path
    asked.sealer.hear("n1", Seen(0, 3, path))
    assert asked.end() == (False, f"{path} is not seen from node n1")
    assert asked.sealed.manifest == checkpoints.scan().good[0]
    assert "of step 3 is sealed all the same" in caplog.text


def test_it_says_what_it_does_not_see_itself(checkpoints, prompt, monkeypatch):
    monkeypatch.setattr(sealer, "LOOK_S", 0.05)
    Blind(checkpoints, float("inf"))
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, f"{asked.records[0].path} is not seen from node n0")


def test_one_whose_time_has_passed_in_the_queue_waits_for_one_answer(
    checkpoints, rare, monkeypatch
):
    """Where a folder is never seen from another node, no queue grows."""
    monkeypatch.setattr(sealer, "LOOK_S", 0.0)
    monkeypatch.setattr(sealer, "_ANSWER_S", 3600.0)
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_it_tries_again_for_longer_than_a_client_of_nfs_keeps_a_listing():
    assert sealer.LOOK_S > 60.0
    assert any(60.0 < at < sealer.LOOK_S for at in islice(accumulate(reader.pauses()), 20))


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_plan_may_leave_less_time_to_look(checkpoints, rare, is_queued):
    """There is a deadline for the last write."""
    asked = Asked(checkpoints)
    asked.question()
    if not is_queued:
        asked.sealer.hurry()
        asked.end()
        asked = Asked(checkpoints, look_s=0.05)
    else:
        asked.sealer.limit(0.05)
    assert "no agent on another node has said" in asked.end()[1]


def test_the_next_plan_may_give_all_the_time_again(checkpoints, rare):
    asked = Asked(checkpoints, look_s=1e-3)
    asked.end()
    asked.sealer = Sealer(checkpoints, AgentId("a"))
    asked.sealer.meet("n0", has_others=True)
    asked.sealer.limit(1e-3)
    asked.sealer.limit(0.0)
    asked.sealer.seal(HEADER, asked.records)
    asked.questions, asked.sealed = 0, None
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_others_that_leave_during_a_look_are_not_waited_for(checkpoints, rare):
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.meet("n0", has_others=False)
    assert asked.end() == (True, "")
    assert asked.questions == 1


def test_a_node_that_has_seen_it_may_leave(checkpoints, rare):
    Blind(checkpoints, 1)
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    asked.sealer.meet("n0", has_others=False)
    assert asked.end() == (False, "")


def test_the_one_that_is_left_still_looks_itself(checkpoints, prompt, monkeypatch):
    """Agents that have left have written them."""
    monkeypatch.setattr(sealer, "LOOK_S", 0.05)
    Blind(checkpoints, float("inf"))
    asked = Asked(checkpoints, has_others=False)
    assert asked.end() == (True, f"{asked.records[0].path} is not seen from node n0")


def test_agents_that_never_answer_let_no_queue_grow(checkpoints, rare, monkeypatch):
    """Only the first of those that are late waits for its answer."""
    monkeypatch.setattr(sealer, "LOOK_S", 0.0)
    monkeypatch.setattr(sealer, "_ANSWER_S", 1e-3)
    asked = Asked(checkpoints)
    while asked.sealed is None:
        asked.hear()
    monkeypatch.setattr(asked.sealer, "_answer_s", 3600.0)
    asked.sealer.seal(HEADER, asked.records)
    asked.sealed = None
    while asked.sealed is None:
        asked.hear()
    assert "no agent on another node has said" in asked.sealed.unseen
    asked.sealer.meet("n0", has_others=True)  # others, perhaps
    asked.sealer.seal(HEADER, asked.records)
    asked.sealed = None
    while asked.questions < 3:
        asked.hear()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_a_checkpoint_that_is_sealed_again_is_looked_at_again(checkpoints, rare):
    """A plan may seal again what the one before it has queued."""
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    asked.sealer.seal(HEADER, asked.records)
    while asked.sealed is None:
        asked.hear()
    asked.sealed = None
    while asked.questions < 2:
        asked.hear()
    asked.sealer.hear("n1", Seen(0, 3, ""))
    assert asked.end() == (False, "")


def test_silence_is_no_sight_and_haste_ends_the_wait(checkpoints, rare):
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.hurry()
    folder = checkpoints.folder(0, 3)
    said = f"no agent on another node has said whether it sees {folder}"
    assert asked.end() == (False, said)


def test_the_end_of_the_worker_does_not_wait(checkpoints, rare):
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.close()
    assert [m.step for m in checkpoints.scan().good] == [3]


def test_a_new_attempt_ends_the_wait_and_seals_nothing(checkpoints, rare):
    asked = Asked(checkpoints)
    asked.question()
    asked.sealer.adopt(1)
    while asked.sealer.is_busy:
        asked.hear()
    asked.sealer.close()
    assert (asked.sealed, checkpoints.scan().good) == (None, [])


# ---------------------------------------------------------------- in a fleet


def said(fleet):
    return [(agent, m) for agent, m in fleet.messages if isinstance(m, Sealed)]


def run(tmp_path, looks):
    """Two agents on two nodes; the one that does not seal is blind for so many looks."""
    fleet, _, plan = start(tmp_path, (1, 2))
    blind = [
        Blind(worker._storage._reader._checkpoints, looks)
        for agent, worker in fleet.workers.items()
        if agent != plan.coordinator
    ]
    fleet.run_to_end(FIRST)
    fleet.close()
    assert_equal(fleet.history(), fleet.weights(), leaf_size=2, chunks=4)
    return fleet, blind[0]


def test_a_view_that_comes_late_costs_nothing_but_time(tmp_path, prompt):
    fleet, blind = run(tmp_path, 5)
    assert blind.left == 0
    assert [(m.manifest.step, m.caveat) for _, m in said(fleet)] == [(1, ""), (2, ""), (3, "")]


def test_a_view_that_never_comes_is_told(tmp_path, prompt, monkeypatch):
    monkeypatch.setattr(sealer, "LOOK_S", 0.5)
    fleet, _ = run(tmp_path, float("inf"))
    assert [m.manifest.step for _, m in said(fleet)] == [1, 2, 3]
    for _, m in said(fleet):
        folder = Path(m.manifest.path).parent
        assert m.unseen == f"{folder}/layer-0000.safetensors is not seen from node n1"
        assert not m.is_seen_once


def test_where_all_live_on_one_node_it_is_seen_once(tmp_path, monkeypatch):
    build = plans.Participant
    monkeypatch.setattr(plans, "Participant", lambda zone, node, *rest: build(zone, "n0", *rest))
    fleet, _, _ = start(tmp_path, (1, 2))
    fleet.run_to_end(FIRST)
    fleet.close()
    assert [m.caveat for _, m in said(fleet)] == ["seen from one node only"] * 3


def test_questions_go_to_one_voter_on_another_node_after_the_other(tmp_path):
    """The next one may be there when one is gone. Agents of an earlier version have no node."""
    fleet, _, _ = start(tmp_path, (1, 2))
    storage = next(iter(fleet.workers.values()))._storage
    directive = replace(
        next(iter(fleet.workers.values())).executor.directive,
        node="n0",
        voters=tuple(AgentId(name) for name in "abcd"),
    )
    nodes = {"a": "n0", "b": "n1", "c": "n2", "d": "", "e": "n1"}
    storage.meet(directive, [Peer(AgentId(a), "", "", b"", node=n) for a, n in nodes.items()])
    look = Look(0, 3, (1,))
    assert [told.peer for _ in range(3) for told in storage._asked(look)] == ["b", "c", "b"]
    storage.meet(directive, [])
    assert storage._asked(look) == []
    fleet.close()


def unanswered(tmp_path, nodes):
    """A fleet whose coordinator waits for the other node's word, which never comes; the
    coordinator's name and worker, and the other agent."""
    fleet, _, first = start(tmp_path, nodes)
    (other,) = set(fleet.workers) - {first.coordinator}
    asked = []
    fleet.workers[other]._storage.hear = lambda peer, word: asked.append(word)
    fleet.wait(lambda: bool(asked))
    assert not said(fleet)
    return fleet, first.coordinator, fleet.workers[first.coordinator], other


def check_unseen(fleet, coordinator):
    """The coordinator seals, and says that nobody has seen the files."""
    fleet.wait(lambda: bool(said(fleet)))
    (agent, message), *_ = said(fleet)
    assert agent == coordinator
    assert "no agent on another node has said" in message.unseen
    fleet.close()


def test_a_new_coordinator_ends_the_old_ones_wait(tmp_path, rare):
    """The new one prunes, and the old one may leave."""
    fleet, coordinator, old, other = unanswered(tmp_path, (2, 1))
    directive, fence = old.executor.directive, Fence(0, 1, 2)
    fleet.stop(fence)
    old.install(
        replace(directive, fence=fence, coordinator=other, resume=(), last=directive.target)
    )
    check_unseen(fleet, coordinator)


def test_a_plan_with_a_deadline_ends_the_look(tmp_path, rare):
    """It writes the last checkpoint again, and another node does not see the files."""
    fleet, coordinator, old, _ = unanswered(tmp_path, (1, 2))
    directive, fence = old.executor.directive, Fence(0, 1, 2)
    fleet.stop(fence)
    last = directive.target
    old.install(replace(directive, fence=fence, resume=(), last=last, look_s=0.01))
    check_unseen(fleet, coordinator)


def test_an_agent_says_that_what_another_one_suspects_is_right(tmp_path):
    fleet, _, _ = start(tmp_path, (1, 2))
    fleet.run_to_end(FIRST)
    manifest = said(fleet)[-1][1].manifest
    storage = next(iter(fleet.workers.values()))._storage
    fence = Fence(0, 1, 2)
    storage.begin_listing(fence, manifest)
    answers = lambda: [m for _, m in fleet.messages if isinstance(m, Listed)]  # noqa: E731
    fleet.wait(lambda: any(m.fence == fence for m in answers()))
    assert [m.right for m in answers() if m.fence == fence] == [
        Mark(manifest.attempt, manifest.step)
    ]
    fleet.close()


def test_processes_ask_each_other_over_tcp(tmp_path):
    agents = plans.names(2)
    job = plans.grid_of(tiny_gpt(uri=f"file://{tmp_path}", save_every=0), pipelines=1, stages=2)
    fleet = ProcessFleet(job, agents)
    fleet.ready()
    reports = fleet.stop(FIRST)
    peers: tuple[Peer, ...] = fleet.peers
    decided = plans.decide(
        job, fence=FIRST, layers=fleet.ready().layers, reports=reports, batch=BATCH, peers=peers,
        validation_samples=fleet.ready().validation_samples,
    )  # fmt: skip
    fleet.install(decided)
    fleet.run_to_end(FIRST)
    fleet.close()
    ((_, message),) = said(fleet)
    assert (message.is_seen_once, message.unseen) == (False, "")

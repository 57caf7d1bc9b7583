"""What a soak takes in: repeated steps, silent stalls, plans, and the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.sim.soak.test_losses import A, B, held, plan

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage.checkpoint import Checkpoints, Header
from bamboo_core.arbiter_state.events import ArbiterPhase
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import CommitRecord, Progress
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.fleet.logs.state_log import digest_of
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.soak import watch as watches
from bamboo_sim.soak.reference import LAYERS, Reference, describe
from bamboo_sim.soak.watch import QUIET_S, Watch

COMMITS = [CommitRecord(step=n, loss=5.5, grad_norm=1.25, finite=True) for n in range(5)]
RECORDS = [LayerRecord({"param/w": torch.full((2,), float(n))}) for n in range(LAYERS)]
REFERENCE = Reference(
    [describe(commit) for commit in COMMITS],
    {f"4 {layer}": digest_of(record) for layer, record in enumerate(RECORDS)},
)
RUNNING: dict[str, Any] = {
    "phase": ArbiterPhase.RUNNING,
    "detail": "",
    "fence": Fence(0, 1, 1),
    "plan": None,
    "stall": "",
    "unreachable": "",
    "unwritten": None,
    "outcome": None,
}
NOTHING_SAID: dict[str, Any] = {"phase": ArbiterPhase.COLLECTING, "detail": "a new plan"}


class Fleet:
    """A fleet whose agents and operator say what a test wants. ``status``: changes of RUNNING."""

    def __init__(self, folder: Path) -> None:
        (folder / "states").mkdir()
        self.folder, self.spec = folder, tiny_gpt(folder, steps=5)
        self.status: dict[str, Any] = {}
        self.operator = SimpleNamespace(
            messages=[],
            job=SimpleNamespace(uid="uid"),
            arbiter=SimpleNamespace(status=lambda: SimpleNamespace(**{**RUNNING, **self.status})),
        )

    def commits(self, step: int, attempt: int = 0) -> None:
        said = Progress(COMMITS[step], Fence(attempt, 1, 1))
        self.operator.messages.append(SimpleNamespace(message=said, at=time.monotonic()))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def watch(fleet: Fleet) -> Watch:
    return Watch(cast(LocalFleet, fleet), REFERENCE)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass."""
    now = [time.monotonic()]
    monkeypatch.setattr(watches, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def passed(seconds: float) -> None:
        now[0] += seconds

    return passed


# ---------------------------------------------------------------- commits and plans


def test_a_step_that_two_attempts_commit_is_repeated_once(fleet: Fleet, watch: Watch) -> None:
    for step in (0, 1, 2, 2):
        fleet.commits(step)
    watch.look()
    assert watch.repeated_after(-1) == 0
    for step in (1, 1, 2, 3):
        fleet.commits(step, attempt=1)
    watch.look()
    assert (watch.repeated_after(0), watch.repeated_after(1)) == (2, 0)
    assert watch.attempt == 1


def test_the_arbiter_may_be_the_first_to_tell_a_new_attempt(fleet: Fleet, watch: Watch) -> None:
    fleet.status = {"fence": Fence(2, 1, 0)}
    watch.look()
    assert watch.attempt == 2


def test_holders_follow_from_the_plans_and_commits_seen_so_far(fleet: Fleet, watch: Watch) -> None:
    fleet.status = {"plan": plan({A: (0, 1), B: (1,)}, target=1)}
    assert watch.holders() == ()
    fleet.commits(1)
    assert watch.holders() == held("a", "ab")
    fleet.status = {"plan": plan({A: (0, 1)}, target=3, epoch=2)}
    assert watch.holders() == held("a", "a")


def test_plans_are_known_while_no_operator_leads(fleet: Fleet, watch: Watch) -> None:
    fleet.status = {"plan": plan({A: (0, 1)}, target=1)}
    fleet.commits(1)
    watch.look()
    fleet.operator.arbiter = None
    assert watch.holders() == held("a", "a")


# ---------------------------------------------------------------- stalls


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({}, 1),
        (NOTHING_SAID, 1),
        ({"stall": "a waits for b"}, 0),
        ({"unreachable": "the folder is away"}, 0),
        ({"unwritten": "the disk is full"}, 0),
        ({"phase": ArbiterPhase.HOLDING, "detail": "no voter"}, 0),
        ({"phase": ArbiterPhase.WAITING, "detail": "1 agent is too few"}, 0),
    ],
)
def test_a_stall_that_the_job_does_not_explain_counts_once(
    fleet: Fleet, watch: Watch, passes: Callable[[float], None], said: dict[str, Any], count: int
) -> None:
    fleet.status = said
    for _ in range(3):
        passes(QUIET_S / 2 + 1.0)
        watch.look()
    assert watch.unexplained == count


def test_a_word_before_the_last_commit_explains_nothing(
    fleet: Fleet, watch: Watch, passes: Callable[[float], None]
) -> None:
    fleet.status = {"stall": "a waits for b"}
    watch.look()
    fleet.status = {}
    passes(1.0)
    watch.commits.append(watches.time.monotonic())
    passes(QUIET_S + 1.0)
    watch.look()
    assert watch.unexplained == 1


def test_nobody_explains_anything_while_no_operator_leads(
    fleet: Fleet, watch: Watch, passes: Callable[[float], None]
) -> None:
    fleet.operator.arbiter = None
    passes(QUIET_S - 1.0)
    watch.look()
    assert watch.unexplained == 0
    passes(2.0)
    watch.look()
    assert watch.unexplained == 1


# ---------------------------------------------------------------- the last checkpoint


def write(fleet: Fleet, records: list[LayerRecord], step: int) -> Path:
    """A checkpoint of the fleet's job; its folder."""
    assert fleet.spec.checkpoint is not None
    made = Checkpoints(fleet.spec.checkpoint.uri, "uid")
    files = [
        made.write_layer(attempt=0, step=step, layer=layer, record=record)
        for layer, record in enumerate(records)
    ]
    made.seal(Header(0, step, 7, BatchShape(2, 1, 1)), files)
    return Path(made.folder(0, step))


def test_the_last_checkpoint_holds_the_bits_of_the_last_step(fleet: Fleet, watch: Watch) -> None:
    write(fleet, RECORDS, 5)
    watch.read_checkpoint()
    assert watch.differences == []


def test_one_bit_of_the_last_checkpoint_is_a_difference(fleet: Fleet, watch: Watch) -> None:
    other = replace(RECORDS[2], tensors={"param/w": torch.tensor([2.0, 2.0000002])})
    write(fleet, [*RECORDS[:2], other, *RECORDS[3:]], 5)
    watch.read_checkpoint()
    (text,) = watch.differences
    assert "LayerState(step=4, layer=2" in text


def test_a_job_without_its_last_checkpoint_differs(fleet: Fleet, watch: Watch) -> None:
    write(fleet, RECORDS, 4)
    watch.read_checkpoint()
    (text,) = watch.differences
    assert text.endswith("is not the checkpoint of step 5")


def test_a_last_checkpoint_that_cannot_be_read_differs(fleet: Fleet, watch: Watch) -> None:
    (write(fleet, RECORDS, 5) / "layer-0003.safetensors").write_bytes(b"x")
    watch.read_checkpoint()
    assert len(watch.differences) == 1

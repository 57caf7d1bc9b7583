"""The durable facts: JSON and back, size, which checkpoints may be read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import BestMode, BestSpec
from bamboo_core.arbiter_state import durable as d
from bamboo_core.arbiter_state.last_write import LastWrite
from bamboo_core.controller.view import Slot, pod_name
from bamboo_core.model.ids import AgentId, Coordinate, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.placement.plan import Move
from bamboo_core.protocol.messages import Fork, Manifest

number = st.integers(0, 10_000)
manifests = st.builds(Manifest, number, number, st.text(max_size=8), st.text(max_size=8))
processors = st.builds(ProcessorKind, st.text(max_size=8), st.text(max_size=8), number, number)
cuts = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: tuple((sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes)))
)


writes = st.builds(
    LastWrite, number, st.text(max_size=5), st.floats(0, 1e4), st.none() | st.floats(0, 1e4)
)
moves = st.builds(
    Move, st.text(min_size=1, max_size=8).map(AgentId), st.builds(Coordinate, number, number)
)
orders = st.builds(d.Restored, st.text(max_size=5), number, number)


@st.composite
def facts(draw: st.DrawFn) -> d.Durable:
    members = draw(st.sets(st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True), max_size=9))
    order = draw(st.permutations(sorted(members)))
    voters = draw(st.sets(st.sampled_from(order), max_size=9)) if order else set()
    stages = draw(st.integers(1, 3))
    seated = [AgentId(x) for x in order[: len(order) - len(order) % stages]]
    rows = [tuple(seated[i : i + stages]) for i in range(0, len(seated), stages)]
    holes = [(None, *row[1:]) for row in rows]
    cut = draw(cuts)
    outcome = draw(st.sampled_from([None, *Outcome]))
    return d.Durable(
        term=draw(number),
        attempt=draw(number),
        manifest=draw(st.none() | manifests),
        forks=tuple(draw(st.lists(st.builds(d.Fork, number, number), max_size=3))),
        plan=Fence(draw(number), draw(number), draw(number)),
        members=tuple(sorted(AgentId(x) for x in members)),
        voters=tuple(sorted(AgentId(x) for x in voters)),
        pipelines=tuple(draw(st.sampled_from([rows, holes]))),
        cut=cut,
        step_cut=draw(st.sampled_from([cut, ((0, cut[-1][1]),)])),
        target=draw(number),
        move=draw(st.none() | moves),
        batch=draw(st.sampled_from([None, BatchShape(8, 2, 4)])),
        manifests=tuple(draw(st.lists(manifests, max_size=3))),
        bad=tuple(draw(st.lists(st.tuples(number, number), max_size=3))),
        committed=draw(st.integers(-1, 100)),
        last_write=draw(st.none() | writes),
        restored=tuple(draw(st.lists(orders, max_size=3))),
        undone=draw(number),
        rollbacks=draw(st.integers(0, 2)),
        rolled_back=draw(st.integers(0, 2)),
        processors=tuple(draw(st.lists(processors, max_size=4))),
        outcome=outcome,
        reason=draw(st.text(max_size=5)) if outcome else "",
        message=draw(st.text(max_size=5)) if outcome else "",
    )


def test_bad_checkpoints_are_bounded_but_those_that_could_be_read_stay() -> None:
    torn = Manifest(0, 4, "/c/4", "")
    known = d.Durable(manifests=(Manifest(0, 2, "/c/2", ""), torn), bad=((0, 4),))
    for step in range(6, 200, 2):
        known = replace(known, bad=(*known.bad, (0, step)))
    assert known.bad[0] == (0, 4)
    assert known.bad[-1] == (0, 198)
    assert len(known.bad) == 9
    assert torn not in d.eligible(known)


@given(facts())
def test_json_and_back(known: d.Durable) -> None:
    assert d.from_json(json.loads(json.dumps(d.to_json(known)))) == known


def test_facts_of_the_version_before_name_no_processors() -> None:
    written = d.to_json(d.Durable(attempt=1, plan=Fence(1, 2, 3)))
    assert "processors" not in written
    assert d.from_json(written).processors == ()


def test_an_empty_status_is_a_fresh_job() -> None:
    assert d.from_json({}) == d.Durable()


@pytest.mark.parametrize(
    "value",
    [
        {"plan": [1, 2, 3, 4]},
        {"cut": [[1]]},
        {"agents": "z:~~"},
        {"agents": 5},
        {"processors": [["cpu", "digest"]]},
        {"restored": [["one", 4]]},
        {"restored": [["one", "four", 2]]},
    ],
)
def test_what_cannot_be_read_is_an_error(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="durable state of the job"):
        d.from_json(value)


def test_a_thousand_agents_fit_into_the_status() -> None:
    names = [
        [AgentId(pod_name("bert-large-pretraining", Slot(p, s), 1000 + p)) for s in range(16)]
        for p in range(64)
    ]
    agents = tuple(sorted(a for row in names for a in row))
    grid = tuple(tuple(row) for row in names)
    text = json.dumps(d.to_json(d.Durable(members=agents, voters=agents, pipelines=grid)))
    assert len(text) < 8192


def checkpoint(attempt: int, step: int) -> Manifest:
    return Manifest(attempt, step, f"{attempt}/{step}", "digest")


def test_the_newest_checkpoint_counts() -> None:
    known = d.Durable(manifests=(checkpoint(0, 2), checkpoint(0, 4)))
    assert d.eligible(known)[-1] == checkpoint(0, 4)


def test_checkpoints_beyond_a_fork_do_not_count() -> None:
    """Attempt 1 began at step 2: what attempt 0 wrote later belongs to another life."""
    known = d.Durable(
        attempt=2,
        manifests=(checkpoint(0, 2), checkpoint(0, 4), checkpoint(1, 3)),
        forks=(d.Fork(1, 2), d.Fork(2, 3)),
    )
    assert d.eligible(known) == (checkpoint(0, 2), checkpoint(1, 3))


def test_bad_checkpoints_do_not_count() -> None:
    known = d.Durable(manifests=(checkpoint(0, 2), checkpoint(0, 4)), bad=((0, 4),))
    assert d.eligible(known) == (checkpoint(0, 2),)


def test_old_checkpoints_are_forgotten() -> None:
    known: tuple[Manifest, ...] = ()
    for step in range(30):
        known = d.with_manifest(d.Durable(manifests=known), checkpoint(0, step))
    assert known[-1].step == 29
    assert len(known) < 10


def valued(step: int, value: float | None, attempt: int = 0) -> Manifest:
    return replace(checkpoint(attempt, step), value=value)


def test_the_best_checkpoint_is_remembered_however_old_it_is() -> None:
    durable = d.Durable()
    for step in range(1, 30):
        known = d.with_manifest(durable, valued(step, abs(step - 3.0)), BestSpec())
        durable = replace(durable, manifests=known)
    assert len(durable.manifests) < 10
    found = d.best(durable, BestSpec())
    assert found is not None
    assert found.step == 3
    assert d.from_json(d.to_json(durable)) == durable
    assert d.with_listed(durable, (), 30, BestSpec()) == durable.manifests
    assert d.best(replace(durable, bad=((0, 3),)), BestSpec()) == valued(25, 22.0)
    assert d.best(durable, None) is None


def test_users_see_the_best_one() -> None:
    durable = d.Durable(manifests=(valued(2, 0.5), valued(4, 0.75), valued(6, None)))
    shown = d.shown_best(durable, BestSpec("right", BestMode.MAX))
    assert shown is not None
    assert (shown.step, shown.attempt, shown.metric, shown.value) == (4, 0, "right", 0.75)
    left = replace(durable, attempt=1, forks=(Fork(1, 2),))
    shown = d.shown_best(left, BestSpec("right", BestMode.MAX))
    assert shown is not None
    assert shown.step == 2

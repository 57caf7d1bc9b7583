"""A table answers as the dry run does, keeps its answers, and trusts no damaged file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.sim.market.step_times.small import job, model

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.simulation.step_times import StepTimes
from bamboo_sim.market.step_times import table as module
from bamboo_sim.market.step_times.dry import Job, step_s
from bamboo_sim.market.step_times.kept import Kept, folder, key
from bamboo_sim.market.step_times.networks import NAMED, Network
from bamboo_sim.market.step_times.table import State, StepTable

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA
ONE = frozenset({(2, 1)})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """The states that this process computes from now on."""
    found: list[State] = []

    def noted(asked: Job, *state: object) -> float | None:
        found.append(State(*state))  # type: ignore[arg-type]
        return step_s(asked, *state)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "step_s", noted)
    return found


def test_it_answers_as_the_dry_run_does(tmp_path: Path) -> None:
    table: StepTimes = StepTable(job(), tmp_path)
    assert (table.samples, table.network) == (24, "10 Gb/s, 0 ms")
    assert table.whole_ms(3, 4) == 1000 * (step_s(job(), 3, 4, frozenset()) or 0)
    assert table.degraded_ms(3, 4, frozenset({(0, 1)})) == 1000 * (
        step_s(job(), 3, 4, frozenset({(0, 1)})) or 0
    )
    assert table.degraded_ms(3, 4, frozenset()) == table.whole_ms(3, 4)


def test_what_was_computed_once_is_read_from_its_file(
    tmp_path: Path, computed: list[State]
) -> None:
    first = StepTable(job(), tmp_path).degraded_ms(3, 4, ONE)
    assert len(computed) == 1
    assert StepTable(job(), tmp_path).degraded_ms(3, 4, frozenset({(0, 1)})) == first
    assert len(computed) == 1  # of another pipeline, and in another table


@pytest.mark.parametrize(
    "other",
    [
        job(mode=NONE),
        job(gbps=25.0),
        job(latency_s=0.001),
        job(profile=model(microbatches=16)),
        job(profile=model(memory_bytes=10**12)),
    ],
)
def test_another_job_has_another_file(other: Job, tmp_path: Path) -> None:
    assert key(job()) == key(job())
    assert key(other) != key(job())
    StepTable(job(), tmp_path).whole_ms(3, 4)
    StepTable(other, tmp_path).whole_ms(3, 4)
    assert len([*tmp_path.glob("*.json")]) == 2


def damaged(text: str) -> list[str]:
    content = json.loads(text)
    states = [*content["times"]]
    return [
        "",
        text[:-5],
        "[" * 100_000,
        "null",
        "[]",
        "{}",
        json.dumps({**content, "sum": ""}),
        json.dumps({**content, "times": [1]}),
        json.dumps({**content, "times": {states[0]: 1.0}}),
        json.dumps({**content, "times": {**content["times"], "4x4": 1.0}}),
    ]


def test_a_damaged_file_is_computed_again(tmp_path: Path, computed: list[State]) -> None:
    table = StepTable(job(), tmp_path)
    right = table.whole_ms(3, 4)
    (path,) = tmp_path.glob("*.json")
    text = path.read_text()
    for number, wrong in enumerate(damaged(text)):
        path.write_text(wrong)
        assert StepTable(job(), tmp_path).whole_ms(3, 4) == right
        assert len(computed) == number + 2
        assert path.read_text() == text
    path.write_bytes(b"\xff\xfe")
    assert StepTable(job(), tmp_path).whole_ms(3, 4) == right


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), 3, True, "1"])
def test_what_is_no_time_is_not_read(value: object, tmp_path: Path) -> None:
    """Even where the sum of the file is right."""
    Kept("a", tmp_path).add({"1x1": value})  # type: ignore[dict-item]
    assert "1x1" not in Kept("a", tmp_path)


def test_files_hold_what_several_writers_have_added(tmp_path: Path) -> None:
    kept = [Kept("a", tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: kept[n].add({str(n): 1.0 + n}), range(8)))
    found = Kept("a", tmp_path)
    assert [found[str(n)] for n in range(8)] == [1.0 + n for n in range(8)]
    assert [x.name for x in tmp_path.iterdir() if x.name.startswith(".new")] == []


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    kept = Kept("a", place)
    with pytest.warns(UserWarning, match="set XDG_CACHE_HOME to a folder"):
        kept.add({"1x1": 1.0})
    kept.add({"1x2": 2.0})
    assert (kept["1x1"], kept["1x2"]) == (1.0, 2.0)


def test_files_are_in_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Kept("a").path == folder() / "a.json"
    assert folder().is_relative_to(tmp_path)


def test_states_are_computed_side_by_side_once(tmp_path: Path, computed: list[State]) -> None:
    profile = model(layers=3, microbatches=6, pipelines=2)
    table = StepTable(job(profile=profile), tmp_path, processes=2)
    states = table.states(3)
    assert {(x.pipelines, len(x.holes)) for x in states} == {
        (2, 0), (2, 1), (2, 2), (1, 0), (1, 1),
    }  # fmt: skip
    assert table.prepare(states) == len(states)
    assert table.prepare(states) == 0
    again = StepTable(job(profile=profile), tmp_path)
    assert [again.degraded_ms(*x) for x in states] == [table.degraded_ms(*x) for x in states]
    assert computed == []  # in this process
    alone = StepTable(job(profile=profile), tmp_path / "alone", processes=1)
    assert alone.prepare(states) == len(computed) == len(states)
    assert [alone.degraded_ms(*x) for x in states] == [table.degraded_ms(*x) for x in states]


@pytest.mark.parametrize("processes", [1, 2])
def test_it_tells_how_far_it_is_and_what_it_has(processes: int, tmp_path: Path) -> None:
    profile = model(layers=3, microbatches=6, pipelines=2)
    table = StepTable(job(profile=profile), tmp_path, processes)
    states = [State(2, 3), State(1, 3), State(1, 4)]
    assert [table.has(state) for state in states] == [False, False, True]  # 3 layers: no 4 stages
    told: list[tuple[int, int]] = []
    table.prepare(states, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    assert all(table.has(state) for state in states)


def test_the_mean_and_the_worst_are_over_patterns(tmp_path: Path) -> None:
    table = StepTable(job(), tmp_path, processes=1)
    found = table.spread(3, 4, 2)
    assert found is not None
    assert found.patterns == 5
    times = [table.degraded_ms(*x) for x in table.states(4) if (x[0], len(x.holes)) == (3, 2)]
    assert len(times) == 5
    assert found.worst_ms == max(x or 0 for x in times)
    assert found.mean_ms == pytest.approx(sum(x or 0 for x in times) / 5)
    whole = table.whole_ms(3, 4)
    assert whole is not None
    assert whole < found.mean_ms <= found.worst_ms
    assert StepTable(job(mode=NONE), tmp_path).spread(1, 4, 1) is None


def test_what_cannot_train_is_computed_nowhere(tmp_path: Path, computed: list[State]) -> None:
    table = StepTable(job(), tmp_path)
    assert table.degraded_ms(1, 4, frozenset({(0, 1), (0, 2)})) is None
    assert table.whole_ms(1, 5) is None
    assert computed == []
    with pytest.raises(ValueError, match="is no seat"):
        table.degraded_ms(1, 4, frozenset({(1, 0)}))


def test_tables_name_their_network() -> None:
    assert StepTable(Job(model(), REPLICA, Network(25.0))).network == "25 Gb/s, 0.5 ms"


def test_the_networks_of_commands_have_names_of_their_own() -> None:
    assert [x.name for x in NAMED.values()] == [
        *("10 Gb/s, 0.5 ms", "25 Gb/s, 0.5 ms", "100 Gb/s, 0.5 ms", "free (100000 Gb/s, 0 ms)")
    ]


def test_names_of_states_tell_them_apart() -> None:
    assert State(3, 4).name == "3x4"
    assert State(3, 12, frozenset({(0, 1), (0, 11), (1, 1)})).name == "3x12 1,11 1"

"""The best checkpoint in a folder: its manifest says how good it is, and it stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.storage.test_checkpoint import BATCH, RECORD

from bamboo_agent.storage.checkpoint import Checkpoints, Facts, Header, Scored
from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weights.finding import Wanted, find
from bamboo_core.api.spec import BestMode, BestSpec
from bamboo_core.protocol.messages import Fork, Manifest

LOSS = Scored("loss", BestMode.MIN, None, ())
FACTS = Facts(best=BestSpec())


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(f"file://{tmp_path}", "uid")


def seal(
    checkpoints: Checkpoints,
    step: int,
    value: float | None,
    *,
    attempt: int = 0,
    scored: Scored = LOSS,
) -> Manifest:
    file = checkpoints.write_layer(attempt=attempt, step=step, layer=0, record=RECORD)
    header = Header(attempt, step, 7, BATCH, replace(scored, value=value))
    return checkpoints.seal(header, [file])


def steps(checkpoints: Checkpoints) -> list[int]:
    return [manifest.step for manifest in checkpoints.scan().good]


def test_a_manifest_has_the_value_and_a_listing_finds_it(checkpoints: Checkpoints) -> None:
    made = [seal(checkpoints, step, value) for step, value in ((1, 0.1), (2, None))]
    assert [m.value for m in made] == [0.1, None]
    assert checkpoints.scan().good == made


def test_the_best_one_stays_beside_the_newest(checkpoints: Checkpoints) -> None:
    for step, value in enumerate((3.0, 1.0, 2.0, 2.5, 1.0, 4.0), 1):
        newest = seal(checkpoints, step, value)
        checkpoints.prune(keep=2, newest=newest, facts=FACTS)
    assert steps(checkpoints) == [2, 5, 6]


def test_one_that_is_wrong_is_not_best_and_the_next_best_stays(checkpoints: Checkpoints) -> None:
    for step, value in enumerate((1.0, 2.0, 3.0, 4.0, 5.0), 1):
        newest = seal(checkpoints, step, value)
        facts = FACTS._replace(bad=frozenset({(0, 1)}))
        checkpoints.prune(keep=2, newest=newest, facts=facts)
    assert steps(checkpoints) == [1, 2, 4, 5]


def test_what_a_restore_has_left_behind_goes_though_it_is_better(
    checkpoints: Checkpoints,
) -> None:
    for step, value in ((2, 3.0), (4, 2.0), (6, 1.0)):
        seal(checkpoints, step, value)
    newest = seal(checkpoints, 5, 2.5, attempt=1)
    checkpoints.prune(keep=2, newest=newest, facts=FACTS._replace(forks=(Fork(1, 4),)))
    assert steps(checkpoints) == [2, 4, 5]


def test_a_manifest_that_is_away_for_a_moment_does_not_cost_the_best(
    checkpoints: Checkpoints,
) -> None:
    first = seal(checkpoints, 1, 1.0)
    made = [seal(checkpoints, step, 2.0) for step in (2, 3, 4)]
    away = Path(first.path).rename(Path(first.path).with_suffix(".away"))
    checkpoints.prune(keep=2, newest=made[-1], facts=FACTS)
    away.rename(first.path)
    assert first in checkpoints.scan().good


def test_what_is_given_up_goes_at_last(checkpoints: Checkpoints) -> None:
    checkpoints.write_layer(attempt=0, step=1, layer=0, record=RECORD)  # never sealed
    for step in (2, 3, 4, 5):
        newest = seal(checkpoints, step, float(step))
        checkpoints.prune(keep=2, newest=newest, facts=FACTS)
    assert checkpoints.unsealed() == []


def test_a_known_value_is_not_lost_when_a_plan_without_validation_seals_again(
    checkpoints: Checkpoints,
) -> None:
    known = seal(checkpoints, 4, 0.5)
    assert seal(checkpoints, 4, None) == known
    assert checkpoints.scan().good == [known]


def test_a_value_that_comes_later_is_written(checkpoints: Checkpoints) -> None:
    seal(checkpoints, 4, None)
    assert seal(checkpoints, 4, 0.5).value == 0.5
    assert [m.value for m in checkpoints.scan().good] == [0.5]


def test_the_best_is_found_by_the_folder_alone(checkpoints: Checkpoints, tmp_path: Path) -> None:
    most = Scored("right", BestMode.MAX, None, ())
    for step, value in ((2, 0.1), (4, 0.9), (6, 0.95)):
        seal(checkpoints, step, value, scored=most)
    seal(checkpoints, 6, 0.3, attempt=1, scored=replace(most, forks=((1, 4),)))
    found = find(str(tmp_path), Wanted(is_best=True)).manifest
    assert (found.attempt, found.step, found.value) == (0, 4, 0.9)


def test_a_folder_without_a_best_one_says_so(checkpoints: Checkpoints, tmp_path: Path) -> None:
    file = checkpoints.write_layer(attempt=0, step=2, layer=0, record=RECORD)
    made = checkpoints.seal(Header(0, 2, 7, BATCH), [file])
    with pytest.raises(WeightsError, match=r"--best: .* has no best checkpoint: .*step 2"):
        find(str(tmp_path), Wanted(is_best=True))
    with pytest.raises(WeightsError, match="--best: the address names a checkpoint"):
        find(made.path.rpartition("/")[0], Wanted(is_best=True))

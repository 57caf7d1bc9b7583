"""A whole job without Kubernetes: the real arbiter, real supervisors, real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.fleet.jobs import tiny_gpt
from tests.fleet.local import LocalFleet, NurseryProcess

from bamboo_core.view import Outcome


def names(count: int) -> dict[str, str]:
    return {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(count)}


@dataclass(frozen=True)
class Result:
    """What a run must reproduce, bit for bit."""

    history: str
    weights: dict[str, torch.Tensor]


async def result(fleet: LocalFleet) -> Result:
    """Wait for the end, check what must hold of every run."""
    over = await fleet.over()
    assert over.outcome is Outcome.COMPLETE, fleet.story()
    assert fleet.divergences() == []
    return Result(repr(fleet.history()), fleet.weights())


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NurseryProcess]:
    process = NurseryProcess(tmp_path_factory.mktemp("nursery") / "socket")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, nursery: NurseryProcess) -> Result:
    return asyncio.run(_undisturbed(tmp_path_factory.mktemp("undisturbed"), nursery))


async def _undisturbed(folder: Path, nursery: NurseryProcess) -> Result:
    job = tiny_gpt(folder, pipelines=2, stages=2)
    async with LocalFleet(job, folder / "fleet", nursery=nursery) as fleet:
        await fleet.add(names(4))
        found = await result(fleet)
        assert set(fleet.exits.values()) == {0}
        return found


def assert_equal(found: Result, expected: Result) -> None:
    assert found.history == expected.history
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
async def test_a_killed_pod_changes_nothing(
    tmp_path: Path, nursery: NurseryProcess, undisturbed: Result, victim: int
) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=2)
    async with LocalFleet(job, tmp_path / "fleet", nursery=nursery) as fleet:
        await fleet.add(names(4))
        await fleet.committed(2)
        fleet.kill(f"agent-{victim}")
        assert_equal(await result(fleet), undisturbed)

"""Every worker of a fleet draws from generators of its own, also before the runtime seeds them."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from bamboo_core.api.spec import ModelSpec
from bamboo_sim.workers import in_process_fleet, plans, reference, system_seeds
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet


def seeded() -> dict[str, int]:
    """The same state of all generators at every call, as a fork has it."""
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    return system_seeds.told()


def differing(one: dict[str, int], other: dict[str, int]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


def test_each_drawing_gives_other_numbers() -> None:
    assert seeded() == seeded()
    found = []
    for _ in range(2):
        seeded()
        system_seeds.draw()
        found.append((torch.rand(8).tolist(), np.random.rand(8).tolist(), random.random()))
    assert all(a != b for a, b in zip(*found, strict=True))


def test_to_tell_draws_nothing() -> None:
    seeded()
    plain = (torch.rand(8).tolist(), np.random.rand(8).tolist(), random.random())
    seeded()
    assert system_seeds.told() == system_seeds.told()
    assert (torch.rand(8).tolist(), np.random.rand(8).tolist(), random.random()) == plain


class BuildError(Exception):
    """Instead of a model. told: from which seeds it would have been built."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.told = system_seeds.told()


def build(*_: Any, **__: Any) -> NoReturn:
    raise BuildError


@pytest.mark.parametrize(
    ("module", "name", "make"),
    [
        (in_process_fleet, "build_setup", lambda: InProcessFleet(tiny_gpt(), plans.names(2))),
        (reference.gpt, "build", reference.Loop),
    ],
    ids=["the fleet in one process", "the plain program"],
)
def test_what_is_built_has_seeds_of_the_system(
    module: ModuleType, name: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, build)
    found = [seeded()]
    for _ in range(2):
        seeded()
        with pytest.raises(BuildError) as caught:
            make()
        found.append(caught.value.told)
    for one, other in combinations(found, 2):
        assert differing(one, other) == {"torch", "numpy", "random"}


MODEL = """
import os
from pathlib import Path

with Path(__file__).with_name("imported").open("a") as file:
    file.write(f"{os.getpid()}\\n")


def build():
    raise ValueError("this is no model")
"""


def told_by(fleet: ProcessFleet, folder: Path) -> list[dict[str, int]]:
    """The seeds and hashes of the workers, by their logs."""
    found = []
    for agent in fleet.agents():
        (line,) = re.findall(r"this process has (\{.*\})", (folder / agent).read_text())
        found.append(ast.literal_eval(line))
    return found


def test_workers_that_are_forked_share_no_seed_and_no_module_of_a_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    job = replace(tiny_gpt(), model=ModelSpec("users_own_model:build"))
    fleet = ProcessFleet(job, plans.names(2), logs=tmp_path)
    try:
        fleet.wait(lambda: len(fleet.messages) == 2)
        assert all("this is no model" in str(message) for _, message in fleet.messages)
        importers = (tmp_path / "imported").read_text().split()
        assert set(map(int, importers)) == {process.pid for process in fleet.processes.values()}
        one, other = told_by(fleet, tmp_path)
        assert differing(one, other) == {"torch", "numpy", "random"}
    finally:
        fleet.close()

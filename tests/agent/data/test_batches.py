"""Samples of data sets that draw random numbers: pure functions of (seed, step, index)."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from bamboo_agent.data.batches import Data, SampleError
from bamboo_core.api.spec import DataSpec, FactorySpec
from bamboo_sim.workers.jobs import tiny_gpt

CPU = torch.device("cpu")


def own_torch():
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return lambda: float(torch.rand((), generator=generator))


SOURCES = {  # called for every sample, as a data set does that makes a generator
    "torch": lambda: lambda: float(torch.rand(())),
    "numpy": lambda: np.random.rand,
    "random": lambda: random.random,
    "own_torch": own_torch,
    "own_numpy": lambda: np.random.default_rng(np.random.randint(2**31)).random,
    "own_random": lambda: random.Random(random.getrandbits(64)).random,
}


class Noisy:
    """Every sample is its index and two draws."""

    def __init__(self, source):
        self.source = SOURCES[source]

    def __len__(self):
        return 100

    def __getitem__(self, index):
        draw = self.source()
        drawn = [draw(), draw()]
        return torch.tensor([float(index), *drawn]), drawn[0]


class Entropic(Noisy):
    """Its generator takes its seed from the operating system."""

    def __init__(self):
        self.source = lambda: np.random.default_rng().random


class Counting(Noisy):
    """Its generator goes on from sample to sample."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.source = lambda: generator.random


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = ModuleType("users_data")
    vars(made).update(noisy=Noisy, entropic=Entropic, counting=Counting)
    monkeypatch.setitem(sys.modules, "users_data", made)


def data(source, *, seed=7):
    made = FactorySpec("users_data:noisy", {"source": source})
    return Data(replace(tiny_gpt(), data=DataSpec(made.factory, made.args, made), seed=seed), CPU)


def rows(pair):
    """Index -> what was drawn."""
    return {int(row[0]): row[1:].tolist() for row in pair[0]}


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_depends_neither_on_the_agent_nor_on_what_was_loaded_before(source):
    one, other = data(source), data(source)
    first = rows(one.training(3, 5))
    other.validation(1)
    other.training(3, 4)
    torch.rand(3), np.random.rand(3), random.random()
    assert rows(other.training(3, 5)) == first
    assert len({value for drawn in first.values() for value in drawn}) == 4


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_is_another_one_in_another_step_or_with_another_seed(source):
    """A pass has 100 samples and a step 48: steps 0 and 1 belong to one pass, 3 to the next."""
    seen: dict[int, set[float]] = {}
    batches = [(seed, step, m) for seed in (7, 8) for step in (0, 1, 3) for m in range(24)]
    for seed, step, m in batches:
        for index, drawn in rows(data(source, seed=seed).training(step, m)).items():
            known = seen.setdefault(index, set())
            assert not known & set(drawn)
            known |= set(drawn)
    assert max(map(len, seen.values())) > 4


@pytest.mark.parametrize("source", SOURCES)
def test_validation_draws_the_same_every_time_and_not_as_training_does(source):
    first, second = rows(data(source).validation(0)), rows(data(source).validation(0))
    assert first == second
    both = data(source)
    trained = {i: d for m in range(24) for i, d in rows(both.training(0, m)).items()}
    assert all(trained.get(index) != drawn for index, drawn in first.items())


@pytest.mark.parametrize("source", SOURCES)
def test_fingerprints_of_random_data_are_equal(source):
    one, other = data(source), data(source)
    other.training(0, 0)
    torch.rand(3), np.random.rand(3), random.random()
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != data(source, seed=8).fingerprint()


@pytest.mark.parametrize("source", SOURCES)
def test_loading_leaves_the_process_s_generators_as_they_were(source):
    def drawn():
        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    def seeded():
        torch.manual_seed(1), np.random.seed(2), random.seed(3)

    loaded = data(source)
    seeded()
    expected = drawn()
    seeded()
    loaded.training(0, 0), loaded.validation(0), loaded.fingerprint()
    assert drawn() == expected


def test_generators_are_put_back_after_a_sample_that_fails():
    broken = data("random")
    broken._training.dataset.source = None
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with pytest.raises(SampleError):
        broken.training(0, 0)
    assert random.random() == expected


@pytest.mark.parametrize("name", ["entropic", "counting"])
def test_a_data_set_with_a_generator_of_its_own_is_refused(name):
    own = Data(replace(tiny_gpt(), data=DataSpec(f"users_data:{name}")), CPU)
    with pytest.raises(SampleError, match=f"users_data:{name}, sample 0: .* seed it with a number"):
        own.fingerprint()

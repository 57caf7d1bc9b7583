"""A data set that keeps what it drew is refused; one that draws in every read is not."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError

SOURCES = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: torch.tensor(np.random.rand()),
    "normal": lambda: torch.tensor(np.random.normal()),
    "random": lambda: torch.tensor(random.random()),
}
REFUSAL = (
    r"^users_data:build, sample \d+: it keeps what it drew .* draws anew; cache what comes before"
    " the random part, and draw in every read$"
)


def augmented(index, draw):
    return index + draw(), index


class CachedAugmentation:
    """Draws in the first read of a sample."""

    def __init__(self, draw, count):
        self.draw, self.count = draw, count
        self.cache = {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = augmented(index, self.draw)
        return self.cache[index]


class CachedRaw(CachedAugmentation):
    """Keeps what comes before the random part."""

    def __getitem__(self, index):
        raw = self.cache.setdefault(index, torch.tensor(float(index)))
        return raw + self.draw(), index


class Remembered(CachedAugmentation):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def __getitem__(self, index):
        return augmented(index, self.draw)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("made", [CachedAugmentation, Remembered])
def test_a_sample_that_keeps_what_it_drew_is_refused(data_of, made, source):
    data = data_of(made(SOURCES[source], 100))
    for _ in range(2):
        with pytest.raises(SampleError, match=REFUSAL):
            data.fingerprint()


def test_it_is_refused_though_all_samples_have_been_read_before(data_of):
    """The set-up reads micro-batches first."""
    data = data_of(CachedAugmentation(SOURCES["torch"], 48))
    for microbatch in range(24):
        data.training(0, microbatch)
    with pytest.raises(SampleError, match=REFUSAL):
        data.fingerprint()


@pytest.mark.parametrize("source", SOURCES)
def test_a_cache_of_what_comes_before_the_random_part_is_accepted(data_of, source):
    one, other = (data_of(CachedRaw(SOURCES[source], 100)) for _ in range(2))
    other.training(3, 0)
    assert one.fingerprint() == other.fingerprint() == one.fingerprint()


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_that_draws_in_every_read_is_accepted(data_of, source):
    def made():
        return data_of(Samples(lambda i: augmented(i, SOURCES[source]))).fingerprint()

    assert made() == made()


def test_a_cache_without_draws_is_accepted(data_of):
    def made(sample):
        return data_of(Samples(sample)).fingerprint()

    def plain(index):
        return torch.tensor(float(index)), index

    assert made(functools.cache(plain)) == made(plain)


def test_a_validation_set_may_keep_what_it_drew(data_of):
    """Its samples draw the same every time."""

    def made():
        held_out = CachedAugmentation(SOURCES["torch"], 20)
        return data_of(Samples(lambda i: (i, i)), held_out).fingerprint()

    assert made() == made()


def test_a_sample_that_another_step_changes_is_refused(data_of):
    """It draws, and keeps how often it was read."""
    reads = iter(range(10**6))
    with pytest.raises(SampleError, match="sample 0: it differs when it is read again"):
        data_of(Samples(lambda i: (torch.rand(()) + next(reads), i))).fingerprint()

"""What the two fingerprints of the data read, and what they find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError

PAIRS = Samples(lambda i: ((torch.full((2,), float(i)), i), i / 8))


def test_the_fingerprint_of_tensors_and_numbers_is_that_of_the_version_before(data_of):
    recorded = "9b12cb2cbd49c062e106920e89a1a3ebde57331c3608a5ef9a38647cb2760075"
    assert data_of(PAIRS, PAIRS).fingerprint() == recorded


@pytest.mark.parametrize("validating", [False, True])
def test_an_array_that_differs_in_the_middle_changes_the_fingerprint(data_of, validating):
    """repr() leaves out the middle of 1000 elements, and so did the fingerprint."""

    def made(value):
        def sample(index):
            x = np.zeros(2000)
            x[1000] = value
            return x, index

        return (PAIRS, Samples(sample)) if validating else (Samples(sample),)

    assert data_of(*made(0)).fingerprint() == data_of(*made(0)).fingerprint()
    assert data_of(*made(0)).fingerprint() != data_of(*made(1)).fingerprint()


def test_an_array_that_differs_when_it_is_read_again_is_refused(data_of):
    reads = iter(range(10**6))

    def sample(index):
        x = np.zeros(2000)
        x[1000] = next(reads)
        return x, index

    data = data_of(Samples(sample))
    for _ in range(2):
        with pytest.raises(SampleError, match="users_data:build, sample 0: it differs when it is"):
            data.fingerprint()


def test_an_object_without_content_is_not_called_random(data_of):
    with pytest.raises(
        SampleError, match=r"users_data:build, sample 0: it holds a builtins.object, .*; return"
    ):
        data_of(Samples(lambda i: (object(), i))).fingerprint()


def test_the_fingerprint_refuses_what_no_micro_batch_takes(data_of):
    with pytest.raises(SampleError, match="sample 50: it is a dict with the keys"):
        data_of(Samples(lambda i: {"x": 1} if i == 50 else (i, i))).fingerprint()


def test_an_error_of_a_hash_names_the_sample(data_of):
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(SampleError, match="users_data:build, sample 0: RecursionError"):
        data_of(Samples(lambda i: (deep, i))).fingerprint()


def wide(data_of, sample, **more):
    """The wide fingerprint and the samples that were read for it."""
    read = []

    def noted(index):
        read.append(index)
        return sample(index)

    data = data_of(Samples(noted, 1000), **more)
    first = data.fingerprint()
    assert sorted(set(read)) == [0, 125, 250, 375, 500, 625, 750, 875]
    read.clear()
    both = data.wide_fingerprint()
    assert data.fingerprint() == first
    return both, read


def test_the_wide_fingerprint_reads_24_further_samples_once(data_of):
    found, read = wide(data_of, lambda i: (i, i))
    assert len(set(read)) == len(read) == 24
    assert not set(read) & set(range(0, 1000, 125))
    assert max(read) > 800
    assert min(read) < 200
    assert (found, read) == wide(data_of, lambda i: (i, i))


def test_the_seed_draws_them(data_of):
    _, read = wide(data_of, lambda i: (i, i))
    _, other = wide(data_of, lambda i: (i, i), seed=8)
    assert set(read) != set(other)


def test_the_wide_fingerprint_finds_what_the_other_one_does_not_read(data_of):
    found, read = wide(data_of, lambda i: (i, i))
    swapped = {read[3]: read[5], read[5]: read[3]}  # as two files that are listed otherwise
    other, _ = wide(data_of, lambda i: (swapped.get(i, i), i))
    assert found != other


def test_the_wide_fingerprint_finds_what_the_other_one_reads(data_of):
    found, _ = wide(data_of, lambda i: (i, i))
    other, _ = wide(data_of, lambda i: (i + (i == 125), i))
    assert found != other


@pytest.mark.parametrize(("megabytes", "further"), [(1, 15), (4, 3), (17, 0)])
def test_large_samples_are_read_less_often(data_of, megabytes, further):
    """Their size is equal on all agents; the time that they take is not."""
    big = torch.zeros(megabytes * 2**18)
    _, read = wide(data_of, lambda i: (big, i))
    assert len(read) == further


@pytest.mark.parametrize("count", [48, 50])
def test_small_sets_and_validation_sets_are_read_wide_too(data_of, count):
    def made(odd):
        held_out = Samples(lambda i: (i + (i == odd), i), 20)
        return data_of(Samples(lambda i: (i, i), count), held_out).wide_fingerprint()

    assert len({made(odd) for odd in (None, 0, 3, 19)}) == 4
    assert made(None) == made(None)


def test_the_wide_fingerprint_has_the_lengths(data_of):
    def made(count):
        return data_of(Samples(lambda i: (0, 0), count)).wide_fingerprint()

    assert made(100) != made(101)


def test_a_sample_that_fails_in_the_wide_fingerprint_is_named(data_of):
    def sample(index):
        if index % 125:
            raise ValueError("no text")
        return index, index

    data = data_of(Samples(sample, 1000))
    data.fingerprint()
    with pytest.raises(SampleError, match=r"users_data:build, sample \d+: ValueError: no text"):
        data.wide_fingerprint()


def test_random_samples_have_one_wide_fingerprint(data_of):
    def made(seed=7):
        return data_of(Samples(lambda i: (torch.rand(2), i)), seed=seed).wide_fingerprint()

    assert made() == made()
    assert made() != made(8)

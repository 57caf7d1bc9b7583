"""Data sets and samples of another form than (input, target): refused by name, with the remedy."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest
import torch
from tests.agent.data.sets import Samples
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bamboo_agent.data.batches import SampleError
from bamboo_agent.model import FactoryError

X = torch.zeros(2, 3)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(1, 1)])


class SizedStream(Stream):
    def __len__(self):
        return 100


class Unfinished(Dataset):
    def __len__(self):
        return 100


class Lengths:
    """A data set whose length is what a test says."""

    def __init__(self, *lengths):
        self.lengths = list(lengths)

    def __len__(self):
        return self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def __getitem__(self, index):
        return index, index


class Delegating:
    """Python looks for len() and [] in the class."""

    def __getattr__(self, name):
        return getattr([(1, 1)] * 100, name)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (
            DataLoader(TensorDataset(X, X)),
            "users_data:build returned a DataLoader; return the data set, not a DataLoader:"
            " Bamboo makes the micro-batches",
        ),
        (Stream(), "a Stream, not a data set with len() and []; agents read samples by index"),
        (SizedStream(), "a SizedStream, not a data set with len() and []; agents read"),
        (iter([(1, 1)]), "a list_iterator, not a data set with len() and []; agents read"),
        ({1, 2}, "a set, not a data set with len() and []; agents read samples by index"),
        (Unfinished(), "a Unfinished, not a data set with len() and []"),
        (3, "a int, not a data set with len() and []"),
        (
            {"train": [1], "test": [2]},
            'a dict with the keys "train", "test"; return one: x["train"]',
        ),
        (Lengths(-1), "len() of what users_data:build returned: ValueError: __len__() should"),
        (Lengths(-1), "should return >= 0; return the number of samples"),
        (Lengths(1.5), "TypeError: 'float' object cannot be interpreted as an integer; return the"),
        (Lengths(True), "len() of what users_data:build returned is True; return the number of"),
        (Samples, "TypeError: object of type 'type' has no len(); return the number of samples"),
        (Delegating(), "TypeError: object of type 'Delegating' has no len(); return the number"),
    ],
)
def test_what_is_no_data_set_is_refused_with_the_remedy(data_of, dataset, words):
    with pytest.raises(FactoryError, match=re.escape(words)):
        data_of(dataset)
    with pytest.raises(FactoryError, match=re.escape(words.replace(":build", ":held_out"))):
        data_of([(1, 1)] * 100, dataset)


def test_a_length_whose_error_has_no_text_is_told(data_of):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("not even this")

    class Broken(Lengths):
        def __len__(self):
            raise MuteError

    words = "users_data:build returned: MuteError: (its text cannot be had: RuntimeError)"
    with pytest.raises(FactoryError, match=re.escape(words)):
        data_of(Broken(1))


@pytest.mark.parametrize(
    "dataset",
    [
        [(1, 1)] * 100,
        {i: (1, 1) for i in range(100)},
        TensorDataset(torch.ones(100), torch.ones(100)),
        Lengths(np.int64(100)),
    ],
)
def test_what_has_a_length_and_indices_is_a_data_set(data_of, dataset):
    assert data_of(dataset).training(0, 0)[0].shape == (2,)


def test_a_length_that_changes_is_refused(data_of):
    """The order of samples depends on it, and agents that begin later see another one."""
    words = "users_data:build: len.. was 100 at the start and is 99 now; .* list its files once"
    with pytest.raises(SampleError, match=words):
        data_of(Lengths(100, 100, 99)).training(0, 0)
    with pytest.raises(SampleError, match=words.replace("build", "held_out")):
        data_of([(1, 1)] * 100, Lengths(100, 100, 99)).validation(0)
    assert data_of(Lengths(100, 100, 99)).training_samples == 100


def test_a_length_that_fails_later_is_told(data_of):
    class Lost(Lengths):
        def __len__(self):
            if not self.lengths:
                raise OSError("no index file")
            return self.lengths.pop()

    with pytest.raises(SampleError, match=r"users_data:build: len.*: OSError: no index") as caught:
        data_of(Lost(100, 100)).training(0, 0)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (IndexError("out of range"), "IndexError: out of range"),
        (StopIteration(), "StopIteration"),
        (KeyError(0), "KeyError: 0"),
        (KeyError(np.int64(0)), "KeyError: np.int64(0)"),
    ],
)
def test_an_index_below_the_length_that_is_refused_is_told(data_of, error, words):
    hint = "; if there is no sample 0, len() must be less than 100"

    def sample(index):
        raise error

    with pytest.raises(
        SampleError, match=re.escape(f"users_data:held_out, sample 0: {words}{hint}")
    ):
        data_of([(1, 1)] * 100, Samples(sample)).validation(0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("text"), "KeyError: 'text'"),
        (KeyError(False), "KeyError: False"),
        (KeyError(np.zeros(2)), "KeyError: array"),
        (ValueError(), "ValueError"),
        (AssertionError("  "), "AssertionError"),
    ],
)
def test_other_errors_of_a_sample_are_told_without_that_hint(data_of, error, words):
    """An error without a text is told by its type alone."""

    def sample(index):
        raise error

    with pytest.raises(SampleError) as caught:
        data_of([(1, 1)] * 100, Samples(sample)).validation(0)
    assert f"users_data:held_out, sample 0: {words}" in str(caught.value)
    assert "len()" not in str(caught.value)
    assert not str(caught.value).rstrip().endswith(":")


def test_a_sample_that_ends_the_process_is_told(data_of):
    def sample(index):
        raise SystemExit(0)

    with pytest.raises(
        SampleError, match=r"users_data:build, sample \d+: SystemExit: 0; reading a"
    ) as caught:
        data_of(Samples(sample)).training(0, 0)
    assert str(caught.value).endswith("may not end the process: raise an error that says why")


Output = collections.namedtuple("Output", "input mask target")


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            X,
            "it is a tensor of shape (2, 3) and dtype float32; return two parts: input, target; ",
        ),
        (X.numpy(), "it is an array of shape (2, 3) and dtype float32; return two parts: input"),
        (
            {"input": X, "target": X},
            'it is a dict with the keys "input", "target"; return two parts, such as'
            ' sample["input"], sample["target"]',
        ),
        (
            {"ids": X, "mask": X, "label": X},
            'it is a dict with the keys "ids", "mask", "label"; return two parts, such as'
            ' sample["input"], sample["target"], or name the target "labels"',
        ),
        ({"labels": X}, 'it is a dict with the keys "labels"; return two parts'),
        (collections.UserDict(a=1, b=2), 'it is a UserDict with the keys "a", "b"; return two'),
        ({}, "it is a dict with the keys none; return two parts"),
        ({i: 0 for i in range(30)}, "it is a dict with the keys 0, 1, 2, 3, 4, 5, 6, 7; return"),
        ((X, 1, 2), "it is a tuple of 3 parts; return two parts: input, target; a part may be a"),
        (Output(1, 2, 3), "it is a Output of 3 parts; return two parts"),
        ([X], "it is a list of 1 part; return two parts: input, target"),
        ((), "it is a tuple of 0 parts; return two parts"),
        (None, "it is None; return two parts: input, target"),
        ("ab", "it is of type str; return two parts: input, target"),
        (3, "it is of type int; return two parts"),
        (object(), "it is of type object; return two parts"),
    ],
)
def test_a_sample_that_is_not_two_parts_is_refused_with_the_remedy(data_of, sample, words):
    with pytest.raises(SampleError, match=re.escape(f"users_data:held_out, sample 1: {words}")):
        data_of([(1, 1)] * 100, Samples(lambda i: (1, 1) if i == 0 else sample)).validation(0)


@pytest.mark.parametrize(
    "sample", [(1, 2.0), [1, 2.0], collections.namedtuple("Pair", "input target")(1, 2.0)]
)
def test_two_parts_may_be_a_tuple_a_list_or_have_names(data_of, sample):
    inputs, targets = data_of(Samples(lambda i: sample)).training(0, 0)
    assert (inputs.tolist(), targets.tolist()) == ([1, 1], [2.0, 2.0])

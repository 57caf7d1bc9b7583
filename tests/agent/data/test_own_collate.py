"""Dict samples, None parts, and data sets that make their micro-batches themselves."""

from __future__ import annotations

import random
import re
from collections import UserDict

import numpy as np
import pytest
import torch
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError

ROW = torch.arange(3)


class Collating(Samples):
    """A data set whose micro-batches are ``made(samples)``."""

    def __init__(self, sample, made, count=100):
        super().__init__(sample, count)
        self.made = made

    def collate(self, samples):
        return self.made(samples)


def padded(samples):
    """Samples are dicts of one row of any length, and a label."""
    rows = [sample["ids"] for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"ids": ids, "past": None, "labels": torch.tensor([x["label"] for x in samples])}


def ragged(index):
    return {"ids": torch.arange(1 + index % 5), "label": index}


def noisy(samples):
    drawn = torch.rand(2), np.random.rand(), random.random()
    return torch.cat([drawn[0], torch.tensor(drawn[1:])]), torch.tensor(samples)


def as_lists(both):
    return [part.tolist() for part in both]


# ------------------------------------------------------------ samples


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_the_labels_of_a_dict_are_its_target_and_all_else_its_input(data_of, kind):
    data = data_of(Samples(lambda i: kind(ids=ROW + i, mask=ROW > 0, labels=i)))
    inputs, target = data.training(0, 0)
    indices = data.indices(0, 0)
    assert list(inputs) == ["ids", "mask"]
    assert inputs["ids"].tolist() == [[i, i + 1, i + 2] for i in indices]
    assert target.tolist() == indices


def test_a_dict_may_stand_beside_a_target_and_hold_others(data_of):
    inputs, _ = data_of(Samples(lambda i: ({"a": {"b": ROW}, "c": (i, None)}, i))).training(0, 0)
    assert inputs["a"]["b"].shape == (2, 3)
    assert inputs["c"][0].shape == (2,)
    assert inputs["c"][1] is None


def test_none_of_every_sample_is_none_of_the_micro_batch(data_of):
    inputs, target = data_of(
        Samples(lambda i: {"ids": ROW, "past": None, "labels": None})
    ).training(0, 0)
    assert (inputs["past"], target) == (None, None)


def test_none_of_some_samples_is_refused(data_of):
    words = re.escape("the input['x'] is None and of type int; return the same kind for every")
    with pytest.raises(SampleError, match=words):
        data_of([(1, 1)] * 100, Samples(lambda i: {"x": i or None, "labels": 1})).validation(0)


def test_ragged_samples_are_named_with_shapes_dtypes_and_what_to_do(data_of):
    with pytest.raises(SampleError) as caught:
        data_of(Samples(lambda i: {"ids": torch.arange(4 + i % 2), "labels": i}, 48)).training(0, 1)
    told = re.fullmatch(
        r"step 0, micro-batch 1: users_data:build, samples (\d+) and (\d+): the input\['ids'\] is a"
        r" tensor of shape \((\d),\) and dtype int64 and a tensor of shape \((\d),\) and dtype"
        r" int64; pad or crop them to one shape in __getitem__, or give the data set a"
        r" collate\(samples\)",
        str(caught.value),
    )
    assert told
    assert {4 + int(told[n]) % 2 for n in (1, 2)} == {int(told[n]) for n in (3, 4)} == {4, 5}


@pytest.mark.parametrize("error", [ValueError("torn image"), OSError("torn image")])
def test_a_sample_that_fails_late_is_named_by_step_micro_batch_and_index(data_of, error):
    """The cause stays: the operator asks whether a disk has failed or the code."""
    reading = Samples(lambda i: (ROW, i), 100_003)
    data = data_of(reading)
    data.training(0, 0)
    (index, _) = data.indices(5000, 7)

    def sample(i):
        if i == index:
            raise error
        return ROW, i

    reading.sample = sample
    kind = type(error).__name__
    words = f"step 5000, micro-batch 7: users_data:build, sample {index}: {kind}: torn image"
    with pytest.raises(SampleError, match=f"^{re.escape(words)}$") as caught:
        data.training(5000, 7)
    assert caught.value.__cause__ is error


# ------------------------------------------------------------ a collate of the data set's own


def test_a_data_set_pads_its_micro_batches_itself(data_of):
    data = data_of(Collating(ragged, padded), Collating(ragged, padded))
    for (inputs, target), indices in (
        (data.training(3, 2), data.indices(3, 2)),
        (data.validation(2), [4, 5]),
    ):
        assert target.tolist() == indices
        longest = max(1 + i % 5 for i in indices)
        assert inputs["ids"].shape == (2, longest)
        assert inputs["past"] is None


def test_it_gets_the_samples_as_they_are(data_of):
    got = []

    def made(samples):
        got.extend(samples)
        return torch.zeros(2), torch.zeros(2)

    data_of(Collating(lambda i: f"text {i}", made)).training(0, 0)
    assert len(got) == 2
    assert all(sample.startswith("text ") for sample in got)


def test_its_draws_depend_on_the_micro_batch_alone(data_of):
    one, other = data_of(Collating(int, noisy)), data_of(Collating(int, noisy))
    expected = as_lists(one.training(3, 5))
    one._cache.clear()
    torch.rand(3), np.random.rand(3), random.random()
    assert as_lists(one.training(3, 5)) == expected
    other.training(2, 0)
    assert as_lists(other.training(3, 5)) == expected
    drawn = {
        tuple(data_of(Collating(int, noisy), seed=seed).training(step, m)[0].tolist())
        for seed in (7, 8)
        for step in (3, 4)
        for m in (5, 6)
    }
    assert len(drawn) == 8


def test_validation_draws_the_same_in_every_step(data_of):
    def of(m):
        return data_of([(1, 1)] * 100, Collating(int, noisy)).validation(m)[0].tolist()

    assert of(1) == of(1) != of(2)


def test_draws_of_a_collate_leave_the_process_s_generators_as_they_were(data_of):
    data = data_of(Collating(int, noisy))
    torch.manual_seed(1), np.random.seed(2), random.seed(3)
    expected = [float(torch.rand(())), float(np.random.rand()), random.random()]
    torch.manual_seed(1), np.random.seed(2), random.seed(3)
    data.training(0, 0), data.fingerprint()
    assert [float(torch.rand(())), float(np.random.rand()), random.random()] == expected


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda x: torch.zeros(2), "collate: what it returns is a tensor of shape (2,) and dtype"),
        (lambda x: None, "collate: what it returns is None; return two parts: input, target"),
        (
            lambda x: {"ids": ROW, "label": ROW},
            'collate: what it returns is a dict with the keys "ids", "label"; return two parts, su',
        ),
        (lambda x: (ROW.numpy(), ROW), "collate: the input has a ndarray: return tensors, None"),
        (lambda x: ({"x": [ROW, {1}]}, ROW), "collate: the input has a set in place 1 of a list"),
        (lambda x: (ROW, {2.5: ROW}), "collate: the target has a key of type float: use texts"),
        (
            lambda x: (ROW, torch.ones(1, requires_grad=True)),
            "collate: the target has a tensor that requires grad; detach it",
        ),
        (
            lambda x: (torch.ones(1, device="meta"), ROW),
            "collate: the input has a tensor on meta; leave what it makes on the CPU",
        ),
        (lambda x: {"n": None, "labels": ROW}, "collate: the input has no tensor; return one"),
    ],
)
def test_a_collate_that_returns_something_else_is_refused(data_of, made, words):
    data = data_of([(1, 1)] * 100, Collating(int, made))
    words = f"validation micro-batch 1: users_data:held_out, {words}"
    with pytest.raises(SampleError, match=re.escape(words)):
        data.validation(1)


@pytest.mark.parametrize("error", [KeyError("ids"), SystemExit(1), OSError("no disk")])
def test_a_collate_that_raises_is_told_with_its_samples(data_of, error):
    def made(samples):
        raise error

    data = data_of(Collating(int, made))
    indices = ", ".join(map(str, data.indices(4, 1)))
    words = f"step 4, micro-batch 1: users_data:build, collate of {indices}: {type(error).__name__}"
    with pytest.raises(SampleError, match=re.escape(words)) as caught:
        data.training(4, 1)
    assert caught.value.__cause__ is error


def test_a_collate_that_keeps_a_generator_is_refused(data_of):
    own = np.random.default_rng(0)

    def made(samples):
        return torch.tensor([own.random()]), torch.tensor(samples)

    words = r"users_data:held_out, collate of 0, 1: what it makes differs .* draw from torch's"
    with pytest.raises(SampleError, match=words):
        data_of([(1, 1)] * 100, Collating(int, made)).fingerprint()


def test_the_fingerprint_sees_what_a_collate_makes(data_of):
    def of(shift):
        return data_of(Collating(int, lambda x: (torch.tensor(x) + shift, ROW))).fingerprint()

    assert of(0) == of(0) != of(1)


# ------------------------------------------------------------ what a data set says of its content


def test_the_fingerprint_has_what_a_data_set_says_of_its_content(data_of):
    class Told(Samples):
        told = "a"

        def content_fingerprint(self):
            if not self.told:
                raise OSError("no file")
            return self.told

    training, held_out = Told(lambda i: (i, i)), Told(lambda i: (i, i))
    first = data_of(training, held_out).fingerprint()
    held_out.told = "b"
    assert data_of(training, held_out).fingerprint() != first
    training.told = ""
    with pytest.raises(SampleError, match=r"users_data:build, content_fingerprint\(\): OSError: n"):
        data_of(training, held_out).fingerprint()

"""Targets that a loss ignores: a mean over micro-batches needs equally many in each that count."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
import torch
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.targets import Counted, UnevenTargetsError, count_targets
from bamboo_agent.model import FactoryError
from bamboo_agent.worker.failures import judge
from bamboo_core.protocol.exit_codes import ExitCode

IGNORED = -100


def padded(ignored):
    """A target of 8 with so many at the end ignored."""
    return torch.tensor([1] * (8 - ignored) + [IGNORED] * ignored)


def uneven(odd, *, usual=2, other=3):
    return lambda i: (i, padded(other if i in odd else usual))


EVEN = Samples(uneven(()))


def test_a_micro_batch_that_ignores_more_targets_is_the_user_s_error(data_of):
    data = data_of(Samples(uneven(())))
    odd = data.indices(3, 5)[0]
    data = data_of(Samples(uneven((odd,))))
    data.watch_targets(IGNORED)
    data.training(0, 1)
    words = (
        "users_data:build: micro-batch 5 of step 3 ignores 5 of 16 targets (-100), the first one"
        " ignores 4 of 16: the loss is a mean over what is left, so a mean over micro-batches would"
        " weigh targets differently; return (sum, count), pad so that every micro-batch has as many"
        " targets, or divide the loss by a constant"
    )
    with pytest.raises(UnevenTargetsError, match=re.escape(words)) as caught:
        data.training(3, 5)
    assert issubclass(UnevenTargetsError, FactoryError)
    assert judge(caught.value, ready=True) == ("UserCodeFailed", words, ExitCode.USER)


def test_it_fails_each_time_and_leaves_the_others_alone(data_of):
    data = data_of(Samples(uneven((data_of(EVEN).indices(3, 5)[0],))))
    data.watch_targets(IGNORED)
    for _ in range(2):
        with pytest.raises(UnevenTargetsError):
            data.training(3, 5)
    assert torch.equal(data.training(3, 4)[1][0], padded(2))


def test_nothing_is_counted_unless_it_is_asked_for(data_of):
    data = data_of(Samples(uneven((data_of(EVEN).indices(3, 5)[0],))))
    assert data.training(3, 5)[1].shape == (2, 8)


def test_places_of_ignored_targets_do_not_matter(data_of):
    dataset = Samples(lambda i: (i, padded(2).roll(i)))
    data = data_of(dataset, dataset)
    data.watch_targets(IGNORED)
    for microbatch in range(24):
        data.training(1, microbatch)
    assert data.validation(3)[1].shape == (2, 8)


def test_the_copy_that_the_worker_uses_watches_too(data_of):
    entered, read = [], []

    @contextmanager
    def reading():
        entered.append(1)
        yield read.append

    data = data_of(Samples(uneven((data_of(EVEN).indices(3, 5)[0],))))
    copy = data.watched(reading)
    data.watch_targets(IGNORED)
    with pytest.raises(UnevenTargetsError):
        copy.training(3, 5)
    with pytest.raises(UnevenTargetsError):
        data.watched(reading).training(3, 5)
    assert entered == [1, 1]
    assert read[-3:] == [*data.indices(3, 5), None]


def test_the_first_micro_batch_may_have_been_loaded_before(data_of):
    first = data_of(EVEN).indices(0, 0)
    data = data_of(Samples(uneven(first)))
    data.training(0, 0)
    data.watch_targets(IGNORED)
    words = "micro-batch 1 of step 0 ignores 4 of 16 targets .*, the first one ignores 6 of 16"
    with pytest.raises(UnevenTargetsError, match=words):
        data.training(0, 1)


def test_validation_has_a_first_micro_batch_of_its_own(data_of):
    """It may have other targets than training, since nothing is summed over both."""
    data = data_of(EVEN, Samples(uneven((5,), usual=6, other=7), 20))
    data.watch_targets(IGNORED)
    data.training(0, 1), data.validation(1)
    words = (
        "users_data:held_out: validation micro-batch 2 ignores 13 of 16 targets (-100), the first"
        " one ignores 12 of 16"
    )
    with pytest.raises(UnevenTargetsError, match=re.escape(words)):
        data.validation(2)


@pytest.mark.parametrize(("odd", "fails"), [((), False), ((9,), True)])
def test_a_smaller_last_validation_micro_batch_is_compared_by_share(data_of, odd, fails):
    data = data_of(EVEN, Samples(uneven(odd), 10), size=4)
    data.watch_targets(IGNORED)
    data.validation(1)
    if fails:
        with pytest.raises(UnevenTargetsError, match=r"ignores 5 of 16 .* ignores 8 of 32"):
            data.validation(2)
    else:
        assert data.validation(2)[1].shape == (2, 8)


def test_lengths_that_differ_by_micro_batch_are_uneven_too(data_of):
    """With one sample in each, micro-batches may have other shapes."""
    first = data_of(EVEN, size=1).indices(0, 0)
    dataset = Samples(lambda i: (i, torch.ones(8 if i in first else 9, dtype=torch.int64)))
    data = data_of(dataset, size=1)
    data.watch_targets(IGNORED)
    with pytest.raises(UnevenTargetsError, match=r"ignores 0 of 9 .* ignores 0 of 8"):
        data.training(0, 1)


def test_without_an_ignored_value_all_numbers_of_the_target_count(data_of):
    """Real numbers, too: a mean over positions has other weights in a longer micro-batch."""
    first = data_of(EVEN, size=1).indices(0, 0)
    dataset = Samples(lambda i: (i, torch.ones(8 if i in first else 9)))
    data = data_of(dataset, size=1)
    data.watch_targets(None)
    with pytest.raises(
        UnevenTargetsError, match=r"has 9 targets, the first one has 8: .* a mean over all of them"
    ):
        data.training(0, 1)


def test_a_data_set_that_fails_is_told_when_the_watch_begins(data_of):
    with pytest.raises(SampleError, match="it is None"):
        data_of(Samples(lambda i: None)).watch_targets(IGNORED)


@pytest.mark.parametrize(
    ("target", "ignored", "found"),
    [
        (torch.tensor([[1, -100], [-100, -100]]), -100, (3, 4)),
        (torch.tensor([1, 0], dtype=torch.uint16), 0, (1, 2)),
        (torch.tensor([156, 1], dtype=torch.uint8), -100, (0, 2)),
        (torch.tensor([-100.0]), -100, (0, 0)),
        (torch.tensor([False]), 0, (0, 0)),
        (torch.tensor([0j]), 0, (0, 0)),
        ((torch.tensor([0, 1]), (torch.tensor([0]), torch.ones(1))), 0, (2, 3)),
        ((), 0, (0, 0)),
        (torch.zeros(0, dtype=torch.int64), 0, (0, 0)),
        (torch.tensor([0]).to_sparse(), 0, (0, 0)),
        ((torch.ones(2, 2), torch.tensor([0])), None, (0, 5)),
    ],
)
def test_integers_in_all_parts_of_a_target_are_counted(target, ignored, found):
    assert count_targets(target, ignored, 2) == Counted(*found, 2)

"""Digests differ wherever bits differ, and are the same numbers everywhere."""

from __future__ import annotations

import pytest
import torch

from bamboo_agent.device import digests
from bamboo_agent.device.digests import digest


def swapped_rows(tensor):
    tensor[[2, 7]] = tensor[[7, 2]]


def compensating_flips(tensor):
    """One bit of two words: it is set in one of them only."""
    words = tensor.view(-1).view(torch.int32)
    bit = 1 << 22
    (first, *_), (second, *_) = (
        torch.nonzero((words & bit != 0) == is_set).view(-1).tolist() for is_set in (True, False)
    )
    words[first] ^= bit
    words[second] ^= bit


def negated(tensor):
    tensor.neg_()


def large(tensor):
    """Two words of which one is in a later part."""
    tensor.view(-1)[[0, 300_000]] = tensor.view(-1)[[300_000, 0]]


@pytest.mark.parametrize("change", [swapped_rows, compensating_flips, negated, large])
def test_a_digest_tells_what_a_plain_sum_of_words_does_not(change):
    tensor = torch.randn(400, 1000)
    tensor[200:] = -tensor[:200]  # as many signs of each kind
    before, words = digest([tensor]), tensor.view(torch.int32).sum().item()
    change(tensor)
    assert tensor.view(torch.int32).sum().item() == words
    assert digest([tensor]) != before


def test_a_digest_is_the_same_number_everywhere():
    """Agents of one job compare it, and it wraps around."""
    values = torch.arange(1000, dtype=torch.float32).sqrt()
    words = values.view(torch.int32).tolist()
    weights = [int(weight) for weight in digests._weights(values.device)[:1000]]
    expected = sum(word * weight for word, weight in zip(words, weights, strict=True)) % 2**52
    assert digest([values]) == expected
    assert all(weight % 2 for weight in weights)
    assert len(set(weights)) == 1000


def test_a_digest_tells_order_missing_gradients_and_every_kind_of_number():
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    assert digest([one, two]) != digest([two, one])
    assert digest([one, None]) != digest([None, one])
    assert digest([one, None]) != digest([one])
    assert digest([one], 5) != digest([one])
    for number in (torch.tensor(1.5), torch.ones(3, dtype=torch.bfloat16), torch.tensor([True])):
        changed = number.clone()
        changed.view(-1).view(torch.uint8)[0] ^= 1
        assert digest([number]) != digest([changed])
        assert 0 <= digest([number]) < 2**52
    assert digest([torch.eye(3).to_sparse()]) == digest([torch.eye(3)])

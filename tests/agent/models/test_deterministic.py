"""The replacements equal torch's operations, forward and backward, in fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from bamboo_agent.models.deterministic import AveragePool, cross_entropy, nll_loss


def assert_equal(
    ours: Callable[[torch.Tensor], torch.Tensor],
    theirs: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    both = [x.clone().requires_grad_() for _ in range(2)]
    found = [f(leaf) for f, leaf in zip((ours, theirs), both, strict=True)]
    weights = torch.randn(found[1].shape, dtype=torch.float64, generator=generator)
    for output in found:
        (output * weights).sum().backward()
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(both[0].grad, both[1].grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [(7, 7), (14, 21), (9, 13), (5, 3), (1, 1), (16, 7)])
@pytest.mark.parametrize("to", [(7, 7), (6, 6), (1, 1), (3, 5)])
def test_average_pool(size: tuple[int, int], to: tuple[int, int]) -> None:
    assert_equal(AveragePool(*to), lambda x: functional.adaptive_avg_pool2d(x, to), (2, 3, *size))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 7), (2, 5, 3, 4)])
def test_cross_entropy(shape: tuple[int, ...], smoothing: float) -> None:
    target = target_of(shape)
    assert_equal(
        lambda x: cross_entropy(x, target, label_smoothing=smoothing),
        lambda x: functional.cross_entropy(x, target, label_smoothing=smoothing),
        shape,
    )


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 7), (2, 5, 3, 4)])
def test_nll_loss(shape: tuple[int, ...]) -> None:
    target = target_of(shape)
    assert_equal(
        lambda x: nll_loss(x.log_softmax(1), target),
        lambda x: functional.nll_loss(x.log_softmax(1), target),
        shape,
    )


def target_of(shape: tuple[int, ...]) -> torch.Tensor:
    classes = (shape[0], *shape[2:])
    target = torch.arange(torch.Size(classes).numel()).reshape(classes) % shape[1]
    return target.masked_fill(target == 2, -100)

"""Running statistics of a step are those of torch, whoever computes which micro-batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bamboo_agent.modules.batch_norm import NormError, RunningStatistics

COUNT = 6


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4, momentum=0.3)
    )


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, 8, 8, generator=generator) * (i + 1) for i in range(COUNT)]


def found(statistics: RunningStatistics, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    into: list[torch.Tensor] = []
    with statistics.collected(into):
        module(x)
    return into


def total(statistics: RunningStatistics, module: nn.Module, order: list[int]) -> torch.Tensor:
    sums = [torch.zeros_like(slot) for slot in statistics.slots]
    weighed = {
        i: statistics.weigh(found(statistics, module, batches()[i]), i, COUNT) for i in order
    }
    for index in range(COUNT):
        for into, value in zip(sums, weighed[index], strict=True):
            into += value
    return torch.cat(sums)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_every_kind_gives_the_output_of_torch(kind: type[nn.BatchNorm2d]) -> None:
    shape = (5, 4, *(3,) * {"1": 0, "2": 2, "3": 3}[kind.__name__[-2]])
    ours, theirs = kind(4), kind(4)
    statistics = RunningStatistics(ours)
    x = torch.randn(shape)
    first, second = (x.clone().requires_grad_() for _ in range(2))
    found(statistics, ours, x)
    one, other = ours(first), theirs(second)
    assert torch.equal(one, other)
    one.square().sum().backward()
    other.square().sum().backward()
    assert torch.equal(first.grad, second.grad)  # type: ignore[arg-type]
    assert repr(ours) == repr(theirs)
    assert isinstance(copy.deepcopy(ours), kind)


def test_a_step_ends_with_the_statistics_of_torch() -> None:
    ours, theirs = net(), net()
    statistics = RunningStatistics(ours)
    for _ in range(2):
        statistics.update(total(statistics, ours, list(range(COUNT))), COUNT)
        for x in batches():
            theirs(x)
    for (name, one), (_, other) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=name)
    assert int(ours[1].num_batches_tracked) == 2 * COUNT  # type: ignore[arg-type]


def test_forwards_write_nothing_and_their_order_makes_no_difference() -> None:
    module = net()
    statistics, before = RunningStatistics(module), copy.deepcopy(module.state_dict())
    one = total(statistics, module, list(range(COUNT)))
    other = total(statistics, module, [3, 1, 5, 0, 4, 2])
    assert torch.equal(one, other)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_validation_uses_the_running_statistics() -> None:
    ours, theirs = net(), net()
    statistics = RunningStatistics(ours)
    statistics.update(total(statistics, ours, list(range(COUNT))), COUNT)
    for x in batches():
        theirs(x)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(ours(batches()[0]), theirs(batches()[0]))


def test_statistics_count_once_with_activation_checkpointing() -> None:
    module = net()
    statistics = RunningStatistics(module)
    plain = found(statistics, module, batches()[0])
    into: list[torch.Tensor] = []
    with statistics.collected(into):
        output = checkpoint(module, batches()[0], use_reentrant=False)
    before = copy.deepcopy(module.state_dict())
    output.square().sum().backward()  # runs the forward again
    assert len(into) == len(plain)
    assert all(torch.equal(a, b) for a, b in zip(into, plain, strict=True))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_module_that_is_frozen_or_tracks_nothing_has_no_slots() -> None:
    frozen = nn.BatchNorm2d(4).eval()
    holder = nn.Sequential(frozen, nn.BatchNorm2d(4, track_running_stats=False))
    assert not RunningStatistics(holder).slots
    assert not RunningStatistics(nn.Linear(2, 2)).slots


def test_a_step_without_statistics_needs_none() -> None:
    statistics = RunningStatistics(nn.Linear(2, 2))
    assert statistics.weigh([], 0, COUNT) == []
    statistics.update(torch.empty(0), COUNT)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        for _ in range(times):
            x = self.norm(x)
        return x


@pytest.mark.parametrize(
    ("times", "message"), [(2, "runs twice in one forward"), (0, "norm has not run")]
)
def test_a_module_must_run_exactly_once(times: int, message: str) -> None:
    module = Twice()
    statistics = RunningStatistics(module)
    with pytest.raises(NormError, match=message), statistics.collected([]):
        module(torch.randn(3, 4), times=times)
    with statistics.collected([]):
        module(torch.randn(3, 4), times=1)  # the error has left nothing behind


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.SyncBatchNorm(4), "SyncBatchNorm, whose forward waits for other processes"),
        (nn.BatchNorm1d(4, momentum=None), "momentum=None, a mean over all"),
    ],
)
def test_what_cannot_be_exact_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(NormError, match=message):
        RunningStatistics(nn.Sequential(module))


def test_a_forward_of_the_users_own_is_left_alone() -> None:
    class Mine(nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    module = Mine(4)
    assert not RunningStatistics(module).slots
    assert type(module) is Mine

"""BatchNorm whose running statistics do not depend on which agent runs which micro-batch.

torch's module updates its running statistics in every forward: r <- (1 - m) r + m s, with momentum
m and the statistics s of the micro-batch. After the G micro-batches of a step that is

    r <- (1 - m)^G r + sum over i of m (1 - m)^(G-1-i) s_i

Here a forward in training writes no buffer. It gives s_i to whoever collects it; the weighted sum
is added up as gradients are, and the update of the step does the rest. The module and its forward
are otherwise torch's: with momentum 1 torch writes s itself, so it costs no other pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

Seen = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""id of a module -> mean and variance of the micro-batch."""


class NormError(Exception):
    """A BatchNorm that cannot be trained exactly."""


class _Collecting(threading.local):
    seen: Seen | None = None


_collecting = _Collecting()
_classes: dict[type[_BatchNorm], type[_BatchNorm]] = {}


class RunningStatistics:
    """The running statistics of a layer's BatchNorms, in the order of its modules.

    ``slots``: one fp32 tensor per statistic, mean and variance of each module in turn, which stands
    for it among the tensors whose gradients are summed. Its value is not used.
    """

    def __init__(self, layer: nn.Module) -> None:
        """layer: in training mode; its BatchNorms become exact. NormError."""
        self._modules: list[tuple[str, _BatchNorm]] = []
        for name, module in layer.named_modules():
            if not isinstance(module, _BatchNorm):
                continue
            if isinstance(module, SyncBatchNorm):
                raise NormError(
                    f"{name or 'it'} is a SyncBatchNorm, whose forward waits for other processes:"
                    " use BatchNorm1d, 2d or 3d, which takes the statistics of a micro-batch"
                )
            if module.running_mean is None or not module.training:
                continue
            if module.momentum is None:
                raise NormError(
                    f"{name or 'it'} has momentum=None, a mean over all micro-batches since the"
                    " start: give it a number, such as momentum=0.1"
                )
            if _make_exact(module):
                self._modules.append((name, module))
        self.slots = [
            torch.zeros_like(buffer, dtype=torch.float32)
            for _, module in self._modules
            for buffer in (module.running_mean, module.running_var)
            if buffer is not None
        ]

    @contextmanager
    def collected(self, into: list[torch.Tensor]) -> Iterator[None]:
        """A forward in training: append its statistics in the order of the slots. NormError if a
        module has not run exactly once."""
        if not self._modules:
            yield
            return
        seen: Seen = {}
        _collecting.seen = seen
        try:
            yield
        finally:
            _collecting.seen = None
        for name, module in self._modules:
            if id(module) not in seen:
                raise NormError(
                    f"{name or 'BatchNorm'} has not run in this micro-batch: its running"
                    " statistics need every micro-batch; take it out of the condition"
                )
            into.extend(seen[id(module)])

    def weigh(
        self, statistics: Sequence[torch.Tensor], index: int, count: int
    ) -> list[torch.Tensor]:
        """Weigh what micro-batch ``index`` of ``count`` adds to a step's sums, one per slot."""
        return [
            statistic.float() * (momentum * (1 - momentum) ** (count - 1 - index))
            for statistic, momentum in zip(statistics, self._momenta(), strict=True)
        ]

    def update(self, total: torch.Tensor, count: int) -> None:
        """Move the running statistics on by a step of ``count`` micro-batches. total: the sums of
        all slots, flat."""
        at = 0
        with torch.no_grad():
            for _, module in self._modules:
                keep = (1 - _momentum(module)) ** count
                for buffer in (module.running_mean, module.running_var):
                    assert buffer is not None
                    end = at + buffer.numel()
                    buffer.copy_(buffer.float() * keep + total[at:end].view(buffer.shape))
                    at = end
                if module.num_batches_tracked is not None:
                    module.num_batches_tracked.add_(count)

    def _momenta(self) -> list[float]:
        return [_momentum(module) for _, module in self._modules for _ in range(2)]


def _momentum(module: _BatchNorm) -> float:
    assert module.momentum is not None
    return module.momentum


def _make_exact(module: _BatchNorm) -> bool:
    """Whether it is: a class with a forward of its own is left alone, and refused for what it
    writes."""
    kind = type(module)
    if kind in _classes.values():
        return True
    if kind.forward is not _BatchNorm.forward:
        return False
    if kind not in _classes:
        names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        _classes[kind] = type(kind.__name__, (kind,), {**names, "forward": _forward})
    module.__class__ = _classes[kind]
    return True


def _forward(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """torch's forward, but for the running statistics, which it does not write."""
    if not self.training or self.running_mean is None or self.running_var is None:
        return _BatchNorm.forward(self, input)
    self._check_input_dim(input)  # type: ignore[no-untyped-call]
    mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    output = functional.batch_norm(
        input, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
    )
    seen = _collecting.seen  # None: a forward that activation checkpointing repeats
    if seen is not None:
        if id(self) in seen:
            raise NormError(
                f"a {type(self).__name__} runs twice in one forward: make one for each place"
            )
        seen[id(self)] = mean, variance
    return output

"""The kind of a loss, and whether it gives the gradient of the mean over the global batch.

A sum with its count does, if it is a sum. A mean does if the mean over micro-batches is that over
the global batch. A loss that is a mean over the targets that are not masked weighs the targets of
two micro-batches differently if their numbers differ: a mean of means. It shows in the gradient of
two micro-batches at once: in each half it is the gradient of that half alone times one factor, and
the factors of both differ, but their mean is 1. A loss that couples samples in another way does not
show this.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from bamboo_agent.losses.forms import LossForm, read, read_as
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.setup.probe.refusal import RefusedError

NO_TARGET = -100  # torch's own
_OFTEN_NO_TARGET = (NO_TARGET, -1, 0, 1, 2)  # and where vocabularies have their padding
_COMMON, _POSITIONS = 3, 8
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_ROUGH = 2e-2  # relative, in half precision

_SHAPES = re.compile(
    r"Using a target size \((.*?)\) that is different to the input size \((.*?)\)\."
)
_NUMBER = re.compile(r"\d+")

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class TriedLoss:
    """What was found. usual_count: targets of the first micro-batch, at least 1; 1 for a mean.
    ignored: targets that the loss leaves out of its mean; None among them: it is a mean over all.
    """

    form: LossForm = LossForm()  # noqa: RUF009 - frozen
    usual_count: int = 1
    ignored: tuple[int | None, ...] = ()


def try_loss(
    loss: Callable[[Any, Any], Any],
    outputs: Flow,
    targets: Sequence[Any],
    validation: tuple[Flow, Any] | None,
) -> TriedLoss:
    """RefusedError or LossError if the loss cannot be used.

    outputs: of the last layer, for any micro-batch; targets: of the first micro-batch, and of
    another if there is one; validation: outputs and target, None: there is no such set.
    """
    leaves = _leaves(outputs)
    with _without_products():
        first = read(loss(leaves.value, targets[0]))
        for target in targets[1:]:
            read_as(first.form, loss(leaves.value, target), "micro-batch 1 of step 0")
        if validation is not None:
            values, target = validation
            with torch.no_grad():
                read_as(first.form, loss(values.value, target), "validation micro-batch 0")

    def scalar(outputs: Any, target: Any) -> torch.Tensor:
        return read(loss(outputs, target)).tensor

    if first.form.is_counted:
        check_sums(scalar, outputs, targets)
        return TriedLoss(first.form, max(1, first.count))
    ignored: list[int | None] = []
    if len(targets) > 1:
        check_means(scalar, outputs, (targets[0], targets[1]))
        ignored += ignored_targets(scalar, outputs, targets[0])
        ignored += [None] if is_mean(scalar, outputs, targets[0]) else []
    return TriedLoss(first.form, ignored=tuple(ignored))


@contextmanager
def _without_products() -> Iterator[None]:
    """RefusedError if one of torch's losses compares each output with every target, as of the
    shapes (8, 1) and (8,). Torch warns of it. One target for all outputs is let through."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")  # not only the first time
        yield
    for warning in found:
        shapes = _SHAPES.match(str(warning.message))
        if shapes is None:
            continue
        target, output = (tuple(map(int, _NUMBER.findall(text))) for text in shapes.groups())
        both = torch.broadcast_shapes(output, target)  # type: ignore[no-untyped-call]
        if both not in (output, target):
            raise RefusedError(
                f"the loss compares outputs of the shape {output} with targets of the shape"
                f" {target}, each output with every target: give both one shape, such as"
                " target.view_as(output)"
            )


def check_sums(loss: Loss, outputs: Flow, targets: Sequence[Any]) -> None:
    """RefusedError if a sum is not a number, or is a mean. loss: gives the sum alone."""
    for number, target in enumerate(targets):
        if _is_nan(loss, outputs, target):
            raise RefusedError(
                f"the sum that the loss returns for micro-batch {number} is not a number: return a"
                " sum of numbers, which is 0 if there is no target"
            )
    found = _factors(loss, outputs, targets[0], targets[0])
    if found is not None and all(abs(factor - 1) < _bound(outputs) for factor in found):
        raise RefusedError(
            "the loss returns (mean, count): twice the micro-batch does not give twice the sum;"
            ' return the sum, such as with reduction="sum", or the mean alone'
        )


def check_means(loss: Loss, outputs: Flow, targets: tuple[Any, Any]) -> None:
    """RefusedError if the loss weighs the targets of two micro-batches differently.

    outputs: of the last layer, for any micro-batch; targets: of two micro-batches.
    """
    for number, target in enumerate(targets):
        if _is_nan(loss, outputs, target):
            raise RefusedError(
                f"the loss of micro-batch {number} is not a number. If it is a mean over the"
                " targets that are not masked, there are none: give each micro-batch as many"
                " targets, return (sum, count), or divide the sum by a constant"
            )
    if _weighs_by_count(loss, outputs, *targets):
        raise RefusedError(
            "the loss is a mean over the targets that are not masked, and the first two"
            " micro-batches have different numbers of them, so the mean over micro-batches would"
            " weigh targets differently: return (sum, count) instead, or pad or pack so that each"
            " micro-batch has as many targets, or divide the sum by a constant"
        )


def ignored_targets(loss: Loss, outputs: Flow, target: Any) -> list[int]:
    """Integer targets that the loss leaves out of its mean.

    Data with a number of them that differs from micro-batch to micro-batch would give a mean of
    means. Tried are the usual values, those at the ends of the classes, and the most frequent ones.
    """
    labels = next((part for part in _parts(target) if _is_label(part)), None)
    if labels is None:
        return []
    values, counts = torch.unique(labels, return_counts=True)
    common = values[counts.argsort(descending=True)[:_COMMON]].tolist()
    # on the CPU: another loss may use them as indices, which would break a GPU's context
    outputs, target = (_mapped(x, _to_cpu) for x in _first_sample(outputs, target))
    if sum(part.numel() for part in _parts(target) if _is_label(part)) < 2:
        # half of the targets will be replaced
        outputs, target = (_joined(x, x, _batch_size(outputs)) for x in (outputs, target))
    small = _few_positions(outputs, target)
    outputs, target = small if _has_gradient(loss, *small, default=False) else (outputs, target)
    if not _has_gradient(loss, outputs, target):
        return []
    tried = {*common, *_OFTEN_NO_TARGET, *(size - 1 for size in outputs[0].shape[1:])}
    if isinstance(target, tuple | Mapping):  # a mask beside the labels has zeros and ones, too
        tried = {NO_TARGET}
    ignored = [v for v in tried if not _has_gradient(loss, outputs, _filled(target, v))]
    kept = next((v for v in common if v not in ignored), None)
    if kept is None:
        return sorted(ignored)
    full = _filled(target, kept)
    return sorted(
        v for v in ignored if _weighs_by_count(loss, outputs, full, _filled(full, v, half=True))
    )


def _few_positions(outputs: Flow, target: Any) -> tuple[Flow, Any]:
    """The first positions of a sequence, since losses over many classes take time. The loss may
    need all of them: then it raises."""
    size = int(outputs[0].shape[1]) if outputs[0].dim() > 2 else 0

    def first(tensor: torch.Tensor) -> torch.Tensor:
        is_sequence = tensor.dim() > 1 and tensor.shape[1] == size > _POSITIONS
        return tensor[:, :_POSITIONS] if is_sequence else tensor

    return _mapped(outputs, first), _mapped(target, first)


def _has_gradient(loss: Loss, outputs: Flow, target: Any, *, default: bool = True) -> bool:
    """Whether the target decides anything; ``default`` if the loss raises: it does not leave a
    target out that it does not take."""
    try:
        found = _gradient(loss, outputs, target)
    except Exception:
        return default
    return bool(torch.isfinite(found).all() and found.any())


def _filled(target: Any, value: int, *, half: bool = False) -> Any:
    """The target with all labels replaced, or half of them."""

    labels = next((part for part in _parts(target) if _is_label(part)), None)

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not labels:
            return tensor
        flat = tensor.clone().reshape(-1)
        flat[: (flat.numel() + 1) // 2 if half else flat.numel()] = value
        return flat.reshape(tensor.shape)

    return _mapped(target, fill)


def _is_nan(loss: Loss, outputs: Flow, target: Any) -> bool:
    with torch.no_grad():
        return bool(torch.isnan(loss(outputs.value, target)))


def _first_sample(outputs: Flow, target: Any) -> tuple[Flow, Any]:
    """The outputs and the target of one sample, since losses over many classes take time."""
    size = int(outputs[0].shape[0]) if outputs[0].dim() else 0

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:1] if size and tensor.dim() and tensor.shape[0] == size else tensor

    return _mapped(outputs, first), _mapped(target, first)


def is_mean(loss: Loss, outputs: Flow, target: Any) -> bool:
    """Whether the loss of two equal micro-batches at once is that of one: a mean, and no sum."""
    outputs, target = _first_sample(outputs, target)
    found = _factors(loss, outputs, target, target)
    return found is not None and all(abs(factor - 1) < _bound(outputs) for factor in found)


def _weighs_by_count(loss: Loss, outputs: Flow, one: Any, other: Any) -> bool:
    """Whether two micro-batches at once have another gradient than the mean of both, by one factor
    for each. False also if the loss does not take two at once."""
    found, bound = _factors(loss, outputs, one, other), _bound(outputs)
    if found is None:
        return False
    return abs(found[0] - found[1]) > 2 * bound and abs(sum(found) / 2 - 1) < bound


def _factors(loss: Loss, outputs: Flow, one: Any, other: Any) -> tuple[float, float] | None:
    """The gradient of two micro-batches at once, twice, over that of each alone. None: it is not a
    multiple, no target is masked where the two differ, or the loss does not take two at once."""
    try:
        alone = [_gradient(loss, outputs, target) for target in (one, other)]
        size = _batch_size(outputs)
        both = _gradient(loss, _joined(outputs, outputs, size), _joined(one, other, size))
    except Exception:  # the loss has run on one micro-batch; two at once are not asked of it
        return None
    is_masked = isinstance(one, tuple | Mapping) or any((own == 0).any() for own in alone)
    if one is not other and not is_masked:
        return None  # and there are no weights beside the targets
    factors = []
    for half, own in zip((both[: len(both) // 2], both[len(both) // 2 :]), alone, strict=True):
        square = float(own.dot(own))
        if not square or not torch.isfinite(own).all():
            return None
        factor = 2 * float(half.dot(own)) / square
        rest = float((2 * half - factor * own).norm())
        if rest > _bound(outputs) * abs(factor) * square**0.5:
            return None
        factors.append(factor)
    return factors[0], factors[1]


def _bound(outputs: Flow) -> float:
    return _TOLERANCE.get(outputs[0].dtype, _ROUGH)


def _gradient(loss: Loss, outputs: Flow, target: Any) -> torch.Tensor:
    """The gradient of the loss by the first output, flat."""
    leaves = _leaves(outputs)
    value = loss(leaves.value, target)
    (found,) = torch.autograd.grad(value, [leaves[0]])
    return found.reshape(-1).double()


def _leaves(outputs: Flow) -> Flow:
    return outputs.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))


def _joined(one: Any, other: Any, size: int) -> Any:
    """Two micro-batches as one. A tensor that has no dimension of samples stays."""
    if isinstance(one, Flow):
        return Flow([_joined(a, b, size) for a, b in zip(one, other, strict=True)], one.form)
    if isinstance(one, tuple | list):
        return tuple(_joined(a, b, size) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping):
        return {key: _joined(part, other[key], size) for key, part in one.items()}
    if not isinstance(one, torch.Tensor) or not one.dim() or one.shape[0] != size:
        return one
    return torch.cat([one, other])


def _batch_size(outputs: Flow) -> int:
    return int(outputs[0].shape[0]) if outputs[0].dim() else 1


def _parts(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return tuple(part for inner in value for part in _parts(inner))
    return (value,) if isinstance(value, torch.Tensor) else ()


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, Flow):
        return value.map(change)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_mapped(part, change) for part in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def _is_label(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32, torch.int16)


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()

"""Optimizers: any torch optimizer that works per parameter, one instance per layer.

``spec.training.optimizer.factory`` names a class or function that is called with the layer's
parameters and ``args``. With ``groups`` it gets a list of torch's parameter groups instead, those
of the layer: ``{"params": [...], **args of the group}``, and one without args for the rest.

It may also return ``(optimizer, rate)`` where ``rate(step)`` is the learning rate of a step: a pure
function, so that it needs no state of its own. A group with a rate of its own gets rate(step) x
(its rate / the optimizer's default rate). With ``schedule`` each group gets its own rate x
schedule(step).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from bamboo_agent.compute.layers import Grouping, Layer, OptimizerFactory, Tie
from bamboo_agent.compute.optimizer_state import RATE, SCHEDULE, SETTER
from bamboo_agent.device.random_state import seed_code
from bamboo_agent.model import FactoryError
from bamboo_agent.user_code import arguments_of, call_factory, load_factory, told
from bamboo_core.api.spec import FactorySpec, OptimizerSpec, ParameterGroup

_FIELD = "spec.training.optimizer"


def optimizer_factory(spec: OptimizerSpec, *, seed: int) -> OptimizerFactory:
    """Makes a layer's optimizer. seed: spec.seed. FactoryError if the factory does not exist."""
    factory = load_factory(spec.factory, seed=seed, field=f"{_FIELD}.factory")
    if spec.schedule is not None:
        _made_schedule(spec.schedule, seed)  # its errors belong to no layer

    def call(parameters: Sequence[Any], args: dict[str, Any]) -> Any:
        seed_code(seed, "call", spec.factory)
        return factory(parameters, **args)

    def make(parameters: Sequence[Any]) -> Any:
        groups = list(filter(_is_group, parameters))
        options = [_options(group) for group in groups]  # torch will fill in others
        for group in groups:
            _check_args(spec, group, call)
        try:
            made = call(parameters, spec.args)
        except (Exception, SystemExit) as error:
            known = arguments_of(factory, error, parameters, **spec.args)
            field = "args" if spec.args else "factory"
            raise FactoryError(
                f"{_FIELD}.{field}: {spec.factory} raised {told(error)}{known}"
            ) from error
        if isinstance(made, tuple) and len(made) != 2:
            raise FactoryError(
                f"{spec.factory} returned a tuple of {len(made)}: return the optimizer, or"
                " (optimizer, rate)"
            )
        optimizer, rate = made if isinstance(made, tuple) else (made, None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__
            raise FactoryError(f"{spec.factory} returned a {kind}, not a torch optimizer")
        _check_options(spec, options, optimizer)
        if rate is not None:
            _check_rate(spec.factory, optimizer, rate)
        setattr(optimizer, RATE, rate)
        setattr(optimizer, SCHEDULE, _schedule(spec, optimizer, rate, seed))
        setattr(optimizer, SETTER, (spec.schedule or spec).factory)
        return optimizer

    return make


# ------------------------------------------------------------ groups of parameters


def grouping(spec: OptimizerSpec) -> Grouping | None:
    """Makes torch's groups of a layer's parameters, without those that would be empty. None: the
    spec has none."""
    if not spec.groups:
        return None

    def group(names: Sequence[str], parameters: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        numbers = [group_of(name, spec.groups) for name in names]
        return [
            {"params": taken, **args}
            for number, args in enumerate([*(x.args for x in spec.groups), {}])
            if (taken := [p for p, own in zip(parameters, numbers, strict=True) if own == number])
        ]

    return group


def group_of(name: str, groups: Sequence[ParameterGroup]) -> int:
    """Number of the first group that matches the name of a parameter within its layer; one more
    than the last if none does."""
    matching = (i for i, x in enumerate(groups) if any(fnmatchcase(name, p) for p in x.parameters))
    return next(matching, len(groups))


def check_patterns(spec: OptimizerSpec, names: Iterable[Sequence[str]]) -> None:
    """FactoryError if a pattern matches no parameter of the model. names: of each layer."""
    known = sorted({name for layer in names for name in layer})
    for number, group in enumerate(spec.groups):
        for pattern in group.parameters:
            if any(fnmatchcase(name, pattern) for name in known):
                continue
            near = difflib.get_close_matches(pattern.replace("*", ""), known, n=5, cutoff=0.4)
            raise FactoryError(
                f"{_FIELD}.groups[{number}].parameters: {pattern!r} matches no parameter of any"
                f" layer; names within layers are {', '.join(near or known[:5])}"
                f"{'' if len(near or known[:5]) == len(known) else ', ...'}"
            )


def check_ties(spec: OptimizerSpec, ties: Iterable[Tie]) -> None:
    """FactoryError if the places of a tied parameter are in groups that differ: each copy would be
    updated in its own way."""
    for first, *others in ties:
        for use in others:
            if group_of(use.name, spec.groups) != group_of(first.name, spec.groups):
                raise FactoryError(
                    f"{_FIELD}.groups: {first.name} of layer {first.layer} and {use.name} of layer"
                    f" {use.layer} are one parameter (Model.ties), but in different groups: name"
                    " both in one entry, before others that match them"
                )


def _is_group(given: Any) -> bool:
    return isinstance(given, dict)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _check_args(
    spec: OptimizerSpec, group: dict[str, Any], call: Callable[[Sequence[Any], dict[str, Any]], Any]
) -> None:
    """FactoryError unless the factory takes the group's args for these parameters alone: torch
    checks the args of an optimizer, and nearly nothing in a group."""
    args = _options(group)
    if not args:
        return
    try:
        copies = [p.detach().clone().requires_grad_() for p in group["params"]]
        call([{"params": copies}], {**spec.args, **args})
    except (Exception, SystemExit) as error:
        raise FactoryError(
            f"{_group_field(spec, args)}: {spec.factory} refuses them with {told(error)}"
        ) from error


def _check_options(
    spec: OptimizerSpec, options: Sequence[dict[str, Any]], optimizer: torch.optim.Optimizer
) -> None:
    """FactoryError if an arg of a group is none that groups of this optimizer have: torch would
    ignore it."""
    for args in options:
        unknown = [key for key in args if key not in optimizer.defaults]
        if unknown and optimizer.defaults:
            known = ", ".join(sorted(optimizer.defaults))
            raise FactoryError(
                f"{_group_field(spec, args)}: {unknown[0]!r} is no option of a group of"
                f" {type(optimizer).__name__}, which would ignore it; its options are {known}"
            )


def _group_field(spec: OptimizerSpec, args: dict[str, Any]) -> str:
    number = next(i for i, group in enumerate(spec.groups) if group.args == args)
    return f"{_FIELD}.groups[{number}].args"


# ------------------------------------------------------------ rates


def _schedule(
    spec: OptimizerSpec, optimizer: torch.optim.Optimizer, rate: Any, seed: int
) -> Callable[[int], float] | None:
    """The schedule's function, an own one for each optimizer. FactoryError."""
    if spec.schedule is None:
        return None
    if rate is not None:
        raise FactoryError(
            f"{spec.factory} returned (optimizer, rate), and there is {_FIELD}.schedule, which sets"
            " the rates, too: return the optimizer alone, or leave the schedule out"
        )
    made = _made_schedule(spec.schedule, seed)
    for i, group in enumerate(optimizer.param_groups):
        if group.get("lr") is None:
            raise FactoryError(
                f"{_FIELD}.schedule: param_groups[{i}] of {type(optimizer).__name__} has no lr that"
                " it could multiply: name one in args, or leave the schedule out"
            )
    return made


def _made_schedule(schedule: FactorySpec, seed: int) -> Callable[[int], float]:
    try:
        made = call_factory(schedule, seed=seed)
    except FactoryError as error:
        raise FactoryError(f"{_FIELD}.schedule: {error}") from error.__cause__
    if not callable(made):
        raise FactoryError(
            f"{_FIELD}.schedule: {schedule.factory} returned a {type(made).__name__}; return a"
            " function of the step that gives the factor of the learning rates"
        )
    return made  # type: ignore[no-any-return]


def _check_rate(factory: str, optimizer: torch.optim.Optimizer, rate: Any) -> None:
    """FactoryError if rate(step) cannot set the optimizer's learning rates."""
    if not callable(rate):
        kind = type(rate).__name__
        raise FactoryError(
            f"{factory} returned (optimizer, {kind}): the second must be a function that gives"
            " the learning rate of a step; torch's schedulers keep a state of their own"
        )
    default = optimizer.defaults.get("lr")
    for i, group in enumerate(optimizer.param_groups):
        own = group.get("lr")
        if own is None or default is None or (own != default and not float(default)):
            raise FactoryError(
                f"{factory} returned (optimizer, rate), but the rate of param_groups[{i}] cannot be"
                f" set: its lr is {own}, the optimizer's default is {default}; give the optimizer"
                " an lr above 0"
            )


def clip_scale(grad_norm: float, clip_norm: float) -> float:
    """The factor that limits the global gradient norm to ``clip_norm`` (0: no clipping)."""
    if clip_norm <= 0 or grad_norm <= clip_norm:
        return 1.0
    return clip_norm / (grad_norm + 1e-6)


_ALIGNED_BYTES = 64  # all that torch's kernels ask for


def gradient_norm(values: torch.Tensor) -> torch.Tensor:
    """The Euclidean norm of a flat tensor, which may lie anywhere in a larger buffer.

    On a GPU, torch adds up in another order from an address that its kernels cannot read in full
    words. Where a layer lies depends on the grid, and the bits must not: such a tensor is copied.
    """
    is_aligned = values.data_ptr() % _ALIGNED_BYTES == 0
    found: torch.Tensor = torch.linalg.vector_norm(values if is_aligned else values.clone())
    return found


def group_norms(
    gradient: torch.Tensor, sizes: Sequence[int], groups: Sequence[int], count: int
) -> tuple[float, ...]:
    """The norm of each of ``count`` groups of a layer's parameters; 0 for those it has none of.

    gradient: of the layer, flat; sizes, groups: of each parameter, its numbers and its group.
    """
    norms: list[list[torch.Tensor]] = [[] for _ in range(count)]
    for part, group in zip(torch.split(gradient, list(sizes)), groups, strict=True):
        norms[group].append(gradient_norm(part))
    return tuple(float(torch.linalg.vector_norm(torch.stack(x))) if x else 0.0 for x in norms)


def update(
    layer: Layer, gradient: torch.Tensor, *, scale: float | Sequence[float], step: int
) -> None:
    """One optimizer step of a layer. gradient: flat, not modified. scale: see clip_scale; several:
    of each parameter."""
    if layer.optimizer is None:
        return
    scaled = gradient * scale if isinstance(scale, float) else gradient.clone()
    at = 0
    for index, parameter in enumerate(layer.parameters):
        end = at + parameter.numel()
        if not isinstance(scale, float):
            scaled[at:end] *= scale[index]
        parameter.grad = scaled[at:end].view(parameter.shape).to(parameter.dtype)
        at = end
    assert layer.optimizer_state is not None
    layer.optimizer_state.set_rate(step)
    layer.optimizer.step()
    for parameter in layer.parameters:  # of those, too, that the optimizer does not take
        parameter.grad = None


def adamw(
    parameters: Sequence[torch.Tensor],
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    warmup_steps: int = 0,
    total_steps: int = 0,
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """AdamW with linear warm-up and, if ``total_steps`` is given, linear decay to zero."""
    optimizer = torch.optim.AdamW(
        parameters, lr=lr, betas=(betas[0], betas[1]), weight_decay=weight_decay
    )

    def rate(step: int) -> float:
        if step < warmup_steps:
            return lr * (step + 1) / warmup_steps
        if total_steps > warmup_steps:
            return lr * max(0.0, (total_steps - step) / (total_steps - warmup_steps))
        return lr

    return optimizer, rate

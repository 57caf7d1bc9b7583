"""torchvision's ResNet, VGG and AlexNet as ordered lists of layers, with the library's names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.model import Model
from bamboo_agent.models.deterministic import AveragePool
from bamboo_agent.models.parts import Part, copied, initialised, library

FAMILIES = ("ResNet", "VGG", "AlexNet")
_POOL = "avgpool"
_STAGES = ("layer1", "layer2", "layer3", "layer4")


class Chain(Part):
    """Modules that are called in order: (batch, ...) -> (batch, ...)."""

    def __init__(self, modules: dict[str, nn.Module], *, recomputes: bool) -> None:
        super().__init__(modules, recomputes=recomputes)
        self._paths = tuple(modules)

    def run(self, *arguments: Any) -> torch.Tensor:
        """Call each with the output of the one before; pooled maps become vectors."""
        (x,) = arguments
        for path in self._paths:
            x = self.get_submodule(path)(x)
            if path == _POOL:
                x = torch.flatten(x, 1)
        return x  # type: ignore[no-any-return]


def build(
    name: str,
    *,
    classes: int = 1000,
    narrower: int = 1,
    checkpoint_activations: bool = False,
    **arguments: Any,
) -> Model:
    """The model that ``torchvision.models`` calls ``name``, for (batch, 3, height, width) images.

    Layers: the stem, each block and the head of a ResNet; each convolution and each linear layer,
    with what follows it, of a VGG or AlexNet. narrower: divides all widths, to try a model on a
    processor. arguments: the library's, such as dropout or zero_init_residual. The loss is the mean
    cross-entropy. ValueError: not a model of FAMILIES, or a width that does not divide.
    """
    whole = skeleton(name, classes=classes, narrower=narrower, **arguments)
    if whole.avgpool.output_size != (1, 1):  # that one torch computes as a plain mean
        whole.avgpool = AveragePool(*whole.avgpool.output_size)
    is_zero_first = bool(arguments.get("zero_init_residual"))
    layer = partial(_layer, whole, checkpoint_activations, is_zero_first)
    return Model([partial(layer, paths) for paths in _cut(whole)], functional.cross_entropy)


def skeleton(name: str, *, classes: int, narrower: int = 1, **arguments: Any) -> Any:
    """The library's model without memory. ValueError: see :func:`build`."""
    models = library("torchvision.models", needed_by=__name__)
    if name not in models.list_models(module=models):
        raise ValueError(f"name {name!r}: torchvision.models has no such model")
    with torch.device("meta"):
        found = models.get_model(name, num_classes=classes, **arguments)
        is_known = isinstance(found, tuple(getattr(models, family) for family in FAMILIES))
        if not is_known:
            raise ValueError(
                f"name {name!r} is a {type(found).__name__}; those that can be cut are models of"
                f" the kinds {', '.join(FAMILIES)}"
            )
        if narrower != 1:
            _narrow(found, narrower, kept=(3, classes))
    return found


def _narrow(model: nn.Module, by: int, kept: tuple[int, int]) -> None:
    """Divide the widths of all its modules; those of images and classes are kept."""

    def divided(width: int) -> int:
        if width in kept:
            return width
        if by < 1 or width % by:
            raise ValueError(f"narrower {by} does not divide a width of {width}")
        return width // by

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            if module.groups != 1:
                raise ValueError("narrower: convolutions with groups keep their width")
            sizes = divided(module.in_channels), divided(module.out_channels)
            how: dict[str, Any] = {"stride": module.stride, "padding": module.padding}
            module.__init__(*sizes, module.kernel_size, bias=module.bias is not None, **how)  # type: ignore[misc]
        elif isinstance(module, nn.Linear):
            sizes = divided(module.in_features), divided(module.out_features)
            module.__init__(*sizes)  # type: ignore[misc]
        elif isinstance(module, nn.BatchNorm2d):
            module.__init__(divided(module.num_features))  # type: ignore[misc]


def _layer(whole: nn.Module, recomputes: bool, is_zero_first: bool, paths: tuple[str, ...]) -> Part:
    part = Chain(copied(whole, paths), recomputes=recomputes)
    return initialised(part, partial(_initialise, type(whole).__name__, is_zero_first))


def _cut(whole: nn.Module) -> Iterator[tuple[str, ...]]:
    if type(whole).__name__ == "ResNet":
        yield ("conv1", "bn1", "relu", "maxpool")
        for stage in _STAGES:
            for block, _ in whole.get_submodule(stage).named_children():
                yield (f"{stage}.{block}",)
        yield (_POOL, "fc")
        return
    yield from _runs(whole, "features")
    first, *others = _runs(whole, "classifier")
    yield (_POOL, *first)
    yield from others


def _runs(whole: nn.Module, folder: str) -> Iterator[tuple[str, ...]]:
    """Paths of a sequence, cut before each convolution or linear layer but the first."""
    run: list[str] = []
    has_weights = False
    for name, module in whole.get_submodule(folder).named_children():
        is_weighted = isinstance(module, nn.Conv2d | nn.Linear)
        if is_weighted and has_weights:
            yield tuple(run)
            run = []
        has_weights = has_weights or is_weighted
        run.append(f"{folder}.{name}")
    yield tuple(run)


def _initialise(family: str, is_zero_first: bool, module: nn.Module) -> None:
    """First values as the library's constructors give them; they cannot be asked for a part."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
    if family == "AlexNet":
        return
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear) and family == "VGG":
        nn.init.normal_(module.weight, 0, 0.01)
        nn.init.zeros_(module.bias)
    elif is_zero_first and type(module).__name__ in ("Bottleneck", "BasicBlock"):
        last = "bn3" if type(module).__name__ == "Bottleneck" else "bn2"
        nn.init.zeros_(module.get_submodule(last).weight)  # type: ignore[arg-type]

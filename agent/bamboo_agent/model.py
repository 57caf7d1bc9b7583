"""What users provide: a model as an ordered list of layers, and data sets.

``spec.model.factory`` names a function that returns a :class:`Model`; ``spec.data.factory`` one
that returns a map-style data set of ``(input, target)`` pairs. Every worker calls both with
``args`` as keyword arguments. They must return the same everywhere; the fingerprint checks this.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn

from bamboo_core.api.spec import FactorySpec

Value = torch.Tensor | tuple[torch.Tensor, ...]
"""What flows between layers: one tensor or a tuple of them."""


@dataclass(frozen=True)
class Model:
    """An ordered list of layers and a loss.

    The first layer is called with the micro-batch's input, every other layer with the output of the
    layer before it (a tuple becomes several arguments). A layer may depend only on its arguments,
    parameters, buffers and torch's random state.
    """

    # each builds one layer; the generators are seeded by (seed, layer), so any agent can build any
    layers: Sequence[Callable[[], nn.Module]]
    # (last output, target) -> mean over the micro-batch, a scalar tensor
    loss: Callable[[Any, Any], torch.Tensor]


class Dataset(Protocol):
    """Map-style: ``dataset[i]`` gives (input, target), each a tensor, a number or a tuple.

    A sample may depend on its index and on torch's, numpy's and ``random``'s global generators,
    which are seeded before every sample: by (seed, step, index), for validation by (seed, index). A
    data set that makes a generator makes it in ``__getitem__``, with a seed from a global one:
    ``np.random.default_rng(np.random.randint(2**31))``.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


class FactoryError(Exception):
    """A user's factory is missing, raises, or returns the wrong type."""


def load_factory(name: str) -> Callable[..., Any]:
    """The function named ``module:function``. FactoryError says what is wrong with the name."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise FactoryError(f"{name!r} is not of the form module:function")
    module = _import(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        raise FactoryError(f"module {module_name!r} has no {attribute!r}") from error
    if not callable(found):
        raise FactoryError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


def _import(name: str) -> ModuleType:
    """Runs the user's code, which may raise anything or call sys.exit."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FactoryError(f"cannot import {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        text = f"cannot import {name!r}: {type(error).__name__}: {error}"
        raise FactoryError(text) from error


def call_factory(spec: FactorySpec) -> Any:
    """Call the factory and return its result. FactoryError if it raises."""
    factory = load_factory(spec.factory)
    try:
        return factory(**spec.args)
    except Exception as error:
        raise FactoryError(f"{spec.factory} raised {type(error).__name__}: {error}") from error


def build_model(spec: FactorySpec) -> Model:
    """The user's model. FactoryError if it is not a model or has no layers."""
    model = call_factory(spec)
    if not (hasattr(model, "layers") and callable(getattr(model, "loss", None))):
        kind = type(model).__name__
        raise FactoryError(
            f"{spec.factory} returned a {kind} without layers and loss; return a Model"
        )
    layers = list(model.layers)
    if not layers or not all(callable(build) for build in layers):
        raise FactoryError(f"{spec.factory}: layers must be a non-empty list of functions")
    return Model(layers, model.loss)

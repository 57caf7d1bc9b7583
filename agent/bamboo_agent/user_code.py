"""Calls the code that users bring, by the names in a job's spec.

Torch's, numpy's and ``random``'s generators are seeded before a module is imported and before a
factory is called, so that all agents get the same from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from bamboo_agent.device.random_state import seed_code
from bamboo_agent.model import FactoryError, Model
from bamboo_core.api.spec import FactorySpec


def load_factory(name: str, *, seed: int) -> Callable[..., Any]:
    """The function named ``module:function``. seed: spec.seed. FactoryError says what is wrong with
    the name."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise FactoryError(f"{name!r} is not of the form module:function")
    seed_code(seed, "import", module_name)
    module = _import(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        raise FactoryError(f"module {module_name!r} has no {attribute!r}") from error
    if not callable(found):
        raise FactoryError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


def text_of(error: BaseException) -> str:
    """The error's text. Users' errors may fail to tell it."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"


def told(error: BaseException) -> str:
    """The error's type and text."""
    return f"{type(error).__name__}: {text_of(error)}"


def _import(name: str) -> ModuleType:
    """Runs the user's code, which may raise anything or call sys.exit."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FactoryError(f"cannot import {name!r}: {text_of(error)}") from error
    except (Exception, SystemExit) as error:
        raise FactoryError(f"cannot import {name!r}: {told(error)}") from error


def call_factory(spec: FactorySpec, *, seed: int) -> Any:
    """Call the factory and return its result. FactoryError if it raises."""
    factory = load_factory(spec.factory, seed=seed)
    seed_code(seed, "call", spec.factory)
    try:
        return factory(**spec.args)
    except (Exception, SystemExit) as error:
        raise FactoryError(f"{spec.factory} raised {told(error)}") from error


def build_model(spec: FactorySpec, *, seed: int) -> Model:
    """The user's model. FactoryError if it is not a model or has no layers."""
    model = call_factory(spec, seed=seed)
    if not (hasattr(model, "layers") and callable(getattr(model, "loss", None))):
        kind = type(model).__name__
        raise FactoryError(
            f"{spec.factory} returned a {kind} without layers and loss; return a Model"
        )
    layers = list(model.layers)
    for i, made in enumerate(layers):
        if isinstance(made, nn.Module):
            kind = type(made).__name__
            raise FactoryError(
                f"{spec.factory}: layers[{i}] is a {kind}, which all agents and copies would share:"
                f" give a function that makes a new one each time, such as lambda: {kind}(...)"
            )
    if not layers or not all(callable(build) for build in layers):
        raise FactoryError(f"{spec.factory}: layers must be a non-empty list of functions")
    return Model(layers, model.loss)

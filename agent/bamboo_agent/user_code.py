"""Calls the code that users bring, by the names in a job's spec.

Torch's, numpy's and ``random``'s generators are seeded before a module is imported and before a
factory is called, so that all agents get the same from them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from bamboo_agent.device.random_state import seed_code
from bamboo_agent.factory_names import causes as causes
from bamboo_agent.factory_names import find_factory
from bamboo_agent.factory_names import text_of as text_of
from bamboo_agent.factory_names import told as told
from bamboo_agent.model import FactoryError, Model
from bamboo_core.api.spec import FactorySpec


def load_factory(name: str, *, seed: int, field: str = "") -> Callable[..., Any]:
    """The function named ``module:function``. seed: spec.seed; field: what has the name.

    FactoryError says what is wrong with the name.
    """
    return find_factory(name, field=field, before_import=partial(seed_code, seed, "import"))


def call_factory(spec: FactorySpec, *, seed: int, field: str = "") -> Any:
    """Call the factory and return its result. field: of its name. FactoryError if it raises."""
    factory = load_factory(spec.factory, seed=seed, field=field)
    seed_code(seed, "call", spec.factory)
    try:
        return factory(**spec.args)
    except (Exception, SystemExit) as error:
        where = f"{field}: " if field else ""
        text = f"{spec.factory} raised {told(error)}{arguments_of(factory, error, **spec.args)}"
        raise FactoryError(f"{where}{text}") from error


def arguments_of(
    factory: Callable[..., Any], error: BaseException, *given: Any, **args: Any
) -> str:
    """The factory's arguments behind ``given``, if it does not take these."""
    if not isinstance(error, TypeError):
        return ""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # a function of C may have none
        return ""
    try:
        signature.bind(*given, **args)
    except TypeError:
        names = list(signature.parameters)[len(given) :]
        return f"; its arguments are {', '.join(names) or 'none'}"
    return ""


def build_model(spec: FactorySpec, *, seed: int) -> Model:
    """The user's model. FactoryError if it is not a model or has no layers."""
    model = call_factory(spec, seed=seed, field="spec.model.factory")
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
    names, config = getattr(model, "names", None), getattr(model, "config", None)
    if names is not None and not all(callable(getattr(names, x, None)) for x in ("write", "read")):
        raise FactoryError(f"{spec.factory}: names is no Names: give its functions write and read")
    ties = _ties(spec.factory, getattr(model, "ties", ()), len(layers))
    return Model(layers, model.loss, ties, names, config, getattr(model, "misfit", None))


def _ties(factory: str, ties: Any, layers: int) -> list[list[tuple[int, str]]]:
    """FactoryError unless each tie names a parameter in two layers at least, and no one twice."""
    found: list[list[tuple[int, str]]] = []
    try:
        for uses in ties:
            found.append([(operator.index(layer), str(name)) for layer, name in uses])
    except (TypeError, ValueError) as error:
        raise FactoryError(
            f"{factory}: ties must be a list of lists of (layer, name), such as"
            ' [[(0, "embedding.weight"), (9, "head.weight")]]'
        ) from error
    known: set[tuple[int, str]] = set()
    for number, uses in enumerate(found):
        where = [layer for layer, _ in uses]
        if len(set(where)) != len(where) or len(where) < 2:
            raise FactoryError(
                f"{factory}: ties[{number}] names layers {where}: a tie needs two layers or more,"
                " each once; in one layer use the parameter itself twice"
            )
        if not all(0 <= layer < layers for layer in where):
            raise FactoryError(
                f"{factory}: ties[{number}] names layers {where} of {layers}, counted from 0"
            )
        if not known.isdisjoint(uses):
            raise FactoryError(
                f"{factory}: ties[{number}] has a parameter of another tie: join them"
            )
        known.update(uses)
    return found

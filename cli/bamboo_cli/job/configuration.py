"""The parts of a BambooJob's spec that a report names, in words. Pure.

The spec may be of another version, or of a manifest that no API server has completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bamboo_core.model.counts import counted, grid_of

_MOST = 200
"""Characters of a value."""

Configuration = tuple[tuple[str, str], ...]
"""(name, value), in the order of a report."""


def configuration(spec: Mapping[str, Any]) -> Configuration:
    """The parts that the spec has; nothing is said of what it leaves out."""
    training, worker = _part(spec, "training"), _part(spec, "worker")
    rows = [
        ("model", _factory(_part(spec, "model"))),
        ("data", _factory(_part(spec, "data"))),
        ("optimizer", _factory(_part(training, "optimizer"))),
        ("steps", _text(training.get("steps"))),
        ("batch", _batch(training)),
        ("grid", _grid(_part(spec, "pipelines"))),
        ("redundancy", _text(_part(spec, "redundancy").get("mode"))),
        ("recovery", _text(_part(spec, "recovery").get("policy"))),
        ("placement", _placement(_part(spec, "placement"))),
        ("checkpoints", _checkpoints(_part(spec, "checkpoint"))),
        ("numerics", _text(spec.get("numerics"))),
        ("seed", _text(spec.get("seed"))),
        ("image", _text(worker.get("image"))),
        ("resources of an agent", _resources(_part(worker, "resources"))),
    ]
    return tuple((name, _clipped(value)) for name, value in rows if value)


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _part(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = given.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _factory(given: Mapping[str, Any]) -> str:
    args = ", ".join(f"{key}={value}" for key, value in _part(given, "args").items())
    name = _text(given.get("factory"))
    return f"{name}({args})" if name and args else name


def _batch(training: Mapping[str, Any]) -> str:
    whole, micro = training.get("globalBatchSize"), training.get("microBatchSize")
    if whole is None:
        return ""
    return f"{whole} samples" + (f" in micro-batches of {micro}" if micro is not None else "")


def _grid(pipelines: Mapping[str, Any]) -> str:
    if not {"count", "stages"} <= pipelines.keys():
        return ""
    limits = [f"{word} {pipelines[word]}" for word in ("min", "max") if word in pipelines]
    return ", ".join([grid_of(pipelines["count"], pipelines["stages"]), *limits])


def _placement(placement: Mapping[str, Any]) -> str:
    zones, on_demand = placement.get("zones") or [], placement.get("onDemand")
    where = f"zones {', '.join(map(str, zones))}" if zones else ""
    spot = "on-demand nodes if spot is dry" if on_demand is not None else ""
    return ", ".join(filter(None, (_text(placement.get("adjacency")), where, spot)))


def _checkpoints(checkpoint: Mapping[str, Any]) -> str:
    uri, every = checkpoint.get("uri"), checkpoint.get("everySteps")
    if uri is None:
        return ""
    when = f"every {counted(every, 'step')}" if every else "at the end and on suspend"
    best = checkpoint.get("best")
    if best is not None:
        when += f", and the best by {best.get('metric', 'loss')} ({best.get('mode', 'Min')})"
    return f"{when}, in {uri}"


def _resources(given: Mapping[str, Any]) -> str:
    asked = {**_part(given, "limits"), **_part(given, "requests")}
    return ", ".join(f"{name}: {amount}" for name, amount in asked.items())

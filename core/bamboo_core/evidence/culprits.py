"""Which code of the user's an instruction runs, that has ended an agent's process.

The instruction is known by its text, as the agent's supervisor tells it.
"""

from __future__ import annotations

import re

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.program import COMPUTE, Op

_PLACE = re.compile(
    r"(?P<op>[A-Z]+)(\[(?P<lo>\d+):(?P<hi>\d+)\])?.*?"
    r"( reads (?P<read>.+)|(?P<behind>, (?P<part>layer \d+ \(.+\)|the loss)))?"
)
_STEP = re.compile(r" @\d+")
_LAYERS = COMPUTE | {Op.INIT}
_SAMPLE = "sample "
_APART = "; with spec.data.workers: 1 another process reads samples, and its end loses no step"
_IN_PLACE = "; repair it: an update changes layers in place, so one that fails ends its agent"


def culprit(place: str, spec: JobSpec) -> str:
    """The factory whose code has likely ended the process, with its field; empty: unknown. For a
    sample also what keeps the process alive, for an update why it has ended."""
    found = _PLACE.fullmatch(place)
    if found is None:
        return ""
    op = found["op"]
    if found["read"]:
        field, data = "spec.data", spec.data.factory
        if op == Op.V and spec.data.validation is not None:
            field, data = "spec.data.validation", spec.data.validation.factory
        return f"{field}.factory {data}{'' if spec.data.workers else _APART}"
    if op == Op.UPDATE:
        optimizer = spec.training.optimizer
        text = f"spec.training.optimizer.factory {optimizer.factory}"
        if optimizer.schedule is not None:
            text += f", or its schedule {optimizer.schedule.factory}"
        return text + _IN_PLACE
    if op not in _LAYERS or not found["hi"]:
        return ""
    if found["part"]:
        return f"spec.model.factory {spec.model.factory}, {found['part']}"
    lo, hi = int(found["lo"]), int(found["hi"])
    layers = f"layer {lo}" if hi == lo + 1 else f"layers {lo} to {hi - 1}"
    return f"spec.model.factory {spec.model.factory}, {layers}"


def meeting(place: str) -> str:
    """The part of a place that another agent has in common: its sample, or what it does in which
    step. After a loss the cut may be another, so the layers do not count. Nor does the layer that
    has crashed: damaged memory may end a process in a later one. A layer that ends processes does
    so in all pipelines at once, so the micro-batch does not count either."""
    found = _PLACE.fullmatch(place)
    if found is None or found["hi"] is None:
        return place
    read, step = found["read"] or "", _STEP.search(place)
    if read.startswith(_SAMPLE):
        return read
    return f"{found['op']}{step[0] if step else ''}" + (f" reads {read}" if read else "")

"""Which code of the user's an instruction runs, that has ended an agent's process.

The instruction is known by its text, as the agent's supervisor tells it.
"""

from __future__ import annotations

import re

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.program import Op

_PLACE = re.compile(r"(?P<op>[A-Z]+)(\[(?P<lo>\d+):(?P<hi>\d+)\])?.*?( reads (?P<read>.+))?")
_LAYERS = frozenset({Op.INIT, Op.F, Op.R, Op.B, Op.I, Op.W, Op.V})
_SAMPLE = "sample "


def culprit(place: str, spec: JobSpec) -> str:
    """The factory whose code has likely ended the process, with its field; empty: unknown."""
    found = _PLACE.fullmatch(place)
    if found is None:
        return ""
    op = found["op"]
    if found["read"]:
        field, data = "spec.data", spec.data.factory
        if op == Op.V and spec.data.validation is not None:
            field, data = "spec.data.validation", spec.data.validation.factory
        return f"{field}.factory {data}"
    if op == Op.UPDATE:
        optimizer = spec.training.optimizer
        text = f"spec.training.optimizer.factory {optimizer.factory}"
        schedule = optimizer.schedule
        return text if schedule is None else f"{text}, or its schedule {schedule.factory}"
    if op not in _LAYERS or not found["hi"]:
        return ""
    lo, hi = int(found["lo"]), int(found["hi"])
    layers = f"layer {lo}" if hi == lo + 1 else f"layers {lo} to {hi - 1}"
    return f"spec.model.factory {spec.model.factory}, {layers}"


def meeting(place: str) -> str:
    """What is the same if another agent ends there. A sample is: after a loss its reader may have
    other layers, and its forward another text."""
    found = _PLACE.fullmatch(place)
    is_sample = found is not None and (found["read"] or "").startswith(_SAMPLE)
    return found["read"] if found is not None and is_sample else place

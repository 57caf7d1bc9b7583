"""What a run on one machine, and a program that moves weights, tell the command line: a JSON object
for each line.

They hold torch; the command line does not, and shows what it hears.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from bamboo_core.api.events import Severity
from bamboo_core.api.outcome import Outcome

VALIDATED = "Validated"
"""The reason for which the validation loss at the end is told."""


class WeightsFormat(StrEnum):
    """Files that `bamboo export` writes."""

    SAFETENSORS = "safetensors"  # one file
    TORCH = "torch"  # one file of torch.save
    HUGGINGFACE = "huggingface"  # a folder with config.json


WEIGHT_DTYPES = ("float32", "bfloat16", "float16")
"""To which `bamboo export` can cast."""


@dataclass(frozen=True)
class Doing:
    """What goes on while there is nothing else to tell, and for how long; told again and again."""

    text: str
    seconds: float


@dataclass(frozen=True)
class Layer:
    """A layer that has been run forward. output: shapes and dtypes, in words."""

    index: int
    name: str
    parameters: int
    output: str


@dataclass(frozen=True)
class Fleet:
    """Agents are about to start."""

    pipelines: int
    stages: int
    device: str
    gpus: int  # 0: on the CPU
    folder: str  # of logs and checkpoints


@dataclass(frozen=True)
class Step:
    """A step is committed."""

    step: int
    loss: float
    grad_norm: float
    agents: int  # in the plan
    validation_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict, hash=False)  # beside the loss
    validation_metrics: dict[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Happened:
    """An event of the job, as a cluster would record it, or something to know about this run."""

    reason: str
    message: str
    severity: Severity = Severity.NORMAL


@dataclass(frozen=True)
class Killed:
    """An agent was taken away. planned: how many there are to be."""

    agent: str
    number: int
    planned: int


@dataclass(frozen=True)
class Compared:
    """The plain loop has run. differs: where its bits first differ from the job's; empty: none."""

    steps: int
    tensors: int
    differs: str


@dataclass(frozen=True)
class Ended:
    """The run is over. checkpoint: its folder, empty: there is none."""

    outcome: Outcome
    message: str
    checkpoint: str = ""
    digest: str = ""  # of the final weights and optimizer state
    best: str = ""  # the best checkpoint and its value, in words; empty: there is none


@dataclass(frozen=True)
class Moved:
    """So many layers' weights are read, of all."""

    layers: int
    total: int


@dataclass(frozen=True)
class Written:
    """Weights are in their place. source: a checkpoint's folder, or files; notes: what to know."""

    path: str
    source: str
    tensors: int
    num_bytes: int
    notes: list[str]


@dataclass(frozen=True)
class Refused:
    """Nothing was written."""

    message: str


Told = (
    Doing | Layer | Fleet | Step | Happened | Killed | Compared | Ended | Moved | Written | Refused
)

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Doing, Layer, Fleet, Step, Happened, Killed, Compared, Ended),
        *(Moved, Written, Refused),
    )
}
_ENUMS: dict[str, Any] = {"severity": Severity, "outcome": Outcome}


def to_line(told: Told) -> str:
    """One line without its end."""
    return json.dumps({"kind": type(told).__name__, **asdict(told)})


def from_line(line: str) -> Told:
    """Read what :func:`to_line` wrote. ValueError if it is something else."""
    try:
        values = json.loads(line)
        kind = _KINDS[values.pop("kind")]
        for name in _ENUMS.keys() & values.keys():
            values[name] = _ENUMS[name](values[name])
        told: Told = kind(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{line[:80]!r} is no line of a run on this machine") from error
    return told

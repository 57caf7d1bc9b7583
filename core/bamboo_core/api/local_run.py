"""What a run on one machine tells the command line: a JSON object for each line.

The run holds torch; the command line does not, and shows what it hears.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from bamboo_core.api.events import Severity
from bamboo_core.api.outcome import Outcome

VALIDATED = "Validated"
"""The reason for which the validation loss at the end is told."""


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


Told = Layer | Fleet | Step | Happened | Killed | Compared | Ended

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Layer, Fleet, Step, Happened, Killed, Compared, Ended)
}
_ENUMS: dict[str, Any] = {"severity": Severity, "outcome": Outcome}


def to_line(told: Told) -> str:
    """One line without its end."""
    return json.dumps({"kind": type(told).__name__, **asdict(told)})


def from_line(line: str) -> Told:
    """What :func:`to_line` wrote. ValueError if it is something else."""
    try:
        values = json.loads(line)
        kind = _KINDS[values.pop("kind")]
        for name in _ENUMS.keys() & values.keys():
            values[name] = _ENUMS[name](values[name])
        told: Told = kind(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{line[:80]!r} is no line of a run on this machine") from error
    return told

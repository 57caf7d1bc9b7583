"""From files of weights to the first weights of a job, checked against its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bamboo_agent.weight_files.outlines import WeightsError, prefixed
from bamboo_agent.weight_files.sink import Folder, placed
from bamboo_agent.weight_files.source import given
from bamboo_agent.weight_files.taking import Taken, listed
from bamboo_agent.weights import layers
from bamboo_core.api.local_run import Moved, Written
from bamboo_core.api.spec import JobSpec

_WRAPPED = "module."
"""How names begin in a state dict of a model that DataParallel wraps."""


@dataclass(frozen=True)
class Intake:
    """What to take, and to where. ignored: patterns of tensors that no layer needs to take. casts:
    to the layers' dtypes."""

    source: str
    out: Path
    ignored: Sequence[str] = ()
    casts: bool = False
    force: bool = False


def take(intake: Intake, spec: JobSpec, tell: Callable[[Moved], None]) -> Written:
    """Write a folder that ``spec.model.initialFrom`` can name. WeightsError names every tensor that
    is missing, unexpected, or of another shape or dtype; then nothing is written."""
    source = given(intake.source)
    model = layers.model_of(spec)
    taken = Taken(source, model.names)
    with placed(intake.out, force=intake.force) as temporary:
        folder = Folder(temporary)
        for index, outline in enumerate(layers.outlines(model, spec)):
            found = taken.layer(index, outline, casts=intake.casts)
            if not taken.problems:
                folder.add({prefixed(index, name): tensor for name, tensor in found.items()})
            tell(Moved(index + 1, len(model.layers)))
        unused = [n for n in taken.unused() if not any(fnmatchcase(n, p) for p in intake.ignored)]
        problems = [*taken.problems, *(f"no layer has {name}" for name in unused)]
        idle = [
            f"--ignore {pattern} leaves out nothing, since it is for tensors that no layer has"
            for pattern in intake.ignored
            if not any(fnmatchcase(name, pattern) for name in taken.unused())
        ]
        if problems:
            text = f"{listed(problems)}: {_remedy(taken, unused)}"
            raise WeightsError("; ".join((f"{intake.source}: {text}", *idle)))
        folder.close()
    left = len(taken.unused())
    notes = [f"{left} tensors of the source are left out (--ignore)"] if left else []
    notes += idle
    return Written(str(intake.out), intake.source, len(folder.names), folder.num_bytes, notes)


def _remedy(taken: Taken, unused: Sequence[str]) -> str:
    remedies = ["give weights of this model, or change spec.model"]
    if unused and all(name.startswith(_WRAPPED) for name in unused):
        remedies = [
            f"all names begin with {_WRAPPED!r}, as those of DataParallel do: write the file from"
            " model.module.state_dict()"
        ]
    elif unused:
        remedies.append("leave tensors out with --ignore PATTERN")
    if taken.other_dtypes:
        remedies.append("convert other dtypes with --cast")
    return ", ".join(remedies)

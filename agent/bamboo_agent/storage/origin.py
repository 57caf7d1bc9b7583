"""The checkpoint of another job with which a job begins (``spec.checkpoint.from``).

Nothing is copied. A manifest in the job's own folder, of attempt 0, points to the files of the
other job, which are only read. It is written before the job's checkpoints are first listed, by
every agent with the same content; from then on it is a checkpoint like any other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from bamboo_agent.storage.checkpoint import (
    AbsentError,
    CheckpointError,
    Checkpoints,
    UnreachableError,
)
from bamboo_core.api.identity import identity_parts
from bamboo_core.api.spec import Difference, JobSpec, SourceSpec, batch_shape
from bamboo_core.protocol.messages import Fingerprint, Manifest

log = logging.getLogger(__name__)

_FIELD = "spec.checkpoint.from"
_FOLDER = re.compile(
    r"(?P<job>.+?)(/attempt-(?P<attempt>\d+)(/step-(?P<step>\d+)(/manifest\.json)?)?)?"
)
"""An address. The job's status and events name a checkpoint by its manifest."""
_OF_RUN = "/checkpoints"
"""In the folder of a run on one machine: the folder with those of jobs."""
_ONLY_WEIGHTS = (
    "take only its weights: bamboo export, bamboo import, and spec.model.initialFrom in a new job"
)
_MOST_NAMED = 4  # differences
_MOST_SHOWN = 60  # characters of a value
_SOURCE = "code of "
_WORDS = {
    "code": "the source code of the factories differs",
    "data": "the data set differs, in its length or its samples",
}


class OriginError(CheckpointError):
    """The job cannot begin with the checkpoint. The text says why, and what to do."""


def identity_of(
    spec: JobSpec, fingerprint: Fingerprint, sources: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Values that must be equal in a job that begins with this job's checkpoints. sources: hash of
    the code by factory, which only says where code differs."""
    return {
        **identity_parts(spec),
        "code": fingerprint.code,
        "data": fingerprint.data,
        **{f"{_SOURCE}{factory}": found for factory, found in sources.items()},
    }


def origin_of(
    spec: JobSpec, identity: Mapping[str, str], on_traffic: Callable[[], None] = lambda: None
) -> Origin | None:
    """The checkpoint that the job begins with; None: step 0. identity: this job's. on_traffic: as
    of :class:`Checkpoints`."""
    source = spec.checkpoint.from_ if spec.checkpoint is not None else None
    return None if source is None else Origin(source, spec, identity, on_traffic)


@dataclass
class Origin:
    """The checkpoint that a job names; :func:`origin_of` makes it."""

    source: SourceSpec
    spec: JobSpec
    identity: Mapping[str, str]  # this job's
    on_traffic: Callable[[], None]
    _is_settled: bool = False

    def settle(self, own: Checkpoints) -> None:
        """Write the manifest, if the job has no checkpoint yet.

        OriginError: the other checkpoint is absent, wrong, or of another kind of job. It has an
        OSError as its cause if something is not there: that may be the fault of this node.
        UnreachableError: the storage does not answer. CheckpointError: it cannot be written.
        """
        if self._is_settled:
            return
        if not own.is_there():
            raise UnreachableError("the folder of the job's own checkpoints is not there")
        scan = own.scan()
        if not (scan.good or scan.bad or scan.is_partial):
            own.point_to(*self._found())
        self._is_settled = True

    def _found(self) -> tuple[dict[str, Any], str]:
        """The content of the checkpoint's manifest, checked, and the folder with its files."""
        assert self.spec.checkpoint is not None
        address = self.source.address(self.spec.checkpoint.uri)
        try:
            source, manifest = self._chosen(address)
            content, folder = source.content(manifest)
        except AbsentError as error:
            text = f"{error}; name a checkpoint that is complete, on a storage that agents reach"
            if self.source.job is not None:
                text += "; job is a UID: kubectl get bj NAME -o jsonpath={.metadata.uid}"
            raise OriginError(f"{_FIELD}: {text}") from FileNotFoundError(str(error))
        except (UnreachableError, OriginError):
            raise
        except CheckpointError as error:
            text = f"{error}; name another checkpoint of that job, by attempt and step"
            raise OriginError(f"{_FIELD}: {text}") from None
        self._check(manifest.path, content)
        return content, folder

    def _chosen(self, address: str) -> tuple[Checkpoints, Manifest]:
        found = _FOLDER.fullmatch(address)
        assert found is not None
        parent, _, uid = found["job"].rpartition("/")
        attempt = _one("attempt", self.source.attempt, found["attempt"])
        step = _one("step", self.source.step, found["step"])
        source = Checkpoints(parent or "/", uid, on_traffic=self.on_traffic)
        if attempt is not None and step is not None:
            manifest = source.find(attempt, step)
            if manifest is None:
                raise AbsentError(f"{source.folder(attempt, step)} has no manifest")
            return source, manifest
        scan = source.scan()
        if scan.is_partial:
            if not source.is_there():
                raise AbsentError(scan.unreachable)
            text = f"{scan.unreachable}; name a complete checkpoint by attempt and step"
            raise UnreachableError(text)
        every = [m for m in scan.good if attempt in (None, m.attempt) and step in (None, m.step)]
        newest = max(every, key=lambda m: (m.attempt, m.step), default=None)
        if newest is None:
            what = " and ".join(
                f"{name} {number}"
                for name, number in (("attempt", attempt), ("step", step))
                if number is not None
            )
            there = ", ".join(dict.fromkeys(str(m.step) for m in scan.good))
            if not scan.good and not scan.bad:
                _look_below(source, found["job"])
            text = f"{found['job']} has no complete checkpoint{what and f' of {what}'}"
            raise AbsentError(f"{text}{there and f', but of steps {there}'}")
        if attempt is None and (later := source.later(newest.attempt)):
            text = (
                f"{_FIELD}: {later} has no checkpoint yet, and what that attempt has left behind"
                f" may be wrong: wait, or name the attempt and the step, such as {newest.attempt}"
                f" and {newest.step}"
            )
            raise OriginError(text)
        return source, newest

    def _check(self, path: str, content: Mapping[str, Any]) -> None:
        theirs, step, steps = content.get("identity"), content["step"], self.spec.training.steps
        if not theirs:
            raise OriginError(
                f"{_FIELD}: {path} was written by an earlier version, which did not note what the"
                f" job was: {_ONLY_WEIGHTS}"
            )
        if differences := self._differences(theirs, content):
            text = f"{path} is of a job that computes something else. {'. '.join(differences)}"
            raise OriginError(f"{_FIELD}: {text}. Or {_ONLY_WEIGHTS}")
        if not 0 < step < steps:
            raise OriginError(
                f"{_FIELD}: {path} is of step {step}, and spec.training.steps is {steps}: nothing"
                f" {'is left to train: raise steps' if step else 'is trained: remove from'}"
            )

    def _differences(self, theirs: Mapping[str, str], content: Mapping[str, Any]) -> list[str]:
        """Sentences, each with the remedy first: a long text is cut at its end. Code and data may
        have been repaired; other differences are mistakes."""
        ours = self.identity
        accepted = {x.value.lower() for x in self.source.accept}
        unequal = [x for x in sorted({*ours, *theirs}) if ours.get(x) != theirs.get(x)]
        words = _WORDS | {"code": _words_of_code(ours, theirs)}
        unequal = [x for x in unequal if not x.startswith(_SOURCE)]
        for name in sorted(accepted.intersection(unequal)):
            log.warning("%s.accept takes that %s", _FIELD, words[name])
        changed = [x for x in unequal if x in _WORDS and x not in accepted]
        found = []
        if changed:
            names = ", ".join(
                x.value for x in Difference if x.value.lower() in {*changed, *accepted}
            )
            remedy = f"If you have changed it on purpose, set {_FIELD}.accept: [{names}]"
            found.append(f"{remedy}: {' and '.join(words[x] for x in changed)}")
        fields = [x for x in unequal if x not in _WORDS]
        if fields:
            shown = [
                f"{x} is {_shown(ours.get(x))}, was {_shown(theirs.get(x))}"
                for x in fields[:_MOST_NAMED]
            ]
            if more := len(fields) - len(shown):
                shown.append(f"and {more} more")
            found.append(f"Give this job the same values: {'; '.join(shown)}")
        batch = asdict(batch_shape(self.spec))
        if not found and content.get("batch") != batch:
            text = "The sums of a step are made of other parts"
            found.append(f"{text}: {batch}, was {content.get('batch')}")
        return found


def _look_below(source: Checkpoints, folder: str) -> None:
    """OriginError if the folder is no job's, but those below are: it is the one of a run on one
    machine, or of all jobs."""
    if jobs := source.jobs(_OF_RUN) or source.jobs():
        more = f" or {len(jobs) - 1} more" if len(jobs) > 1 else ""
        text = f"{folder} is no job's folder, but has those of jobs: set uri to {folder}{jobs[0]}"
        raise OriginError(f"{_FIELD}: {text}{more}")


def _words_of_code(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Which factories have other code, if both jobs have noted it by factory."""
    both = sorted(x for x in ours.keys() & theirs.keys() if x.startswith(_SOURCE))
    found = [x.removeprefix(_SOURCE) for x in both if ours[x] != theirs[x]]
    return f"the source code of {' and '.join(found)} differs" if found else _WORDS["code"]


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."


def _one(field: str, given: int | None, found: str | None) -> int | None:
    """A number from a field or from an address."""
    if found is None:
        return given
    if given not in (None, int(found)):
        text = f"{_FIELD}.{field} is {given}, but the uri names {int(found)}: leave one of them out"
        raise OriginError(text)
    return int(found)

"""The schema and the CEL rules of ``crds/`` in Python, for a manifest that no API server has seen.

:func:`bamboo_core.validation.reading.from_manifest` checks the rest: types, numbers, and all
that the API server cannot see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bamboo_core.api.limits import MOST_HOOKS
from bamboo_core.api.progress import METRIC_NAME
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import (
    Adjacency,
    CheckpointSpec,
    Clipping,
    JobSpec,
    Json,
    RedundancyMode,
    TrainingSpec,
)

_LONGEST_NAME = 40
_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_SUFFIX = "xxxxx"
"""The API server adds five characters to ``metadata.generateName``."""

_WORD = "[A-Za-z_][A-Za-z0-9_]*"
_UID = re.compile("[A-Za-z0-9][A-Za-z0-9-]*")
_FACTORY = re.compile(rf"{_WORD}([.]{_WORD})*:{_WORD}")
ADDRESS = (
    "file:///.+|((s3|gs)://[a-z0-9][a-z0-9._-]+|(az|abfs)://[a-z0-9][a-z0-9-]+(@[a-z0-9.]+)?)"
    "(/[A-Za-z0-9._=+-]+)*/?"
)
"""Of checkpoints, as a regular expression. No secrets, and nothing that drivers give a meaning."""
FIRST_WEIGHTS = f"/.+|{ADDRESS}"
"""The same, or a path."""
_URIS = (
    "file:///path, a folder that every agent can reach, or a bucket: s3://bucket/prefix,"
    " gs://bucket/prefix or az://container/prefix (letters, digits and ._=+- between the slashes)"
)
_BYTES = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?|[eE][+-]?[0-9]{1,2})?$"
_NEVER_NONE = {str: "a string", int: "an integer", list: "a list", dict: "an object"}


class Size(NamedTuple):
    """The least and the most length of a text (in characters), a list or an object (in entries)."""

    least: int
    most: int
    pattern: str = ""  # of a text; empty: any
    kinds: tuple[type, ...] = (str,)


_FACTORY_SIZE = Size(0, 253)
_ZONE = Size(1, 63)
_AMOUNTS = Size(0, 32, kinds=(dict,))
_AMOUNT = Size(0, 64, _QUANTITY, (int, str))

SIZES: Mapping[str, Size] = {
    "spec.model.factory": _FACTORY_SIZE,
    "spec.model.initialFrom": Size(1, 1024),
    "spec.data.factory": _FACTORY_SIZE,
    "spec.data.validation.factory": _FACTORY_SIZE,
    "spec.training.optimizer.factory": _FACTORY_SIZE,
    "spec.training.optimizer.groups": Size(0, 32, kinds=(list,)),
    "spec.training.optimizer.groups[].parameters": Size(1, 64, kinds=(list,)),
    "spec.training.optimizer.groups[].parameters[]": Size(1, 253),
    "spec.training.optimizer.schedule.factory": _FACTORY_SIZE,
    "spec.hooks": Size(0, MOST_HOOKS, kinds=(list,)),
    "spec.hooks[].factory": _FACTORY_SIZE,
    "spec.redundancy.hostMemory": Size(0, 20, _BYTES),
    "spec.placement.zones": Size(0, 32, kinds=(list,)),
    "spec.placement.zones[]": _ZONE,
    "spec.placement.pools": Size(0, 32, kinds=(list,)),
    "spec.placement.pools[].zones": Size(1, 32, kinds=(list,)),
    "spec.placement.pools[].zones[]": _ZONE,
    "spec.placement.pools[].nodeSelector": Size(0, 16, kinds=(dict,)),
    "spec.placement.pools[].nodeSelector{}": Size(0, 63),
    "spec.placement.onDemand.nodeSelector": Size(0, 16, kinds=(dict,)),
    "spec.placement.onDemand.nodeSelector{}": Size(0, 63),
    "spec.checkpoint.uri": Size(1, 1024),
    "spec.checkpoint.best.metric": Size(0, 40),
    "spec.checkpoint.from.uri": Size(1, 1024),
    "spec.checkpoint.from.job": Size(1, 63),
    "spec.restore.id": Size(1, 64),
    "spec.worker.image": Size(1, 1024),
    "spec.worker.resources.limits": _AMOUNTS,
    "spec.worker.resources.limits{}": _AMOUNT,
    "spec.worker.resources.requests": _AMOUNTS,
    "spec.worker.resources.requests{}": _AMOUNT,
    "spec.worker.env": Size(0, 128, kinds=(list,)),
    "spec.worker.env[].name": Size(1, 253),
    "spec.worker.env[].value": Size(0, 32768),
    "spec.worker.notices": Size(1, 4, kinds=(list,)),
    "spec.checkpoint.from.accept": Size(0, 2, kinds=(list,)),
}
"""By path; ``[]`` stands for each entry of a list, ``{}`` for each value of an object."""

UNIQUE: Mapping[str, str] = {
    "spec.placement.zones": "",
    "spec.placement.pools[].zones": "",
    "spec.worker.env": "name",
    "spec.worker.notices": "",
    "spec.checkpoint.from.accept": "",
}
"""Path of each list that has no entry twice -> the field that identifies an entry, or empty."""


def problems(manifest: Json, spec: JobSpec) -> list[Problem]:
    """Why the API server refuses to create the job; empty: it does not. spec: the manifest's."""
    found = [*_name_problems(manifest.get("metadata"))]
    for path, size in SIZES.items():
        for where, value in _values(manifest, path):
            found += _size_problems(where, value, size)
    for path, key in UNIQUE.items():
        for where, value in _values(manifest, path):
            found += _doubles(where, value, key)
    found += [*_format_problems(spec), *_grid_problems(manifest, spec), *_zone_problems(spec)]
    found += _source_problems(spec.checkpoint)
    found += [*_restore_problems(spec), *_clip_problems(spec.training)]
    return [*found, *_best_problems(spec)]


def _name_problems(metadata: Json) -> Iterator[Problem]:
    field, given = "metadata.name", metadata if isinstance(metadata, dict) else {}
    name = given.get("name")
    if name is None and isinstance(stem := given.get("generateName"), str):
        name = stem + _SUFFIX
    if name is None:
        yield Problem(field, "is required; set it")
    elif not isinstance(name, str):
        yield Problem(field, f"is {name!r}; it must be a string, in quotes")
    elif not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        yield Problem(
            field,
            f'"{name}" must be a DNS label of at most {_LONGEST_NAME} characters (a-z, 0-9, -,'
            " beginning with a letter), since pods get longer names: choose another name",
        )


def _values(manifest: Json, path: str) -> Iterator[tuple[str, Any]]:
    """The values at the path, with the place of each; what is absent or null has none."""
    found = [("", manifest)]
    for name, turn in re.findall(r"\.?(\w+)((?:\[\]|\{\})?)", path):
        found = [(f"{at}.{name}".lstrip("."), node.get(name)) for at, node in _only(found, dict)]
        if turn == "[]":
            found = [
                (f"{at}[{i}]", x) for at, node in _only(found, list) for i, x in enumerate(node)
            ]
        elif turn:
            found = [
                (f"{at}.{key}", x) for at, node in _only(found, dict) for key, x in node.items()
            ]
    return (each for each in found if each[1] is not None)


def _only(nodes: Iterable[tuple[str, Any]], kind: type) -> list[tuple[str, Any]]:
    return [each for each in nodes if isinstance(each[1], kind)]


def _size_problems(path: str, value: Any, size: Size) -> Iterator[Problem]:
    is_right = isinstance(value, size.kinds) and not isinstance(value, bool)
    if not is_right:
        wanted = " or ".join(_NEVER_NONE[kind] for kind in size.kinds)
        quotes = ", in quotes" if str in size.kinds else ""
        yield Problem(path, f"is {value!r}; it must be {wanted}{quotes}")
        return
    if isinstance(value, int):  # of a quantity
        return
    found, is_text = len(value), isinstance(value, str)
    if found < size.least:
        yield Problem(path, "is empty; set it")
    elif found > size.most:
        units, remedy = ("characters", "shorten it") if is_text else ("entries", "remove some")
        yield Problem(path, f"has {found} {units}; at most {size.most} are allowed: {remedy}")
    elif size.pattern and not re.fullmatch(size.pattern, value):
        yield Problem(path, f"is {value!r}; it must match {size.pattern}, as in 8Gi")


def _doubles(path: str, entries: Iterable[Any], key: str) -> Iterator[Problem]:
    names = [entry[key] if key else entry for entry in entries]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Problem(path, f'names "{name}" twice; name it once')


def _format_problems(spec: JobSpec) -> Iterator[Problem]:
    data, validation = "module:function, for example my_package.data:build", spec.data.validation
    model, optimizer = spec.model.factory, spec.training.optimizer
    factories = [
        ("spec.model", model, "module:function, for example my_package.models:build"),
        ("spec.data", spec.data.factory, data),
        (
            "spec.training.optimizer",
            optimizer.factory,
            "module:class, for example torch.optim:AdamW",
        ),
    ]
    if optimizer.schedule is not None:
        wanted = "module:function, for example bamboo_agent.schedules:cosine"
        factories.append(("spec.training.optimizer.schedule", optimizer.schedule.factory, wanted))
    if validation is not None:
        factories.append(("spec.data.validation", validation.factory, data))
    hook = "module:function, for example my_package.trackers:build"
    factories += [(f"spec.hooks[{i}]", x.factory, hook) for i, x in enumerate(spec.hooks)]
    for path, given, wanted in factories:
        if not _FACTORY.fullmatch(given):
            yield Problem(f"{path}.factory", f'"{given}" must be {wanted}')
    address = spec.model.initial_from
    if address is not None and not re.fullmatch(FIRST_WEIGHTS, address):
        text = f'"{address}" is not supported: use an absolute path, {_URIS}'
        yield Problem("spec.model.initialFrom", text)
    if spec.checkpoint is not None and not re.fullmatch(ADDRESS, uri := spec.checkpoint.uri):
        yield Problem("spec.checkpoint.uri", f'"{uri}" is not supported: use {_URIS}')


def _source_problems(checkpoint: CheckpointSpec | None) -> Iterator[Problem]:
    field, source = "spec.checkpoint.from", checkpoint.from_ if checkpoint is not None else None
    if checkpoint is None or source is None:
        return
    if (source.uri is None) == (source.job is None):
        text = "needs uri or job, one of them: the address of the other checkpoint, or the UID of"
        yield Problem(field, f"{text} its job")
    if source.job is not None and not _UID.fullmatch(source.job):
        text = f'"{source.job}" is no UID: kubectl get bj NAME -o jsonpath={{.metadata.uid}}'
        yield Problem(f"{field}.job", f"{text} prints that of a job")
    if source.uri is not None and not re.fullmatch(ADDRESS, source.uri):
        yield Problem(f"{field}.uri", f'"{source.uri}" is not supported: use {_URIS}')


def _grid_problems(manifest: Json, spec: JobSpec) -> Iterator[Problem]:
    grid, mode, every = spec.pipelines, spec.redundancy.mode, spec.training.validate_every
    given_max = manifest["spec"]["pipelines"].get("max")  # the spec's own is never below count
    if grid.min > grid.count:
        text = f"{grid.min} is more than count {grid.count}: lower min or raise count"
        yield Problem("spec.pipelines.min", text)
    if given_max is not None and grid.count > given_max:
        text = f"{grid.count} is more than max {given_max}: lower count or raise max"
        yield Problem("spec.pipelines.count", text)
    if grid.stages == 1 and mode not in (RedundancyMode.NONE, RedundancyMode.AUTO):
        text = f"{mode} keeps a copy of the next stage, but spec.pipelines.stages is 1: use mode"
        yield Problem("spec.redundancy.mode", f"{text} None, or at least 2 stages")
    if every and spec.data.validation is None:
        text = f"is {every}, but there is no spec.data.validation: add it, or set validateEvery to"
        yield Problem("spec.training.validateEvery", f"{text} 0")


def _clip_problems(training: TrainingSpec) -> Iterator[Problem]:
    field = "spec.training.clip"
    if training.clip is not Clipping.PER_GROUP:
        return
    if not training.optimizer.groups:
        text = "PerGroup clips each group of parameters by itself, but there is no"
        text += " spec.training.optimizer.groups: add groups, or use clip Whole"
        yield Problem(field, text)
    if not training.clip_norm:
        text = "is PerGroup, but spec.training.clipNorm is 0, which turns clipping off: set"
        yield Problem(field, f"{text} clipNorm, or leave clip out")


def _best_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.checkpoint is None or spec.best is None:
        return
    field, name = "spec.checkpoint.best", spec.best.metric
    every, validated = spec.checkpoint.every_steps, spec.training.validate_every
    if not METRIC_NAME.fullmatch(name):
        text = f'"{name}" is no name of a metric: use letters, digits and _, no digit first, as'
        yield Problem(f"{field}.metric", f"{text} the loss names it")
    if not validated:
        text = "needs validations to compare, but spec.training.validateEvery is 0: set it, or"
        yield Problem(field, f"{text} leave best out")
    elif every and every % validated and validated % every:
        text = f"{every} and spec.training.validateEvery {validated}: with spec.checkpoint.best one"
        text += " must be a multiple of the other, or everySteps 0"
        yield Problem("spec.checkpoint.everySteps", text)


def _restore_problems(spec: JobSpec) -> Iterator[Problem]:
    field, step = "spec.restore.fromStep", spec.restore.from_step if spec.restore else 0
    if step and spec.checkpoint is None:
        text = f"is {step}, but there is no spec.checkpoint: use 0 for the start"
        yield Problem(field, text)
    if step > spec.training.steps:
        text = f"{step} is more than spec.training.steps {spec.training.steps}"
        yield Problem(field, f"{text}: name the step of a checkpoint")
    begins_elsewhere = spec.checkpoint is not None and spec.checkpoint.from_ is not None
    if spec.restore is not None and not step and begins_elsewhere:
        text = "is 0, but the job begins with spec.checkpoint.from, not at step 0: name the step"
        yield Problem(field, f"{text} of a checkpoint")


def _zone_problems(spec: JobSpec) -> Iterator[Problem]:
    stages, zones = spec.pipelines.stages, spec.placement.zones
    if spec.placement.adjacency is not Adjacency.ALTERNATE or not zones:
        return
    if len(zones) == 1 and stages > 1:
        yield Problem(
            "spec.placement.adjacency",
            "Alternate keeps neighbours in different zones, but spec.placement.zones names only"
            f' "{zones[0]}": add a zone, or use adjacency Cluster',
        )
    elif len(zones) < spec.least_zones:
        yield Problem(
            "spec.pipelines.stages",
            f"{stages} is odd: in a ring with adjacency Alternate it needs three zones, but"
            " spec.placement.zones names two: add a zone, use an even number of stages, or"
            " adjacency Cluster",
        )

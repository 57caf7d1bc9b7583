"""What decides the bits of a job's result: it never changes in the job's life."""

from __future__ import annotations

import hashlib
import json

from bamboo_core.api import records
from bamboo_core.api.spec import Clipping, JobSpec, Json, Precision

_LATER: dict[str, Json] = {"clip": Clipping.WHOLE, "precision": Precision.FLOAT32}
"""Fields of ``spec.training`` that are newer than some jobs, with their defaults."""


def identity(spec: JobSpec) -> str:
    """Text of the part that decides the bits of the result. It never changes in a job's life."""
    training = records.encode(spec.training)
    del training[records.name_of("on_non_finite")]  # says when to give up
    for name, usual in _LATER.items():  # jobs that began without these fields keep their text
        if training[name] == usual:
            del training[name]
    data = records.encode(spec.data)
    del data["workers"]  # says who reads a sample, not which
    return json.dumps(
        {
            "spec.model": records.encode(spec.model),
            "spec.data": data,
            "spec.training": training,
            "spec.numerics": spec.numerics,
            "spec.seed": spec.seed,
        },
        sort_keys=True,
        separators=(",", ":"),
    )


_LONGEST_PART = 200
"""Characters of a value that :func:`identity_parts` gives as it is."""
_FREE = ("spec.training.steps", "spec.training.validateEvery")
"""Fields of :func:`identity` that change no bit of the state after a step."""


def identity_parts(spec: JobSpec) -> dict[str, str]:
    """Path of each field that decides the state after a step -> its value as JSON, or the hash of
    one that is long. Jobs with equal parts compute equal states. Defaults are left out as in
    :func:`identity`."""
    parts: dict[str, str] = {}

    def add(path: str, value: Json) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                add(f"{path}.{name}", inner)
            return
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        is_long = len(text) > _LONGEST_PART
        parts[path] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if is_long else text

    for part, value in json.loads(identity(spec)).items():
        add(part, value)
    return {path: text for path, text in sorted(parts.items()) if path not in _FREE}


def identity_hash(spec: JobSpec) -> str:
    """Hash of :func:`identity`."""
    return hashlib.sha256(identity(spec).encode()).hexdigest()[:32]

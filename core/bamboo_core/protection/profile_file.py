"""The file of ``bamboo profile``: what the layers of a model cost on a device.

A process that holds torch writes it, and ``bamboo plan`` reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bamboo_core.api import limits, records
from bamboo_core.api.records import Limits
from bamboo_core.api.spec import FactorySpec
from bamboo_core.protocol.messages import LayerCost

_MOST = 10**15  # seconds or bytes: sums and products of such numbers stay finite
_MOST_SHOWN = 400  # characters of a mistake
_LIMITS = {
    "profile.memoryBytes": Limits(0, _MOST),
    "profile.microBatchSize": limits.LIMITS["spec.training.microBatchSize"],
    "profile.layers[].forwardSeconds": Limits(0, _MOST),
    "profile.layers[].backwardSeconds": Limits(0, _MOST),
    "profile.layers[].inputGradientSeconds": Limits(0, _MOST),
    "profile.layers[].weightGradientSeconds": Limits(0, _MOST),
    "profile.layers[].parameterBytes": Limits(0, _MOST),
    "profile.layers[].outputBytes": Limits(0, _MOST),
    "profile.layers[].activationBytes": Limits(0, _MOST),
}


@dataclass(frozen=True)
class Profile:
    """The measured costs of a model."""

    device: str
    memory_bytes: int  # free on the device; 0: unlimited
    micro_batch_size: int  # samples
    model: FactorySpec
    layers: tuple[LayerCost, ...]


def to_json(profile: Profile) -> str:
    """Text of the file."""
    return json.dumps(records.encode(profile), indent=1) + "\n"


def from_json(text: str) -> Profile:
    """Inverse of :func:`to_json`. ValueError names the first field that is wrong, in one line."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    _check_text(value)
    found = records.decode(Profile, value, path="profile", limits=_LIMITS, is_strict=True)
    if isinstance(found, list):
        more = f" ({len(found) - 1} more fields are wrong)" if len(found) > 1 else ""
        raise ValueError(str(found[0])[:_MOST_SHOWN] + more)
    if not found.layers:
        raise ValueError("profile.layers: has no layers")
    return found


def _check_text(value: Any) -> None:
    """Refuse what no message could show: text without a code, or an object that is too deep."""
    if (depth := limits.depth(value)) > limits.DEEPEST:
        raise ValueError(
            f"it is nested {depth} levels deep; at most {limits.DEEPEST} are supported"
        )
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is no character") from error

"""The state of a layer's optimizer: as named tensors and JSON, and back; and its learning rates.

``optim/<parameter>/<key>`` are tensors of the state of a parameter; what is not a tensor stands in
the JSON object under the parameter's name. Under the empty name, which no parameter has, stand:

``groups``: number of a group -> what differs from a new optimizer's group.
``shared``: state under texts, which belongs to no parameter.
``strides``: tensor -> strides, of those that are not contiguous.
``places``: tensor -> ``host`` or ``device``, where :func:`_is_on_host` would put it elsewhere.

What a record of the version before carries has the same form, so each version reads the other's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from bamboo_agent.model import FactoryError
from bamboo_agent.payloads import plain_values
from bamboo_agent.payloads.plain_values import StateError
from bamboo_agent.user_code import told

RATE = "bamboo_rate"
"""Attribute of an optimizer: step -> learning rate, or None."""
SCHEDULE = "bamboo_schedule"
"""Attribute of an optimizer: step -> factor of the learning rates of its groups, or None. At most
one of the two is set."""
SETTER = "bamboo_setter"
"""Attribute of an optimizer: the name of the factory that gave the rate or the schedule."""
_OWN = ""


class RateError(FactoryError):
    """The user's code gives no learning rate for a step."""


class OptimizerState:
    """names, parameters: of the layer, in the same order."""

    def __init__(
        self, optimizer: Any, names: Sequence[str], parameters: Sequence[torch.Tensor]
    ) -> None:
        self._optimizer = optimizer
        self._parameters = dict(zip(names, parameters, strict=True))
        self._rate: Callable[[int], float] | None = getattr(optimizer, RATE, None)
        self._schedule: Callable[[int], float] | None = getattr(optimizer, SCHEDULE, None)
        self._setter: str = getattr(optimizer, SETTER, "")
        if self._rate is not None:
            self._default = float(optimizer.defaults["lr"])
        if self._sets_rates:
            for group in optimizer.param_groups:  # torch shares a tensor with its defaults
                group["lr"] = plain_values.copied(group["lr"])
        self._fresh = [plain_values.copied(_values(group)) for group in optimizer.param_groups]

    @property
    def _sets_rates(self) -> bool:
        return self._rate is not None or self._schedule is not None

    def set_rate(self, step: int) -> None:
        """Set the learning rates of the step. RateError if there are none.

        With a rate: rate(step), scaled for groups with a rate of their own. A group with the
        optimizer's own rate gets rate(step) itself, bit for bit. With a schedule: each group's own
        rate times schedule(step).
        """
        if not self._sets_rates:
            return
        for group, rate in zip(self._optimizer.param_groups, self._rates(step), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def check_rate(self, step: int) -> None:
        """RateError if there are no learning rates for the step. It changes nothing."""
        if self._sets_rates:
            self._rates(step)

    def _rates(self, step: int) -> list[float]:
        owns = [float(fresh["lr"]) for fresh in self._fresh]
        if self._schedule is not None:
            who = f"spec.training.optimizer.schedule: the function of {self._setter}"
            factor = _number(self._schedule, step, who)
            if not 0 <= factor < math.inf:
                raise RateError(f"{who} gives {factor} for step {step}; {_WANTED}")
            return [own * factor for own in owns]
        assert self._rate is not None
        who = f"spec.training.optimizer.factory: the rate of {self._setter}"
        rate, default = _number(self._rate, step, who), self._default
        return [rate if own == default else rate * (own / default) for own in owns]

    def groups_text(self) -> str:
        """The values of a new optimizer's groups, but for tensors."""
        return json.dumps(self._fresh, default=_about, sort_keys=True)

    def moments(self) -> list[torch.Tensor]:
        """The tensors of the parameters' state, themselves."""
        states = (self._optimizer.state.get(p, {}) for p in self._parameters.values())
        return [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]

    # ------------------------------------------------------------ write

    def write(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The tensors themselves, and the JSON. StateError names what cannot be carried."""
        tensors: dict[str, torch.Tensor] = {}
        extra: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                path = f"optim/{name}/{key}"
                if type(key) is not str:
                    raise StateError(f"{path}: the key {key!r} must be a text")
                if isinstance(value, torch.Tensor):
                    plain_values.put(value, path, tensors)
                else:
                    found = plain_values.encode(value, path, tensors)
                    extra.setdefault(name, {})[key] = found
        own = {
            "groups": self._groups(tensors),
            "shared": self._shared(tensors),
            "strides": {n: list(t.stride()) for n, t in tensors.items() if _keeps_strides(t)},
            "places": {n: place for n, t in tensors.items() if (place := self._place(n, t))},
        }
        if any(own.values()):
            extra[_OWN] = {key: value for key, value in own.items() if value}
        return tensors, extra

    def _groups(self, tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        groups = self._optimizer.param_groups
        if len(groups) != len(self._fresh):
            raise StateError(f"param_groups has {len(groups)} groups, {len(self._fresh)} at first")
        found: dict[str, dict[str, Any]] = {}
        for i, (group, fresh) in enumerate(zip(groups, self._fresh, strict=True)):
            if gone := fresh.keys() - group.keys():
                raise StateError(f"param_groups[{i}] has lost {sorted(gone)[0]!r}")
            for key, value in _values(group).items():
                if type(key) is not str:
                    raise StateError(f"param_groups[{i}] has the key {key!r}; keys must be texts")
                if not plain_values.is_plain(value):
                    raise StateError(
                        f"param_groups[{i}][{key!r}] is a {type(value).__name__}, which may change"
                        " unseen; use a tensor, a number, a text, or a list, tuple or dictionary of"
                        " them"
                    )
                is_set = key == "lr" and self._sets_rates  # before every update
                is_new = key not in fresh or not plain_values.are_same(value, fresh[key])
                if is_new and not is_set:
                    path = f"optim//groups/{i}/{key}"
                    encoded = plain_values.encode(value, path, tensors)
                    found.setdefault(str(i), {})[key] = encoded
        return found

    def _shared(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        found = {}
        known = set(self._parameters.values())
        for key, value in self._optimizer.state.items():
            if isinstance(key, str):
                found[key] = plain_values.encode(value, f"optim//shared/{key}", tensors)
            elif key not in known:
                raise StateError(f"optimizer.state has a key of type {type(key).__name__}")
        return found

    def _place(self, name: str, tensor: torch.Tensor) -> str:
        """Where the tensor is; empty: where it would be put without a word."""
        device = self._device(name)
        is_on_host = tensor.device != device
        if is_on_host and tensor.device.type != "cpu":
            raise StateError(f"{name} is on {tensor.device}, its parameter on {device}")
        if device.type == "cpu" or is_on_host == self._is_on_host(name, tensor):
            return ""
        return "host" if is_on_host else "device"

    def _device(self, name: str) -> torch.device:
        """Device of the parameter that the tensor belongs to, or of the first one."""
        parameter = self._owner(name)
        return (
            next(iter(self._parameters.values())).device if parameter is None else parameter.device
        )

    def _is_on_host(self, name: str, tensor: torch.Tensor) -> bool:
        """Without a word: torch's optimizers count steps on the host, in tensors without
        dimensions, and hold moments where their parameter is."""
        parameter = self._owner(name)
        if tensor.dim():
            return False
        return parameter is None or parameter.dim() > 0 or name.endswith("/step")

    def _owner(self, name: str) -> torch.Tensor | None:
        path = name.removeprefix("optim/")
        while path:
            path = path.rpartition("/")[0]
            if path in self._parameters:
                return self._parameters[path]
        return None

    # ------------------------------------------------------------ restore

    def restore(self, tensors: Mapping[str, torch.Tensor], extra: Mapping[str, Any]) -> None:
        """Replace the whole state. ValueError if it is the state of another optimizer."""
        own = extra.get(_OWN, {})
        placed = {
            name: self._placed(name, tensor, own)
            for name, tensor in tensors.items()
            if name.startswith("optim/")
        }
        nested = plain_values.named_tensors(list(extra.values()))
        state = self._optimizer.state
        state.clear()
        for name, parameter in self._parameters.items():
            found = {
                key: plain_values.decode(value, placed)
                for key, value in extra.get(name, {}).items()
            }
            for path, tensor in self._of(name, placed):
                if path not in nested:
                    found[path.removeprefix(f"optim/{name}/")] = tensor
            if found:
                state[parameter] = found
        for key, value in own.get("shared", {}).items():
            state[key] = plain_values.decode(value, placed)
        self._restore_groups(own.get("groups", {}), placed)

    def _of(
        self, name: str, tensors: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        parameter = self._parameters[name]
        prefix = f"optim/{name}/"
        return (
            (path, tensor)
            for path, tensor in tensors.items()
            if path.startswith(prefix) and self._owner(path) is parameter
        )

    def _restore_groups(
        self, found: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        groups = self._optimizer.param_groups
        if extra := found.keys() - {str(i) for i in range(len(groups))}:
            raise ValueError(f"the record has param_groups[{min(extra)}], the optimizer has not")
        for i, (group, fresh) in enumerate(zip(groups, self._fresh, strict=True)):
            changed = plain_values.decode(found.get(str(i), {}), tensors)
            for key in _values(group).keys() - fresh.keys() - changed.keys():
                del group[key]
            for key, value in {**plain_values.copied(fresh), **changed}.items():
                group[key] = value

    def _placed(self, name: str, tensor: torch.Tensor, own: Mapping[str, Any]) -> torch.Tensor:
        """A copy on the device, and with the strides, that the state had."""
        place = own.get("places", {}).get(name)
        is_on_host = self._is_on_host(name, tensor) if place is None else place == "host"
        device = tensor.device if is_on_host else self._device(name)
        strides = own.get("strides", {}).get(name)
        if strides is None:
            return tensor.to(device, copy=True)
        empty = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=device)
        return empty.copy_(tensor)


_WANTED = "it must give a number from 0 on"


def _number(function: Callable[[int], float], step: int, who: str) -> float:
    """The number that the user's function gives for a step. RateError: it gives none."""
    try:
        found = function(step)
        float(found)  # so that it is a number of any kind
    except (Exception, SystemExit) as error:
        raise RateError(f"{who} raised {told(error)} for step {step}; {_WANTED}") from error
    return found


def _about(value: Any) -> str:
    """A text that is equal in all processes, for a value that JSON does not know."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.tolist()}"
    return str(getattr(value, "__qualname__", value if isinstance(value, torch.dtype) else ""))


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _keeps_strides(tensor: torch.Tensor) -> bool:
    """Whether the tensor is dense in another order than that of its dimensions."""
    if tensor.is_contiguous() or not tensor.numel():
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True

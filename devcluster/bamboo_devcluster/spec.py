"""User input: nodes, taints, images. Validated here, immutable afterwards."""

import fnmatch
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.errors import SpecError
from bamboo_devcluster.kube.quantities import parse_quantity

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def machine_architecture() -> str:
    """Return this machine's processor, as Kubernetes and Go name it."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@dataclass(frozen=True)
class Taint:
    """A taint of a node, as in `kubectl taint`."""

    key: str
    effect: str
    value: str = ""

    def __post_init__(self) -> None:
        if self.effect not in _TAINT_EFFECTS:
            raise SpecError(
                "taint.effect", f"{self.effect!r} is not one of {', '.join(_TAINT_EFFECTS)}"
            )

    @classmethod
    def parse(cls, text: str) -> "Taint":
        """Read `key[=value]:effect`."""
        pair, colon, effect = text.rpartition(":")
        if not colon or not pair:
            raise SpecError("taint", f"{text!r} is not of the form key=value:NoSchedule")
        key, _, value = pair.partition("=")
        return cls(key=key, effect=effect, value=value)


@dataclass(frozen=True)
class NodeSpec:
    """A node to add. The defaults describe a small spot machine with one GPU."""

    name: str
    zone: str = "zone-a"
    region: str = "region-1"
    spot: bool = True
    gpus: int = 1
    instance_type: str = "process"
    cpu: str = "8"
    memory: str = "32Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()

    def __post_init__(self) -> None:
        if not _DNS_LABEL.match(self.name):
            raise SpecError(
                "node.name", f"{self.name!r} must be lower case letters, digits, - and ."
            )
        for kind in ("zone", "region", "instance_type"):
            if not _LABEL_VALUE.match(text := getattr(self, kind)):
                words = "at most 63 letters, digits, -, _ and ., a letter or digit first and last"
                raise SpecError(f"node.{kind}", f"{text!r} must be {words}")
        if self.gpus < 0:
            raise SpecError("node.gpus", f"{self.gpus} is negative; give 0 or more")
        for field_name, amount in (("node.cpu", self.cpu), ("node.memory", self.memory)):
            if parse_quantity(amount, field_name) < 0:
                raise SpecError(field_name, f"{amount} is negative; give 0 or more")

    def all_labels(self) -> dict[str, str]:
        """Return the node's labels: the well-known ones, then the user's."""
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine_architecture(),
            "topology.kubernetes.io/zone": self.zone,
            "topology.kubernetes.io/region": self.region,
            "node.kubernetes.io/instance-type": self.instance_type,
            "karpenter.sh/capacity-type": "spot" if self.spot else "on-demand",
            "nvidia.com/gpu.count": str(self.gpus),
            **self.labels,
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` turns back into the same spec."""
        taints = [{"key": t.key, "effect": t.effect, "value": t.value} for t in self.taints]
        plain = {k: v for k, v in self.__dict__.items() if k not in ("labels", "taints")}
        return {**plain, "labels": dict(self.labels), "taints": taints}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NodeSpec":
        """Build a spec from plain data; unknown fields are an error."""
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(data) - known)
        if unknown:
            raise SpecError(
                f"node.{unknown[0]}", f"no such field; known: {', '.join(sorted(known))}"
            )
        if "name" not in data:
            raise SpecError("node.name", "is missing")
        taints = tuple(Taint(**t) for t in data.get("taints", ()))
        return cls(**{**data, "taints": taints})


@dataclass(frozen=True)
class Image:
    """The command and environment that a process node uses for an image."""

    pattern: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    user: str = ""  # UID or UID:GID; only kubelet nodes use it

    def matches(self, name: str) -> bool:
        """Return whether the image reference matches the pattern."""
        return fnmatch.fnmatchcase(name, self.pattern)


class ImageMap:
    """Image patterns and their programs on this machine; the first match wins.

    The file is YAML: `images: [{image: PATTERN, command: [...], args: [...], env: {...},
    workingDir: ..., user: "UID:GID"}]` with shell-style patterns. Pods that give their own
    `command` need no entry.
    """

    _FIELDS = frozenset({"image", "command", "args", "env", "workingDir", "user"})

    def __init__(self, images: Sequence[Image] = ()) -> None:
        self.entries = tuple(images)

    def find(self, name: str) -> Image | None:
        """Return the first entry whose pattern matches the image reference."""
        return next((image for image in self.entries if image.matches(name)), None)

    @classmethod
    def load(cls, path: Path) -> "ImageMap":
        """Read an image map file."""
        try:
            data = yaml.safe_load(path.read_text())
        except OSError as error:
            raise SpecError("images", f"cannot read {path}: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:
            text = " ".join(str(error).split())
            raise SpecError("images", f"{path} is not YAML: {text}; correct it") from error
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: object, where: str = "images") -> "ImageMap":
        """Build a map from the parsed file; `where` names it in errors."""
        entries = data.get("images") if isinstance(data, dict) else None
        if not isinstance(entries, list):
            raise SpecError("images", f"{where} must contain a list under the key `images`")
        return cls([cls._entry(entry, f"images[{n}]") for n, entry in enumerate(entries)])

    @classmethod
    def _entry(cls, entry: object, at: str) -> Image:
        if not isinstance(entry, dict) or not isinstance(entry.get("image"), str):
            raise SpecError(at, "must be a mapping with the key `image`, a name pattern")
        unknown = sorted(set(entry) - cls._FIELDS)
        if unknown:
            raise SpecError(f"{at}.{unknown[0]}", f"no such field; known: {sorted(cls._FIELDS)}")
        for key in ("command", "args"):
            if not isinstance(entry.get(key, []), list):
                raise SpecError(f"{at}.{key}", "must be a list of strings")
        if not isinstance(entry.get("env", {}), dict):
            raise SpecError(f"{at}.env", "must be a mapping of names to values")
        user = str(entry.get("user", ""))
        if not re.fullmatch(r"(\d+(:\d+)?)?", user):
            raise SpecError(f"{at}.user", f"{user!r} is no UID or UID:GID; give numbers")
        return Image(
            pattern=entry["image"],
            command=tuple(str(word) for word in entry.get("command", [])),
            args=tuple(str(word) for word in entry.get("args", [])),
            env={str(k): str(v) for k, v in entry.get("env", {}).items()},
            working_dir=str(entry.get("workingDir", "")),
            user=user,
        )


def spread_nodes(count: int, zones: Sequence[str], **common: Any) -> list[NodeSpec]:
    """Return nodes `node-1`.. distributed round-robin over the zones."""
    if count < 0:
        raise SpecError("nodes", f"{count} is negative; give 0 or more")
    if not zones or not all(zones):
        raise SpecError("zones", "give at least one zone name, separated by commas")
    for index, zone in enumerate(zones):
        if zone in zones[:index]:
            raise SpecError("zones", f"{zone!r} is given twice in --zones; name each zone once")
    return [
        NodeSpec(name=f"node-{n + 1}", zone=zones[n % len(zones)], **common) for n in range(count)
    ]

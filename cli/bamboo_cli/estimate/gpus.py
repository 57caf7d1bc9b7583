"""The memory of the GPU that a manifest asks for, from the labels of nodes that it names.

Sizes are those of the vendors, each with its source. A gigabyte counts as 10^9 bytes, since ECC and
drivers take a part. Of several GPUs the smallest counts: a plan must fit onto each device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bamboo_core.api.spec import JobSpec

_GOOGLE = "https://cloud.google.com/compute/docs/gpus"
_AWS = "https://aws.amazon.com/ec2/instance-types/accelerated-computing/"
_AZURE = "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU. source: the page that gives its memory."""

    name: str
    gigabytes: float
    source: str

    @property
    def memory_bytes(self) -> int:
        """A gigabyte has 10^9 bytes."""
        return int(self.gigabytes * 1e9)


@dataclass(frozen=True)
class Asked:
    """The GPU that a manifest asks for, and the field that says so."""

    gpu: Gpu
    field: str


_P4 = Gpu("P4", 8, _GOOGLE)
_P100 = Gpu("P100", 16, _GOOGLE)
_T4 = Gpu("T4", 16, _GOOGLE)
_V100 = Gpu("V100", 16, _GOOGLE)
_V100_32 = Gpu("V100 32GB", 32, _AWS)
_L4 = Gpu("L4", 24, _GOOGLE)
_A10 = Gpu("A10", 24, f"{_NVIDIA}products/a10-gpu/")
_A10G = Gpu("A10G", 24, _AWS)
_A30 = Gpu("A30", 24, f"{_NVIDIA}products/a30-gpu/")
_A40 = Gpu("A40", 48, f"{_NVIDIA}a40/")
_L40 = Gpu("L40", 48, f"{_NVIDIA}l40/")
_L40S = Gpu("L40S", 48, f"{_NVIDIA}l40s/")
_A100 = Gpu("A100 40GB", 40, _GOOGLE)
_A100_80 = Gpu("A100 80GB", 80, _GOOGLE)
_H100 = Gpu("H100", 80, _GOOGLE)
_H100_NVL = Gpu("H100 NVL", 94, f"{_AZURE}ncadsh100v5-series")
_H200 = Gpu("H200", 141, _GOOGLE)
_B200 = Gpu("B200", 180, _GOOGLE)

_ACCELERATORS: Mapping[str, Gpu] = {
    "nvidia-tesla-p4": _P4,
    "nvidia-tesla-p100": _P100,
    "nvidia-tesla-t4": _T4,
    "nvidia-tesla-v100": _V100,
    "nvidia-l4": _L4,
    "nvidia-tesla-a100": _A100,
    "nvidia-a100-80gb": _A100_80,
    "nvidia-h100-80gb": _H100,
    "nvidia-h100-mega-80gb": _H100,
    "nvidia-h200-141gb": _H200,
    "nvidia-b200": _B200,
}
"""Names of GKE: https://cloud.google.com/kubernetes-engine/docs/concepts/gpus."""

_TYPES: Sequence[tuple[str, Gpu]] = [
    (r"g4dn\..+", _T4),
    (r"g5\..+", _A10G),
    (r"(g6|gr6)\..+", _L4),
    (r"g6e\..+", _L40S),
    (r"p3\..+", _V100),
    (r"p3dn\..+", _V100_32),
    (r"p4d\..+", _A100),
    (r"p4de\..+", _A100_80),
    (r"p5\..+", _H100),
    (r"p5en?\..+", _H200),
    (r"p6-b200\..+", _B200),
    (r"g2-standard-\d+", _L4),
    (r"a2-(highgpu|megagpu)-\d+g", _A100),
    (r"a2-ultragpu-\d+g", _A100_80),
    (r"a3-(highgpu|megagpu|edgegpu)-\d+g", _H100),
    (r"a3-ultragpu-\d+g", _H200),
    (r"a4-highgpu-\d+g", _B200),
    (r"standard_nc\d+as_t4_v3", _T4),
    (r"standard_nc\d+r?s_v3", _V100),
    (r"standard_nd40rs_v2", _V100_32),
    (r"standard_nc\d+ads_a100_v4", _A100_80),
    (r"standard_nd96asr_v4", _A100),
    (r"standard_nd96amsr_a100_v4", _A100_80),
    (r"standard_nc\d+ad(is|s)_h100_v5", _H100_NVL),
    (r"standard_nd96isr_h100_v5", _H100),
    (r"standard_nd96isr_h200_v5", _H200),
    (r"standard_nv(36|72)adm?s_a10_v5", _A10),
]
"""Types of machines, without those that get a part of a GPU: the first pattern that fits counts."""

_FAMILIES: Mapping[str, Gpu] = {
    "p4": _P4, "p100": _P100, "t4": _T4, "v100": _V100, "l4": _L4, "a10": _A10, "a10g": _A10G,
    "a30": _A30, "a40": _A40, "l40": _L40, "l40s": _L40S, "a100": _A100, "h100": _H100,
    "h200": _H200, "b200": _B200,
}  # fmt: skip
"""Names without a size. The smallest variant counts."""

_WANTED = "nvidia.com/gpu"
_SLICE = "nvidia.com/mig-"
_ANY = "/gpu"  # as in amd.com/gpu
_PARTITION = "cloud.google.com/gke-gpu-partition-size"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TEMPLATE = "spec.worker.podTemplate.spec"


def asked(spec: JobSpec) -> Asked | None:
    """The smallest GPU that the job's pods ask for; None: they name none that is known here."""
    if (part := _slice(spec)) is not None:
        return part
    if not wants_nvidia(spec):
        return None
    ways = [found for labels in _ways(spec) if (found := _largest(labels)) is not None]
    return min(ways, key=lambda found: found.gpu.gigabytes, default=None)


def wants(spec: JobSpec) -> bool:
    """Whether an agent asks for a GPU at all. Without one, memory is no limit."""
    return wants_nvidia(spec) or any(name.endswith(_ANY) for name in spec.worker.asks)


def wants_nvidia(spec: JobSpec) -> bool:
    """Whether it is one of those whose memory can be known here."""
    return any(name == _WANTED or name.startswith(_SLICE) for name in spec.worker.asks)


def _slice(spec: JobSpec) -> Asked | None:
    """A part of a GPU, whose size is in the resource's name, as in nvidia.com/mig-1g.5gb."""
    for name in spec.worker.asks:
        if name.startswith(_SLICE) and (size := re.search(r"\.(\d+)gb", name)):
            text = name.removeprefix(_SLICE)
            gpu = Gpu(f"MIG {text}", float(size[1]), "the resource's name")
            return Asked(gpu, f"spec.worker.resources, {name}")
    return None


Label = tuple[str, str, tuple[str, ...]]
"""Field, key, and the values that suffice."""


def _ways(spec: JobSpec) -> Iterator[list[Label]]:
    """For each kind of node that the pods may run on, all labels that it must have."""
    body = _object(spec.worker.pod_template.get("spec"))
    own = list(_labels(body.get("nodeSelector"), f"{_TEMPLATE}.nodeSelector"))
    affinity = _object(_object(body.get("affinity")).get("nodeAffinity")).get(_REQUIRED)
    terms = [list(_expressions(term)) for term in _list(_object(affinity).get("nodeSelectorTerms"))]
    for place in _places(spec):
        replaced = {key for _, key, _ in place}
        kept = [label for label in own if label[1] not in replaced]
        for term in terms or [[]]:
            yield [*kept, *term, *place]


def _places(spec: JobSpec) -> list[list[Label]]:
    """The labels of each pool. They replace those of the pod template that have the same key."""
    placement = spec.placement
    found = [
        list(_labels(pool.node_selector, f"spec.placement.pools[{i}].nodeSelector"))
        for i, pool in enumerate(placement.pools)
    ] or [[]]
    if placement.on_demand is not None:
        field = "spec.placement.onDemand.nodeSelector"
        found.append(list(_labels(placement.on_demand.node_selector, field)))
    return found


def _labels(selector: Any, field: str) -> Iterator[Label]:
    for key, value in _object(selector).items():
        yield f"{field}, {key}", key, (str(value),)


def _expressions(term: Any) -> Iterator[Label]:
    for rule in _list(_object(term).get("matchExpressions")):
        found = _object(rule)
        if found.get("operator") == "In":
            key = str(found.get("key", ""))
            values = tuple(map(str, _list(found.get("values"))))
            yield f"{_TEMPLATE}.affinity.nodeAffinity, {key}", key, values


def _largest(labels: Sequence[Label]) -> Asked | None:
    """The GPU of a node that has all the labels: each says how small it may be at least. Where GPUs
    are divided, an agent gets a part."""
    parts = [label for label in labels if label[1] == _PARTITION]
    found = [
        Asked(min(gpus, key=lambda gpu: gpu.gigabytes), f"{field} {'|'.join(values)}")
        for field, key, values in parts or labels
        if (gpus := [gpu for value in values if (gpu := _gpu(key, value)) is not None])
        and len(gpus) == len(values)
    ]
    return max(found, key=lambda each: each.gpu.gigabytes, default=None)


def _gpu(key: str, value: str) -> Gpu | None:
    """The GPU of nodes with this label; None: the label says nothing about it."""
    match key:
        case "cloud.google.com/gke-accelerator":
            return _ACCELERATORS.get(value)
        case "cloud.google.com/gke-gpu-partition-size":
            size = re.fullmatch(r"\d+g\.(\d+)gb", value)
            return size and Gpu(f"MIG {value}", float(size[1]), key)
        case "node.kubernetes.io/instance-type" | "karpenter.azure.com/sku-name":
            return _of_type(value)
        case "karpenter.k8s.aws/instance-family":
            return _of_type(f"{value}.any")
        case "karpenter.k8s.aws/instance-gpu-name" | "karpenter.azure.com/sku-gpu-name":
            return _FAMILIES.get(value.lower())
        case "karpenter.k8s.aws/instance-gpu-memory" | "nvidia.com/gpu.memory":
            return _of_mebibytes(value, key)
        case "nvidia.com/gpu.product":
            return _of_product(value)
    return None


def _of_type(name: str) -> Gpu | None:
    return next((gpu for text, gpu in _TYPES if re.fullmatch(text, name.lower())), None)


def _of_mebibytes(value: str, key: str) -> Gpu | None:
    """A label that is the size itself."""
    size = float(int(value) * 2**20 / 1e9) if re.fullmatch(r"[1-9]\d{0,8}", value) else 0.0
    return Gpu(f"GPU with {value} MiB", size, key) if size else None


def _of_product(name: str) -> Gpu | None:
    """A name of NVIDIA's feature discovery, such as NVIDIA-A100-SXM4-40GB, Tesla-T4-SHARED or
    NVIDIA-A100-SXM4-80GB-MIG-3g.40gb: of several sizes the last one counts."""
    words = re.split(r"[-_ ]", name.lower())
    known = next((_FAMILIES[word] for word in words if word in _FAMILIES), None)
    sizes = re.findall(r"(\d+)gb\b", name.lower())
    if not sizes:
        return known
    return Gpu(name, float(sizes[-1]), "nvidia.com/gpu.product")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

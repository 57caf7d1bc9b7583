"""Reads a BambooJob: from its manifest to the spec, or to a list of what is wrong with it.

The API server checks a manifest, too, by the schema and the CEL rules of ``crds/``. For manifests
that it has not seen, :mod:`bamboo_core.validation.server_rules` has the same rules.
"""

from __future__ import annotations

from bamboo_core.api import limits, records
from bamboo_core.api.limits import LIMITS, MOST_AGENTS
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import (
    JobSpec,
    Json,
    NoticeSource,
    PipelinesSpec,
    PlacementSpec,
    RedundancySpec,
)
from bamboo_core.model.numerics import choose
from bamboo_core.validation import devices, overridden, pod_template
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules


def from_manifest(
    manifest: Json,
    *,
    is_strict: bool = False,
    rules: PodRules = RESTRICTED,
    is_started: bool = False,
) -> JobSpec | list[Problem]:
    """The spec of a BambooJob, or its problems (never an empty list).

    It checks types, :data:`LIMITS` and what the API server's schema and CEL rules cannot see.
    Unknown fields are problems only if ``is_strict``; see :func:`records.decode`. rules: what pods
    may have. is_started: the job has had a plan, so what has no effect is no problem, nor are more
    pipelines than sums: an earlier version may have begun it with more sums.
    """
    found = read(manifest, is_strict=is_strict)
    if isinstance(found, list):
        return found
    problems = _problems(found, rules)
    if not problems and not is_started:
        problems = [*_leaf_problems(found), *overridden.problems(found)]
    return problems or found


def read(manifest: Json, *, is_strict: bool = False) -> JobSpec | list[Problem]:
    """As :func:`from_manifest`, but what the spec asks for may be forbidden."""
    spec = manifest.get("spec")
    if spec is None:
        return [Problem("spec", "is required; set it")]
    if too_large := limits.text_problems(spec):
        return too_large
    return records.decode(JobSpec, spec, path="spec", limits=LIMITS, is_strict=is_strict)


def _problems(spec: JobSpec, rules: PodRules) -> list[Problem]:
    return [
        *_grid_problems(spec.pipelines),
        *_batch_problems(spec),
        *_memory_problems(spec.redundancy),
        *_resource_problems(spec),
        *_pool_problems(spec.placement),
        *_on_demand_problems(spec),
        *_notice_problems(spec.worker.notices),
        *_args_problems(spec),
        *pod_template.env_problems(spec.worker.env, path="spec.worker.env", rules=rules),
        *pod_template.problems(
            spec.worker.pod_template, path="spec.worker.podTemplate", rules=rules
        ),
    ]


def _grid_problems(grid: PipelinesSpec) -> list[Problem]:
    agents = grid.count * grid.stages
    text = f"{grid.count} times stages {grid.stages} makes {agents} agents"
    text += f"; at most {MOST_AGENTS} are supported: lower one of them"
    return [Problem("spec.pipelines.count", text)] if agents > MOST_AGENTS else []


def _resource_problems(spec: JobSpec) -> list[Problem]:
    path = "spec.worker.resources"
    found = [
        Problem(f"{path}.{key}", f"is {value!r}; it must be an object")
        for key in ("limits", "requests")
        if not isinstance(value := spec.worker.resources.get(key) or {}, dict)
    ]
    return found or [*devices.problems(spec.worker.resources, path)]


def _pool_problems(placement: PlacementSpec) -> list[Problem]:
    path, seen = "spec.placement.pools", set[str]()
    found = pod_template.zone_problems(placement.zones, path="spec.placement.zones")
    for index, pool in enumerate(placement.pools):
        if not pool.zones:
            found.append(Problem(f"{path}[{index}].zones", "is empty; name at least one zone"))
        for zone in pool.zones:
            if zone in seen:
                text = f"names zone {zone!r} again; a zone may be in one pool only: remove it"
                found.append(Problem(f"{path}[{index}].zones", text))
            seen.add(zone)
        found += pod_template.zone_problems(pool.zones, path=f"{path}[{index}].zones")
        labels = pool.node_selector
        found += pod_template.label_problems(labels, path=f"{path}[{index}].nodeSelector")
    if placement.pools and (strange := [zone for zone in placement.zones if zone not in seen]):
        text = f"names {', '.join(strange)}, but no pool of {path} does: remove it, or add it there"
        found.append(Problem("spec.placement.zones", text))
    return found


def _on_demand_problems(spec: JobSpec) -> list[Problem]:
    rule = spec.placement.on_demand
    if rule is None:
        return []
    has_pool_labels = any(pool.node_selector for pool in spec.placement.pools)
    template = spec.worker.pod_template
    return pod_template.spot_problems(template, rule.node_selector, has_pool_labels=has_pool_labels)


def _notice_problems(sources: tuple[NoticeSource, ...]) -> list[Problem]:
    path, text = "spec.worker.notices", ", ".join(sources)
    if not sources:
        return [Problem(path, "is empty; name a source, or use [Auto] or [None]")]
    if len(set(sources)) < len(sources):
        return [Problem(path, f"[{text}] names a source twice; name it once")]
    if len(sources) > 1 and any(source.stands_alone for source in sources):
        return [Problem(path, f"is [{text}]; Auto and None stand alone: remove the others")]
    return []


def _memory_problems(redundancy: RedundancySpec) -> list[Problem]:
    try:
        is_usable = redundancy.host_memory_bytes >= 0
    except ValueError:
        is_usable = False
    text = f"is {redundancy.host_memory!r}; it must be a quantity of bytes, as in 8Gi"
    return [] if is_usable else [Problem("spec.redundancy.hostMemory", text)]


def _batch_problems(spec: JobSpec) -> list[Problem]:
    training = spec.training
    if training.global_batch_size % training.micro_batch_size:
        text = (
            f"{training.global_batch_size} is not a multiple of microBatchSize"
            f" {training.micro_batch_size}: choose a multiple"
        )
        return [Problem("spec.training.globalBatchSize", text)]
    for name, pipelines in (("count", spec.pipelines.count), ("max", spec.pipelines.max)):
        if training.microbatches < pipelines:
            text = (
                f"{training.global_batch_size} makes {training.microbatches} micro-batches of"
                f" {training.micro_batch_size} samples, fewer than spec.pipelines.{name}"
                f" {pipelines}: raise globalBatchSize, or lower microBatchSize or {name}"
            )
            return [Problem("spec.training.globalBatchSize", text)]
    return limits.task_problems(spec)


def _leaf_problems(spec: JobSpec) -> list[Problem]:
    """Some pipelines would have nothing to add up. A job of an earlier version has other sums."""
    training = spec.training
    shape = choose(microbatches=training.microbatches, pipelines_max=1)
    if shape.leaves < spec.pipelines.max:
        text = (
            f"{training.global_batch_size} makes {training.microbatches} micro-batches, whose"
            f" gradients are added up by {shape.leaf_size}: {shape.leaves} sums are fewer than"
            f" spec.pipelines.max {spec.pipelines.max}: raise globalBatchSize, or lower"
            " microBatchSize or max"
        )
        return [Problem("spec.training.globalBatchSize", text)]
    return []


def _args_problems(spec: JobSpec) -> list[Problem]:
    factories = {
        "spec.model.args": spec.model.args,
        "spec.data.args": spec.data.args,
        "spec.training.optimizer.args": spec.training.optimizer.args,
    }
    if spec.data.validation is not None:
        factories["spec.data.validation.args"] = spec.data.validation.args
    factories |= {f"spec.hooks[{i}].args": hook.args for i, hook in enumerate(spec.hooks)}
    return [
        Problem(path, f"{key!r} is not a Python identifier; args are passed as keyword arguments")
        for path, args in factories.items()
        for key in args
        if not key.isidentifier()
    ]

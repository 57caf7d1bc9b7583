"""Reads the BambooJob of a YAML file, with every default filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.errors import CommandError
from bamboo_core.api.pod_rules import PodRules
from bamboo_core.api.spec import JobSpec, RedundancyMode, from_manifest

_KIND, _VERSION = "BambooJob", "bamboo.dev/v1alpha1"
_MOST_AGENTS = 1024


def read_manifest(path: Path) -> tuple[str, JobSpec]:
    """Name and spec of the file's only BambooJob. CommandError names the field that is wrong."""
    try:
        documents = [x for x in yaml.safe_load_all(path.read_text(encoding="utf-8")) if x]
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    jobs = [x for x in documents if isinstance(x, dict) and x.get("kind") == _KIND]
    if len(jobs) != 1:
        raise CommandError(f"{path} has {len(jobs)} objects of kind {_KIND}; give a file with one.")
    if (given := jobs[0].get("apiVersion")) != _VERSION:
        raise CommandError(f"{path}: apiVersion is {given!r}; it must be {_VERSION}.")
    # The operator knows what pods may have there; here nobody does.
    found = from_manifest(jobs[0], is_strict=True, rules=PodRules(trusted=True))
    if isinstance(found, list):
        raise CommandError(f"{path}: {'; '.join(str(problem) for problem in found)}.")
    if refused := _refusals(found):
        raise CommandError(f"{path}: {'; '.join(refused)}.")
    return _name(jobs[0]), found


def _refusals(spec: JobSpec) -> list[str]:
    """Why the API server refuses the job, by the rules of crds/ that bind several fields."""
    grid, mode = spec.pipelines, spec.redundancy.mode
    agents = grid.count * grid.stages
    needs_next = mode not in (RedundancyMode.NONE, RedundancyMode.AUTO)
    validates = spec.training.validate_every > 0
    rules = {
        f"spec.redundancy.mode {mode.value} keeps a copy of the next stage, but"
        " spec.pipelines.stages is 1: use mode None, or at least 2 stages": (
            needs_next and grid.stages == 1
        ),
        f"spec.pipelines.min {grid.min} is more than count {grid.count}: lower min or raise"
        " count": grid.min > grid.count,
        f"spec.pipelines.count {grid.count} times stages {grid.stages} makes {agents} agents; at"
        f" most {_MOST_AGENTS} are supported: lower one of them": agents > _MOST_AGENTS,
        "spec.training.validateEvery needs spec.data.validation: add it, or set validateEvery to"
        " 0": validates and spec.data.validation is None,
    }
    return [text for text, is_broken in rules.items() if is_broken]


def _name(manifest: dict[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "job")) if isinstance(metadata, dict) else "job"

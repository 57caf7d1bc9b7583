"""Reads the BambooJob of a YAML file, with every default filled in. Nobody else has checked it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.errors import CommandError
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import pod_zones
from bamboo_core.validation import server_rules
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules
from bamboo_core.validation.reading import from_manifest


class _Loader(yaml.SafeLoader):
    """As kubectl reads YAML: 3e-4 is a number, which it is not for PyYAML."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_KIND, _VERSION = "BambooJob", "bamboo.dev/v1alpha1"


def read_manifest(path: Path) -> tuple[str, JobSpec]:
    """Name and spec of the file's only BambooJob. CommandError names the field that is wrong."""
    try:
        documents = [x for x in yaml.load_all(path.read_text(encoding="utf-8"), _Loader) if x]
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not YAML: {_what(error)}.") from error
    jobs = [x for x in documents if isinstance(x, dict) and x.get("kind") == _KIND]
    if len(jobs) != 1:
        raise CommandError(f"{path} has {len(jobs)} objects of kind {_KIND}; give a file with one.")
    if (given := jobs[0].get("apiVersion")) != _VERSION:
        raise CommandError(f"{path}: apiVersion is {given!r}; it must be {_VERSION}.")
    # The operator knows what pods may have there; here nobody does.
    spec = read_spec(jobs[0], path, PodRules(trusted=True))
    metadata = jobs[0]["metadata"]
    return metadata.get("name", metadata.get("generateName")), spec


def _what(error: Exception) -> str:
    """Where it is and what, without the excerpts that PyYAML adds."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def read_spec(manifest: dict[str, Any], path: Path, rules: PodRules = RESTRICTED) -> JobSpec:
    """The spec of the file's job. CommandError with every problem that the API server or an
    operator with these rules for pods would report."""
    found = from_manifest(manifest, is_strict=True, rules=rules)
    if isinstance(found, list):
        raise CommandError(f"{path}: {'; '.join(str(problem) for problem in found)}.")
    if refused := _refusals(manifest, found):
        raise CommandError(f"{path}: {'; '.join(refused)}.")
    return found


def _refusals(manifest: dict[str, Any], spec: JobSpec) -> list[str]:
    """Why the API server refuses the job; else why it would wait for ever."""
    refused = [str(problem) for problem in server_rules.problems(manifest, spec)]
    if not refused and (never := pod_zones.never_fits(spec)):
        refused = [f"spec.placement: {never}"]
    return refused

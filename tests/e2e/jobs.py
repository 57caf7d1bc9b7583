"""Small BambooJobs for the end-to-end tests, and kubectl as a user has it."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.job.state import Job, read_job
from bamboo_cli.quickstart.programs import Programs

Object = dict[str, Any]
_POLL_S = 0.1

STEPS = 240
"""With its gate closed, a job takes a minute and a half for them on the fastest machine."""

_TINY: Object = {
    "apiVersion": "bamboo.dev/v1alpha1",
    "kind": "BambooJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {
            "factory": "bamboo_agent.models.gpt:build",
            "args": {"layers": 2, "width": 32, "heads": 2, "context": 32, "dropout": 0.1},
        },
        "data": {
            "factory": "bamboo_agent.datasets.text:build",
            "args": {"context": 32, "limit_bytes": 40000},
            "validation": {
                "factory": "bamboo_agent.datasets.text:build",
                "args": {"split": "validation", "context": 32, "limit_bytes": 4000},
            },
        },
        "seed": 3,
        "training": {
            "steps": 10,
            "globalBatchSize": 8,
            "microBatchSize": 2,
            "optimizer": {"factory": "torch.optim:AdamW", "args": {"lr": 0.003}},
            "clipNorm": 1.0,
            "validateEvery": 5,
        },
        "pipelines": {"count": 1, "stages": 2},
        "worker": {
            "image": "bamboo-agent:test",
            "gracePeriodSeconds": 5,
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        },
    },
}


def tiny_job(name: str, **spec: Any) -> Object:
    """A job of a few seconds on two agents; ``spec`` is merged recursively."""
    job = copy.deepcopy(_TINY)
    job["metadata"]["name"] = name
    merge(job["spec"], spec)
    return job


def merge(into: Object, other: Object) -> None:
    """Merge objects recursively; replace everything else."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


@dataclass(frozen=True)
class Gate:
    """A file. Until it exists, a job's data come slowly, so that it cannot end before the test has
    done all it does to it."""

    path: Path

    def slowed(self, spec: Object) -> Object:
        """The spec with such data: the same items, so the same bits."""
        found = copy.deepcopy(spec)
        data = found.setdefault("data", {})
        args = {"gate": str(self.path)}
        args |= {"factory": data["factory"]} if "factory" in data else {}
        merge(data, {"factory": "paced:build", "args": args})
        return found

    def open(self) -> None:
        """From now on the job is as fast as others."""
        self.path.touch()


@dataclass(frozen=True)
class User:
    """A user with kubectl and a namespace. records: folder of the agents' event logs.

    poll_s: pause between two looks of `until`. Each takes a tenth of a second of a core.
    """

    programs: Programs
    namespace: str
    records: Path
    poll_s: float = _POLL_S

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """The output of kubectl. ProgramError if it fails."""
        return self.programs.kubectl(*arguments, "--namespace", self.namespace, **options)

    def apply(self, manifest: Object) -> str:
        """`kubectl apply` from standard input."""
        return self.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump(manifest))

    def get(self, kind: str, name: str = "", *more: str) -> Any:
        """Parsed `kubectl get -o json`; a list's items."""
        found = json.loads(
            self.kubectl("get", kind, *([name] if name else []), *more, "--output", "json")
        )
        return found.get("items", found)

    def job(self, name: str) -> Job:
        """The job as `bamboo status` reads it."""
        return read_job(self.get("bamboojob", name))

    def record(self, job: Job) -> Path:
        """The folder of the job's event logs."""
        return self.records / job.name / job.uid

    def news(self, job: Job) -> str:
        """The job's events, for the message of a failed test."""
        selector = f"--field-selector=involvedObject.uid={job.uid}"
        return self.kubectl("get", "events", selector, "--sort-by=.metadata.creationTimestamp")

    def pods(self, job: str) -> list[Object]:
        """The job's pods."""
        found: list[Object] = self.get("pods", "", "--selector", f"bamboo.dev/job={job}")
        return found

    def until(self, name: str, holds: Callable[[Job], bool], *, timeout_s: float = 90.0) -> Job:
        """Poll the job until the condition holds; AssertionError after timeout_s."""
        seen: list[Job] = []

        def look() -> bool:
            seen[:] = [self.job(name)]
            return holds(seen[0])

        eventually(look, timeout_s=timeout_s, explain=lambda: str(seen), poll_s=self.poll_s)
        return seen[0]

    def until_ended(self, name: str, *, timeout_s: float = 90.0) -> Job:
        """Wait for Complete or Failed; AssertionError if no step is committed for timeout_s."""
        job = self.job(name)
        while job.ended is None:
            job = self.until(name, _goes_on_after(job), timeout_s=timeout_s)
        return job


def _goes_on_after(before: Job) -> Callable[[Job], bool]:
    """Whether a job has ended or committed a step since then: how fast depends on the machine."""
    return lambda job: job.ended is not None or job.step != before.step


def eventually(
    holds: Callable[[], bool],
    *,
    timeout_s: float,
    explain: Callable[[], str] = lambda: "",
    poll_s: float = _POLL_S,
) -> None:
    """Poll until the condition holds; AssertionError after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {explain()}"
        time.sleep(poll_s)

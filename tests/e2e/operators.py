"""The operator as an administrator sees it: its pods and metrics; stop it and kill it."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE, LocalCluster

from .jobs import eventually

_METRICS_PORT = 8080  # the chart's default


@dataclass(frozen=True)
class Operator:
    """The operator of a local cluster."""

    local: LocalCluster

    def kubectl(self, *arguments: str) -> str:
        """kubectl in the operator's namespace."""
        return self.local.programs.kubectl(*arguments, "--namespace", SYSTEM_NAMESPACE)

    def pods(self) -> list[dict[str, Any]]:
        """Its pods, including terminating ones."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        return found

    def scale(self, replicas: int) -> None:
        """Stop or start it."""
        self.kubectl("scale", "deployment", "--all", f"--replicas={replicas}")

    def restarts(self) -> int:
        """How often its containers have restarted."""
        statuses = [pod["status"].get("containerStatuses", []) for pod in self.pods()]
        return sum(status["restartCount"] for found in statuses for status in found)

    def is_ready(self) -> bool:
        """Whether exactly one container runs, and is ready."""
        statuses = [pod["status"].get("containerStatuses", []) for pod in self.pods()]
        return [status["ready"] for found in statuses for status in found] == [True]

    def kill(self) -> None:
        """SIGKILL; return when its replacement is ready."""
        (pod,), before = self.pods(), self.restarts()
        self.local.cluster.kill_pod(SYSTEM_NAMESPACE, pod["metadata"]["name"])
        eventually(
            lambda: self.restarts() > before and self.is_ready(),
            timeout_s=60, explain=lambda: str(self.pods()),
        )  # fmt: skip

    def figures(self, namespace: str, job: str) -> list[Sample]:
        """Its metrics of a job."""
        (pod,) = self.pods()
        url = f"http://{pod['status']['podIP']}:{_METRICS_PORT}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        about = {"job_namespace": namespace, "training_job": job}.items()
        return [s for family in families for s in family.samples if s.labels.items() >= about]

"""A real Prometheus on this machine: scrapes targets, evaluates rules, answers queries."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.programs import prometheus

_LOOK_S = 0.05
_REQUEST_S = 30.0

Labels = Mapping[str, str]


class PrometheusError(Exception):
    """Prometheus ended, does not answer, or refuses a query. The text says which and why."""


@dataclass(frozen=True)
class Series:
    """One result of a query: instants in seconds since 1970, and values."""

    labels: Labels
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Server:
    """A Prometheus that runs."""

    url: str

    def query(self, expr: str) -> list[Series]:
        """The newest values. PrometheusError if the query is refused."""
        found = self._get("query", query=expr)["result"]
        return [Series(s["metric"], [_point(s["value"])]) for s in found]

    def query_range(self, expr: str, start: float, end: float, step_s: float) -> list[Series]:
        """Values from start to end, in seconds since 1970. PrometheusError as for query."""
        found = self._get("query_range", query=expr, start=start, end=end, step=step_s)["result"]
        return [Series(s["metric"], [_point(p) for p in s["values"]]) for s in found]

    def alerts(self) -> dict[str, str]:
        """State by name of those that are pending or firing; firing wins."""
        found: dict[str, str] = {}
        for alert in self._get("alerts")["alerts"]:
            name = alert["labels"]["alertname"]
            if found.get(name) != "firing":
                found[name] = alert["state"]
        return found

    def rule_errors(self) -> dict[str, str]:
        """The last error of each rule that has one, by the rule's name."""
        groups = self._get("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def until(self, is_done: Callable[[Server], bool], timeout_s: float, what: str) -> None:
        """Wait. PrometheusError names what was awaited."""
        deadline = time.monotonic() + timeout_s
        while not is_done(self):
            if time.monotonic() > deadline:
                raise PrometheusError(f"{what} did not happen within {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_REQUEST_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise PrometheusError(f"{path} {parameters}: {said}") from error
        except (OSError, ValueError) as error:
            raise PrometheusError(f"{path}: {error}") from error


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _configuration(jobs: Mapping[str, Sequence[str]], rules: Path | None, interval_s: float) -> str:
    each = f"{round(interval_s * 1000)}ms"
    found: dict[str, Any] = {
        "global": {"scrape_interval": each, "scrape_timeout": each, "evaluation_interval": each},
        "scrape_configs": [
            {
                "job_name": name,
                "file_sd_configs": [{"files": list(files), "refresh_interval": each}],
            }
            if all(f.endswith(".json") for f in files)
            else {"job_name": name, "static_configs": [{"targets": list(files)}]}
            for name, files in jobs.items()
        ],
    }
    if rules is not None:
        found["rule_files"] = [str(rules)]
    return yaml.safe_dump(found, sort_keys=False)


@contextmanager
def running(
    folder: Path,
    jobs: Mapping[str, Sequence[str]],
    *,
    port: int,
    rules: Path | None = None,
    interval_s: float = 1.0,
) -> Iterator[Server]:
    """Run until the block ends.

    jobs: name -> addresses, or JSON files that list them. rules: a file of rules.
    """
    configuration = folder / "prometheus.yml"
    configuration.write_text(_configuration(jobs, rules, interval_s), encoding="utf-8")
    program = prometheus.ensure(print)["prometheus"]
    command = [
        str(program), f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=1d",
        "--log.level=warn",
    ]  # fmt: skip
    log = folder / "prometheus.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            server = Server(f"http://127.0.0.1:{port}")
            server.until(lambda s: _is_ready(s, process, log), 60.0, "the start of Prometheus")
            yield server
        finally:
            process.terminate()
            process.wait()


def _is_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise PrometheusError(f"Prometheus ended with code {process.returncode}: {lines[-1]}")
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=_REQUEST_S) as answer:
            is_ready: bool = answer.status == 200
            return is_ready
    except OSError:
        return False

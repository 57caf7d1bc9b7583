"""The operator as a process of its own, and what /proc says about it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bamboo_sim.scale.control_plane import OPERATOR_NAMESPACE, ControlPlane
from bamboo_sim.watching.prometheus.rehearsal import free_port

_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.1


class NotReadyError(Exception):
    """The operator has ended, or has not become ready in time."""


@dataclass(frozen=True)
class Usage:
    """Of a process since its start: processor seconds of all threads; bytes now, and most ever."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int


def usage(pid: int) -> Usage:
    """The usage of a process until now, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_S
    return Usage(cpu_s, int(fields[21]) * _PAGE, int(peak.split()[1]) << 10)


class OperatorProcess:
    """``python -m bamboo_operator`` with the environment that the chart sets."""

    def __init__(self, plane: ControlPlane, *, profile: Path | None = None) -> None:
        self.port, self._health, self._metrics = free_port(), free_port(), free_port()
        self._plane, self._profile = plane, profile
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self.log = plane.folder / "operator.log"

    @property
    def pid(self) -> int:
        """The ID of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start a new process on the same ports."""
        env = {
            **os.environ,
            "KUBECONFIG": str(self._plane.kubeconfig),
            "POD_NAMESPACE": OPERATOR_NAMESPACE,
            "POD_NAME": "operator",
            "POD_UID": "operator-uid",
            "POD_IP": "127.0.0.1",
            "BAMBOO_GRPC_PORT": str(self.port),
            "BAMBOO_HEALTH_PORT": str(self._health),
            "BAMBOO_METRICS_PORT": str(self._metrics),
        }
        command = [sys.executable, "-P"]
        if self._profile is not None:
            command += ["-m", "cProfile", "-o", str(self._profile)]
        with self.log.open("ab") as log:
            command += ["-m", "bamboo_operator"]
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self._is_killed = False

    async def until_ready(self, timeout_s: float = 120.0) -> float:
        """Wait until it leads and serves agents: while it waits for the Lease of another process,
        its probe says ready, too. Returns the seconds since this call."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            assert self._process is not None
            if self._process.poll() is not None:
                raise NotReadyError(f"the operator has ended; see {self.log}")
            if await self._is_leading():
                return time.monotonic() - began
            await asyncio.sleep(_POLL_S)
        raise NotReadyError(f"the operator is not ready after {timeout_s:g} s; see {self.log}")

    async def _is_leading(self) -> bool:
        try:
            return (await self.metrics()).get("bamboo_operator_leader") == 1
        except (urllib.error.URLError, OSError):
            return False

    async def until_end(self) -> None:
        """NotReadyError as soon as it ends though nobody has killed it."""
        while True:
            await asyncio.sleep(1.0)
            if self._process is None or self._is_killed:
                continue
            if self._process.poll() is not None:
                break
        raise NotReadyError(f"the operator has ended; see {self.log}")

    async def metrics(self) -> dict[str, float]:
        """Its metrics, by name with labels."""
        url = f"http://127.0.0.1:{self._metrics}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())

        lines = (await asyncio.to_thread(read)).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and line[0] != "#")
        return {name: float(value) for name, _, value in pairs}

    def logged_at(self, **fields: str) -> float:
        """When its log last has a line with these fields, on our monotonic clock; to the
        millisecond. LookupError."""
        offset = time.time() - time.monotonic()
        for text in reversed(self.log.read_text().splitlines()):
            line = json.loads(text) if text.startswith("{") else {}
            if fields.items() <= line.items():
                return datetime.fromisoformat(line["time"]).timestamp() - offset
        raise LookupError(f"{self.log} has no line with {fields}")

    def kill(self) -> None:
        """SIGKILL, as by the kernel."""
        if self._process is not None:
            self._is_killed = True
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM; SIGKILL if it does not end."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

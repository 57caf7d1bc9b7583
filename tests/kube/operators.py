"""An operator at work in the test's process, and the chart's rights."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster import binaries
from bamboo_operator import api
from bamboo_operator.app import App
from bamboo_operator.kube import Kube

from .jobs import job

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"


@dataclass
class Running:
    """An operator at work. ``admin``: a client that may do everything. ``calls``: requests of the
    operator, as verb and path."""

    app: App
    task: asyncio.Task[int]
    admin: Kube
    namespace: str
    calls: set[tuple[str, str]] = field(default_factory=set)

    async def stop(self) -> int:
        self.app.stop.set()
        return await asyncio.wait_for(self.task, 30)

    async def job(self, name: str = "job") -> dict[str, Any]:
        found = await self.admin.get(api.job(self.namespace, name))
        assert found is not None
        return found

    async def apply(self, **spec: Any) -> dict[str, Any]:
        return await self.admin.create(api.jobs(self.namespace), job(self.namespace, **spec))

    async def condition(self, kind: str) -> dict[str, Any]:
        conditions = ((await self.job()).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    async def pods(self) -> list[dict[str, Any]]:
        return await self.admin.list(api.pods(self.namespace))


async def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):  # noqa: ASYNC110 - the API is asked
            await asyncio.sleep(0.05)
    return found


def rights(namespace: str) -> str:
    """The chart's roles and service account."""
    helm = binaries.ensure(print, ["helm"])["helm"]
    done = subprocess.run(
        [str(helm), "template", "op", str(CHART), "--namespace", namespace,
         "--show-only", "templates/rbac.yaml", "--show-only", "templates/serviceaccount.yaml"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout

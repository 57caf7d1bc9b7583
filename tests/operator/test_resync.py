"""Jobs are looked at from time to time without a cause: of very many, only a part each time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.core.controller.builders import manifest

from bamboo_operator import config
from bamboo_operator.app import App
from bamboo_operator.kube import api
from bamboo_operator.kube.api import JobKey
from bamboo_operator.process.event_loop import LoopHearing

from .agent_client import until
from .memory_api import MemoryApi

OFTEN_S = 0.01  # so that few jobs are very many


async def test_of_jobs_in_the_line_only_those_that_are_gone_are_looked_at_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube, names = MemoryApi(), [f"job-{n}" for n in range(6)]
    for name in names:
        body = manifest()
        body["metadata"] |= {"name": name, "uid": name}
        kube.put(api.job("ns", name), body)
    given = config.from_env({"POD_IP": "127.0.0.1", "BAMBOO_NAMESPACES": "ns"})
    app = App(replace(given, resync_s=OFTEN_S), kube, LoopHearing())
    keys = [("ns", name) for name in [*names, "gone"]]
    app._line = SimpleNamespace(keys=keys)  # type: ignore[assignment]
    queued = Counter[JobKey]()
    monkeypatch.setattr(app._queue, "add", lambda key: queued.update([key]))
    resync = asyncio.create_task(app._resync())
    await until(lambda: queued["ns", "gone"] == 4)
    resync.cancel()
    assert all(1 <= queued["ns", name] <= 2 for name in names)

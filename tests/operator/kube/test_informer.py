"""How kopf's tasks are started."""

from __future__ import annotations

import asyncio
import getpass

import kopf
import pytest

from bamboo_operator.kube import informer


async def test_a_user_without_a_name_can_run_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters choose a UID that the image's password file may not have."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1000660000")

    monkeypatch.setattr(getpass, "getuser", unknown)
    tasks = await informer.start(kopf.OperatorRegistry(), ["default"])
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(isinstance(error, KeyError) for error in found)

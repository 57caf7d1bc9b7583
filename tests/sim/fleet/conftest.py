"""One process with torch loaded, from which the workers of all fleets are forked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bamboo_sim.fleet.local_fleet import ForkServerProcess


@pytest.fixture(scope="session")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServerProcess]:
    process = ForkServerProcess(tmp_path_factory.mktemp("forkserver") / "socket")
    process.start()
    yield process
    process.stop()

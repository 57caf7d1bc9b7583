"""The set-up finds data that another process reads otherwise, or cannot read."""

from __future__ import annotations

import pytest
from tests.agent.loading.conftest import Bench

from bamboo_agent.model import FactoryError
from bamboo_agent.setup.tries import FIRST, try_loader

REMEDY = "with spec.data.workers: 0 agents read samples in the process that trains"


def test_equal_data_pass(bench):
    loader = bench.loader()
    loader.want(FIRST)
    try_loader(loader, bench.data)


def test_data_of_a_process_are_refused(tmp_path):
    bench = Bench(tmp_path, "of_process")
    loader = bench.loader()
    with pytest.raises(FactoryError, match=f"differs when another process reads it: .*{REMEDY}"):
        try_loader(loader, bench.data)
    loader.close()


def test_data_that_only_this_process_can_build_are_refused(bench):
    (bench.folder / "factory").write_text("there is one already")
    with pytest.raises(FactoryError, match=f"cannot start: .*there is one already; {REMEDY}"):
        try_loader(bench.loader(), bench.data)

"""Data of the data sets that a test makes."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from bamboo_agent.data.batches import Data
from bamboo_core.api.spec import DataSpec, FactorySpec
from bamboo_sim.workers.jobs import tiny_gpt


@pytest.fixture
def data_of(monkeypatch):
    """Makes Data of a data set and perhaps a validation set. 24 micro-batches of ``size``."""

    def make(training: Any, validation: Any = None, *, size: int = 2, seed: int = 7) -> Data:
        module = ModuleType("users_data")
        vars(module).update(build=lambda: training, held_out=lambda: validation)
        monkeypatch.setitem(sys.modules, "users_data", module)
        scored = None if validation is None else FactorySpec("users_data:held_out")
        batch = replace(tiny_gpt().training, micro_batch_size=size, global_batch_size=24 * size)
        spec = DataSpec("users_data:build", {}, scored)
        job = replace(tiny_gpt(), data=spec, training=batch, seed=seed)
        return Data(job, torch.device("cpu"))

    return make

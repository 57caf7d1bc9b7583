"""Loaders over real processes, of a data set that does what a file tells it to."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.agent.loading import faulty

from bamboo_agent.data.batches import Data
from bamboo_agent.loading import server
from bamboo_agent.loading.loader import Limits, Loader
from bamboo_core.api.spec import DataSpec, FactorySpec, to_json
from bamboo_sim.workers.jobs import tiny_gpt

LIMITS = Limits(start_s=60.0, read_s=60.0)


class Bench:
    """A job whose data are read by a loader, and by this process to compare."""

    def __init__(self, folder, build="build"):
        self.folder, self.loaders = folder, []
        factory = FactorySpec(f"{faulty.__name__}:{build}", {"folder": str(folder)})
        batch = replace(tiny_gpt().training, micro_batch_size=3, global_batch_size=24)
        data = DataSpec(factory.factory, factory.args, factory)
        self.spec = replace(tiny_gpt(), data=data, training=batch, seed=7)
        self.data = Data(self.spec, torch.device("cpu"))

    def loader(self, *, workers=1, limits=LIMITS, make_server=server.fork, **more):
        spec = replace(self.spec, data=replace(self.spec.data, workers=workers))
        made = Loader(spec, to_json(spec), limits, make_server, **more)
        self.loaders.append(made)
        return made

    def plant(self, step, microbatch, **order):
        """Something happens at the second sample of a micro-batch. The sample."""
        sample = self.data.indices(step, microbatch)[1]
        (self.folder / str(sample)).write_text(json.dumps(order))
        return sample

    def repair(self, sample):
        (self.folder / str(sample)).unlink()


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    for loader in made.loaders:
        loader.close()

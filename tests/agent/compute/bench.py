"""One back end of an agent, without executor and transport."""

from __future__ import annotations

from bamboo_agent.compute.backend import Backend
from bamboo_agent.payloads.serialization import pack, unpack
from bamboo_agent.setup.factories import build_setup
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import parse_instruction
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.workers import plans, system_seeds
from bamboo_sim.workers.fleet import CPU
from bamboo_sim.workers.jobs import tiny_gpt

BATCH = BatchShape(4, 2, 1)


class Bench:
    """One back end, driven by instructions in text form."""

    def __init__(self, number=0):
        system_seeds.draw()  # several benches are as many agents
        self.setup, _ = build_setup(plans.names(number + 1)[number], tiny_gpt(), CPU)
        self.commits: dict[int, CommitRecord] = {}
        self.backend = Backend(self.setup, lambda *_: None, self.commits)
        self.backend.adopt_batch(BATCH)

    def run(self, *lines):
        record = None
        for line in lines:
            record = self.backend.run(parse_instruction(line))
        return record

    def give(self, item, other):
        """Send an item to another bench, through its plain form."""
        serialized = pack(self.backend.payload(item))
        other.backend.accept(item, unpack(item.kind, serialized.meta, serialized.tensors, CPU))

    def weights(self, layer):
        return self.backend.layers[layer].record().tensors

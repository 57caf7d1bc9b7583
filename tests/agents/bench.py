"""One back end of an agent, without executor and transport."""

from __future__ import annotations

import plans
from fleet import CPU
from jobs import tiny_gpt

from bamboo_agent.backend import Backend
from bamboo_agent.parcel import pack, unpack
from bamboo_agent.worker import build_setting
from bamboo_core.messages import CommitRecord
from bamboo_core.numerics import BatchShape
from bamboo_core.program import parse_instruction

BATCH = BatchShape(4, 2, 1)


class Bench:
    """One back end, driven by instructions in text form."""

    def __init__(self, number=0):
        self.setting, _ = build_setting(plans.names(number + 1)[number], tiny_gpt(), CPU)
        self.commits: dict[int, CommitRecord] = {}
        self.backend = Backend(self.setting, lambda *_: None, self.commits)
        self.backend.adopt_batch(BATCH)

    def run(self, *lines):
        record = None
        for line in lines:
            record = self.backend.run(parse_instruction(line))
        return record

    def give(self, item, other):
        """Send an item to another bench, through its plain form."""
        parcel = pack(self.backend.payload(item))
        other.backend.accept(item, unpack(item.kind, parcel.meta, parcel.tensors, CPU))

    def weights(self, layer):
        return self.backend.layers[layer].record().tensors

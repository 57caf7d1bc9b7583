"""A loss that torchrun really survives, with two workers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from benchmarks.peers import procedure
from benchmarks.peers.peer_fleets import TorchrunFleet
from benchmarks.peers.variants import BY_NAME


@pytest.mark.skipif("BAMBOO_PEERS" not in os.environ, reason="slow: set BAMBOO_PEERS=1 to run it")
@pytest.mark.timeout(300)
async def test_torchrun_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    variant = BY_NAME["torchrun_forked"]
    fleet = TorchrunFleet(tmp_path, variant, count=2)
    found = await procedure.one_kill(fleet, variant.newcomer, random.Random(1))
    assert found.delay_s > 0
    assert found.full_s > 0
    assert found.redone_steps > 0
    assert found.discarded_steps == 0
    assert all(program.has_ended() for program in fleet.programs)

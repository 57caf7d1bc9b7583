"""The reader's listings, with a folder of which something cannot be reached."""

from __future__ import annotations

import select
from typing import cast

import pytest

from bamboo_agent.storage import reader
from bamboo_agent.storage.checkpoint import Checkpoints, Scan
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Manifest

DEADLINE_S = 60.0
GOOD = Manifest(0, 4, "0/4", "d")
FIRST, SECOND = Fence(0, 1, 1), Fence(0, 1, 2)


class Partial:
    """Its scans miss something."""

    def __init__(self) -> None:
        self.scans = 0

    def scan(self, told: set[str]) -> Scan:
        self.scans += 1
        return Scan([GOOD], [], True)


def answer(busy: reader.Reader) -> reader.Listing:
    while True:
        assert select.select([busy], [], [], DEADLINE_S)[0]
        for found in busy.poll():
            assert isinstance(found, reader.Listing)
            return found


def test_a_partial_list_is_given_out_at_once_and_again_at_every_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator then knows what it names, however often newcomers make it ask."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 3600.0)
    busy = reader.Reader(cast(Checkpoints, Partial()))
    for fence in (FIRST, SECOND):
        busy.begin_listing(fence)
        found = answer(busy)
        assert (found.good, found.fence, found.is_partial) == ((GOOD,), fence, True)
        assert busy.is_busy, "it tries again, after a pause"
    busy.close()


def test_only_a_few_tries_are_made_for_what_stays_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    folder = Partial()
    busy = reader.Reader(cast(Checkpoints, folder))
    busy.begin_listing(FIRST)
    for _ in range(reader.PARTIAL_TRIES):
        assert answer(busy).is_partial
    assert not busy.is_busy
    busy.close()
    assert folder.scans == reader.PARTIAL_TRIES

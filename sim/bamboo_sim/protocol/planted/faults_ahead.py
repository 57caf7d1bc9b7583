"""Planted faults of what replicas compute ahead (rows: E), and of devices that complete what they
are given later (rows: I)."""

from __future__ import annotations

from bamboo_core.graph.gradients import Gradients
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.protocol.execution.issued import Issued
from bamboo_core.protocol.execution.lane import Lane
from bamboo_core.protocol.executor import Executor
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted import rules_ahead
from bamboo_sim.protocol.planted.patches import Planted, both, patched

RING = Job(1, 3, 2, eager=True, layers=6)
TIGHT = Job(2, 2, 4, eager=True, layers=4, room=1)
"""Of a lost stage, its copy's agent continues some forwards and computes others ahead."""
OLDER = Job(1, 3, 4, eager=True, layers=6, kept=(4, 1))
PAIR = Job(2, 2, 2, eager=True, layers=4)
LATE = Job(2, 2, 2, issues=2)
COMPARED = Job(2, 2, 2, eager=True, layers=4, checked=True, issues=3)
LATER = Job(1, 2, 4, issues=3)

PLANTS: tuple[Planted, ...] = (
    Planted("a forward continues after a layer that is not done", "E1",
            patched(HoldingsIndex, "counts", rules_ahead.one_layer_more), (("singles", RING),)),
    Planted("the lane goes before the program", "E2",
            patched(Executor, "_start", rules_ahead.lane_first), (("singles", PAIR),)),
    Planted("what was computed ahead outlives its step", "E3",
            patched(Executor, "_is_spent", rules_ahead.kept_for_ever), (("singles", PAIR),)),
    Planted("a forward of a replica counts as the owner's", "E4",
            patched(Gradients, "_act_exists", rules_ahead.whole_prefix_is_activation),
            (("singles", RING),)),
    Planted("a slice uses a layer of another step", "E5",
            patched(Executor, "_may", rules_ahead.any_version), (("resets", RING),)),
    Planted("what the program continues is dropped for room", "E6",
            patched(Lane, "surplus", staticmethod(rules_ahead.whatever_is_oldest)),
            (("singles", TIGHT),)),
    Planted("a backward of a lost stage is computed twice", "E7",
            patched(Gradients, "_summed", rules_ahead.last_one_again), (("singles", OLDER),)),
    Planted("a slice that has failed counts as done", "E8",
            patched(Executor, "skip", rules_ahead.failed_is_done), (("slices", RING),)),
    Planted("slices of a forward are run in another order", "E9",
            both(patched(Lane, "of", staticmethod(rules_ahead.deepest_first)),
                 patched(Executor, "_may", rules_ahead.any_order)), (("singles", RING),)),
    Planted("what is issued is a fact", "I1",
            both(patched(Executor, "issued", rules_ahead.facts_at_issue),
                 patched(Executor, "stop", rules_ahead.reports_at_once)), (("singles", LATE),)),
    Planted("an input is freed before its reader has completed", "I2",
            patched(Executor, "issued", rules_ahead.frees_at_issue), (("singles", LATE),)),
    Planted("an item is sent before it is complete", "I3",
            patched(Executor, "_start", rules_ahead.sends_at_issue), (("singles", LATE),)),
    Planted("a report does not wait for the device", "I4",
            patched(Executor, "stop", rules_ahead.reports_at_once), (("singles", LATE),)),
    Planted("a reader is issued before its input has come", "I5",
            patched(Issued, "lets", rules_ahead.any_arrival), (("singles", LATER),)),
    Planted("a peer's copy replaces what the device makes", "I6",
            patched(Issued, "makes", rules_ahead.peers_copy_counts), (("singles", COMPARED),)),
)  # fmt: skip

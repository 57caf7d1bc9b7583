"""Planted faults of the rules about wrong bits. Rows: B."""

from __future__ import annotations

from math import inf

from bamboo_core.arbiter import endings, training
from bamboo_core.arbiter_state.state import State
from bamboo_core.graph import closure as graph_module
from bamboo_core.graph import cover
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model import claims, sampling
from bamboo_core.model.program import Op
from bamboo_core.protocol import supervisor
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Disputed
from bamboo_sim.protocol.parts import symbolic
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.symbolic import Symbolic
from bamboo_sim.protocol.planted import rules_bits
from bamboo_sim.protocol.planted.patches import Planted, patched

SMALL = Job(2, 2, 2)
OWN = Job(2, 2, 2, check_every=1)
TIED = Job(2, 3, 2, tied=True)
RING = Job(1, 3, 2, eager=True, layers=6, checked=True)
LONG = Job(1, 4, 2, eager=True, layers=4, checked=True)
DEEP = Job(1, 2, 3, eager=True, layers=10, checked=True)
PAIR = Job(2, 2, 2, eager=True, layers=4, checked=True)
FOUR = Job(2, 2, 2, steps=4, save_every=1, salted=True)
TWO = Job(1, 3, 2, steps=6, save_every=2, spares=1, salted=True)
SAVED = Job(1, 3, 2, eager=True, layers=6, spares=2, steps=4, save_every=1, checked=True)
AHEAD = Job(
    1, 3, 2, eager=True, layers=6, steps=6, spares=2, save_every=2, salted=True, checked=True
)
THREE = Job(3, 1, 2, replica=False, layers=2, steps=9, save_every=4, salted=True)

PLANTS: tuple[Planted, ...] = (
    Planted("the coordinator does not look at the claims", "B1",
            patched(claims, "disputes", rules_bits.no_disputes), (("flips", RING),)),
    Planted("a vote does not wait for a comparison that has begun", "B2",
            patched(Executor, "_fill", rules_bits.votes_at_once), (("flips", DEEP),)),
    Planted("results of a void step are kept", "B3",
            patched(Executor, "_give_up_step", rules_bits.results_stay), (("flips", RING),)),
    Planted("only the first STOP says that a step is void", "B4",
            patched(State, "stop", rules_bits.void_once), (("flips", RING), ("flips", PAIR))),
    Planted("a dispute counts only while its plan is in force", "B5",
            patched(training, "disputed", rules_bits.only_of_this_plan),
            (("flips", RING), ("flips", PAIR))),
    Planted("a dispute is told once", "B6",
            patched(supervisor, "_REPEATED",
                    tuple(x for x in supervisor._REPEATED if x is not Disputed)),
            (("flips", RING), ("flips", PAIR))),
    Planted("the third vote is ignored", "B7",
            patched(training, "odd_ones", rules_bits.no_third_vote),
            (("flips", PAIR), ("flips", LONG))),
    Planted("one of two that differ is blamed", "B8",
            patched(training, "odd_ones", rules_bits.two_votes), (("flips", PAIR),)),
    Planted("agents in question compute the step", "B9",
            patched(State, "questioned", frozenset()), (("flips", PAIR), ("flips", LONG))),
    Planted("the third vote is not compared with the older ones", "B10",
            patched(claims, "disputes", rules_bits.without_question),
            (("flips", PAIR), ("flips", LONG))),
    Planted("a restore because of wrong bits begins with any checkpoint", "B11",
            patched(endings, "verified", rules_bits.any_checkpoint), (("tellers", SAVED),)),
    Planted("copies are not compared in the step of a checkpoint", "B12",
            patched(Symbolic, "is_compared", lambda self, step: False),
            (("alterations", FOUR), ("alterations", TWO))),
    Planted("the one that differs is blamed although the others may be wrong copies", "B13",
            patched(training, "newest_compared", lambda committed, every: inf),
            (("spreads", THREE),)),
    Planted("what is found after the commit is only reported", "B14",
            patched(training, "_roll_back", lambda *args: None),
            (("alterations", TWO),)),
    Planted("gradients are not compared", "B15",
            patched(claims, "disputes", rules_bits.without_gradients), (("votes", FOUR),)),
    Planted("a dispute is forgotten with those that differ", "B16",
            patched(training, "_differing", lambda message: ()), (("alterations", AHEAD),)),
    Planted("an input that nobody has made is a dispute like any other", "B17",
            patched(training, "_is_maker_gone", lambda durable, message: False),
            (("spreads", AHEAD),)),
    Planted("a void step that is interrupted again is not compared as a whole", "B18",
            patched(training, "_is_begun", lambda durable: False), (("flips", PAIR),)),
    Planted("files that an attempt left because of wrong bits are used by the next one", "B19",
            patched(endings, "with_newer", rules_bits.forget_roll_back), (("relapses", FOUR),)),
    Planted("all that differ about a gradient are blamed, though most of them agree", "B20",
            patched(training, "odd_copies", rules_bits.no_third_vote), (("votes", THREE),)),
    Planted("sums that overlap are added, and nobody refuses them", "B21",
            patched(symbolic, "add_up", rules_bits.twice), (("singles", SMALL),)),
    Planted("others are added to a sum that was sliced", "B22",
            patched(cover._Search, "_existing", rules_bits.still_whole), (("singles", SMALL),)),
    Planted("two owners add up the same slice", "B23",
            patched(Symbolic, "_perform", {**Symbolic._perform, Op.SLICE: rules_bits.same_slice}),
            (("singles", SMALL),)),
    Planted("a step goes on with another number of slices", "B24",
            patched(HoldingsIndex, "slices", lambda self, span: 0), (("singles", SMALL),)),
    Planted("a sum of two runs is never checked by its agent", "B25",
            patched(sampling, "is_task_due", rules_bits.no_merge), (("merges", OWN),)),
    Planted("a tied layer is updated with its own gradient alone", "B26",
            patched(graph_module, "other_stages", lambda *_, **__: []), (("singles", TIED),)),
)  # fmt: skip

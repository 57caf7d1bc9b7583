"""Planted faults of the rules by which suspects are asked before anything is given up. Rows: Q."""

from __future__ import annotations

from bamboo_core.arbiter import rounds, training
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.protocol.clock import Backlog
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted import rules_asking
from bamboo_sim.protocol.planted.patches import Planted, patched

SMALL = Job(2, 2, 2)
MOVING = Job(1, 2, 2, replica=False, spares=2)
THIN = Job(1, 3, 2, replica=False, steps=5)
TALL = Job(1, 3, 2, steps=6)
THREE = Job(1, 3, 2, steps=6, save_every=4)
PAIR = Job(2, 2, 4, steps=2)

PLANTS: tuple[Planted, ...] = (
    Planted("suspects are asked ever more rarely before a restore", "Q1",
            patched(rounds, "ASKS", 0.1), (("blips", MOVING),)),
    Planted("suspects are not asked a last time", "Q2",
            patched(rounds, "retry", rules_asking.not_in_the_last_part), (("blips", MOVING),)),
    Planted("an incident begins with the long waits of the one before", "Q3",
            patched(training, "resumed", rules_asking.keep_pause), (("blips", TALL),)),
    Planted("a late answer does not count", "Q4",
            patched(rounds, "can_answer", rules_asking.never),
            (("races", TALL), ("races", SMALL))),
    Planted("a round is cut off when a restore is due", "Q5",
            patched(Arbiter, "_act", rules_asking.cut_off), (("blips", MOVING),)),
    Planted("a lost layer keeps the deadline of an earlier loss", "Q6",
            patched(rounds, "hold", rules_asking.keep_deadline), (("blips", THIN),)),
    Planted("a link that stays cut holds the job for ever", "Q7",
            patched(rounds, "MOST_WAITS", 1_000_000), (("blips", MOVING),)),
    Planted("a job is suspended while its agents are away for a moment", "Q8",
            patched(rounds, "_may_come_back", rules_asking.never), (("rests", THREE),)),
    Planted("suspicions are judged before everything is read", "Q9",
            patched(Backlog, "is_behind", rules_asking.never), (("deaf", PAIR), ("deaf", SMALL))),
)  # fmt: skip

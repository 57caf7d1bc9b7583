"""The runs of a random exploration: family, job, and share of the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from time import time

from bamboo_core.api.spec import BestMode, RecoveryPolicy
from bamboo_sim.programs.sample import PATIENCE_S
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.histories.branching import POLICIES, parts
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.job import Job

Run = tuple[str, Job, float]
"""Family, job, share of the time."""

SMALL = Job(2, 2, 2, steps=2)
SPARE = Job(2, 2, 2, spares=1)
MOVING = Job(1, 2, 2, replica=False, spares=2)
NEW_OWNERS = Job(1, 2, 2, spares=1)
LONG = Job(2, 2, 2, steps=5)
SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
BEGUN = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True, begins_at=2)
UNEVEN = Job(1, 3, 4, layers=5, spares=1, save_every=2)
TURNING = Job(2, 2, 2, layers=4, steps=4)
BACK_AND_FORTH = Job(2, 2, 2, steps=6)
SLEEPING = Job(2, 2, 2, layers=3, steps=4, save_every=2, salted=True)
LEARNING = Job(2, 2, 2, steps=8, spares=1, learners=True)
LEARNERS = Job(1, 3, 4, layers=5, steps=8, spares=2, save_every=2, learners=True)
LEARNT = Job(1, 3, 2, layers=4, steps=6, spares=3, learners=True)
RESEATED = Job(2, 4, 2, steps=9)
RESEATED_LATER = Job(2, 4, 2, steps=12, learners=True)
RESEATED_ZONES = Job(2, 4, 2, steps=9, zones=2)
LARGE = Job(3, 4, 4, steps=2, spares=2)
WIDE = Job(4, 2, 2, steps=2, replica=False, spares=2)
SPLIT = Job(2, 3, 4, spares=1, profiled=True)
MEASURED = Job(2, 2, 2, steps=8, profiled=True)
SHADOW, PEERS = RecoveryPolicy.SHADOW, RecoveryPolicy.PEERS
TWO_ZONES = Job(2, 2, 2, replica=False, spares=2, zones=2)
THREE_ZONES = Job(2, 3, 2, spares=1, zones=3)
OLDER = Job(2, 2, 4, kept=(4, 2), evals=3, validate_every=1)
FILES = Job(2, 3, 8, layers=4, kept=(8, 2), save_every=2, spares=1, evals=2)
NARROW = Job(2, 1, 2, layers=2, spares=1)
SINGLE = Job(1, 1, 2, spares=1, save_every=1)
ONE_STEP = Job(2, 2, 2, steps=1, evals=2, save_every=1)
AHEAD = Job(1, 3, 2, eager=True, layers=6)
AHEAD_TWICE = Job(2, 2, 2, eager=True, layers=4, spares=1)
AHEAD_TIGHT = Job(1, 3, 3, eager=True, layers=6, room=1)
AHEAD_TIGHT_PAIR = Job(2, 2, 4, eager=True, layers=4, room=1)
CHECKED = Job(1, 3, 2, eager=True, layers=6, spares=2, checked=True)
CHECKED_TWICE = Job(2, 2, 2, eager=True, layers=4, checked=True)
CHECKED_LONG = Job(1, 4, 2, eager=True, layers=4, checked=True)
CHECKED_FILES = Job(1, 3, 2, eager=True, layers=6, spares=2, steps=4, save_every=1, checked=True)
ALTERED = Job(2, 2, 2, steps=4, save_every=1, salted=True)
ALTERED_PAIR = Job(1, 3, 2, steps=6, save_every=2, spares=1, salted=True)
ALTERED_THREE = Job(3, 1, 2, replica=False, layers=2, steps=5, save_every=2, salted=True)
ALTERED_LONG = Job(3, 1, 2, replica=False, layers=2, steps=9, save_every=4, salted=True)
OWN = Job(2, 2, 2, check_every=1)
OWN_SELDOM = Job(2, 2, 4, steps=4, check_every=2)
OWN_AHEAD = replace(CHECKED_TWICE, check_every=1)
ALTERED_AHEAD = replace(CHECKED, steps=6, save_every=2, salted=True)
ALTERED_AHEAD_TWICE = replace(CHECKED_TWICE, steps=4, save_every=1, salted=True)
BEST = Job(
    2, 2, 2, steps=6, save_every=1, salted=True, evals=2, validate_every=1, best_is=BestMode.MIN
)
BEST_SELDOM = Job(
    1, 2, 2, replica=False, steps=7, save_every=1, evals=1, validate_every=2, best_is=BestMode.MAX
)
MIXED = (OLDER, FILES, NARROW, SINGLE, ONE_STEP)
AHEAD_SMALL = Job(1, 2, 2, eager=True, layers=4, steps=2)
AHEAD_PAIR = replace(AHEAD, steps=2)
PAIRS = (Job(1, 3, 2, steps=2), SMALL, Job(1, 2, 2, steps=2), AHEAD_PAIR)

THIN = Job(1, 3, 2, replica=False, steps=5)
THREE = Job(1, 3, 2, steps=6, save_every=4)
OFTEN = Job(1, 2, 2, replica=False, steps=7, save_every=1, salted=True)
EDGES = (
    *("sessions", "words", "resets", "races", "writes", "pauses", "hangs", "silences", "trickles"),
    "delays",
)
"""Families in which nobody need die; ``storage`` needs jobs that write checkpoints."""

_AHEAD_SPARE = replace(CHECKED_TWICE, spares=1)
_AHEAD_MOVING = Job(1, 2, 2, eager=True, layers=4, spares=2, checked=True)
_AHEAD_SAVING = replace(ALTERED_AHEAD_TWICE, checked=False)
_AHEAD_ZONES = Job(2, 3, 2, eager=True, layers=6, spares=1, zones=3)
_AHEAD_LEARNING = replace(ALTERED_AHEAD, steps=8, learners=True)
_AHEAD_LEARNT = replace(LEARNT, eager=True)
EAGER: dict[str, Job] = {
    **dict.fromkeys(EDGES, _AHEAD_SPARE),
    **dict.fromkeys(
        ("restores", "successors", "tears", "forks", "absences", "storage", "suspensions"),
        _AHEAD_SAVING,
    ),
    **dict.fromkeys(("folders", "attempts", "space", "samples", "raises"), _AHEAD_SAVING),
    **dict.fromkeys(("zones", "surplus"), _AHEAD_ZONES),
    **dict.fromkeys(("replacements", "isolations", "handovers", "reports"), _AHEAD_MOVING),
    **dict.fromkeys(("short-notices", "leavers", "new-owners"), _AHEAD_MOVING),
    **dict.fromkeys(("pairs", "partitions", "farewells", "echoes"), _AHEAD_SPARE),
    **dict.fromkeys(("finishes", "stops", "shrinks"), CHECKED_TWICE),
    **dict.fromkeys(("blips", "deaf"), _AHEAD_SPARE),
    "rests": _AHEAD_SAVING,
    "beginnings": replace(_AHEAD_SAVING, begins_at=1),
    "learners": _AHEAD_LEARNING,
    "moves": replace(RESEATED_LATER, eager=True),
    "networks": replace(MEASURED, eager=True, layers=4),
    "lists": replace(AHEAD, steps=4, save_every=1, salted=True),
    "sources": _AHEAD_LEARNT,
    "strangers": AHEAD_TWICE,
    **dict.fromkeys(("regrids", "returns"), replace(AHEAD_TWICE, steps=4)),
}
"""Jobs in mode Eager for the families that have none below."""

_ISSUES = (1, 2, 1, 3)
"""Instructions that a device may have at a time."""


def grids() -> Iterator[Job]:
    """Every grid of the exhaustive single kills."""
    for stages, pipelines, m in product((2, 3, 4), (1, 2, 3), (2, 4)):
        for replica in (True, False) if pipelines > 1 else (True,):
            yield Job(pipelines, stages, m, replica=replica, steps=2)
    for policy in (SHADOW, PEERS):
        yield Job(1, 3, 2, steps=2, policy=policy)
        yield Job(2, 2, 2, steps=2, policy=policy)
        yield Job(2, 2, 2, replica=False, steps=2, policy=policy)
    yield Job(2, 2, 4, steps=2, kept=(4, 2), evals=2, validate_every=1)
    yield Job(1, 3, 4, steps=2, kept=(4, 1))
    yield Job(1, 1, 2, steps=2)
    yield Job(2, 1, 2, steps=2)
    yield Job(3, 1, 2, steps=2, replica=False, layers=2)
    yield Job(2, 2, 2, steps=1, evals=2)
    yield Job(1, 3, 2, steps=2, profiled=True)
    yield Job(2, 2, 2, steps=2, profiled=True)
    yield AHEAD_SMALL
    yield AHEAD_PAIR
    yield replace(CHECKED_TWICE, steps=2)


def _of_bits() -> list[Run]:
    """Devices and memories that are wrong."""
    out: list[Run] = []
    out += [("flips", job, 0.7) for job in (CHECKED, CHECKED_TWICE, CHECKED_LONG, CHECKED_FILES)]
    out += [("merges", job, 0.4) for job in (OWN, OWN_SELDOM, OWN_AHEAD)]
    altered = (ALTERED, ALTERED_PAIR, ALTERED_THREE, ALTERED_AHEAD, ALTERED_AHEAD_TWICE)
    out += [("alterations", job, 0.7) for job in altered]
    out += [("votes", job, 0.4) for job in (SMALL, ALTERED_PAIR, ALTERED_THREE, CHECKED_TWICE)]
    out += [("tellers", CHECKED_FILES, 0.5), ("spreads", ALTERED_LONG, 0.5)]
    out += [("spreads", ALTERED_AHEAD, 0.5), ("fuzz", CHECKED, 0.3)]
    return out


def runs() -> list[Run]:
    """(family, job, share of the time). In every third job the first and last layers are tied, and
    in every second one devices complete instructions after their issue."""
    jobs = sorted(grids(), key=lambda j: j.pipelines * j.stages * j.microbatches)
    out = [("singles", job, 1.0) for job in jobs]
    out += [("pairs", job, 1.3) for job in PAIRS]
    for job in (SMALL, Job(1, 3, 2, steps=2), Job(2, 3, 4)):
        out += [("seconds", job, 1.5), ("bulks", job, 1.0), ("operators", job, 1.5)]
    for job in (SPARE, UNEVEN, WIDE):
        out += [("changes", job, 2.0), ("partitions", job, 1.5), ("fuzz", job, 2.0)]
    for policy in (SHADOW, PEERS):
        out += [("bulks", Job(2, 3, 4, policy=policy), 1.0)]
        out += [("changes", replace(SPARE, policy=policy), 1.0)]
        out += [("fuzz", replace(WIDE, policy=policy), 1.0)]
    out += [("fuzz", SPLIT, 1.0), ("bulks", SPLIT, 1.0)]
    out += [("freezes", job, 1.0) for job in (SMALL, MOVING, LONG)]
    for job in (TWO_ZONES, THREE_ZONES):
        out += [("zones", job, 2.0), ("surplus", job, 1.0), ("fuzz", job, 1.0)]
    out += [("replacements", MOVING, 1.0), ("isolations", MOVING, 1.0)]
    out += _of_notices()
    out += [("absences", job, 0.7) for job in (SAVING, SLEEPING, UNEVEN)]
    out += [(family, BEGUN, 0.5) for family in ("beginnings", "singles", "bulks", "operators")]
    out += [
        ("lists", SAVING, 0.3),
        ("relapses", ALTERED, 0.3),
        ("relapses", ALTERED_AHEAD_TWICE, 0.3),
    ]
    out += [("forks", SAVING, 1.0), ("restores", SAVING, 2.0), ("fuzz", SAVING, 2.0)]
    out += [("shrinks", LONG, 1.0), ("races", Job(1, 3, 2), 0.5)]
    out += [("successors", job, 0.5) for job in (SAVING, SLEEPING)]
    out += [("strangers", job, 0.7) for job in (SMALL, MOVING, LONG, LEARNING)]
    for job in (LEARNING, LEARNERS):
        out += [("learners", job, 2.0), ("fuzz", job, 1.0)]
    for family in EDGES:
        out += [(family, job, 0.8) for job in (SMALL, LONG, SPARE, UNEVEN)]
        out += [(family, job, 0.5) for job in (SAVING, LEARNING, MOVING)]
        out += [(family, job, 0.3) for job in MIXED]
    out += _of_files()
    for tears, farewells in ((SAVING, SPARE), (SLEEPING, UNEVEN)):
        out += [("tears", tears, 0.5), ("farewells", farewells, 0.5)]
    out += [("finishes", job, 0.3) for job in (SMALL, SAVING, UNEVEN)]
    out += _of_places()
    out += [("echoes", job, 0.5) for job in (SMALL, SAVING, UNEVEN, LEARNERS)]
    out += [("reports", MOVING, 0.5), ("stops", SMALL, 0.5), ("stops", SAVING, 0.5)]
    for job in MIXED:
        out += [(family, job, 0.3) for family in ("changes", "operators", "bulks", "partitions")]
        out += [("fuzz", job, 0.6)]
    out += [(family, job, 0.3) for family, job in EAGER.items()]
    for job in (AHEAD, AHEAD_TWICE, AHEAD_TIGHT, AHEAD_TIGHT_PAIR):
        out += [(family, job, 0.5) for family in ("singles", "seconds", "bulks", "operators")]
        out += [(family, job, 0.5) for family in ("resets", "freezes", "changes", "fuzz")]
    out += [("slices", job, 0.5) for job in (AHEAD, AHEAD_TWICE, AHEAD_TIGHT, CHECKED)]
    out += _of_bits()
    out += [
        ("sources", LEARNT, 0.5),
        ("regrids", TURNING, 1.5),
        ("regrids", UNEVEN, 1.0),
        ("returns", BACK_AND_FORTH, 0.5),
    ]
    out += [("suspensions", SLEEPING, 1.0), ("suspensions", SMALL, 0.5)]
    out += [("raises", job, 0.7) for job in (SAVING, SLEEPING, FILES)]
    out += [("blips", job, 0.5) for job in (MOVING, THIN, SMALL, SAVING, UNEVEN, BACK_AND_FORTH)]
    for rests, deaf in ((SLEEPING, SMALL), (THREE, MOVING), (UNEVEN, UNEVEN)):
        out += [("rests", rests, 0.5), ("deaf", deaf, 0.5)]
    out += [("fuzz", LARGE, 2.0), ("bulks", LARGE, 1.0), ("changes", LARGE, 1.0)]
    return [
        (family, replace(job, tied=n % 3 == 0, issues=_ISSUES[n % 4]), share)
        for n, (family, job, share) in enumerate(out)
    ]


def _of_notices() -> list[Run]:
    """Families in which agents are told before they go."""
    out = [("short-notices", MOVING, 0.5), ("handovers", MOVING, 0.5), ("leavers", MOVING, 0.5)]
    return [*out, ("leavers", SPARE, 0.5), ("new-owners", NEW_OWNERS, 0.5)]


def _of_places() -> list[Run]:
    """Families in which agents move to other stages, or plans count with what they measure."""
    out = [("moves", job, 0.7) for job in (RESEATED, RESEATED_LATER, RESEATED_ZONES)]
    return out + [("networks", job, 0.7) for job in (SPLIT, MEASURED)]


def _of_files() -> list[Run]:
    """Families in which the storage fails, is full, or is away."""
    jobs = (SAVING, SLEEPING, UNEVEN, FILES, SINGLE)
    out = [("storage", job, 1.0) for job in jobs]
    out += [(family, job, 0.6) for family in ("folders", "space") for job in jobs]
    out += [("samples", job, 0.6) for job in (SAVING, SLEEPING, UNEVEN, SINGLE, SMALL, MOVING)]
    out += [("attempts", job, 0.6) for job in (OFTEN, SAVING, ALTERED_PAIR)]
    kinds = ("attempts", "storage", "successors", "suspensions", "fuzz", "changes")
    out += [(family, BEST, 0.5) for family in kinds]
    return out + [(family, BEST_SELDOM, 0.5) for family in ("attempts", "storage", "fuzz", "forks")]


def coarseness(family: str, job: Job) -> int:
    """Number of parts of a run, chosen so that one part fits into the time of a CI run."""
    agents = len(job.at_start)
    per_event = {"singles": agents, "pairs": agents * agents // 2, "seconds": agents * agents * 3}
    return agents * job.microbatches * per_event.get(family, 1)


def explore(
    seconds: float,
    seed: int,
    *,
    tally: Tally | None = None,
    only: str = "",
    least: int = 0,
    each: int = 0,
    patience_s: float = PATIENCE_S,
) -> tuple[Tally, list[str]]:
    """Run every family for its share of the time, part by part. The seed chooses the first part.

    only: as in :func:`is_chosen`.

    least, each: go on until so many histories have run, and so many of each family, with other
    seeds once all families have had their turn, for ``patience_s`` more at most. Returns the tally
    and a line for each run.
    """
    tally = tally or Tally()
    chosen = [r for r in runs() if is_chosen(r[0], only)]
    todo = _in_turn(chosen, seed)
    lines, end = list[str](), time() + seconds
    last = end + patience_s
    while True:
        rare = {family for family, *_ in chosen if tally.families[family] < each}
        if not todo or time() >= end:
            if time() >= last or not (rare or tally.cases < least):
                return tally, lines
            if tally.cases >= least:
                todo = [run for run in todo if run[0] in rare]
        if not todo:
            seed += 1
            todo = _in_turn(chosen, seed)
            continue
        family, job, share = todo.pop(0)
        rest = share + sum(r[2] for r in todo)
        until = time() + max(0.3, (end - time()) * share / rest)
        base = History(job, seed, POLICIES[(seed + len(todo)) % len(POLICIES)])
        before, count = tally.cases, coarseness(family, job)
        done = sum(_run_parts(tally, family, base, count, until))
        tally.families[family] += tally.cases - before
        lines.append(
            f"{family} {job} {base.policy}: {tally.cases - before} cases,"
            f" {done} of {count} parts from part {seed % count}"
        )


def is_chosen(family: str, only: str) -> bool:
    """Whether the family's name contains one of the words, which commas separate."""
    return any(word in family for word in only.split(","))


def _in_turn(chosen: list[Run], seed: int) -> list[Run]:
    """All runs; the seed chooses the first one."""
    return chosen[seed % len(chosen) :] + chosen[: seed % len(chosen)]


def _run_parts(
    tally: Tally, family: str, base: History, count: int, until: float
) -> Iterator[bool]:
    """Run part after part until the time is over. Yields whether each part is complete."""
    for part in parts(count, base.seed):
        is_whole = tally.run(FAMILIES[family](base, part), base, until=until, family=family)
        yield is_whole
        if not is_whole:
            return

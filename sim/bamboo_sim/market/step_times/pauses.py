"""Pauses of a job, measured in virtual time: the production arbiter, planner and executors.

An agent is lost, a new one takes its seat, and it leaves after a notice; in three fleets, at
different stages and at different times of a step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bamboo_core.arbiter.changes import transition_s
from bamboo_core.scheduling.device_memory import STATES
from bamboo_sim.market.simulation.step_times import Hole, Pauses
from bamboo_sim.market.step_times.dry import Job, check, fits
from bamboo_sim.market.step_times.kept import Kept, key
from bamboo_sim.timed.declared import Delays, Device, TimedJob
from bamboo_sim.timed.fleet import Fleet
from bamboo_sim.timed.hardware import DELAYS

_WARM = 2  # steps, as in timed/measured.py
_QUIET, _MOST = 3, 60  # steps under one plan until it holds, and until it must
_LEAD = 1.5  # times what a hand-over needs: enough for it, and too short to wait
_FRACTIONS = (0.25, 0.5, 0.75)  # of a step, when it happens


@dataclass(frozen=True)
class Question:
    """The pauses of a grid in which an agent is lost, joins, or goes. ``pipelines``: at least 2 in
    mode None, since there no other way survives a loss."""

    job: Job
    pipelines: int
    stages: int
    delays: Delays = DELAYS

    @property
    def timed(self) -> TimedJob:
        """The job in virtual time. Each pipeline has equally many micro-batches: where they cannot
        be dealt so, there are a few more."""
        model, job = self.job.model, self.job
        return TimedJob(
            self.pipelines,
            self.stages,
            -(-model.microbatches // self.pipelines),
            model.stages(self.stages),
            job.mode,
            links=job.network.links,
            device=Device(memory_bytes=model.memory_bytes),
            delays=self.delays,
            host_memory=str(model.host_memory_bytes),
        )


def pauses(
    asked: Question, place: Path | None = None, processes: int | None = None
) -> Pauses | None:
    """The means of three losses, joins and departures, and one restore; kept on disk in ``place``
    (None: the user's cache). ``processes``: side by side; None: one for each core.

    In a restore, agents live: they are told to begin, and each reads the state of its stages over
    its interface. Neither are processes started, nor is work repeated. None: the model does not
    fit, or a loss is fatal. ValueError: the job never has such a grid.
    """
    check(asked.job, asked.pipelines, asked.stages, frozenset())
    if not fits(asked.job, asked.pipelines, asked.stages) or _is_fatal(asked):
        return None
    kept = Kept(key(("pauses", asked)), place)
    if any(name not in kept for name in Pauses._fields):
        found = _measured(asked, processes)
        kept.add(dict(zip(Pauses._fields, found, strict=True)))
    times = [kept[name] for name in Pauses._fields]
    return Pauses(*(ms or 0.0 for ms in times))


def _is_fatal(asked: Question) -> bool:
    keeps = asked.job.mode.keeps_copies and asked.stages > 1
    return asked.pipelines == 1 and not keeps


def _measured(asked: Question, processes: int | None) -> Pauses:
    live, numbers = partial(_lived, asked), range(len(_FRACTIONS))
    if processes == 1:
        lived = list(map(live, numbers))
    else:
        with ProcessPoolExecutor(processes, initializer=gc.disable) as pool:
            lived = list(pool.map(live, numbers))
    means = [fmean(x) * 1000 for x in zip(*lived, strict=True)]
    return Pauses(*means)


def _lived(asked: Question, number: int) -> tuple[float, float, float, float]:
    """Seconds of one pause of each kind, in the order of :class:`Pauses`."""
    fleet = Fleet(asked.timed)
    fleet.run_to(_WARM)
    step_s = fleet.step_s(_WARM)
    seat = number % asked.pipelines, number * (asked.stages - 1) // max(1, len(_FRACTIONS) - 1)
    # over a slow network the first step can be shorter: nothing is under way when it begins
    begin_s = max(0.0, fleet.commits[0] - step_s)
    restore_s = asked.delays.detection_s + _read_s(asked) + begin_s
    loss_s = _longer(fleet, number, lambda: fleet.kill(fleet.seat(*seat)))
    join_s = _longer(fleet, number, fleet.join)
    leaver, lead_s = fleet.seat(*seat), _LEAD * transition_s(step_s)
    drain_s = _longer(fleet, number, lambda: fleet.leave(leaver, lead_s))
    if fleet.plan is None or leaver in fleet.plan.live:
        raise RuntimeError(f"{leaver} has not left after its notice of {lead_s:.1f} s.")
    return loss_s, join_s, drain_s, restore_s


def _longer(fleet: Fleet, number: int, happens: Callable[[], object]) -> float:
    """By how much steps are longer, from the one in which it happens until one plan has held for
    some steps, than one before it and the others after it."""
    begun = max(fleet.commits)
    before_s = fleet.step_s(begun)
    last = settle(fleet, _FRACTIONS[number], happens)
    whole_s = fleet.commits[last] - fleet.commits[begun]
    return max(0.0, whole_s - before_s - (last - begun - 1) * fleet.step_s(last))


def settle(fleet: Fleet, fraction: float, happens: Callable[[], object]) -> int:
    """Let something happen at a fraction of the next step, and go on until one plan has held for
    some steps; the last of them is returned. RuntimeError: it changes no plan, or ever new ones
    follow."""
    begun, plans = max(fleet.commits), len(fleet.operator.decided)
    fleet.run_until(fleet.commits[begun] + fraction * fleet.step_s(begun))
    happens()
    changed: int | None = None
    for last in range(begun + 1, begun + _MOST):
        fleet.run_to(last)
        if len(fleet.operator.decided) > plans:
            plans, changed = len(fleet.operator.decided), last
        if changed is not None and last >= changed + _QUIET:
            return last
    raise RuntimeError(f"within {_MOST} steps no new plan has held for {_QUIET} of them.")


class Settled(NamedTuple):
    """A grid after losses. ``step_s``: of a later step."""

    pipelines: int
    holes: frozenset[Hole]
    step_s: float


def after_losses(asked: Question, lost: Sequence[Hole]) -> Settled:
    """Lose agents one after another, by their seats in the plan then, and see what steps take.

    Which seats are empty in the end is the planner's choice: it moves agents, too. ValueError if a
    seat is empty already.
    """
    fleet = Fleet(asked.timed)
    fleet.run_to(last := _WARM + 1)
    for seat in lost:
        agent = fleet.seat(*seat)
        last = settle(fleet, _FRACTIONS[1], partial(fleet.kill, agent))
    assert fleet.plan is not None, "steps have been committed"
    seats = fleet.plan.pipelines
    holes = {(d, s) for d, row in enumerate(seats) for s, agent in enumerate(row) if agent is None}
    return Settled(len(seats), frozenset(holes), fleet.step_s(last))


def _read_s(asked: Question) -> float:
    """Seconds in which an agent with the largest stage reads it, and its copy."""
    sizes = [x.parameter_bytes for x in asked.job.model.stages(asked.stages)]
    copies = [*sizes[1:], sizes[0]] if asked.job.mode.keeps_copies else [0] * len(sizes)
    most = max(own + copy for own, copy in zip(sizes, copies, strict=True))
    return STATES * most / asked.job.network.bytes_per_s

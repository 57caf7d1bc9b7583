"""Ours on the formula instead of the planner's dry runs, so that it can be tried without a planner:
step times and pauses of each mode, from parameters.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_sim.market.policies.base.formula import FormulaTimes, Way
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.parameters import values
from bamboo_sim.market.policies.base.restores import restore_ms
from bamboo_sim.market.policies.ours.ours import Ours
from bamboo_sim.market.simulation.step_times import Pauses, StepTimes

MODES = (RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER)


class Mode(NamedTuple):
    """Step times and pauses in one mode, with one way to share lost work. ``redone``: as in
    :class:`Ours`."""

    times: StepTimes
    pauses: Pauses
    redone: float


def formula_modes(job: Job, way: RecoveryPolicy) -> dict[RedundancyMode, Mode]:
    """All modes with the job's formula."""
    ours, common = values("ours", "ours"), job.common
    pauses = Pauses(
        loss_ms=common.detect_ms + ours["reroute_ms"],
        join_ms=ours["join_ms"],
        drain_ms=ours["drain_ms"],
        restore_ms=common.detect_ms + restore_ms(job, common.stages),
    )
    depths = common.fewest_stages, common.most_stages
    found = {}
    for mode in MODES:
        rule = Way(
            name=way,
            overhead=ours["overhead"],
            tax=ours["tax"][mode],
            upkeep_ms=ours["upkeep_ms"][mode],
            has_copies=mode.keeps_copies,
        )
        times = FormulaTimes(job.formula, depths, job.times.samples, rule)
        found[mode] = Mode(times, pauses, ours["redone"][mode])
    return found


def policies(job: Job, modes: Mapping[RedundancyMode, Mode]) -> dict[RedundancyMode, Ours]:
    """The policy of each mode."""
    gain = values("ours", "ours")["gain"]
    return {
        mode: Ours(job, found.times, found.pauses, redone=found.redone, gain=gain)
        for mode, found in modes.items()
    }

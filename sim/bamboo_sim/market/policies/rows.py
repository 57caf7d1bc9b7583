"""The systems by name: rivals with parameters of the common table or with their own published ones,
and ours in each mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_sim.market.policies.assumed import gemini, swarm, unicron
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.parameters import parameters, values
from bamboo_sim.market.policies.ours.auto import Auto, Choice
from bamboo_sim.market.policies.ours.modes import Mode, formula_modes, policies
from bamboo_sim.market.policies.rivals import (
    bamboo,
    dropping,
    live_migration,
    migrations,
    on_demand,
    oobleck,
    parcae,
    recycle,
    torchft,
    varuna,
)
from bamboo_sim.market.policies.rivals.checkpoint_restart import CheckpointRestart
from bamboo_sim.market.simulation.policy import Policy


def rivals(job: Job, *, own: bool = False) -> dict[str, Policy]:
    """The rows in the order of the table. ``own``: with the parameters that their authors published
    where these differ; what is common stays common."""

    def told(system: str) -> dict[str, Any]:
        return values("rivals", system, own=own)

    groups, rerouting = torchft.Rules(**told("torchft")), recycle.Rules(**told("recycle"))
    costs = migrations.Costs(**told("parcae"))
    return {
        "bound": on_demand.OnDemand(job),
        "checkpoint": CheckpointRestart(job),
        "varuna": varuna.Varuna(job, varuna.Rules(**told("varuna"))),
        "torchft": torchft.Torchft(job, groups, merges=True),
        "torchft, fixed groups": torchft.Torchft(job, groups, merges=False),
        "bamboo, eager": bamboo.Bamboo(job, bamboo.rules("eager", told("bamboo"))),
        "bamboo, lazy": bamboo.Bamboo(job, bamboo.rules("lazy", told("bamboo"))),
        "oobleck": oobleck.Oobleck(job, oobleck.Rules(**told("oobleck"))),
        "recycle, fixed depth": recycle.ReCycle(job, rerouting, regrids=False),
        "recycle": recycle.ReCycle(job, rerouting, regrids=True),
        "sample dropping": dropping.SampleDropping(job, torchft.Rules(**told("dropping"))),
        "live migration": live_migration.LiveMigration(job, costs),
        "parcae": parcae.Parcae(job, costs),
    }


def with_own(job: Job) -> dict[str, Policy]:
    """The rows of systems whose authors published other parameters than the common table has."""
    differ = {x.system for x in parameters("rivals") if x.own != x.value}
    return {
        name: policy
        for name, policy in rivals(job, own=True).items()
        if name.partition(",")[0] in differ
    }


def assumed(job: Job) -> dict[str, Policy]:
    """Systems of which only prose is known: a table of their own, marked as assumed."""
    return {
        "gemini": gemini.Gemini(job, **values("assumed", "gemini")),
        "swarm": swarm.Swarm(job, **values("assumed", "swarm")),
        "unicron": unicron.Unicron(job, unicron.Rules(**values("assumed", "unicron"))),
    }


def ours(
    job: Job,
    way: RecoveryPolicy = RecoveryPolicy.DIFFUSE,
    modes: Mapping[RedundancyMode, Mode] | None = None,
    choose: Choice | None = None,
) -> dict[str, Policy]:
    """Ours in each mode with one way to share lost work. ``modes``: step times and pauses of each
    mode in this way; None: by the formula. ``choose``: Auto's choice; None: there is no row of it.
    """
    found = policies(job, formula_modes(job, way) if modes is None else modes)
    rows: dict[str, Policy] = {f"ours, {mode}, {way}": policy for mode, policy in found.items()}
    if choose is not None:
        rows[f"ours, Auto, {way}"] = Auto(found, choose)
    return rows

"""What scripts/mutate does: a whole run, a quick one, or one mutant shown."""

from __future__ import annotations

import argparse
import sys
import time

from bamboo_sim.mutation import campaign, equivalents, even_sample, figures, sources, verdicts
from bamboo_sim.mutation.campaign import UnfitError as UnfitError
from bamboo_sim.mutation.figures import Judged
from bamboo_sim.mutation.mutants import Module, Mutant
from bamboo_sim.mutation.verdicts import Verdict, Verdicts
from bamboo_sim.programs.sample import Sample

_QUICK_MINUTES = 0.2
_FEW = 5  # mutants that a quick run judges at least: a share of fewer says nothing


def run(options: argparse.Namespace) -> int:
    until = time.time() + options.minutes * 60 if options.minutes is not None else float("inf")
    code, known, reasons = verdicts.code(), Verdicts(), equivalents.load()
    equivalents.check_modules(reasons.values())
    groups = even_sample.modules(options.only)
    print("measuring which tests run what, unless it is known", flush=True)
    plan = campaign.with_map(campaign.measured(code))
    chosen = list(even_sample.sample(groups, options.mutants, options.seed))
    print(f"{len(chosen)} mutants of {sum(map(len, groups.values()))} modules", flush=True)
    judged = [
        _report(Judged(mutant, verdict, _reason(mutant, reasons)), is_new, n, len(chosen))
        for n, (mutant, verdict, is_new) in enumerate(
            campaign.judge(chosen, plan, code, known, processes=options.processes, until=until),
            1,
        )
    ]
    status = _conclude(judged, dict((m, module) for module, m in chosen), options.least)
    if len(judged) < len(chosen):
        print(f"{len(chosen) - len(judged)} mutants have no verdict yet; run it again")
        return 1 if options.write else status
    if options.write:
        settings = {
            "seed": options.seed,
            "exploration_s": campaign.EXPLORE_S,
            "python": sys.version.split()[0],
        }
        figures.write(judged, settings)
    return status


def run_quickly(options: argparse.Namespace) -> int:
    """A few mutants of one module. Nothing is kept: fewer killers than in a full run try."""
    few = min(options.mutants, _FEW)
    minutes = _QUICK_MINUTES if options.minutes is None else options.minutes
    paths = [p for ps in sources.paths().values() for p in ps if options.only in sources.name(p)]
    module, pairs = even_sample.of_one_module(paths, min(options.mutants, 40), options.seed, few)
    print(f"{module.name}, seed {options.seed}", flush=True)
    campaign.check_folders(campaign.own_folders(pairs[0][1]))
    tried = Sample("scripts/mutate", {"mutants": few}, minutes * 60)
    tried.begin()  # however long the check has taken
    results = campaign.judge(
        pairs,
        campaign.own_tests_only,
        verdicts.code(),
        processes=options.processes,
        until=time.time() + tried.seconds,
        least=few,
    )
    reasons = equivalents.load()
    equivalents.check_modules(reasons.values())
    judged = [
        _report(Judged(mutant, verdict, _reason(mutant, reasons)), True, n, len(pairs))
        for n, (mutant, verdict, _) in enumerate(results, 1)
    ]
    status = _conclude(judged, {m: module for _, m in pairs}, options.least)
    tried.add("mutants", len(judged))
    tried.check()
    return status


def _reason(mutant: Mutant, reasons: dict[str, equivalents.Equivalent]) -> str:
    return reasons[mutant.id].reason if mutant.id in reasons else ""


def _report(row: Judged, is_new: bool, number: int, count: int) -> Judged:
    """Print a line about a new verdict."""
    if is_new:
        by = row.verdict.killed_by or row.column
        print(f"[{number}/{count}] {row.verdict.seconds:5.1f} s {row.mutant} -> {by}", flush=True)
    return row


def _conclude(judged: list[Judged], modules: dict[Mutant, Module], least: float) -> int:
    for row in judged:
        if row.column == "survived":
            print(f"\n{row.mutant.id} survives\n{modules[row.mutant].difference(row.mutant)}")
        elif row.column == "killed" and row.reason:
            print(f"{row.mutant.id} is listed as equivalent, but {row.verdict.killed_by} kills it")
    print()
    for name, counts in figures.by_module(judged).items():
        print(name.ljust(28) + "  ".join(f"{key} {n}" for key, n in counts.items()))
    totals = figures.figures(judged)
    print(", ".join(f"{key} {value}" for key, value in totals.items()))
    if judged and totals["killed_over_all"] < least:
        print(f"bamboo: {totals['killed_over_all']} is less than --least {least}", file=sys.stderr)
        return 1
    return 0


def show(mutant_id: str, only: str) -> int:
    for members in even_sample.modules(only).values():
        for module in members:
            for mutant in module.mutants:
                if mutant.id == mutant_id:
                    verdict: Verdict | None = Verdicts().newest(mutant.id)
                    print(module.difference(mutant))
                    print(f"verdict: {verdict or 'none'}")
                    print(equivalents.entry(mutant))
                    return 0
    raise ValueError(f"no mutant has the id {mutant_id}; the code may have changed")

"""scripts/mutate [--write] [--minutes N] [--mutants N] [--seed N] [--only WORD] [--processes N]
scripts/mutate --quick [--minutes N] [--least SHARE]
scripts/mutate --show ID

Makes small changes (mutants) in the arbiter, evidence, executor, supervisor, planner and graph, and
counts how many the unit tests and 10 s of exploration notice. No file is changed. Prints a line for
each mutant, and a diff for each that survives. Verdicts are kept in the user's cache: a run that
was stopped continues, and after an edit of the code a mutant first meets what killed it before.
Exit status 1 if a test fails without any change, or less than --least of the mutants are killed.
"""

from __future__ import annotations

import argparse
import os
import sys

from bamboo_sim.mutation import sources
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.programs.sample import TooSmallError


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the same order of sets in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bamboo_sim.mutation", *sys.argv[1:]])
    from bamboo_sim.mutation import commands  # takes seconds, which bad arguments need not wait for

    try:
        if options.show:
            return commands.show(options.show, options.only)
        return commands.run_quickly(options) if options.quick else commands.run(options)
    except (commands.UnfitError, TooSmallError, ValueError) as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1


def _options() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=form,
    )
    add, amount, at_least = parser.add_argument, arguments.amount, arguments.at_least
    add("--write", action="store_true", help="write benchmarks/results/mutation.json at the end")
    add("--minutes", type=amount, help="start no mutant later; the next run continues")
    add("--mutants", type=at_least(1), default=510, help="size of the sample (default: 510)")
    add("--seed", type=int, help="chooses the sample (default: 0; --quick: from the commit's hash)")
    add("--only", default="", help="only modules whose path below core/bamboo_core contains this")
    add("--processes", type=at_least(1), default=1, help="mutants at the same time (default: 1)")
    add("--least", type=amount, default=0.0, help="share to be killed, 0 to 1 (default: 0)")
    add("--show", metavar="ID", help="print one mutant's diff, verdict and entry as equivalent")
    add(
        "--quick",
        action="store_true",
        help="one module that the seed chooses, its package's tests only: mutants for 12 s, but at"
        " least five (for CI)",
    )
    options = parser.parse_args()
    names = [sources.name(p) for ps in sources.paths().values() for p in ps]
    if not any(options.only in name for name in names):
        parser.error(f"--only {options.only} matches no module; modules: {', '.join(names)}")
    if options.quick and options.write:
        parser.error("--quick judges by few tests; leave out --quick or --write")
    if options.write and options.only:
        parser.error("--only leaves modules out; leave out --only or --write")
    if options.seed is None:
        head = results_file.commit().rstrip("+").rpartition("-")[2].lstrip("g")
        is_hash = options.quick and head != "unknown"
        options.seed = int(head[:6], 16) if is_hash else 0
    return options


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bamboo_agent.weights.main``: `bamboo export` and `bamboo import` run it.

Reads a job's frozen spec (JSON) from standard input, or nothing, and tells what happens on the
descriptor --tell, a line of :mod:`bamboo_core.api.local_run` for each. The last one is Written or
Refused.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weights.exporting import Target, export
from bamboo_agent.weights.finding import Wanted, find
from bamboo_agent.weights.importing import Intake, take
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, from_json

Tell = Callable[[local_run.Told], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Move the weights; returns 0 if they are in their place."""
    given = _parser().parse_args(arguments)
    text = sys.stdin.read()
    spec = from_json(text) if text else None
    with os.fdopen(given.tell, "w", buffering=1) as lines:

        def tell(told: local_run.Told) -> None:
            lines.write(local_run.to_line(told) + "\n")

        try:
            tell(_export(given, spec, tell) if given.what == "export" else _take(given, spec, tell))
        except WeightsError as error:
            tell(local_run.Refused(" ".join(str(error).split())))
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bamboo_agent.weights.main")
    parser.add_argument("what", choices=["export", "import"])
    parser.add_argument("--source", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tell", type=int, required=True)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--format", type=local_run.WeightsFormat, default="safetensors")
    parser.add_argument("--dtype", choices=local_run.WEIGHT_DTYPES)
    parser.add_argument("--step", type=int)
    parser.add_argument("--attempt", type=int)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--ignore", action="append", default=[])
    parser.add_argument("--cast", action="store_true")
    return parser


def _export(given: argparse.Namespace, spec: JobSpec | None, tell: Tell) -> local_run.Written:
    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    found = find(given.source, Wanted(given.step, given.attempt, given.best))
    return export(found, Target(given.out, given.format, dtype, given.force), spec, tell)


def _take(given: argparse.Namespace, spec: JobSpec | None, tell: Tell) -> local_run.Written:
    assert spec is not None
    intake = Intake(given.source, given.out, given.ignore, given.cast, given.force)
    return take(intake, spec, tell)


if __name__ == "__main__":
    sys.exit(main())

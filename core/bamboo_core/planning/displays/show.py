"""``python -m bamboo_core.planning.displays.show``: the programs of a step as a grid or as text.

python -m bamboo_core.planning.displays.show --stages 4 --pipelines 2 --lost 1,2 --split
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.model import numerics
from bamboo_core.planning.displays import grid
from bamboo_core.planning.step_shape import StepShape

_MOST = 1 << 20
"""Limit on a step's instructions, which is about its number of cells: more are unreadable."""


def _seat(text: str) -> tuple[int, int]:
    pipeline, _, stage = text.partition(",")
    try:
        return int(pipeline), int(stage)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a seat: write pipeline,stage, such as 0,2"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bamboo_core.planning.displays.show", description=__doc__
    )
    parser.add_argument("--pipelines", type=int, default=1, help="D")
    parser.add_argument("--stages", type=int, default=4, help="P")
    parser.add_argument("--microbatches", type=int, default=8, help="per pipeline")
    parser.add_argument("--lost", type=_seat, action="append", default=[], metavar="D,S")
    parser.add_argument("--policy", type=RecoveryPolicy, default=RecoveryPolicy.AUTO)
    parser.add_argument("--split", action="store_true", help="I and W instead of B")
    parser.add_argument("--extra", type=int, default=0, help="activations in flight beyond P - s")
    parser.add_argument("--text", action="store_true", help="print programs instead of a grid")
    return parser


def _check(given: argparse.Namespace) -> None:
    for option in ("pipelines", "stages", "microbatches"):
        if getattr(given, option) < 1:
            raise ValueError(f"--{option} must be at least 1")
    if given.extra < 0:
        raise ValueError("--extra must be at least 0")
    seats, slots = given.pipelines * given.stages, 3 * (given.microbatches + given.stages)
    if seats * slots > _MOST:
        raise ValueError(
            f"{seats} seats and about {slots} slots make {seats * slots} cells, and at most {_MOST}"
            " can be shown: give smaller --pipelines, --stages or --microbatches"
        )
    for d, s in given.lost:
        if not (0 <= d < given.pipelines and 0 <= s < given.stages):
            raise ValueError(f"there is no seat {d},{s} to lose")


def render(arguments: Sequence[str]) -> str:
    """The command's output. ValueError for numbers that make no step."""
    given = _parser().parse_args(arguments)
    _check(given)
    batch = numerics.choose(
        microbatches=given.pipelines * given.microbatches,
        pipelines_max=given.pipelines,
    )
    shape = StepShape(
        given.pipelines,
        given.stages,
        batch,
        lost=tuple(given.lost),
        split=given.split,
        policy=given.policy,
        extra=given.extra,
    )
    programs = shape.build().programs
    report = shape.dry_run(programs)
    return grid.listing(programs, report) if given.text else grid.draw(programs, report)


def main() -> None:
    """Print to standard output."""
    try:
        print(render(sys.argv[1:]), end="")
    except ValueError as error:
        raise SystemExit(f"cannot show this step: {error}") from None


if __name__ == "__main__":
    main()

"""Grids and listings for people; the golden files show what programs look like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.scheduling.steps import step

from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op, parse
from bamboo_core.planning.displays import show
from bamboo_core.planning.displays.grid import draw, listing
from bamboo_core.planning.step_shape import StepShape

GOLDEN = Path(__file__).parent / "golden"

CASES = {
    "1x2-fused": ["--stages", "2", "--microbatches", "2", "--text"],
    "1x4-fused-grid": ["--stages", "4", "--microbatches", "8"],
    "1x4-split-grid": ["--stages", "4", "--microbatches", "8", "--split"],
    "2x2-split": ["--stages", "2", "--pipelines", "2", "--microbatches", "2", "--split", "--text"],
    "2x4-lost-0-2-grid": [
        *("--stages", "4", "--pipelines", "2", "--microbatches", "8"),
        *("--lost", "0,2", "--split", "--extra", "8"),
    ],
    "2x2-lost-1-0": [
        *("--stages", "2", "--pipelines", "2", "--microbatches", "2"),
        *("--lost", "1,0", "--text"),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_programs_are_those_of_the_golden_file(case):
    """To accept a change: write what ``show`` prints into the file, and read the difference."""
    assert show.render(CASES[case]) == (GOLDEN / f"{case}.txt").read_text()


@pytest.mark.parametrize("case", [c for c in CASES if not c.endswith("grid")])
def test_golden_programs_parse_and_run(case):
    text = (GOLDEN / f"{case}.txt").read_text()
    blocks = [b.partition("\n") for b in text.split("# ")[1:]]
    programs = {name: parse(body) for name, _, body in blocks}
    assert listing(programs) == text


def test_a_shape_has_no_empty_seats_unless_they_are_named():
    assert StepShape(1, 2, BatchShape(2, 1, 1)).seats == (("0-0", "0-1"),)


def test_a_stuck_agent_is_marked_in_grid_and_listing():
    shape = step(BatchShape(4, 1, 2), 2, 2)
    programs = dict(shape.build().programs)
    agent = shape.live[0]
    programs[agent] = tuple(x for x in programs[agent] if not (x.op is Op.F and x.index == 1))
    report = shape.dry_run(programs)
    drawn = draw(programs, report)
    blocked = report.deadlock[agent]
    line = next(x for x in drawn.splitlines() if x.startswith(agent))
    assert line.endswith(f"! {blocked.instruction}")
    assert f"{agent} is stuck at #{blocked.at}" in drawn
    marked = [x for x in listing(programs, report).splitlines() if "<==" in x]
    assert f"{blocked.instruction}   <== lacks {blocked.item}" in marked


def test_work_for_another_stage_is_marked():
    drawn = show.render(CASES["2x4-lost-0-2-grid"])
    assert "F0'" in drawn
    assert "0-2 |" not in drawn


def test_the_command_prints_a_grid():
    command = [
        sys.executable,
        "-m",
        "bamboo_core.planning.displays.show",
        "--stages",
        "2",
        "--microbatches",
        "2",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == show.render(["--stages", "2", "--microbatches", "2"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lost", "1"], "'1' is not a seat: write pipeline,stage"),
        (["--stages", "0"], "cannot show this step: --stages must be at least 1"),
        (["--extra", "-5"], "cannot show this step: --extra must be at least 0"),
        (["--microbatches", "1000000000"], "give smaller --pipelines, --stages or --microbatches"),
        (["--stages", "100000"], "give smaller --pipelines, --stages or --microbatches"),
        (["--lost", "5,0"], "cannot show this step: there is no seat 5,0 to lose"),
        (["--lost", "0,0", "--stages", "1"], "cannot show this step: stage 0 has no live holder"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(options, message):
    command = [sys.executable, "-m", "bamboo_core.planning.displays.show", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr

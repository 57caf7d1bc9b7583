"""`bamboo sim advise`: the search, its figures, and the same bytes again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.__main__ import main
from bamboo_sim.market.advise import search
from bamboo_sim.market.advise.candidates import Candidate, grids, plain, variants
from bamboo_sim.market.advise.search import Result, Trial
from bamboo_sim.market.policies.base.formula import Grid

TRACE = "".join(f"0,add,node{n}\n" for n in range(1, 6))
TRACE += "600000,remove,node1\n900000,add,node6\n1500000,remove,node2\n1800000,add,node7\n"
OPTIONS = ("--model", "alexnet", "--samples", "3e6", "--seeds", "4")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("advise")
    (made / "trace.csv").write_text(TRACE, encoding="utf-8")
    return made


def program(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "bamboo_sim.market", "advise", *OPTIONS, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "XDG_CACHE_HOME": str(place / "cache")},
    )


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    shown = program(place, "--trace", "trace.csv", "--json", "--processes", "2")
    assert shown.returncode == 0, shown.stderr
    assert "candidates guessed: " in shown.stderr
    return shown.stdout


@pytest.fixture(scope="module")
def found(printed: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(printed)
    return read


def test_a_second_process_prints_the_same_bytes(place: Path, printed: str) -> None:
    again = program(place, "--trace", "trace.csv", "--json", "--processes", "1")
    assert again.stdout == printed
    assert "steps" not in again.stderr  # all is kept


def test_on_demand_takes_its_boot_and_its_steps(found: dict[str, Any]) -> None:
    steady = [x for x in found["candidates"] if not x["spot"]]
    assert steady
    for each in steady:
        nodes = each["pipelines"] * each["stages"]
        assert each["dollars"] == pytest.approx(nodes * 3.06 * each["hours"])
        assert len({tuple(trial) for trial in each["trials"]}) == 1


def test_the_front_is_not_beaten_and_has_the_advice(found: dict[str, Any]) -> None:
    front = [x for x in found["candidates"] if x["is_on_front"]]
    for one in front:
        for other in found["candidates"]:
            assert (
                other is one or other["hours"] > one["hours"] or other["dollars"] >= one["dollars"]
            )
    (best,) = [x for x in found["candidates"] if x["is_recommended"]]
    assert best["dollars"] == min(x["dollars"] for x in found["candidates"])
    assert found["why"][0].startswith(f"Take {best['name']}: ")
    assert len(best["trials"]) == found["histories"] == 4


def test_the_text_has_the_advice_first(place: Path, found: dict[str, Any]) -> None:
    shown = program(place, "--trace", "trace.csv", "--deadline", "24", "--budget", "99")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"Take {found['recommended']}: ")
    assert "4 of 4 histories end within 24 h and 4 of 4 cost at most 99 dollars." in lines[0]
    (starred,) = [line for line in lines if line.startswith("  * ") or " * " in line[:8]]
    assert starred.split()[-3:] == ["100%", "100%", "all"]
    assert "2023-04" in shown.stdout


def test_an_impossible_deadline_says_the_fastest_and_its_cost(
    place: Path, found: dict[str, Any]
) -> None:
    shown = program(place, "--trace", "trace.csv", "--deadline", "0.01")
    assert (shown.returncode, shown.stdout) == (1, "")
    fastest = found["candidates"][0]
    said = f"{fastest['hours']:.2f} h, {fastest['dollars']:.2f} dollars. Give --deadline "
    assert (
        "bamboo: --deadline 0.01 cannot be met in 95% of 4 histories; the fastest" in shown.stderr
    )
    assert said in shown.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--samples", "0"), "--samples is 0; give how many the job trains."),
        (("--sure", "1.5"), "--sure is 1.5; give a share above 0 and at most 1."),
        (("--trace", "no-such"), "'no-such' is no file, and no market by name"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["advise", "--model", "alexnet", "--trace", str(place / "trace.csv"), *options]
    assert main(given) == 1
    assert said in capsys.readouterr().err


HISTORY = """node,zone,capacity,start,end,ended_by,dollars_per_hour
c,west,spot,2026-11-30T08:00:00Z,2026-11-30T08:20:00Z,preempted,2.5
d,west,spot,2026-11-30T08:00:00Z,,running,2.5
a,east,spot,2026-11-30T08:00:00Z,,running,0.5
b,east,spot,2026-11-30T08:00:00Z,,running,0.5
e,base,on-demand,2026-11-30T08:00:00Z,,running,3.0
f,west,spot,2026-11-30T09:00:00Z,,running,2.5
"""


def test_a_cheap_zone_is_taken_alone(place: Path) -> None:
    """Nodes on demand of the history are no offer, and neither is a zone that has none else."""
    (place / "history.csv").write_text(HISTORY, encoding="utf-8")
    shown = program(place, "--trace", "history.csv", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    (best,) = [x for x in found["candidates"] if x["is_recommended"]]
    assert (best["pipelines"], best["stages"], best["zones"]) == (1, 2, ["east"])
    assert best["dollars"] == pytest.approx(2 * 0.5 * best["hours"])
    everywhere = [x for x in found["candidates"] if x["spot"] and not x["zones"]]
    assert all(x["dollars"] > best["dollars"] for x in everywhere)


def test_what_is_near_the_front_is_kept_and_the_front_first() -> None:
    def result(stages: int, hours: float, dollars: float) -> Result:
        one = Candidate(Grid(1, stages), RedundancyMode.NONE)
        return Result(one, (Trial(hours, dollars),))

    fast, cheap, middle = result(2, 1, 9), result(3, 9, 1), result(4, 3, 3)
    near, far, never = result(5, 3.3, 3.3), result(6, 4, 4), result(7, inf, 0.5)
    assert search._near([never, far, near, middle, cheap, fast])[:3] == [fast, cheap, middle]
    assert search._near([never, far, near, middle, cheap, fast])[3:] == [near]
    assert search._near([fast]) == [fast]
    assert search._near([never]) == []


def test_candidates_are_all_grids_in_all_modes_and_without_spot() -> None:
    found = grids(6, 2, 4)
    assert found == [Grid(1, 2), Grid(2, 2), Grid(3, 2), Grid(1, 3), Grid(2, 3), Grid(1, 4)]
    tried = list(plain(found))
    assert len(tried) == len(set(tried)) == 4 * len(found)
    assert {x.spot for x in tried if x.grid == Grid(3, 2)} == {6, 0}


def test_variants_mix_capacities_and_try_each_zone() -> None:
    one = Candidate(Grid(2, 4), RedundancyMode.NONE)
    assert [x.steady for x in variants(one, ())] == [2, 4]
    assert [x.zones for x in variants(one, ("a", "b"))][2:] == [("a",), ("b",)]
    assert list(variants(one._replace(steady=8), ("a", "b"))) == []
    tiny = Candidate(Grid(1, 2), RedundancyMode.NONE)
    assert [x.steady for x in variants(tiny, ("a",))] == [1]

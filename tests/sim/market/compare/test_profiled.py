"""A user's own model in the simulator: from the file of `bamboo profile` to a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.market.step_times.small import model

from bamboo_core.api.spec import FactorySpec
from bamboo_core.protection.profile_file import Profile, to_json
from bamboo_sim.market.__main__ import main
from bamboo_sim.market.compare.profiled import fewest_stages, profiled
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.policies.ours.modes import MODES
from bamboo_sim.market.step_times.dry import Job, fits
from bamboo_sim.market.step_times.networks import TEN

LAYERS = model(layers=4, microbatches=12, pipelines=4).layers
MEASURED = Profile("a GPU", 0, 2, FactorySpec("mine:build", {}), LAYERS)
TRACE = "".join(f"0,add,node{n}\n" for n in range(1, 6)) + "600000,remove,node1\n900000,add,node6\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    (tmp_path / "profile.json").write_text(to_json(MEASURED), encoding="utf-8")
    return tmp_path


def asked(place: Path, *options: str, command: str = "run") -> int:
    own = ["--profile", str(place / "profile.json"), "--processes", "1"]
    return main([command, *own, *options, str(place / "trace.csv")])


def test_the_model_has_the_measured_costs(place: Path) -> None:
    found, device = profiled(place / "profile.json", 24)
    assert device == "a GPU"
    assert (found.name, found.layers, found.samples) == ("mine:build", LAYERS, 24)
    assert (found.microbatches, found.samples_each) == (12, 2)


def test_a_comparison_is_of_that_model_and_device(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--global-batch", "24", "--on-demand-price", "4.5", "--price", "1.25")
    assert asked(place, *given, command="compare") == 0
    shown = capsys.readouterr().out
    assert "Model mine:build, 24 samples a step" in shown
    assert "Nodes are the device of the profile, a GPU, whatever was recorded." in shown
    assert "V100" not in shown.split("Assumed:")[-1].split("network")[0]
    assert "price of spot = 1.25 dollars per node-hour [given]" in shown
    assert "price of on-demand = 4.5 dollars per node-hour [given]" in shown
    assert "fewest_stages = 2" in shown
    (steady,) = [line for line in shown.splitlines() if line.startswith("on demand ")]
    assert steady.split()[4] == f"{5 * 4.5 * 0.25:.2f}"  # dollars


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "has the costs of a micro-batch of 2 samples; give --global-batch"),
        (("--global-batch", "25"), "--global-batch is 25, and micro-batches of "),
        (("--global-batch", "4"), "give a --global-batch of 6 or more."),
        (("--global-batch", "24", "--model", "alexnet"), "--model and --profile name two models"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: tuple[str, ...], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(place, *options) == 1
    assert said in capsys.readouterr().err


def test_the_batch_that_a_refusal_names_is_enough(place: Path) -> None:
    assert asked(place, "--global-batch", "6", "--policy", "bound") == 0


def test_a_batch_without_a_profile_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--global-batch", "8", str(place / "trace.csv")]) == 1
    assert "--global-batch is for your own model; give --profile, too." in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "{}", "\xff"])
def test_another_file_is_no_profile(
    content: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "profile.json").write_bytes(content.encode("latin-1"))
    assert asked(place, "--global-batch", "24") == 1
    assert "profile.json is not a file of `bamboo profile`: " in capsys.readouterr().err


def test_a_profile_that_is_not_there_is_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "profile.json").unlink()
    assert asked(place, "--global-batch", "24") == 1
    assert "profile.json: No such file" in capsys.readouterr().err


def test_one_layer_makes_no_pipeline(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(MEASURED, layers=LAYERS[:1])
    (place / "profile.json").write_text(to_json(one), encoding="utf-8")
    assert asked(place, "--global-batch", "24") == 1
    assert "has 1 layer; a pipeline has two stages at least" in capsys.readouterr().err


def test_the_fewest_stages_are_those_with_which_every_mode_fits() -> None:
    heavy = tuple(replace(x, parameter_bytes=2**28) for x in LAYERS)
    found = [
        replace(model(layers=4, microbatches=12, pipelines=4), layers=heavy, memory_bytes=each)
        for each in (0, 6 * 2**30, 10 * 2**30)
    ]
    assert [fewest_stages(each, TEN) for each in found] == [2, 4, 2]
    for each in found:
        stages = fewest_stages(each, TEN)
        assert all(fits(Job(each, mode, TEN), 1, stages) for mode in MODES)
        shallower = range(2, stages)
        assert not any(all(fits(Job(each, m, TEN), 1, s) for m in MODES) for s in shallower)
    with pytest.raises(MarketError, match=r"small does not fit onto devices with 1\.0 GiB"):
        fewest_stages(replace(found[0], memory_bytes=2**30), TEN)

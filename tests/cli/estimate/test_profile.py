"""`bamboo profile`: what it measures, which files `bamboo plan` takes, and what both refuse."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.profiles import LAYER, QUICKSTART, profile_of

from bamboo_cli.errors import CommandError, ProgramError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.estimate.plan import measured
from bamboo_cli.estimate.profile import measure, read_profile
from bamboo_cli.main import cli
from bamboo_core.api.spec import ModelSpec

_, SPEC = read_manifest(QUICKSTART)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


def refusal(path: Path, content: Any) -> str:
    """The error of `bamboo plan` for a profile with this content."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CommandError) as raised:
        measured(SPEC, path)
    said = str(raised.value)
    assert said.startswith(str(path))
    assert said.endswith("run `bamboo profile` again.")
    assert "\n" not in said
    return said


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "it is not JSON: Expecting value: line 1"),
        ("[" * 100_000, "it is nested too deep"),
        ("[" * 101 + "]" * 101, "it is nested 101 levels deep; at most 100 are supported"),
        ("[]", "profile: is []; it must be an object with fields among device, memoryBytes, "),
        ("{}", "profile.device: is required; set it (4 more fields are wrong)"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(path: Path, content: str, words: str) -> None:
    assert f"is not a file of `bamboo profile`: {words}" in refusal(path, content)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": 5}, "device: is 5; it must be a string, in quotes"),
        ({"device": "\ud800"}, "it has half of a surrogate pair"),
        ({"memoryBytes": inf}, "memoryBytes: is inf; it must be an integer from 0 to 1,000,000,"),
        ({"memoryBytes": -5}, "memoryBytes: is -5; it must be an integer from 0 to 1,000,000,"),
        ({"memoryBytes": True}, "memoryBytes: is True; it must be an integer"),
        ({"memoryBytes": 1.9}, "memoryBytes: is 1.9; it must be an integer"),
        ({"memoryBytes": None}, "memoryBytes: is required; set it"),
        ({"microBatchSize": 2.7}, "microBatchSize: is 2.7; it must be an integer from 1 to"),
        ({"microBatchSize": 0}, "microBatchSize: is 0; it must be an integer from 1 to"),
        ({"model": []}, "model: is []; it must be an object with fields among factory, args"),
        ({"model": {"args": {}}}, "model.factory: is required; set it"),
        ({"model": {"factory": "a:b", "args": 3}}, "model.args: is 3; it must be an object"),
        ({"layers": {}}, "layers: is {}; it must be a list"),
        ({"layers": []}, "layers: has no layers"),
        ({"memory_bytes": 0}, "memory_bytes: is not known; the fields of profile are device, mem"),
    ],
)
def test_each_field_of_a_profile_is_checked(path: Path, changes: Any, words: str) -> None:
    said = refusal(path, profile_of(SPEC, **changes))
    assert "is not a file of `bamboo profile`: " in said
    assert words in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forwardSeconds": -1.0}, "forwardSeconds: is -1.0; it must be a number from 0 to"),
        ({"forwardSeconds": True}, "forwardSeconds: is True; it must be a number from 0 to"),
        ({"forwardSeconds": 1e308}, "forwardSeconds: is 1e+308; it must be a number from 0 to"),
        ({"backwardSeconds": nan}, "backwardSeconds: is nan; it must be a number from 0 to"),
        ({"inputGradientSeconds": inf}, "inputGradientSeconds: is inf; it must be a number"),
        ({"weightGradientSeconds": "1"}, "weightGradientSeconds: is '1'; it must be a number"),
        ({"parameterBytes": 10**400}, "parameterBytes: is 1000000000000000000"),
        ({"outputBytes": "a"}, "outputBytes: is 'a'; it must be an integer from 0 to"),
        ({"activationBytes": 0.5}, "activationBytes: is 0.5; it must be an integer from 0 to"),
        ({"canSplit": 1}, "canSplit: is 1; it must be true or false"),
        ({"a": 1}, "a: is not known; the fields of profile.layers[1] are forwardSeconds, backward"),
    ],
)
def test_each_cost_of_a_layer_is_checked(path: Path, changes: Any, words: str) -> None:
    layers = [LAYER, LAYER | changes]
    assert f"profile.layers[1].{words}" in refusal(path, profile_of(SPEC, layers=layers))


def test_a_file_that_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="is not a file of `bamboo profile`: 'utf-8' codec"):
        read_profile(path)


def test_a_missing_profile_is_named(path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*profile\.json: No such file"):
        read_profile(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"microBatchSize": 4}, "with spec.training.microBatchSize 4, and the job has "),
        ({"model": {"factory": "a:b"}}, "with spec.model.factory 'a:b', and the job has "),
        ({"model": {"factory": SPEC.model.factory}}, "with spec.model.args {}, and the job has "),
    ],
)
def test_a_profile_of_another_job_is_refused(path: Path, changes: Any, words: str) -> None:
    assert words in refusal(path, profile_of(SPEC, **changes))


def test_a_profile_with_another_number_of_layers_is_refused(path: Path) -> None:
    """The arguments of the built-in model say how many it has."""
    said = refusal(path, profile_of(SPEC, layers=[LAYER] * 7))
    assert "has 7 layers, and the model of spec.model.args has 8; run" in said


def test_the_layers_of_another_model_are_not_known(path: Path) -> None:
    spec = replace(SPEC, model=ModelSpec("mine:model"))
    path.write_text(json.dumps(profile_of(spec, layers=[LAYER] * 7)))
    assert len(measured(spec, path).layers) == 7


# ---------------------------------------------------------------- measuring


def stand_in(tmp_path: Path, body: str) -> tuple[str, str]:
    """A program in the place of the one that holds torch."""
    path = tmp_path / "program.py"
    path.write_text(f"import json, sys\nspec, out = json.load(sys.stdin), sys.argv[2]\n{body}\n")
    return sys.executable, str(path)


def test_a_profile_that_cannot_be_written_is_not_measured(tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "absent" / "p.json"):
        with pytest.raises(CommandError, match=r"--out .* cannot be written; give a file in a"):
            measure(SPEC, out, program=stand_in(tmp_path, "raise SystemExit('measured')"))


def test_measuring_writes_a_profile(tmp_path: Path) -> None:
    content = json.dumps(profile_of(SPEC))
    program = stand_in(tmp_path, f"print('noise'); open(out, 'w').write({content!r})")
    found = measure(SPEC, tmp_path / "p.json", program=program)
    assert found == read_profile(tmp_path / "p.json")
    assert len(measured(SPEC, tmp_path / "p.json").layers) == 8


def test_the_command_says_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.json"
    content = json.dumps(profile_of(SPEC))
    program = stand_in(tmp_path, f"open(out, 'w').write({content!r})")
    monkeypatch.setattr("bamboo_cli.estimate.profile.measure", partial(measure, program=program))
    done = CliRunner().invoke(cli, ["profile", "-f", str(QUICKSTART), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output == (
        f"quickstart: 8 layers on cpu:AVX2, 0.08 s for the forward of a micro-batch -> {out}\n"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('layer 3, Linear: RuntimeError: no')", "be measured: layer 3, Linear: Runtime"),
        ("import missing.part", "cannot be measured: ModuleNotFoundError"),
        ("sys.exit(\"No module named 'torch'\")", r"install bamboo-train\[agent\]"),
        ("sys.exit(1)", "cannot be measured: no output"),
    ],
)
def test_a_failed_measurement_says_why(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        measure(SPEC, tmp_path / "p", program=stand_in(tmp_path, body))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "cannot import 'nomod.x': No module named 'nomod'",
            "; correct spec.model.factory or spec.data.factory, install what is missing on this"
            " machine, or name its folder in PYTHONPATH.",
        ),
        ("module 'nomod.x' has no 'b'", "; correct spec.model.factory or spec.data.factory."),
        ("'nomod.x:d' is not a function", "; correct spec.data.factory."),
        ("nomod.x:d raised OSError: no", ""),
    ],
)
def test_a_failed_measurement_names_the_fields(tmp_path: Path, line: str, words: str) -> None:
    data = replace(SPEC.data, factory="nomod.x:d")
    spec = replace(SPEC, model=ModelSpec("nomod.x:b"), data=data)
    with pytest.raises(ProgramError) as failed:
        measure(spec, tmp_path / "p", program=stand_in(tmp_path, f"sys.exit({line!r})"))
    assert str(failed.value) == f"the layers cannot be measured: {line}{words}"


def test_a_program_that_ends_early_leaves_an_earlier_profile_unread(tmp_path: Path) -> None:
    """A factory may call exit(0). What lies there may have been measured with other code."""
    out = tmp_path / "p.json"
    earlier = json.dumps(profile_of(SPEC))
    out.write_text(earlier)
    with pytest.raises(ProgramError, match="cannot be measured: it ended without a result; does"):
        measure(SPEC, out, program=stand_in(tmp_path, "sys.exit(0)"))
    assert out.read_text() == earlier


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    content = json.dumps(profile_of(SPEC))
    out = tmp_path / "p.json"
    body = f"import os; os.mkdir({str(out)!r}); open(out, 'w').write({content!r})"
    with pytest.raises(CommandError, match=r"--out .* cannot be written: Is a directory"):
        measure(SPEC, out, program=stand_in(tmp_path, body))


def test_measuring_does_not_take_for_ever(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "import signal; signal.pause()")
    with pytest.raises(ProgramError, match=r"not measured within 0\.5 s; give --timeout"):
        measure(SPEC, tmp_path / "p", program=program, timeout_s=0.5)


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"cannot run .*absent"):
        measure(SPEC, tmp_path / "p", program=(str(tmp_path / "absent"),))

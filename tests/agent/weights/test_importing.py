"""Files of weights become the first weights of a job, or every mistake is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.agent.weights.conftest import Write
from tests.agent.weights.gpt2 import SIZES

from bamboo_agent.weight_files.initial import InitialWeights
from bamboo_agent.weight_files.outlines import WeightsError, weights_of
from bamboo_agent.weights.exporting import Target, export
from bamboo_agent.weights.finding import Wanted, find
from bamboo_agent.weights.importing import Intake, take
from bamboo_core.api.local_run import Moved, WeightsFormat
from bamboo_core.api.spec import JobSpec, ModelSpec


def taken(source: Path, spec: JobSpec, out: Path, **more: object) -> list[str]:
    told: list[Moved] = []
    written = take(Intake(str(source), out, **more), spec, told.append)  # type: ignore[arg-type]
    assert told == [Moved(i, 4) for i in (1, 2, 3, 4)]
    return written.notes


@pytest.fixture(params=list(WeightsFormat))
def files(request: pytest.FixtureRequest, write: Write, spec: JobSpec, tmp_path: Path) -> Path:
    """The weights of step 5 in each format."""
    write()
    path = tmp_path / ("weights.pt" if request.param is WeightsFormat.TORCH else "weights")
    export(find(str(tmp_path), Wanted()), Target(path, request.param), spec, lambda _: None)
    return path


def test_what_is_exported_is_imported_bit_for_bit(
    files: Path, write: Write, spec: JobSpec, tmp_path: Path
) -> None:
    assert taken(files, spec, tmp_path / "first") == []
    initial = InitialWeights((tmp_path / "first").as_uri())
    expected, others = write(step=5, uid="again"), write(step=6, uid="more")
    for index, (layer, other) in enumerate(zip(expected, others, strict=True)):
        initial.fill(index, other.module)
        for name, tensor in weights_of(layer.module).items():
            assert torch.equal(tensor, weights_of(other.module)[name])
    initial.check_used()


@pytest.fixture
def state(write: Write, spec: JobSpec, tmp_path: Path) -> dict[str, torch.Tensor]:
    write()
    target = Target(tmp_path / "w", WeightsFormat.SAFETENSORS)
    export(find(str(tmp_path), Wanted()), target, spec, lambda _: None)
    return safetensors.torch.load_file(tmp_path / "w")


def test_every_mistake_is_named_and_nothing_is_written(
    state: dict[str, torch.Tensor], spec: JobSpec, tmp_path: Path
) -> None:
    del state["layers.0.position"]
    state["layers.2.qkv.bias"] = torch.ones(5)
    state["layers.3.norm.bias"] = state["layers.3.norm.bias"].half()
    state["strange"] = torch.ones(1)
    safetensors.torch.save_file(state, tmp_path / "wrong.safetensors")
    with pytest.raises(WeightsError) as error:
        taken(tmp_path / "wrong.safetensors", spec, tmp_path / "first")
    text = str(error.value)
    for part in (
        "layer 0, Embedding: position (8x16 float32) is missing",
        "layer 2, Block: qkv.bias (48 float32) is 5 float32 in the file",
        "layer 3, Head: norm.bias (16 float32) is 16 float16 in the file",
        "no layer has strange",
        "--ignore PATTERN",
        "--cast",
    ):
        assert part in text
    assert not (tmp_path / "first").exists()


def test_a_cast_is_no_remedy_for_another_shape(
    state: dict[str, torch.Tensor], spec: JobSpec, tmp_path: Path
) -> None:
    state["layers.2.qkv.bias"] = torch.ones(5)
    safetensors.torch.save_file(state, tmp_path / "wrong.safetensors")
    with pytest.raises(WeightsError, match="is 5 float32 in the file: give weights of") as error:
        taken(tmp_path / "wrong.safetensors", spec, tmp_path / "first")
    assert "--cast" not in str(error.value)


def test_names_of_a_wrapped_model_are_told(
    state: dict[str, torch.Tensor], spec: JobSpec, tmp_path: Path
) -> None:
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    safetensors.torch.save_file(wrapped, tmp_path / "wrapped.safetensors")
    with pytest.raises(WeightsError) as error:
        taken(tmp_path / "wrapped.safetensors", spec, tmp_path / "first")
    assert str(error.value).endswith(
        ": all names begin with 'module.', as those of DataParallel do: write the file from"
        " model.module.state_dict()"
    )


def test_of_many_mistakes_the_first_are_shown(spec: JobSpec, tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "wrong.safetensors")
    plain = replace(spec, model=ModelSpec("bamboo_agent.models.gpt:build", SIZES))
    with pytest.raises(WeightsError, match=r"; and \d+ more: give weights of this model"):
        taken(tmp_path / "wrong.safetensors", plain, tmp_path / "first")


def test_tensors_are_left_out_and_dtypes_converted_if_told_to(
    state: dict[str, torch.Tensor], spec: JobSpec, tmp_path: Path
) -> None:
    given = {name: tensor.bfloat16() for name, tensor in state.items()} | {"a.x": torch.ones(1)}
    safetensors.torch.save_file(given, tmp_path / "half.safetensors")
    notes = taken(
        tmp_path / "half.safetensors", spec, tmp_path / "first", ignored=["a.*"], casts=True
    )
    assert notes == ["1 tensors of the source are left out (--ignore)"]
    found = safetensors.torch.load_file(tmp_path / "first" / "model.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[x], state[x].bfloat16().float()) for x in state)


def test_a_pattern_that_leaves_out_nothing_is_told(
    state: dict[str, torch.Tensor], spec: JobSpec, tmp_path: Path
) -> None:
    """A layer needs what it names, or the file does not have it."""
    name = next(iter(state))
    safetensors.torch.save_file(state, tmp_path / "whole.safetensors")
    notes = taken(tmp_path / "whole.safetensors", spec, tmp_path / "first", ignored=[name])
    idle = f"--ignore {name} leaves out nothing, since it is for tensors that no layer has"
    assert notes == [idle]
    wrong = state | {name: torch.ones(7, 7)}
    safetensors.torch.save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(WeightsError) as error:
        taken(tmp_path / "wrong.safetensors", spec, tmp_path / "second", ignored=[name])
    assert str(error.value).endswith(f"; {idle}")


def test_a_source_or_a_model_that_is_not_there_is_named(spec: JobSpec, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="none is not there"):
        taken(tmp_path / "none", spec, tmp_path / "first")

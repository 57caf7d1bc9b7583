"""A checkpoint as one set of weights that torch and transformers load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.agent.weights import gpt2
from tests.agent.weights.conftest import Write
from torch import nn
from transformers import AutoModelForCausalLM

from bamboo_agent.compute import stage
from bamboo_agent.model import Model
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.weight_files.outlines import WeightsError, weights_of
from bamboo_agent.weights import exporting
from bamboo_agent.weights.exporting import Target, export
from bamboo_agent.weights.finding import Wanted, find
from bamboo_core.api.local_run import Moved, WeightsFormat, Written
from bamboo_core.api.spec import JobSpec, ModelSpec

HF = WeightsFormat.HUGGINGFACE


def exported(
    folder: Path, target: Target, spec: JobSpec | None = None, told: list[Moved] | None = None
) -> Written:
    return export(find(str(folder), Wanted()), target, spec, ([] if told is None else told).append)


@pytest.mark.parametrize("kind", [WeightsFormat.SAFETENSORS, WeightsFormat.TORCH])
def test_plain_torch_loads_a_file(kind: WeightsFormat, write: Write, tmp_path: Path) -> None:
    layers, told = write(), list[Moved]()
    written = exported(tmp_path, Target(tmp_path / "w", kind), told=told)
    if kind is WeightsFormat.TORCH:
        state = torch.load(tmp_path / "w", weights_only=True)
    else:
        state = safetensors.torch.load_file(tmp_path / "w")
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(x.module for x in layers)})
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor)
    assert told == [Moved(i, 4) for i in (1, 2, 3, 4)]
    assert written.tensors == len(state)
    assert written.num_bytes == sum(x.numel() * x.element_size() for x in state.values())
    assert written.source.endswith("uid/attempt-0000/step-00000005")


def with_a_layer_without_tensors() -> Model:
    return Model([lambda: nn.Linear(2, 2), nn.ReLU, lambda: nn.Linear(2, 1)], nn.MSELoss())


def test_a_layer_without_tensors_is_nothing_to_write(write: Write, tmp_path: Path) -> None:
    """Its file was refused, as a user's file without weights is."""
    model = ModelSpec(f"{__name__}:with_a_layer_without_tensors")
    layers = write(model_spec=model)
    written = exported(tmp_path, Target(tmp_path / "w", WeightsFormat.TORCH))
    state = torch.load(tmp_path / "w", weights_only=True)
    assert written.tensors == len(state) == 4
    assert torch.equal(state["layers.2.weight"], layers[2].module.weight)


def test_from_pretrained_loads_a_folder_and_gives_the_same_logits(
    write: Write, spec: JobSpec, tmp_path: Path
) -> None:
    layers = write()
    written = exported(tmp_path, Target(tmp_path / "hf", HF), spec)
    assert written.notes == []
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading[x] for x in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.arange(16).reshape(2, 8)
    for layer in layers:
        layer.set_training(False)
    with torch.no_grad():
        ours = stage.run_layers(layers, Flow.of(tokens), lambda _: None).value
        theirs = model.eval()(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_a_large_folder_has_parts_that_from_pretrained_loads(
    write: Write, spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = write()
    whole = exporting.Folder
    monkeypatch.setattr(exporting, "Folder", lambda path: whole(path, shard_bytes=20_000))
    exported(tmp_path, Target(tmp_path / "hf", HF), spec)
    parts = sorted((tmp_path / "hf").glob("*.safetensors"))
    assert len(parts) > 1
    assert all(part.stat().st_size < 25_000 for part in parts)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ours = weights_of(layers[0].module)["token.weight"]
    assert torch.equal(model.state_dict()["transformer.wte.weight"], ours)


def test_a_dtype_is_for_floating_point_and_stands_in_the_config(
    write: Write, spec: JobSpec, tmp_path: Path
) -> None:
    layers = write()
    exported(tmp_path, Target(tmp_path / "hf", HF, torch.bfloat16), spec)
    assert json.loads((tmp_path / "hf" / "config.json").read_text()) == {
        **gpt2.CONFIG,
        "dtype": "bfloat16",
    }
    state = safetensors.torch.load_file(tmp_path / "hf" / "model.safetensors")
    ours = weights_of(layers[0].module)["token.weight"].bfloat16()
    assert torch.equal(state["transformer.wte.weight"], ours)


def test_without_a_config_a_note_says_so(write: Write, spec: JobSpec, tmp_path: Path) -> None:
    write()
    plain = replace(spec, model=ModelSpec("bamboo_agent.models.gpt:build", gpt2.SIZES))
    written = exported(tmp_path, Target(tmp_path / "hf", HF), plain)
    assert "no config.json" in written.notes[0]
    assert [x.name for x in (tmp_path / "hf").iterdir()] == ["model.safetensors"]


def test_a_file_that_was_altered_is_refused_and_nothing_is_written(
    write: Write, tmp_path: Path
) -> None:
    write()
    file = tmp_path / "checkpoints/uid/attempt-0000/step-00000005/layer-0002.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=r"layer-0002.* has been altered.*--step"):
        exported(tmp_path, Target(tmp_path / "w", WeightsFormat.SAFETENSORS))
    assert [x.name for x in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "give the job with -f job.yaml"),
        (ModelSpec("nowhere:build"), "cannot import 'nowhere'"),
        (ModelSpec("tests.agent.weights.gpt2:build", {"layers": 5}), "makes 7: give the job"),
        (
            ModelSpec("tests.agent.weights.gpt2:build", {"width": 32}),
            "layer 0, Embedding: the checkpoint is not of this model, since position, token.weight",
        ),
        (ModelSpec("tests.agent.weights.test_exporting:fails"), r"names\.write raised KeyError"),
        (
            ModelSpec("tests.agent.weights.test_exporting:no_layers"),
            r"layer 0 \(test_exporting.py, line \d+\): Run",
        ),
    ],
)
def test_another_model_is_refused(
    model: ModelSpec | None, message: str, write: Write, spec: JobSpec, tmp_path: Path
) -> None:
    write()
    given = None if model is None else replace(spec, model=model)
    with pytest.raises(WeightsError, match=message):
        exported(tmp_path, Target(tmp_path / "hf", HF), given)
    assert not (tmp_path / "hf").exists()


def fails() -> object:
    model = gpt2.build()
    assert model.names is not None
    names = replace(model.names, write=lambda layer, own: {"x": own["none"]})
    return replace(model, names=names)


def no_layers() -> object:
    def layer() -> torch.nn.Module:
        raise RuntimeError("no")

    return replace(gpt2.build(), layers=[layer] * 4)

"""Models of transformers, with the library's names and ties, go out and come in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.agent.weights.conftest import Write
from transformers import AutoModelForCausalLM

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.model import FactoryError
from bamboo_agent.user_code import build_model
from bamboo_agent.weight_files.initial import InitialWeights
from bamboo_agent.weight_files.outlines import weights_of
from bamboo_agent.weights.exporting import Target, export
from bamboo_agent.weights.finding import Wanted, find
from bamboo_core.api.local_run import WeightsFormat
from bamboo_core.api.spec import JobSpec, ModelSpec

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64}


@pytest.fixture
def spec(spec: JobSpec) -> JobSpec:
    factory = "bamboo_agent.models.transformers:build"
    return replace(spec, model=ModelSpec(factory, {"config": CONFIG}))


def builder(spec: JobSpec, folder: Path) -> LayerBuilder:
    model, cpu = build_model(spec.model, seed=7), torch.device("cpu")
    initial = InitialWeights(str(folder), model.names)
    return LayerBuilder(model, torch.optim.SGD, seed=7, device=cpu, initial=initial)


def test_a_folder_goes_to_the_library_and_back(write: Write, spec: JobSpec, tmp_path: Path) -> None:
    layers = write()
    target = Target(tmp_path / "hf", WeightsFormat.HUGGINGFACE)
    export(find(str(tmp_path), Wanted()), target, spec, lambda _: None)
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading[x] for x in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(
        model.state_dict()["transformer.h.1.mlp.c_fc.weight"],
        weights_of(layers[2].module)["transformer.h.1.mlp.c_fc.weight"],
    )
    model.save_pretrained(tmp_path / "again")  # without the tied head
    ours, theirs = (load_file(tmp_path / x / "model.safetensors") for x in ("hf", "again"))
    assert "lm_head.weight" not in theirs
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    built = builder(spec, tmp_path / "again")
    for index, layer in enumerate(layers[:-1]):
        for name, tensor in weights_of(built.build(index).module).items():
            assert torch.equal(tensor, weights_of(layer.module)[name])
    head = weights_of(built.build(3).module)["lm_head.weight"]
    assert torch.equal(head, weights_of(layers[0].module)["transformer.wte.weight"])


def test_a_tied_parameter_with_other_values_is_refused(
    write: Write, spec: JobSpec, tmp_path: Path
) -> None:
    write()
    target = Target(tmp_path / "hf", WeightsFormat.HUGGINGFACE)
    export(find(str(tmp_path), Wanted()), target, spec, lambda _: None)
    path = tmp_path / "hf" / "model.safetensors"
    state = load_file(path)
    save_file(state | {"lm_head.weight": state["transformer.wte.weight"] * 0}, path)
    with pytest.raises(FactoryError, match=r"other values for lm_head\.weight of layer 3"):
        builder(spec, tmp_path / "hf").build(3)

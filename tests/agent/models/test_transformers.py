"""Layers of transformers' models are the library's own: names, values, loss and gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.agent.models import chains

from bamboo_agent.model import Model
from bamboo_agent.models import transformers as adapter
from bamboo_agent.models.zoo import LIBRARY, TINY, Entry

transformers: Any = pytest.importorskip("transformers")
ENTRIES = {"gpt2": TINY["gpt2"], "bert": TINY["bert"], **LIBRARY}
WITHOUT_DROPOUT = {
    "gpt2": {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "bert": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
}


def library_model(entry: Entry, overrides: dict[str, Any], attention: str = "sdpa") -> Any:
    config = transformers.AutoConfig.for_model(**{**entry.model.args["config"], **overrides})
    is_causal = entry.model.args["task"] == "causal"
    kind = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForMaskedLM
    return kind.from_config(config, attn_implementation=attention).train()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("name", ENTRIES)
def test_the_chain_gives_the_librarys_loss_and_gradient(
    name: str, is_masked: bool, attention: str, is_tied: bool
) -> None:
    entry = ENTRIES[name]
    overrides = {**WITHOUT_DROPOUT.get(name, {}), "tie_word_embeddings": is_tied}
    model = chains.model_of(entry, overrides=overrides, attention=attention)
    layers, whole = chains.layers_of(model), library_model(entry, overrides, attention)
    chains.tie(model, layers)
    whole.load_state_dict(chains.state_of(layers))
    inputs, labels = chains.sample_of(entry)
    inputs.pop("attention_mask", None)
    if is_masked:
        inputs["attention_mask"] = torch.ones_like(labels)
        inputs["attention_mask"][1, 11:] = 0
        labels = labels.masked_fill(inputs["attention_mask"] == 0, -100)
    loss = chains.mean(model.loss(chains.chained(layers, inputs), labels))
    loss.backward()
    theirs = whole(**inputs, labels=labels).loss
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
    found = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    assert chains.apart(chains.summed(model, chains.gradients(layers)), found) <= 1e-5


@pytest.mark.parametrize("name", ENTRIES)
def test_the_layers_have_the_librarys_names_and_first_values(name: str) -> None:
    entry = ENTRIES[name]
    ours = chains.state_of(chains.layers_of(chains.model_of(entry)))
    theirs = library_model(entry, {}).state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    for key, tensor in theirs.items():
        if tensor.numel() < 500:
            assert tensor.unique().numel() > 1 or torch.equal(ours[key], tensor), key
        else:
            assert float(ours[key].std()) == pytest.approx(float(tensor.std()), rel=0.2), key


def test_ties_are_those_of_the_library() -> None:
    words = "transformer.wte.weight"
    assert chains.model_of(TINY["gpt2"]).ties == [[(0, words), (3, "lm_head.weight")]]
    bert = chains.model_of(TINY["bert"])
    words = "bert.embeddings.word_embeddings.weight"
    assert bert.ties == [[(0, words), (3, "cls.predictions.decoder.weight")]]
    head = bert.layers[-1]()
    bias = head.get_parameter("cls.predictions.bias")
    assert bias is head.get_parameter("cls.predictions.decoder.bias")
    assert not chains.model_of(TINY["gpt2"], overrides={"tie_word_embeddings": False}).ties


def test_one_layer_needs_no_other_and_comes_from_its_seed() -> None:
    model = chains.model_of(TINY["gpt2"])
    torch.manual_seed(5)
    first = model.layers[2]()
    torch.manual_seed(5)
    again = model.layers[2]()
    assert {n.rpartition(".h.")[2][:1] for n, _ in first.named_parameters()} == {"1"}
    for (name, one), (_, two) in zip(
        first.named_parameters(), again.named_parameters(), strict=True
    ):
        assert torch.equal(one, two), name
        assert one.data_ptr() != two.data_ptr()


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_activations_computed_again_give_the_same_bits(name: str) -> None:
    """With dropout."""
    found = []
    for recomputes in (False, True):
        model = chains.model_of(ENTRIES[name], checkpoint_activations=recomputes)
        layers = chains.layers_of(model)
        inputs, labels = chains.sample_of(ENTRIES[name])
        torch.manual_seed(9)
        chains.mean(model.loss(chains.chained(layers, inputs), labels)).backward()
        found.append(chains.gradients(layers))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_tokens_alone_and_labels_of_the_next_token_are_enough() -> None:
    model = chains.model_of(TINY["gpt2"], shifts_labels=False)
    tokens = torch.arange(16)[None]
    shifting = chains.model_of(TINY["gpt2"])
    layers = [layer.eval() for layer in chains.layers_of(model)]
    logits = chains.chained(layers, tokens)
    moved = torch.cat((tokens[:, 1:], torch.tensor([[-100]])), 1)
    assert model.loss(logits, moved) == shifting.loss(logits, tokens)
    assert int(model.loss(logits, moved)[1]) == 15


@pytest.mark.parametrize("is_dict", [False, True])
@pytest.mark.parametrize("shifts", [False, True])
def test_labels_that_are_shifted_twice_or_never_are_refused(shifts: bool, is_dict: bool) -> None:
    misfit = chains.model_of(TINY["gpt2"], shifts_labels=shifts).misfit
    assert misfit is not None
    text = torch.arange(34).reshape(2, 17)
    tokens, following = text[:, :-1], text[:, 1:]
    given = {"input_ids": tokens} if is_dict else tokens
    padded = tokens.index_fill(1, torch.tensor([15]), -100)
    for labels, is_next in ((tokens, False), (padded, False), (following, True)):
        why = misfit(given, labels)
        assert bool(why) == (is_next == shifts)
        assert not why or f"spec.model.args.shifts_labels to {str(not shifts).lower()}" in why


def test_labels_that_may_be_either_are_accepted() -> None:
    misfit = chains.model_of(TINY["gpt2"]).misfit
    assert misfit is not None
    ones = torch.ones(2, 8, dtype=torch.int64)
    for labels in (ones, -100 * ones, 7 * ones, ones[:, :4]):
        assert misfit(ones, labels) == ""
    bert = chains.model_of(TINY["bert"]).misfit
    assert bert is not None
    assert bert(ones, ones) == ""


@pytest.mark.parametrize("is_dict", [False, True])
def test_samples_that_the_embeddings_do_not_have_are_refused(is_dict: bool) -> None:
    def why(name: str, tokens: torch.Tensor) -> str:
        misfit = chains.model_of(ENTRIES[name]).misfit
        assert misfit is not None
        return misfit({"input_ids": tokens} if is_dict else tokens, tokens)

    long = torch.ones(2, 600, dtype=torch.int64)
    assert "has 600 tokens, and the model has 16 positions: give" in why("gpt2", long)
    assert "spec.model.args.overrides.n_positions to 600" in why("gpt2", long)
    assert "set spec.model.args.overrides.max_position_embeddings" in why("bert", long)
    assert why("llama", long) == ""  # rotary values have no end
    assert why("gpt2", long[:, :16]) == ""
    assert "has the token 64, and the model has 64 tokens" in why("llama", 64 * long)


@pytest.mark.parametrize("config", ["/no/such", "./no-such", "a/b/c"])
def test_a_folder_that_does_not_exist_is_told_as_such(config: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"spec.model.args.config '{config}': no such fold"):
        adapter.build(config)


def test_a_key_that_the_configuration_does_not_know_is_refused(tmp_path: Path) -> None:
    message = "{}.n_layers: a configuration of gpt2 has no such key, .* near names are .*n_layer"
    with pytest.raises(ValueError, match=message.format("spec.model.args.config")):
        built(config={"n_layers": 4})
    with pytest.raises(ValueError, match=message.format("spec.model.args.overrides")):
        built(overrides={"n_layers": 4})
    config = transformers.AutoConfig.for_model(**TINY["gpt2"].model.args["config"])
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message.format("spec.model.args.overrides")):
        adapter.build(str(tmp_path), overrides={"n_layers": 4})
    assert len(adapter.build(str(tmp_path), overrides={"num_hidden_layers": 4}).layers) == 6


@pytest.mark.parametrize("kind", adapter.FAMILIES)
def test_the_librarys_own_files_have_no_unknown_key(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind)
    adapter.build(config.to_dict(), task=adapter.FAMILIES[kind].task)
    if kind == "llama":
        old = adapter.build({"model_type": kind, "rope_theta": 5.0, "num_hidden_layers": 1})
        assert old.config is not None
        assert old.config["rope_parameters"]["rope_theta"] == 5.0


def test_a_folder_with_a_configuration_does(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(**LIBRARY["llama"].model.args["config"])
    config.save_pretrained(tmp_path)
    model = adapter.build(str(tmp_path), overrides={"num_hidden_layers": 3})
    assert len(model.layers) == 5
    assert model.config is not None
    saved = {**config.to_dict(), **model.config}
    assert saved["num_hidden_layers"] == 3
    assert saved["architectures"] == ["LlamaForCausalLM"]


def built(**changed: Any) -> Model:
    config = {"config": {**TINY["gpt2"].model.args["config"], **changed.pop("config", {})}}
    return adapter.build(**{**config, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": {"model_type": "t5"}}, "'t5' cannot be cut"),
        ({"task": "masked"}, "task 'masked': a gpt2 is for the task 'causal'"),
        ({"attention": "flash"}, "attention 'flash' must be one of sdpa, eager"),
    ],
)
def test_what_cannot_be_cut_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(**changed)


def test_a_configuration_needs_a_kind() -> None:
    with pytest.raises(ValueError, match="config has no model_type"):
        adapter.build({"n_layer": 2})


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"tokens": torch.ones(1, 4).long()}, "a sample has tokens: give input_ids"),
        (
            {"input_ids": torch.ones(1, 4).long(), "token_type_ids": torch.ones(1, 4).long()},
            "token_type_ids: this model has no embedding",
        ),
    ],
)
def test_a_sample_of_another_kind_is_refused(sample: dict[str, Any], message: str) -> None:
    first = chains.model_of(LIBRARY["llama"]).layers[0]()
    with pytest.raises(ValueError, match=message):
        first(sample)

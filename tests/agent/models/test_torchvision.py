"""Layers of torchvision's models are the library's own: names, values, loss and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.agent.models import chains

from bamboo_agent.model import Model
from bamboo_agent.models import torchvision as adapter

models: Any = pytest.importorskip("torchvision.models")
NARROW = 16
NAMES = ("resnet18", "resnet50", "vgg11", "vgg11_bn", "alexnet")


def images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    size = 63 if name == "alexnet" else 40
    return torch.randn(4, 3, size, size, generator=generator), torch.arange(4)


def without_dropout(name: str) -> dict[str, float]:
    return {} if "resnet" in name else {"dropout": 0.0}


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_gives_the_librarys_loss_and_gradient(name: str) -> None:
    more: dict[str, Any] = {"classes": 4, "narrower": NARROW, **without_dropout(name)}
    model = adapter.build(name, **more)
    layers = chains.layers_of(model)
    whole = adapter.skeleton(name, **more).to_empty(device="cpu")
    whole.load_state_dict(chains.state_of(layers))
    inputs, target = images(name)
    loss = model.loss(chains.chained(layers, inputs), target)
    loss.backward()
    theirs = torch.nn.functional.cross_entropy(whole.train()(inputs), target)
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
    found = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    assert chains.apart(chains.gradients(layers), found) <= 1e-5


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "alexnet"])
def test_full_sizes_have_the_librarys_names_and_shapes(name: str) -> None:
    with torch.device("meta"):
        ours = chains.state_of(chains.layers_of(adapter.build(name)))
        theirs = models.get_model(name).state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize(
    ("name", "more"), [("resnet18", {"zero_init_residual": True}), ("vgg11_bn", {})]
)
def test_first_values_are_spread_as_the_librarys(name: str, more: dict[str, Any]) -> None:
    """Without the large linear layers of a VGG."""
    theirs = models.get_model(name, **more).state_dict()
    model = adapter.build(name, **more)
    ours = chains.state_of(chains.layers_of(Model(model.layers[:8], model.loss)))
    assert len(ours) > 40
    for key, tensor in theirs.items():
        if key not in ours:
            continue
        constant = tensor.unique().numel() == 1
        if constant:
            assert torch.equal(ours[key], tensor), key
        else:
            assert float(ours[key].std()) == pytest.approx(float(tensor.std()), rel=0.2), key


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("resnet50", ["conv1", "layer1.0", "layer1.1", "layer1.2", "layer2.0"]),
        ("vgg11_bn", ["features.0", "features.4", "features.8", "features.11", "features.15"]),
        ("alexnet", ["features.0", "features.3", "features.6", "features.8", "features.10"]),
    ],
)
def test_a_layer_is_a_block_or_a_convolution(name: str, cut: list[str]) -> None:
    with torch.device("meta"):
        layers = [build() for build in adapter.build(name).layers]
    found = [next(iter(layer.state_dict())) for layer in layers]
    starts = [
        ".".join(key.split(".")[: len(part.split("."))])
        for key, part in zip(found, cut, strict=False)
    ]
    assert starts == cut


def test_activations_computed_again_give_the_same_bits() -> None:
    found = []
    for recomputes in (False, True):
        model = adapter.build(
            "vgg11", classes=4, narrower=NARROW, checkpoint_activations=recomputes
        )
        layers = chains.layers_of(model)
        inputs, target = images("vgg11")
        torch.manual_seed(9)
        model.loss(chains.chained(layers, inputs), target).backward()
        found.append(chains.gradients(layers))
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("resnet1", {}, "no such model"),
        ("squeezenet1_0", {}, "'squeezenet1_0' is a SqueezeNet; those that can be cut"),
        ("resnet18", {"narrower": 48}, "narrower 48 does not divide a width of 64"),
        ("resnext50_32x4d", {"narrower": 2}, "convolutions with groups keep their width"),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.build(name, **more)

"""The precisions in which layers compute, the settings behind them, and devices that lack one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.device import precision
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.flow import Flow
from bamboo_core.api.spec import Precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def set_again():
    before = torch.backends.cudnn.allow_tf32
    yield
    precision.set_products(Precision.FLOAT32)
    torch.backends.cudnn.allow_tf32 = before


def test_only_tf32_rounds_products():
    found = {}
    for kind in Precision:
        precision.set_products(kind)
        found[kind] = precision.rounds_products()
    both, none = (True, True), (False, False)
    assert found == {
        Precision.FLOAT32: none,
        Precision.TF32: both,
        Precision.BFLOAT16: none,
    }


class Uses(nn.Module):
    """Its input, and one of its weights, are used twice in products."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.one(x) * self.other(x) + self.one(x.tanh())


def layers(kind, count=3):
    model = Model([Uses] * count, nn.functional.mse_loss)
    builder = LayerBuilder(model, lambda _: None, seed=1, device=CPU, precision=kind)
    return [builder.build(i) for i in range(count)]


def gradients(kind, *cuts):
    """Gradients of the parameters, of layers that are run in ranges."""
    made, ends = layers(kind), [*cuts, 3]
    activations, values, lo = [], Flow.of(torch.randn(4, 16)), 0
    for hi in ends:
        inputs = stage.detached(values, first=lo == 0)
        values = stage.run_layers(made[lo:hi], inputs, lambda _: None)
        activations.append(stage.Activation(inputs, values))
        lo = hi
    given = tuple(torch.ones_like(v) for v in values)
    for activation in reversed(activations):
        given = stage.backward(activation, given)
    return [p.grad for layer in made for p in layer.parameters]


@pytest.mark.parametrize("kind", Precision)
def test_the_cut_into_stages_changes_no_bit(kind):
    """torch's cache of casts would: the input of a range is a leaf, which it casts once."""
    found = []
    for cuts in ((), (1,), (1, 2)):
        torch.manual_seed(1)
        found.append(gradients(kind, *cuts))
    assert all(g.dtype is torch.float32 for g in found[0])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_weights_stay_in_fp32_and_the_last_output_is_widened():
    found = layers(Precision.BFLOAT16)
    plain = [nn.Linear(4, 4) for _ in range(2)]
    model = Model([lambda x=x: x for x in plain], nn.functional.mse_loss)
    for kind, dtypes in (
        (Precision.BFLOAT16, [torch.bfloat16, torch.float32]),
        (Precision.FLOAT32, [torch.float32] * 2),
    ):
        builder = LayerBuilder(model, lambda _: None, seed=1, device=CPU, precision=kind)
        made = [builder.build(i) for i in range(2)]
        values = Flow.of(torch.randn(2, 4))
        for layer, dtype in zip(made, dtypes, strict=True):
            values = stage.run_layers([layer], values, lambda _: None)
            assert values[0].dtype is dtype
    assert {p.dtype for layer in found for p in layer.parameters} == {torch.float32}


def test_a_model_in_bfloat16_keeps_its_last_output_in_float32_jobs():
    model = Model([lambda: nn.Linear(4, 4).bfloat16()], nn.functional.mse_loss)
    layer = LayerBuilder(model, lambda _: None, seed=1, device=CPU).build(0)
    (output,) = stage.run_layers([layer], Flow.of(torch.randn(2, 4).bfloat16()), lambda _: None)
    assert output.dtype is torch.bfloat16


def test_a_gpu_without_bfloat16_is_refused(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(FactoryError, match=r"^spec\.training\.precision is BFloat16, which Tesla"):
        precision.check_supported(Precision.BFLOAT16, gpu)
    for kind in (Precision.FLOAT32, Precision.TF32):
        precision.check_supported(kind, gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    precision.check_supported(Precision.BFLOAT16, gpu)
    precision.check_supported(Precision.BFLOAT16, CPU)

"""Our translation model: padding does not matter, the future is hidden, one module equals it."""

from __future__ import annotations

import pytest
import torch
from tests.agent.models import chains
from torch import nn
from torch.nn import functional

from bamboo_agent.models import gnmt
from bamboo_agent.models.zoo import FULL, TINY

ENTRY = TINY["gnmt"]


def evaluated(source: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    layers = [layer.eval() for layer in chains.layers_of(chains.model_of(ENTRY))]
    with torch.no_grad():
        found: torch.Tensor = chains.chained(layers, (source, given))
    return found


def test_padding_of_the_source_changes_nothing() -> None:
    source, given = torch.randint(4, 64, (2, 5)), torch.randint(4, 64, (2, 6))
    longer = functional.pad(source, (0, 3), value=gnmt.PADDING)
    torch.testing.assert_close(evaluated(longer, given), evaluated(source, given))


def test_a_place_of_the_target_sees_no_later_one() -> None:
    source, given = torch.randint(4, 64, (2, 5)), torch.randint(4, 64, (2, 6))
    other = given.clone()
    other[:, 4:] = 5
    both = evaluated(source, given), evaluated(source, other)
    assert torch.equal(both[0][..., :4], both[1][..., :4])
    assert not torch.equal(both[0][..., 4:], both[1][..., 4:])


class Plain(nn.Module):
    """The same network written as one module, one sentence at a time, without padding."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.state = state

    def lstm(self, path: str, x: torch.Tensor) -> torch.Tensor:
        own = {n.removeprefix(path + "."): t for n, t in self.state.items() if n.startswith(path)}
        rows, inputs = own["weight_ih_l0"].shape
        made = nn.LSTM(inputs, rows // 4, batch_first=True).double()
        found: torch.Tensor = torch.func.functional_call(made, own, (x,))[0]
        return found

    def forward(self, source: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        state = self.state
        words = state["encoder.embedding.weight"][source]
        back = self.lstm("encoder.layers.0.back", words.flip(1)).flip(1)
        both = torch.cat((self.lstm("encoder.layers.0.onward", words), back), -1)
        memory = self.lstm("encoder.layers.1", both)
        y = self.lstm("decoder.layers.0", state["decoder.embedding.weight"][given])
        own = {n.rpartition("attention.")[2]: t for n, t in state.items() if "attention" in n}
        vector = own["scale"] * functional.normalize(own["vector"], dim=0)
        answers = []
        for query in y[0]:
            mixed = own["query.weight"] @ query + memory[0] @ own["key.weight"].T + own["bias"]
            answers.append((torch.tanh(mixed) @ vector).softmax(0) @ memory[0])
        z = self.lstm("decoder.layers.1", torch.cat((y, torch.stack(answers)[None]), -1))
        return z @ state["classifier.weight"].T + state["classifier.bias"]


def test_it_equals_the_network_written_as_one() -> None:
    model = chains.model_of(ENTRY, dropout=0.0)
    layers = [layer.double() for layer in chains.layers_of(model)]
    (source, given), target = chains.sample_of(ENTRY)
    loss = model.loss(chains.chained(layers, (source, given)), target)
    loss.backward()
    state = {n: t.detach().clone().requires_grad_() for n, t in chains.state_of(layers).items()}
    lengths = (source != gnmt.PADDING).sum(1)
    rows = [
        Plain(state)(source[i : i + 1, : lengths[i]], given[i : i + 1]) for i in range(len(source))
    ]
    logits = torch.cat(rows).flatten(0, 1)
    theirs = functional.cross_entropy(logits, target.flatten(), label_smoothing=0.1)
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-12)
    assert (
        chains.apart(
            chains.gradients(layers), {n: t.grad for n, t in state.items() if t.grad is not None}
        )
        <= 1e-9
    )


def test_activations_computed_again_give_the_same_bits() -> None:
    found = []
    for recomputes in (False, True):
        model = chains.model_of(ENTRY, checkpoint_activations=recomputes)
        layers = chains.layers_of(model)
        inputs, target = chains.sample_of(ENTRY)
        torch.manual_seed(9)
        model.loss(chains.chained(layers, inputs), target).backward()
        found.append(chains.gradients(layers))
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_the_full_model_has_sixteen_lstms_the_first_for_both_ways() -> None:
    with torch.device("meta"):
        layers = [build() for build in chains.model_of(FULL["gnmt16"]).layers]
    assert sum(isinstance(m, nn.LSTM) for layer in layers for m in layer.modules()) == 17


@pytest.mark.parametrize("layers", [2, 5])
def test_an_odd_depth_is_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=f"layers {layers} must be even and at least 4"):
        gnmt.build(layers=layers)

"""First weights from files: which tensors a layer takes, and what is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from bamboo_agent.model import Names
from bamboo_agent.weight_files.initial import InitialWeights
from bamboo_agent.weight_files.outlines import LayerOutline, WeightsError, file_names, weights_of


class Block(nn.Module):
    """A persistent buffer, and one that it makes itself."""

    derived: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("derived", torch.arange(3.0), persistent=False)


def layers() -> list[nn.Module]:
    return [Block(), Block()]


def saved(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    safetensors.torch.save_file({n: t.detach().clone() for n, t in tensors.items()}, path)
    return path.as_uri()


def written(path: Path, made: list[nn.Module], **more: torch.Tensor) -> str:
    names = file_names([weights_of(m) for m in made])
    tensors = {names[i][n]: t for i, m in enumerate(made) for n, t in weights_of(m).items()}
    return saved(path, {**tensors, **more})


def filled(initial: InitialWeights, into: list[nn.Module]) -> list[nn.Module]:
    for index, module in enumerate(into):
        initial.fill(index, module)
    initial.check_used()
    return into


def test_names_that_two_layers_share_begin_with_the_layer() -> None:
    assert file_names([["a", "b"], ["c"]]) == [{"a": "a", "b": "b"}, {"c": "c"}]
    assert file_names([["a"], ["a"]]) == [{"a": "layers.0.a"}, {"a": "layers.1.a"}]


def test_an_outline_tells_what_a_layer_makes_itself() -> None:
    outline = LayerOutline.of(Block())
    assert (outline.kind, outline.derived) == ("Block", {"derived"})
    assert str(outline.tensors["inner.weight"]) == "2x2 float32"


def test_layers_get_their_tensors_every_time(tmp_path: Path) -> None:
    made = layers()
    initial = InitialWeights(written(tmp_path / "w.safetensors", made))
    for _ in range(2):
        for one, other in zip(made, filled(initial, layers()), strict=True):
            for name, tensor in weights_of(one).items():
                assert torch.equal(tensor, weights_of(other)[name])


def test_a_library_file_with_unique_names_is_taken_and_may_lack_derived_buffers(
    tmp_path: Path,
) -> None:
    made = [nn.ModuleDict({"first": Block()}), nn.ModuleDict({"second": Block()})]
    tensors = {n: t for m in made for n, t in weights_of(m).items() if "derived" not in n}
    initial = InitialWeights(saved(tmp_path / "w.safetensors", tensors))
    empty: list[nn.Module] = [
        nn.ModuleDict({"first": Block()}),
        nn.ModuleDict({"second": Block()}),
    ]
    found = filled(initial, empty)
    assert torch.equal(weights_of(found[1])["second.inner.weight"], made[1]["second"].inner.weight)


def test_what_does_not_fit_is_named_with_its_layer(tmp_path: Path) -> None:
    made = layers()
    made[1].inner = nn.Linear(2, 3)
    tensors = {f"layers.1.{n}": t for n, t in weights_of(made[1]).items()}
    del tensors["layers.1.scale"]
    tensors["layers.1.inner.bias"] = torch.ones(2).double()
    initial = InitialWeights(saved(tmp_path / "w.safetensors", tensors))
    with pytest.raises(WeightsError) as error:
        initial.fill(1, Block())
    text = str(error.value)
    assert text.startswith(f"spec.model.initialFrom {tmp_path.as_uri()}/w.safetensors: ")
    assert "layer 1, Block: inner.weight (2x2 float32) is 3x2 float32 in the file" in text
    assert "layer 1, Block: inner.bias (2 float32) is 2 float64 in the file" in text
    assert "layer 1, Block: scale (1 float32) is missing" in text
    assert text.endswith("leave tensors out")
    assert "bamboo import" in text


def test_tensors_that_no_layer_takes_are_refused(tmp_path: Path) -> None:
    initial = InitialWeights(written(tmp_path / "w.safetensors", layers(), more=torch.ones(1)))
    with pytest.raises(WeightsError, match="no layer has more"):
        filled(initial, layers())


def test_two_layers_do_not_take_one_tensor(tmp_path: Path) -> None:
    """Their names are equal, so the file of one layer would fill both."""
    initial = InitialWeights(written(tmp_path / "w.safetensors", [Block()]))
    initial.fill(0, Block())
    with pytest.raises(WeightsError, match=r"layer 0 has it: it must be layers\.1\.scale"):
        initial.fill(1, Block())


def test_files_that_change_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    initial = InitialWeights(written(path, layers()))
    filled(initial, layers())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in place, as the file is mapped
    with path.open("r+b") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(WeightsError, match="the tensors of layer 1 have changed since"):
        filled(initial, layers())


def test_a_file_that_is_replaced_beside_a_running_job_changes_nothing(tmp_path: Path) -> None:
    made = layers()
    initial = InitialWeights(written(tmp_path / "w.safetensors", made))
    filled(initial, layers())
    written(tmp_path / "other.safetensors", layers())
    (tmp_path / "other.safetensors").replace(tmp_path / "w.safetensors")
    found = filled(initial, layers())
    assert torch.equal(weights_of(found[0])["inner.weight"], weights_of(made[0])["inner.weight"])


def test_a_models_names_say_where_its_tensors_are(tmp_path: Path) -> None:
    names = Names(
        write=lambda layer, own: {f"lib.{layer}": own["weight"].t()},
        read=lambda layer, file: {"weight": file[f"lib.{layer}"].t()},
    )
    first = nn.Linear(2, 3, bias=False)
    address = saved(tmp_path / "w.safetensors", {"lib.0": torch.arange(6.0).reshape(2, 3)})
    filled(InitialWeights(address, names), [first])
    assert torch.equal(first.weight, torch.arange(6.0).reshape(2, 3).t())
    with pytest.raises(WeightsError, match=r"layer 1: the file has no lib\.1"):
        InitialWeights(address, names).fill(1, first)


def test_names_that_fail_or_give_too_much_are_told(tmp_path: Path) -> None:
    address = saved(tmp_path / "w.safetensors", {"lib": torch.ones(1)})
    names = Names(
        write=lambda *_: {}, read=lambda *_: {"weight": torch.ones(1), "x": torch.ones(1)}
    )
    with pytest.raises(WeightsError, match="it has no x, which its names give"):
        InitialWeights(address, names).fill(0, nn.Linear(1, 1, bias=False))

    def fails(*_: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("bad")

    with pytest.raises(WeightsError, match=r"names\.read raised RuntimeError: bad"):
        InitialWeights(address, Names(fails, fails)).fill(0, nn.Linear(1, 1))


def test_an_address_without_files_is_named() -> None:
    with pytest.raises(WeightsError, match=r"spec\.model\.initialFrom: /nowhere/w is not there"):
        InitialWeights("/nowhere/w")

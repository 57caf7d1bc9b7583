"""The GPT of this project with the names, shapes and config of GPT-2 in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from bamboo_agent.model import Model, Names
from bamboo_agent.models import gpt

SIZES = {"layers": 2, "width": 16, "heads": 2, "context": 8, "vocab": 256}
_BLOCK = {
    "attention_norm": "ln_1",
    "feed_norm": "ln_2",
    "qkv": "attn.c_attn",
    "project": "attn.c_proj",
    "grow": "mlp.c_fc",
    "shrink": "mlp.c_proj",
}
_TURNED = ("qkv.weight", "project.weight", "grow.weight", "shrink.weight")
"""GPT-2 has the matrices of blocks the other way round."""


def places(layer: int) -> dict[str, str]:
    """A layer's names -> names in transformers."""
    last = SIZES["layers"] + 1
    if layer == 0:
        return {"token.weight": "transformer.wte.weight", "position": "transformer.wpe.weight"}
    if layer == last:
        norm = {f"norm.{x}": f"transformer.ln_f.{x}" for x in ("weight", "bias")}
        return {**norm, "project.weight": "lm_head.weight"}
    return {
        f"{own}.{part}": f"transformer.h.{layer - 1}.{theirs}.{part}"
        for own, theirs in _BLOCK.items()
        for part in ("weight", "bias")
    }


def _turned(layer: int, name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t() if 0 < layer <= SIZES["layers"] and name in _TURNED else tensor


def write(layer: int, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {theirs: _turned(layer, name, own[name]) for name, theirs in places(layer).items()}


def read(layer: int, file: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: _turned(layer, name, file[theirs]) for name, theirs in places(layer).items()}


CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": SIZES["layers"],
    "n_embd": SIZES["width"],
    "n_head": SIZES["heads"],
    "n_positions": SIZES["context"],
    "vocab_size": SIZES["vocab"],
    "activation_function": "gelu",
    "tie_word_embeddings": False,
}


def build(**arguments: Any) -> Model:
    """The model; other arguments change its sizes."""
    model = gpt.build(**{**SIZES, **arguments})
    return replace(model, names=Names(write, read), config=CONFIG)

"""Models of the library transformers as ordered lists of layers, with the library's names.

The library builds the model without memory; each layer takes its own blocks from it. What flows:
the hidden states (batch, time, width), and beside them the attention mask (batch, time) if the data
have one. Each block makes the full mask and the rotary values from these, as a few instructions
cost less than sending them and their gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.model import Model
from bamboo_agent.models import configurations
from bamboo_agent.models.parts import Part, copied, initialised, library

_IGNORED = -100  # a label that does not count, for the library and for torch
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_ATTENTION = ("sdpa", "eager")
_DEFAULTS = ("position_ids", "token_type_ids")
"""Buffers that a library's model keeps for calls without these, and does not save."""


@dataclass(frozen=True)
class Family:
    """Where a family of models has its parts. embeddings, head: called in order. rotary: the module
    of the rotary values; empty: there is none."""

    task: str
    embeddings: tuple[str, ...]
    blocks: str
    head: tuple[str, ...]
    rotary: str = ""


_LLAMA = Family(
    "causal", ("model.embed_tokens",), "model.layers", ("model.norm", "lm_head"), "model.rotary_emb"
)
FAMILIES = {
    "gpt2": Family(
        "causal",
        ("transformer.wte", "transformer.wpe", "transformer.drop"),
        "transformer.h",
        ("transformer.ln_f", "lm_head"),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "bert": Family("masked", ("bert.embeddings",), "bert.encoder.layer", ("cls",)),
}
"""model_type of a configuration -> its family."""


class Embeddings(Part):
    """Tokens (batch, time), or a dict of them and their masks, -> hidden states and the mask."""

    def __init__(self, modules: dict[str, nn.Module], *, recomputes: bool) -> None:
        super().__init__(modules, recomputes=recomputes)
        self._paths = tuple(modules)

    def run(self, *arguments: Any) -> Any:
        """(batch, time) -> (batch, time, width), and the mask as bool if there is one."""
        (given,) = arguments
        batch = {"input_ids": given} if isinstance(given, torch.Tensor) else dict(given)
        unknown = [key for key in batch if key not in _INPUTS]
        if unknown or "input_ids" not in batch:
            raise ValueError(
                f"a sample has {', '.join(map(str, batch))}: give input_ids, and beside them only"
                f" {', '.join(_INPUTS[1:])}; labels are the target"
            )
        tokens, kinds = batch["input_ids"], batch.get("token_type_ids")
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden = self._embed(tokens, kinds, positions)
        mask = batch.get("attention_mask")
        return hidden if mask is None else (hidden, mask.bool())

    def _embed(
        self, tokens: torch.Tensor, kinds: torch.Tensor | None, positions: torch.Tensor
    ) -> Any:
        if len(self._paths) == 1:
            (module,) = (self.get_submodule(path) for path in self._paths)
            if isinstance(module, nn.Embedding):
                if kinds is not None:
                    raise ValueError("token_type_ids: this model has no embedding for them")
                return module(tokens)
            kinds = torch.zeros_like(tokens) if kinds is None else kinds
            return module(input_ids=tokens, token_type_ids=kinds, position_ids=positions)
        words, places, dropout = (self.get_submodule(path) for path in self._paths)
        hidden = words(tokens) + places(positions)
        return dropout(hidden if kinds is None else hidden + words(kinds))


class Block(Part):
    """Hidden states (batch, time, width) and the mask -> the same."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        make_mask: Callable[..., Any],
        rotary: Callable[[], nn.Module] | None,
        *,
        recomputes: bool,
    ) -> None:
        super().__init__(modules, recomputes=recomputes)
        (self._path,) = modules
        self._make_mask, self._rotary = make_mask, rotary

    def run(self, *arguments: Any) -> Any:
        """One block of the library."""
        hidden, mask = (*arguments, None)[:2]
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        more: dict[str, Any] = {"position_ids": positions}
        if self._rotary is not None:
            # made anew, since some kinds keep what the longest sequence so far has needed
            more["position_embeddings"] = self._rotary()(hidden, positions)
        full = self._make_mask(inputs_embeds=hidden, attention_mask=mask)
        hidden = self.get_submodule(self._path)(hidden, attention_mask=full, **more)
        return hidden if mask is None else (hidden, mask)


class Head(Part):
    """Hidden states (batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, modules: dict[str, nn.Module], *, recomputes: bool) -> None:
        super().__init__(modules, recomputes=recomputes)
        self._paths = tuple(modules)

    def run(self, *arguments: Any) -> Any:
        """The library's head; the mask ends here."""
        hidden = arguments[0]
        for path in self._paths:
            hidden = self.get_submodule(path)(hidden)
        return hidden


def build(
    config: str | Mapping[str, Any],
    *,
    task: str = "causal",
    overrides: Mapping[str, Any] | None = None,
    attention: str = "sdpa",
    shifts_labels: bool = True,
    checkpoint_activations: bool = False,
) -> Model:
    """The embeddings, each block, and the head: a layer each.

    config: arguments of a configuration with its ``model_type``, a folder with a ``config.json``,
    or a name of the hub. overrides: of its values. task: "causal" or "masked". shifts_labels: as
    the library's causal loss does it, the label of a place is the token there; without, the next
    one. Labels of -100 do not count. ValueError names the argument that is wrong.
    """
    root = library("transformers", needed_by=__name__)
    found = configurations.load(root, config, dict(overrides or {}), FAMILIES)
    family = _family(found, task)
    if attention not in _ATTENTION:
        raise ValueError(f"attention {attention!r} must be one of {', '.join(_ATTENTION)}")
    kind = root.AutoModelForCausalLM if task == "causal" else root.AutoModelForMaskedLM
    with torch.device("meta"):
        skeleton = kind.from_config(found, attn_implementation=attention, dtype=torch.float32)
    layer = partial(_layer, skeleton, checkpoint_activations)
    count, rotary = found.num_hidden_layers, _rotary(skeleton, family)
    blocks = [
        partial(Block, make_mask=_mask(root, skeleton.config, task, i), rotary=rotary)
        for i in range(count)
    ]
    kinds: list[Callable[..., Part]] = [Embeddings, *blocks, Head]
    paths = [family.embeddings, *((f"{family.blocks}.{i}",) for i in range(count)), family.head]
    is_shifted = task == "causal" and shifts_labels
    return Model(
        [partial(layer, kind, own) for kind, own in zip(kinds, paths, strict=True)],
        next_token_loss if is_shifted else token_loss,
        ties=[*_ties(skeleton, paths)],
        config=json.loads(skeleton.config.to_json_string())
        | {"architectures": [type(skeleton).__name__]},
        misfit=partial(_misfit, found, family, shifts_labels),
    )


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the cross-entropy of (batch, time, vocabulary), in nats, over the labels that count,
    and their number."""
    flat = labels.flatten()
    total = functional.cross_entropy(
        logits.float().flatten(0, 1), flat, ignore_index=_IGNORED, reduction="sum"
    )
    return total, (flat != _IGNORED).sum()


def next_token_loss(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with the label of the next place."""
    return token_loss(logits, functional.pad(labels[:, 1:], (0, 1), value=_IGNORED))


def shift_misfit(shifts_labels: bool, given: Any, labels: Any) -> str:
    """Why the labels of a micro-batch are not those that the loss takes; empty: they may be.

    Labels that are shifted twice, or not at all, give a loss that falls, of a useless model.
    """
    tokens = given.get("input_ids") if isinstance(given, Mapping) else given
    if not (isinstance(tokens, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return ""
    if tokens.shape != labels.shape or labels.dim() != 2:
        return ""
    counts = labels != _IGNORED
    is_same = bool((labels == tokens)[counts].all())
    is_next = bool((labels[:, :-1] == tokens[:, 1:])[counts[:, :-1]].all())
    if is_same == is_next:  # such as tokens that are all equal
        return ""
    if is_next and shifts_labels:
        return (
            "the label of a place is the next token already, and the loss would take the one after"
            " it: set spec.model.args.shifts_labels to false"
        )
    if is_same and not shifts_labels:
        return (
            "the label of a place is the token there, which the model sees: set"
            " spec.model.args.shifts_labels to true, or give labels that are the next tokens"
        )
    return ""


def _misfit(config: Any, family: Family, shifts_labels: bool, given: Any, labels: Any) -> str:
    if why := configurations.size_misfit(config, not family.rotary, given):
        return why
    return shift_misfit(shifts_labels, given, labels) if family.task == "causal" else ""


def _family(config: Any, task: str) -> Family:
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ValueError(
            f"model_type {config.model_type!r} cannot be cut; those that can are"
            f" {', '.join(FAMILIES)}. Write its layers as a Model of your own"
        )
    if family.task != task:
        raise ValueError(f"task {task!r}: a {config.model_type} is for the task {family.task!r}")
    return family


def _ties(skeleton: Any, paths: Sequence[tuple[str, ...]]) -> Iterator[list[tuple[int, str]]]:
    """Parameters of two layers that are one. paths: of each layer."""
    for name, source in skeleton.all_tied_weights_keys.items():
        first, second = (
            next(i for i, own in enumerate(paths) if _is_in(own, key)) for key in (source, name)
        )
        if first != second:
            yield [(first, source), (second, name)]


def _is_in(paths: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _layer(
    skeleton: Any, recomputes: bool, kind: Callable[..., Part], paths: tuple[str, ...]
) -> Part:
    part = kind(copied(skeleton, paths), recomputes=recomputes)
    initialised(part, skeleton._init_weights)
    for name, source in skeleton.all_tied_weights_keys.items():
        if _is_in(paths, name) and _is_in(paths, source):
            folder, _, last = name.rpartition(".")
            setattr(part.get_submodule(folder), last, part.get_parameter(source))
    for module in part.modules():
        for name, _ in [*module.named_buffers(recurse=False)]:
            if name in _DEFAULTS:
                delattr(module, name)
    return part


def _rotary(skeleton: nn.Module, family: Family) -> Callable[[], nn.Module] | None:
    if not family.rotary:
        return None
    module = skeleton.get_submodule(family.rotary)
    kind: Callable[..., nn.Module] = type(module)
    return partial(kind, config=module.config)


def _mask(root: Any, config: Any, task: str, index: int) -> Callable[..., Any]:
    """Makes the attention's mask of a block from ``inputs_embeds`` and ``attention_mask``."""
    masks = root.masking_utils
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    is_window = window is not None if kinds is None else kinds[index] == "sliding_attention"
    if task == "masked":
        return partial(masks.create_bidirectional_mask, config=config)
    make = masks.create_sliding_window_causal_mask if is_window else masks.create_causal_mask
    # without positions: they are 0, 1, ..., and the library would wait for the device to see that
    return partial(make, config=config, cache=None, position_ids=None)

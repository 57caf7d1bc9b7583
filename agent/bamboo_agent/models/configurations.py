"""Configurations of the library transformers: loaded, checked, and what data they cannot take."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bamboo_agent import hub

_CONFIG = "spec.model.args.config"
_OVERRIDES = "spec.model.args.overrides"
_OLD_KEYS = ("rope_theta", "partial_rotary_factor")
"""Keys of older files, which the library turns into entries of its ``rope_parameters``."""


def load(
    root: Any,
    config: str | Mapping[str, Any],
    overrides: dict[str, Any],
    kinds: Collection[str],
) -> Any:
    """The library's configuration. root: the library; kinds: model types that can be used.

    ValueError names a key that the library would ignore; OSError a folder that cannot be read.
    """
    if isinstance(config, str):
        return _loaded(root, config, overrides)
    given = {**config, **overrides}
    if "model_type" not in given:
        raise ValueError(f"config has no model_type: give it, one of {', '.join(kinds)}")
    kind = given["model_type"]
    if kind not in kinds:
        return root.AutoConfig.for_model(**given)
    default = root.AutoConfig.for_model(kind)
    for field, keys in ((_CONFIG, config), (_OVERRIDES, overrides)):
        _refuse(field, (key for key in keys if not _knows(default, key)), default)
    return root.AutoConfig.for_model(**given)


def size_misfit(config: Any, has_places: bool, given: Any) -> str:
    """Why the model has no embedding for a micro-batch; empty: it has. has_places: it has one for
    each position."""
    tokens = given.get("input_ids") if isinstance(given, Mapping) else given
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or not tokens.numel():
        return ""
    length = tokens.shape[1]
    if has_places and length > config.max_position_embeddings:
        key, most = _own_name(config, "max_position_embeddings"), config.max_position_embeddings
        return (
            f"a sample has {length} tokens, and the model has {most} positions: give samples of at"
            f" most {most}, such as with spec.data.args.sequence, or set {_OVERRIDES}.{key} to"
            f" {length}"
        )
    highest = int(tokens.max())
    if highest >= config.vocab_size:
        return (
            f"a sample has the token {highest}, and the model has {config.vocab_size} tokens, from"
            f" 0: set {_OVERRIDES}.vocab_size to the size of the tokenizer's vocabulary"
        )
    return ""


def _loaded(root: Any, config: str, overrides: dict[str, Any]) -> Any:
    if hub.looks_like_path(config) and not Path(config).exists():
        raise FileNotFoundError(
            f"{_CONFIG} {config!r}: no such folder; name a folder with a config.json that is in the"
            " image or on a volume that all agents mount (worker.podTemplate), or a name of the hub"
        )
    try:
        with hub.asked(_CONFIG, config):
            found, unused = root.AutoConfig.from_pretrained(
                config, return_unused_kwargs=True, **overrides
            )
    except hub.HubError:
        raise
    except (OSError, ValueError) as error:
        kind = OSError if isinstance(error, OSError) else ValueError
        line = next(iter(str(error).strip().splitlines()), "")
        raise kind(
            f"{_CONFIG} {config!r} cannot be loaded: {line} Name a folder with a config.json that"
            " all agents have, or a name of the hub that they can reach"
        ) from error
    _refuse(_OVERRIDES, unused, found)
    return found


def _refuse(field: str, unknown: Iterable[str], known: Any) -> None:
    """ValueError if there is an unknown key. known: a configuration of this kind."""
    for key in unknown:
        names = sorted({*known.to_dict(), *known.attribute_map})
        near = difflib.get_close_matches(str(key), names, n=3)
        wish = f"; near names are {', '.join(near)}" if near else ": leave it out"
        raise ValueError(
            f"{field}.{key}: a configuration of {known.model_type} has no such key, and would"
            f" ignore it{wish}"
        )


def _knows(default: Any, key: str) -> bool:
    if key in _OLD_KEYS:
        return hasattr(default, "rope_parameters")
    if key in default.to_dict() or key in default.attribute_map:
        return True
    return hasattr(default, key) and not callable(getattr(default, key))


def _own_name(config: Any, name: str) -> str:
    found: str = config.attribute_map.get(name, name)
    return found

"""Payloads as plain tensors and JSON, for transports: ``pack`` and ``unpack`` by item kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_agent.payloads.flow import Flow, checked
from bamboo_agent.payloads.kinds import (
    Figures,
    FileRecord,
    LayerRecord,
    Losses,
    Slice,
    Sum,
    Unread,
    Vote,
    figures_of,
)
from bamboo_core.model.claims import Said
from bamboo_core.model.items import Kind, parse_item


@dataclass(frozen=True)
class Serialized:
    """A payload to send; see :class:`bamboo_agent.payloads.frames.Frame`."""

    meta: dict[str, Any]
    tensors: tuple[torch.Tensor | None, ...] = ()
    owner: Buffer | None = None


class SerializationError(ValueError):
    """The parts do not form a payload of the item's kind."""


def pack(payload: Any) -> Serialized:
    """A payload as tensors and JSON."""
    if isinstance(payload, tuple):
        meta = {"form": payload.form} if isinstance(payload, Flow) and payload.form else {}
        return Serialized(meta, tuple(None if t is None else _plain(t) for t in payload))
    if isinstance(payload, Sum):
        assert payload.buffer is not None
        return Serialized(
            {"losses": _plain_losses(payload.losses)},
            (_plain(payload.buffer.tensor),),
            payload.buffer,
        )
    if isinstance(payload, Slice):
        meta = {"losses": _plain_losses(payload.losses)}
        return Serialized(meta, (_plain(payload.tensor),), payload.buffer)
    if isinstance(payload, LayerRecord):
        meta = {"names": list(payload.tensors), "extra": payload.extra}
        return Serialized(meta, tuple(payload.tensors.values()))
    if isinstance(payload, float | Figures | Unread):
        return Serialized({"value": _plain_figures(payload)})
    if isinstance(payload, Vote):
        claims = {str(name): said for name, said in payload.claims.items()}
        losses = _plain_losses(payload.losses)
        meta = {"norms": payload.norms, "losses": losses, "claims": claims}
        groups = {"group_norms": payload.group_norms} if payload.group_norms else {}
        return Serialized(meta | groups)
    return Serialized(asdict(payload))


def _plain_losses(losses: Mapping[int, float | Figures | Unread]) -> dict[int, Any]:
    return {microbatch: _plain_figures(found) for microbatch, found in losses.items()}


def _plain_figures(found: float | Figures | Unread) -> Any:
    read = figures_of(found)
    return read if isinstance(read, float) else read.pairs


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def unpack(
    kind: Kind,
    meta: dict[str, Any],
    tensors: tuple[torch.Tensor | None, ...],
    device: torch.device,
) -> Any:
    """Inverse of :func:`pack`. SerializationError if the parts do not fit the kind."""
    try:
        return _unpack(kind, meta, tensors, device)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise SerializationError(
            f"a payload of kind {kind.name} is malformed: {error!r}"
        ) from error


def _unpack(
    kind: Kind, meta: dict[str, Any], tensors: tuple[torch.Tensor | None, ...], device: torch.device
) -> Any:
    if kind is Kind.INGRAD:
        return tuple(None if t is None else t.to(device) for t in tensors)
    if kind in (Kind.ACT, Kind.OUT, Kind.EVAL):
        form = checked(meta.get("form"), len(tensors))
        return Flow([t.to(device) for t in tensors if t is not None], form)
    if kind in (Kind.PART, Kind.SUM):
        (flat,) = tensors
        assert flat is not None
        return Sum(dict(_losses(meta["losses"])), Buffer(flat.to(device)))
    if kind in (Kind.PIECE, Kind.RED):
        (flat,) = tensors
        assert flat is not None
        return Slice(flat.to(device), dict(_losses(meta["losses"])))
    if kind is Kind.VER:
        named = dict(zip(meta["names"], tensors, strict=True))
        return LayerRecord({n: t for n, t in named.items() if t is not None}, meta["extra"])
    if kind is Kind.VOTE:
        claims = {parse_item(n): Said(*map(int, said)) for n, said in meta["claims"].items()}
        groups = {
            int(layer): tuple(map(float, norms))
            for layer, norms in meta.get("group_norms", {}).items()
        }
        return Vote(_by_number(meta["norms"]), _losses(meta["losses"]), claims, groups)
    if kind is Kind.FILE:
        return FileRecord(**meta)
    if kind is Kind.SCORE:
        return _figures(meta["value"])
    raise ValueError("never sent")


def _by_number(values: dict[Any, Any]) -> dict[int, float]:
    return {int(key): float(value) for key, value in values.items()}


def _losses(values: dict[Any, Any]) -> Losses:
    return {int(key): _figures(value) for key, value in values.items()}


def _figures(value: Any) -> float | Figures:
    if isinstance(value, list | tuple):
        return Figures(tuple((float(part), int(count)) for part, count in value))
    return float(value)

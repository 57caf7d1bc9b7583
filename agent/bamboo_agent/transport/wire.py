"""Frames as bytes: splitting into segments, and reassembly without copies.

A connection carries segments ``lane (1 byte), length (4 bytes), data``. The data of one lane is a
sequence of frames ``header length (4 bytes), header (JSON), tensors``. A boundary frame is one
segment. Bulk frames are split, so boundary frames can go in between. Nothing is unpickled.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from bamboo_agent.transport.base import Frame, Lane
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import parse_item
from bamboo_core.protocol.messages import CommitRecord

SEGMENT = struct.Struct(">BI")
BYE = 255
MAX_HEADER_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")
_BULK_SEGMENT_BYTES = 1 << 20
_MAX_SEGMENT_BYTES = 1 << 30


class WireError(Exception):
    """The other side violates the protocol."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def encode_header(frame: Frame) -> bytes:
    """A frame without the tensors' bytes, with its length in front."""
    shapes = [None if t is None else [str(t.dtype)[6:], list(t.shape)] for t in frame.tensors]
    header: dict[str, Any] = {"i": str(frame.item), "f": list(frame.fence), "t": shapes}
    if frame.commit is not None:
        header["c"] = asdict(frame.commit)
    if frame.meta:
        header["m"] = frame.meta
    data = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(len(data)) + data


def decode_header(data: bytes) -> Frame:
    """A frame with empty tensors of the right shapes. WireError if malformed."""
    try:
        header = json.loads(data)
        commit = header.get("c")
        return Frame(
            parse_item(header["i"]),
            Fence(*(int(x) for x in header["f"])),
            None if commit is None else CommitRecord(**commit),
            header.get("m", {}),
            tuple(None if t is None else _empty(*t) for t in header["t"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WireError(f"a frame's header is malformed: {error!r}") from error


def _empty(dtype_name: str, shape: list[int]) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name!r} is not a dtype")
    return torch.empty(shape, dtype=dtype)


def segments(frame: Frame) -> Iterator[list[memoryview]]:
    """The frame as segments, each a list of pieces for one ``sendmsg``."""
    limit = _BULK_SEGMENT_BYTES if frame.lane is Lane.BULK else _MAX_SEGMENT_BYTES
    pieces: deque[memoryview] = deque([memoryview(encode_header(frame))])
    pieces.extend(tensor_bytes(t) for t in frame.tensors if t is not None and t.numel())
    while pieces:
        taken: list[memoryview] = []
        size = 0
        while pieces and size < limit:
            piece = pieces.popleft()
            if len(piece) > limit - size:
                pieces.appendleft(piece[limit - size :])
                piece = piece[: limit - size]
            taken.append(piece)
            size += len(piece)
        yield [memoryview(SEGMENT.pack(frame.lane, size)), *taken]


class LaneReader:
    """Reassembles the frames of one lane: fill :meth:`target`, then call :meth:`filled`.

    Tensors are received directly into their own memory.
    """

    def __init__(self) -> None:
        self._frame: Frame | None = None
        self._header: bytearray | None = None
        self._targets: deque[memoryview] = deque()
        self._start()

    def _start(self) -> None:
        self._length = bytearray(_LENGTH.size)
        self._frame, self._header = None, None
        self._targets = deque([memoryview(self._length)])

    @property
    def is_between_frames(self) -> bool:
        """Whether no byte of the next frame has arrived."""
        return self._header is None and len(self._targets[0]) == _LENGTH.size

    def target(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        return self._targets[0]

    def filled(self, count: int) -> Frame | None:
        """``count`` bytes of the target have arrived. Returns the frame if they complete it."""
        rest = self._targets[0][count:]
        if len(rest):
            self._targets[0] = rest
            return None
        self._targets.popleft()
        if self._frame is None:
            self._next_part()
        if self._targets or self._frame is None:
            return None
        frame = self._frame
        self._start()
        return frame

    def _next_part(self) -> None:
        if self._header is None:
            (length,) = _LENGTH.unpack(self._length)
            if not 0 < length <= MAX_HEADER_BYTES:
                raise WireError(f"a frame's header claims {length} bytes")
            self._header = bytearray(length)
            self._targets.append(memoryview(self._header))
            return
        self._frame = decode_header(bytes(self._header))
        tensors = [t for t in self._frame.tensors if t is not None and t.numel()]
        self._targets.extend(tensor_bytes(t) for t in tensors)

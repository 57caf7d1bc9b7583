"""Frames as bytes: splitting into segments, and reassembly without copies.

A connection carries segments ``lane (1 byte), length (4 bytes), data``. The data of one lane is a
sequence of frames ``header length (4 bytes), header (JSON), tensors``. A boundary frame is one
segment. Bulk frames are split, so boundary frames can go in between. Nothing is unpickled.

The data of a segment whose lane is marked GROUP does not follow: a process group carries it (see
`process_group`). REPAIR brings such data after all, once the group has failed.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import parse_item
from bamboo_core.protocol.messages import CommitRecord

SEGMENT = struct.Struct(">BI")
BYE, CONTROL, REPAIR, TAKEN = 255, 254, 253, 252
GROUP = 16
MAX_HEADER_BYTES = 4 << 20
"""A layer with ten thousand tensors, or a vote with ten thousand claims, needs a quarter."""
_LENGTH = struct.Struct(">I")
_BULK_SEGMENT_BYTES = 1 << 20
PIECE_BYTES = (16 << 20, 4 << 20)
"""By lane, at most. Each piece costs several changes of thread."""
_MAX_SEGMENT_BYTES = 1 << 30


Allocate = Callable[[list[int], torch.dtype], torch.Tensor]
"""A contiguous tensor on the CPU, of a shape and dtype; contents undefined."""


class WireError(Exception):
    """The other side violates the protocol."""


def allocate(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """New memory."""
    return torch.empty(shape, dtype=dtype)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def encode_header(frame: Frame) -> bytes:
    """A frame without the tensors' bytes, with its length in front."""
    shapes = [None if t is None else [str(t.dtype)[6:], list(t.shape)] for t in frame.tensors]
    header: dict[str, Any] = {"i": str(frame.item), "f": list(frame.fence), "t": shapes}
    if frame.commit is not None:
        # what an agent of the version before does not know is sent only if it says something
        given = asdict(frame.commit).items()
        header["c"] = {name: value for name, value in given if value not in (None, {}, ())}
    if frame.meta:
        header["m"] = frame.meta
    data = json.dumps(header, separators=(",", ":")).encode()
    if len(data) > MAX_HEADER_BYTES:
        raise WireError(f"the header of {frame.item} has {len(data)} bytes")
    return _LENGTH.pack(len(data)) + data


def decode_header(data: bytes, empty: Allocate = allocate) -> Frame:
    """A frame with empty tensors of the right shapes. WireError if malformed."""
    try:
        header = json.loads(data)
        commit = header.get("c")
        return Frame(
            parse_item(header["i"]),
            Fence(*(int(x) for x in header["f"])),
            None if commit is None else CommitRecord(**commit),
            header.get("m", {}),
            tuple(None if t is None else _empty(empty, *t) for t in header["t"]),
        )
    except Exception as error:  # too many kinds to list, and every one is the peer's fault
        raise WireError(f"a frame's header is malformed: {error!r:.200}") from error


def _empty(empty: Allocate, dtype_name: str, shape: list[int]) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name!r} is not a dtype")
    return empty(shape, dtype)


def segments(frame: Frame, group_floor: int = 0) -> Iterator[list[memoryview]]:
    """The frame as segments, each a list of pieces for one ``sendmsg``, the prefix first.

    group_floor: tensors of at least so many bytes become segments that are marked GROUP, with one
    piece each (0: none).
    """
    limit = _BULK_SEGMENT_BYTES if frame.lane is Lane.BULK else _MAX_SEGMENT_BYTES
    pieces: deque[memoryview] = deque([memoryview(encode_header(frame))])
    for tensor in frame.tensors:
        if tensor is None or not tensor.numel():
            continue
        memory = tensor_bytes(tensor)
        if not group_floor or len(memory) < group_floor:
            pieces.append(memory)
            continue
        yield from _joined(frame.lane, pieces, limit)
        step = PIECE_BYTES[frame.lane]
        for at in range(0, len(memory), step):
            piece = memory[at : at + step]
            yield [memoryview(SEGMENT.pack(frame.lane | GROUP, len(piece))), piece]
    yield from _joined(frame.lane, pieces, limit)


def _joined(lane: Lane, pieces: deque[memoryview], limit: int) -> Iterator[list[memoryview]]:
    """Segments of at most ``limit`` bytes. ``pieces`` is empty afterwards."""
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
        yield [memoryview(SEGMENT.pack(lane, size)), *taken]


class Assembly:
    """A frame whose tensors are being filled, in order. Other bytes than those that come next may
    be missing: a group brings them."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.missing = 0  # places that are not filled
        self._at, self._offset = 0, 0
        self._map()

    def _map(self) -> None:
        full = [t for t in self.frame.tensors if t is not None and t.numel()]
        self.memory = [tensor_bytes(tensor) for tensor in full]

    @property
    def is_read(self) -> bool:
        """Whether the place of every byte is known."""
        return self._at == len(self.memory)

    def target(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        return self.memory[self._at][self._offset :]

    def advance(self, count: int) -> None:
        """So many bytes of the target have come, or will be filled elsewhere."""
        self._offset += count
        if self._offset == len(self.memory[self._at]):
            self._at, self._offset = self._at + 1, 0

    def reserve(self, count: int) -> Place:
        """The next ``count`` bytes will come by another way. WireError if they are not of one
        tensor."""
        if self.is_read or not 0 < count <= len(self.target()):
            raise WireError(f"a piece of {count} bytes goes beyond its tensor")
        place = Place(self, self._at, self._offset, count)
        self.missing += 1
        self.advance(count)
        return place

    def move(self) -> None:
        """Go on in other memory: a library may still write into the old one."""
        moved = tuple(None if t is None else t.clone() for t in self.frame.tensors)
        self.frame = replace(self.frame, tensors=moved)
        self._map()


@dataclass(frozen=True)
class Place:
    """Bytes of a frame that come by another way than its link."""

    assembly: Assembly
    at: int
    offset: int
    size: int

    @property
    def memory(self) -> memoryview:
        """Where they belong now."""
        return self.assembly.memory[self.at][self.offset : self.offset + self.size]

    def fill(self) -> None:
        """They have come."""
        self.assembly.missing -= 1


class LaneReader:
    """Reassembles the frames of one lane: fill :meth:`target`, then call :meth:`filled`.

    Tensors are received directly into their own memory, which comes from ``empty``.
    """

    def __init__(self, empty: Allocate = allocate) -> None:
        self._empty = empty
        self._waiting: deque[Assembly] = deque()  # read, but not all of their places are filled
        self._start()

    def _start(self) -> None:
        self._length = bytearray(_LENGTH.size)
        self._assembly: Assembly | None = None
        self._header: bytearray | None = None
        self._rest = memoryview(self._length)

    @property
    def is_between_frames(self) -> bool:
        """Whether no byte of the next frame has arrived."""
        return self._header is None and len(self._rest) == _LENGTH.size and not self._waiting

    def target(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        return self._rest if self._assembly is None else self._assembly.target()

    def filled(self, count: int) -> list[Frame]:
        """``count`` bytes of the target have arrived. Returns what is complete now."""
        if self._assembly is not None:
            self._assembly.advance(count)
        else:
            self._rest = self._rest[count:]
            if not len(self._rest):
                self._next_part()
        self._end()
        return self.complete()

    def reserve(self, count: int) -> Place:
        """A group brings the next ``count`` bytes. WireError if they cannot be a tensor's."""
        if self._assembly is None:
            raise WireError("a group's piece before its frame's header")
        place = self._assembly.reserve(count)
        self._end()
        return place

    def complete(self) -> list[Frame]:
        """Frames, in order, that have become complete since it was asked last."""
        frames: list[Frame] = []
        while self._waiting and not self._waiting[0].missing:
            frames.append(self._waiting.popleft().frame)
        return frames

    def _end(self) -> None:
        """Begin the next frame once all places of this one are known."""
        if self._assembly is not None and self._assembly.is_read:
            self._waiting.append(self._assembly)
            self._start()

    def _next_part(self) -> None:
        if self._header is None:
            (length,) = _LENGTH.unpack(self._length)
            if not 0 < length <= MAX_HEADER_BYTES:
                raise WireError(f"a frame's header claims {length} bytes")
            self._header = bytearray(length)
            self._rest = memoryview(self._header)
            return
        self._assembly = Assembly(decode_header(bytes(self._header), self._empty))

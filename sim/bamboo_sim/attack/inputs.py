"""Bytes that nobody should send. The same seed gives the same bytes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from bamboo_proto.v1 import agent_pb2 as pb

_SEGMENT = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1 << 31, 1 << 40, 1 << 63, 1 << 64, 10**400, 0.5, float("inf"),
    float("nan"), "", "a", "b", "x" * 300, "\ud800", "\x00", "\u00e9", [], {}, [[]], [None] * 40,
    {"refused": 1}, {"a": {"b": []}}, "out[1]", "ver[0:9999999999]", "float32", "__class__",
)  # fmt: skip
_OTHER_PROTOCOLS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"hello b 00\n",
    b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.\n",
)


def odd(rng: random.Random) -> Any:
    """A value for a field of JSON."""
    return rng.choice(_ODD)


def noise(rng: random.Random, most: int = 4000) -> bytes:
    """Random bytes, or one of them many times, or deep nesting, or another protocol."""
    size = rng.randrange(1, most)
    return rng.choice(
        (
            lambda: rng.randbytes(size),
            lambda: bytes([rng.randrange(256)]) * size,
            lambda: rng.choice((b"[", b'{"a":', b'[{"":')) * (size // 4),
            lambda: rng.choice(_OTHER_PROTOCOLS),
        )
    )()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """With some bytes changed, cut off, doubled or added."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at:]
            case 2:
                found[at:at] = found[max(0, at - rng.randrange(1, 60)) : at]
            case _:
                found[at:at] = rng.randbytes(rng.randrange(1, 20))
    return bytes(found)


def changed(rng: random.Random, values: dict[str, Any]) -> bytes:
    """As JSON, with some values replaced, dropped or added."""
    found = dict(values)
    for _ in range(rng.randrange(1, 3)):
        name = rng.choice([*values, "extra"])
        if rng.random() < 0.2:
            found.pop(name, None)
        elif isinstance(found.get(name), list) and found[name] and rng.random() < 0.6:
            inner = list(found[name])
            inner[rng.randrange(len(inner))] = odd(rng)
            found[name] = inner
        else:
            found[name] = odd(rng)
    return json.dumps(found).encode()


def first_bytes(rng: random.Random, greeting: dict[str, Any]) -> bytes:
    """Draw what a stranger says to the data port. greeting: a valid first line."""
    line = json.dumps(greeting).encode()
    return rng.choice(
        (
            lambda: noise(rng),
            lambda: noise(rng) + b"\n",
            lambda: changed(rng, greeting) + b"\n",
            lambda: mutated(rng, line) + b"\n",
            lambda: line + b"\n" + changed(rng, {"proof": "00" * 32}) + b"\n",
            lambda: line + b"\n" + noise(rng) + b"\n",
        )
    )()


def segment(rng: random.Random, header: dict[str, Any]) -> bytes:
    """Draw what a peer sends after the handshake. header: of a valid frame."""
    data = rng.choice(
        (
            lambda: changed(rng, header),
            lambda: mutated(rng, json.dumps(header).encode()),
            lambda: noise(rng),
        )
    )()
    length = rng.choice((len(data), len(data), len(data), 0, 1 << 31, (1 << 32) - 1))
    frame = _LENGTH.pack(length) + data
    lane = rng.choice((0, 0, 0, 1, 2, 16, 17, 252, 253, 254, 255))
    size = rng.choice((len(frame), len(frame), len(frame), 0, 1, (1 << 32) - 1))
    return rng.choice((_SEGMENT.pack(lane, size) + frame, noise(rng)))


def control(rng: random.Random, values: dict[str, Any], header: dict[str, Any]) -> bytes:
    """Draw what a peer says of a group. values: of a valid message. header: of a valid frame."""
    marks = (16, 17, 252, 253)
    announced = rng.choice((1, 1000, 1 << 18, (1 << 32) - 1))
    data = rng.choice(
        (
            lambda: json.dumps(values).encode(),
            lambda: json.dumps(values).encode(),
            lambda: changed(rng, values),
            lambda: mutated(rng, json.dumps(values).encode()),
            lambda: noise(rng),
        )
    )()
    head = json.dumps(header).encode()
    frame = _LENGTH.pack(len(head)) + head
    size = rng.choice((len(data),) * 9 + (0, 1 << 16, (1 << 32) - 1))
    return rng.choice(
        (
            lambda: _SEGMENT.pack(254, size) + data,
            lambda: _SEGMENT.pack(254, size) + data,
            lambda: _SEGMENT.pack(0, len(frame)) + frame + _SEGMENT.pack(16, announced),
            lambda: _SEGMENT.pack(rng.choice(marks), announced) + rng.randbytes(rng.randrange(99)),
        )
    )()


def gloo_value(rng: random.Random, good: bytes) -> bytes:
    """Draw what a rank of gloo says of itself. good: what one has said."""
    numbers = (0, 1, 2, 7, 170, 1 << 20, 1 << 40, (1 << 64) - 1)
    at = rng.randrange(0, max(1, len(good) - 7))
    number = struct.pack("<Q", rng.choice(numbers))
    return rng.choice(
        (
            lambda: good,
            lambda: mutated(rng, good),
            lambda: number + good[8:],
            lambda: good[:at] + number + good[at + 8 :],
            lambda: rng.randbytes(rng.randrange(400)),
        )
    )()


# ---------------------------------------------------------------- messages to the operator

_NUMBERS = (0, 1, 2, -1, 7, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 64)
_REALS = (0.0, -1.0, 1e308, float("inf"), float("nan"), 1e-320)
_ITEMS = (
    "red[0:1000000000000]", "act[0:1000000000000] m0", "out[1] m9999999", "eval[1] m1000000",
    "sum[0:2] 1000000:1000002 @1", "sum[0:2] 0:1000000000000", "piece[0:2] 0:2 1/1000000000",
    "file[9999999]", "part[0:2] #1000000", "commit @-1",
    "red[0:2] 0/1000000000", "red[0:2] #0 @1000000000", "red[0:" + "9" * 4000 + "]",
)  # fmt: skip
"""What a planner that believes it would count up to."""
_SAMPLES = (0, 1, 1_000_000, 1 << 31, (1 << 63) - 1)
_TEXTS = ("", "a", "x" * 300, "x" * 70000, "\x00", "\u00e9" * 50, "out[1] m3", "ver[0:1]", "../..")


def item(rng: random.Random) -> str:
    """Text of an item that no agent can hold."""
    return rng.choice(_ITEMS)


def samples(rng: random.Random) -> int:
    """Draw a size of a validation set that may not exist."""
    return rng.choice(_SAMPLES)


def message(rng: random.Random, real: Callable[[str], Any] = lambda name: None) -> bytes:
    """A message of an agent: of any kind, with any values. real: values that may be right, by
    the name of the field; None: no idea."""
    field: Any = rng.choice(pb.AgentMessage.DESCRIPTOR.fields)
    found: Any = pb.AgentMessage()
    body = getattr(found, field.name)
    body.SetInParent()
    _fill(rng, body, real, 0)
    data: bytes = found.SerializeToString()
    return mutated(rng, data) if data and rng.random() < 0.2 else data


def _fill(rng: random.Random, body: Any, real: Callable[[str], Any], depth: int) -> None:
    for field in body.DESCRIPTOR.fields:
        if depth > 3 or rng.random() < 0.15:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            is_named = entry["key"].cpp_type == field.CPPTYPE_STRING
            is_real = entry["value"].cpp_type == field.CPPTYPE_DOUBLE
            for _ in range(rng.choice((0, 1, 3, 30))):
                key = rng.choice(_TEXTS) if is_named else rng.randrange(1 << 20)
                value = rng.choice(_REALS) if is_real else rng.randrange(-2, 99)
                getattr(body, field.name)[key] = value
        elif field.message_type is not None and field.is_repeated:
            for _ in range(rng.choice((0, 1, 2, 3, 1000 if depth == 0 else 4))):
                _fill(rng, getattr(body, field.name).add(), real, depth + 1)
        elif field.message_type is not None:
            getattr(body, field.name).SetInParent()
            _fill(rng, getattr(body, field.name), real, depth + 1)
        elif field.is_repeated:
            count = rng.choice((0, 1, 3, 300))
            getattr(body, field.name).extend(_value(rng, field, real) for _ in range(count))
        else:
            setattr(body, field.name, _value(rng, field, real))


def _value(rng: random.Random, field: Any, real: Callable[[str], Any]) -> Any:
    if field.name == "items" and rng.random() < 0.5:
        return item(rng)
    if field.name == "validation_samples" and rng.random() < 0.5:
        return samples(rng)
    known = real(field.name)
    if known is not None and rng.random() < 0.7:
        return known
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            text = rng.choice(_TEXTS)
            return text.encode() if field.type == field.TYPE_BYTES else text
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return rng.choice(_REALS)
        case field.CPPTYPE_ENUM:
            return rng.randrange(7)
        case field.CPPTYPE_INT32:
            low, high = -(1 << 31), (1 << 31) - 1
        case field.CPPTYPE_INT64:
            low, high = -(1 << 63), (1 << 63) - 1
        case field.CPPTYPE_UINT32:
            low, high = 0, (1 << 32) - 1
        case _:
            low, high = 0, (1 << 64) - 1
    return rng.choice([number for number in _NUMBERS if low <= number <= high])


# ---------------------------------------------------------------- HTTP, and lines of the liveness

_METHODS = ("GET", "POST", "HEAD", "PUT", "get", "", "G\x00T", "CONNECT", "x" * 5000)
_PATHS = ("/livez", "/metrics", "/", "", "//", "/../../etc/passwd", "/%00", "*", "/metrics?name[]=")
_VERSIONS = (
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/0.9",
    "HTTP/9.9",
    "HTTP/1.",
    "HTTP/-1.1",
    "",
    "HTTP/1.1 x",
)
_HEADERS = (
    "Host: x", "no colon", ": no name", "Content-Length: -1", "Content-Length: 99999999999",
    "Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: keep-alive",
    "Accept-Encoding: gzip", "Accept: application/openmetrics-text", "X: " + "y" * 70_000,
    " folded", "Upgrade: h2c", "Accept: " + "a;q=0.1," * 2000,
)  # fmt: skip


def request(rng: random.Random) -> bytes:
    """Draw what a stranger says to a port that speaks HTTP."""

    def made() -> bytes:
        line = " ".join(rng.choice(words) for words in (_METHODS, _PATHS, _VERSIONS))
        count = rng.choice((0, 1, 3, 3, 120))
        head = "".join(f"{rng.choice(_HEADERS)}\r\n" for _ in range(count))
        return f"{line}\r\n{head}\r\n".encode()

    good = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    return rng.choice(
        (
            made,
            made,
            lambda: made() * rng.randrange(1, 20),
            lambda: mutated(rng, good),
            lambda: good[: rng.randrange(len(good))],
            lambda: noise(rng),
            lambda: noise(rng, 200_000),
        )
    )()


def greeting(rng: random.Random, name: str) -> bytes:
    """Draw what a stranger says to a liveness port. name: of an agent that may connect."""
    words = ("hello", "proof", name, "other", "\u00e9" * 9, "0" * 32, "0" * 64, "", "x" * 900)

    def line() -> bytes:
        return " ".join(rng.choice(words) for _ in range(rng.randrange(5))).encode() + b"\n"

    hello = f"hello {name} {'0' * 32}\n".encode()
    return rng.choice(
        (
            line,
            lambda: line() * rng.randrange(1, 300),
            lambda: hello + line(),
            lambda: hello + f"proof {rng.randbytes(32).hex()}\n".encode(),
            lambda: hello * rng.randrange(1, 50),
            lambda: mutated(rng, hello),
            lambda: hello[: rng.randrange(len(hello))],
            lambda: noise(rng),
            lambda: hello + noise(rng) + b"\n",
        )
    )()

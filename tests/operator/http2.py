"""A peer that writes frames of HTTP/2 itself, so that no library keeps the rules for it."""

from __future__ import annotations

import asyncio
import ssl
import struct
from dataclasses import dataclass
from typing import NamedTuple

DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
ACK, END_HEADERS = 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEADLINE_S = 30.0


class Frame(NamedTuple):
    """One frame that the server has sent."""

    kind: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """As it is sent."""
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """A string of HPACK, not compressed (RFC 7541, 5.2)."""
    data, head = text.encode(), bytearray()
    left = len(data)
    if left < 127:
        return bytes([left]) + data
    head.append(127)
    left -= 127
    while left >= 128:
        head.append(left % 128 + 128)
        left //= 128
    return bytes([*head, left]) + data


def headers(stream: int, token: str = "") -> bytes:
    """Begins a session of an agent."""
    fields = {
        ":method": "POST", ":scheme": "https", ":path": "/bamboo.v1.AgentService/Session",
        ":authority": "bamboo-operator", "content-type": "application/grpc", "te": "trailers",
        "authorization": f"Bearer {token}",
    }  # fmt: skip
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


@dataclass
class Connection:
    """Open it with :func:`connect`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def begin(self) -> None:
        """Say what each client says first."""
        self.writer.write(PREFACE + frame(SETTINGS, 0, 0))

    async def hear(self) -> Frame:
        """The next frame. EOFError: the server has closed. TimeoutError: it says nothing."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return Frame(head[3], int.from_bytes(head[5:], "big"), payload)

    async def hear_of(self, kind: int) -> Frame:
        """The next frame of a kind."""
        while (found := await self.hear()).kind != kind:
            pass
        return found

    async def closed(self) -> bytes:
        """Wait until the server has closed. Why, if it has said so."""
        why = b""
        try:
            while True:
                found = await self.hear()
                if found.kind == GOAWAY:
                    why = found.payload[8:]
        except (EOFError, ConnectionError):
            return why
        finally:
            self.writer.transport.abort()


async def connect(port: int, *, encrypts: bool = True) -> Connection:
    """A connection on which nothing has been said. encrypts: the handshake of TLS is over."""
    context = None
    if encrypts:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    return Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

"""Length-prefixed messages over a socket between an agent's supervisor and its worker.

A frame is a 4-byte big-endian length, followed by a serialized proto message: ``OperatorMessage``
from the supervisor, ``AgentMessage`` from the worker. Nothing blocks: what the socket does not
accept is queued until :meth:`Pipe.flush`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

_LENGTH = struct.Struct(">I")
MAX_MESSAGE_BYTES = 64 << 20
_READ_BYTES = 1 << 16


class PipeClosedError(Exception):
    """The other side has gone, or has sent an invalid frame."""


class Pipe:
    """One end. Register it for reading, and while :attr:`wants_write` for writing."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes are queued."""
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Queue one message and flush. PipeClosedError if the other side has gone."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(message)} bytes; at most {MAX_MESSAGE_BYTES}")
        self._outgoing.append(memoryview(_LENGTH.pack(len(message)) + message))
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts. PipeClosedError if the other side has gone."""
        while self._outgoing:
            head = self._outgoing[0]
            try:
                sent = self._socket.send(head)
            except BlockingIOError:
                return
            except OSError as error:
                raise PipeClosedError(f"pipe broken while sending: {error}") from error
            if sent == len(head):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = head[sent:]

    def receive(self) -> list[bytes]:
        """All complete messages so far. PipeClosedError once the other side has closed.

        Messages sent before the close are returned first.
        """
        closed = self._read_available()
        messages = self._split()
        if closed is not None and not messages:
            raise closed
        return messages

    def close(self) -> None:
        self._socket.close()

    def _read_available(self) -> PipeClosedError | None:
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                return PipeClosedError(f"pipe broken while receiving: {error}")
            if not data:
                return PipeClosedError("the other side closed the pipe")
            self._incoming += data

    def _split(self) -> list[bytes]:
        messages = []
        at = 0
        while len(self._incoming) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, at)
            if length > MAX_MESSAGE_BYTES:
                raise PipeClosedError(f"a frame claims {length} bytes: not the pipe's protocol")
            end = at + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            messages.append(bytes(self._incoming[at + _LENGTH.size : end]))
            at = end
        del self._incoming[:at]
        return messages

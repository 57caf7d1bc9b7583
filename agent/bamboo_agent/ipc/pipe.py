"""Length-prefixed messages over a socket between an agent's supervisor and its worker.

Both sides use it (no torch here). A frame is a 4-byte big-endian length and so many bytes: a
serialized ``OperatorMessage`` (supervisor to worker) or ``AgentMessage`` (worker to supervisor). Nothing
blocks: what the socket does not take at once waits here until :meth:`Pipe.flush`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

_LENGTH = struct.Struct(">I")
MAX_MESSAGE_BYTES = 64 << 20
_READ_BYTES = 1 << 16


class PipeClosedError(Exception):
    """The other side has gone, or has sent what cannot be a frame."""


class Pipe:
    """One end. Register :meth:`fileno` with a selector for reading, and for writing while
    :attr:`wants_write`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something still waits to be sent."""
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Queue one message and send what goes at once. PipeClosedError if the peer has gone."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(message)} bytes; at most {MAX_MESSAGE_BYTES}")
        self._outgoing.append(memoryview(_LENGTH.pack(len(message)) + message))
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now. PipeClosedError if the peer has gone."""
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
        """All whole messages that have come; empty if none. PipeClosedError at the end of it all.

        Messages that came before the other side closed are returned first.
        """
        closed = self._read_available()
        messages = self._split()
        if closed is not None and not messages:
            raise closed
        return messages

    def close(self) -> None:
        """Close this end; the other one sees PipeClosedError."""
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
                return PipeClosedError("the other side has closed the pipe")
            self._incoming += data

    def _split(self) -> list[bytes]:
        messages = []
        at = 0
        while len(self._incoming) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, at)
            if length > MAX_MESSAGE_BYTES:
                raise PipeClosedError(f"a frame claims {length} bytes: not our protocol")
            end = at + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            messages.append(bytes(self._incoming[at + _LENGTH.size : end]))
            at = end
        del self._incoming[:at]
        return messages

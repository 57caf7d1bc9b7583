"""Faults of this process's TCP connections, made by the kernel: no byte of our code is involved.

A packet filter on a socket drops segments before TCP sees them, acknowledgements too. To both ends
it looks like a network that loses packets: they retransmit, and time out. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SOURCE_ADDRESS = (12 - 0x100000) & 0xFFFFFFFF  # of the IP header, from SKF_NET_OFF
_WHOLE = 0xFFFFFFFF
_UNSPECIFIED = struct.pack("H14x", socket.AF_UNSPEC)
_libc = ctypes.CDLL(None, use_errno=True)
_MEMORY_INFO = 55  # SO_MEMINFO
_MEMORY_INFO_BYTES, _LOST = 36, 8  # nine words; the last one is SK_MEMINFO_DROPS


def own_connections() -> Iterator[socket.socket]:
    """Copies of this process's IPv4 TCP sockets, listening ones included. Each is closed again."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family is socket.AF_INET and found.type is socket.SOCK_STREAM:
                    yield found


def drop_from(sock: socket.socket, addresses: Collection[str]) -> None:
    """Lose all segments that come from these IPv4 addresses; none: lose nothing any more."""
    if not addresses:
        with contextlib.suppress(FileNotFoundError):  # it has no filter
            sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        return
    program = [(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS)]
    for address in sorted(addresses):
        (source,) = struct.unpack("!I", socket.inet_aton(address))
        program += [(_JUMP_EQUAL, 0, 1, source), (_RETURN, 0, 0, 0)]
    program.append((_RETURN, 0, 0, _WHOLE))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, pointer)


def lost_segments(sock: socket.socket) -> int:
    """How many segments the kernel has dropped that this socket should have got."""
    info = sock.getsockopt(socket.SOL_SOCKET, _MEMORY_INFO, _MEMORY_INFO_BYTES)
    return int(struct.unpack(f"{len(info) // 4}I", info)[_LOST])


def peer_of(sock: socket.socket) -> str:
    """The other end's IPv4 address; empty if the socket is not connected."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


def may_hear(sock: socket.socket, addresses: Collection[str]) -> bool:
    """Whether segments of these IPv4 addresses may come: it is connected to one of them, or has no
    peer yet, since it listens or dials. False if there are no addresses."""
    peer = peer_of(sock)
    return bool(addresses) and (not peer or peer in addresses)


def reset(sock: socket.socket) -> bool:
    """End the connection with an RST; this end gets ECONNRESET, too. Whether it has ended."""
    return bool(_libc.connect(sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) == 0)

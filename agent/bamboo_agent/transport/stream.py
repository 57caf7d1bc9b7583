"""Bytes between two agents over one TCP connection: as they are, or encrypted with TLS 1.3.

Nothing here blocks. A stream that can do no more now raises BlockingIOError, and OSError if the
connection has failed. Certificates prove nothing by themselves: each agent makes its own at its
start. The handshake's proofs contain the listener's (``binding``), so nobody can stand between two
agents that know the plan's key (compare tls-server-end-point, RFC 5929).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import ssl
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_IOV_MAX = 512
_CHUNK_BYTES = 1 << 18
_QUEUED = struct.Struct("i")
_LIFE = timedelta(days=3650)  # of a certificate whose date nobody checks


class Stream(Protocol):
    """What links read and write."""

    received: int
    """Bytes that the connection has brought, encrypted or not."""
    is_partial: bool
    """Whether bytes have come since the last one that :meth:`receive` has handed on."""

    @property
    def has_received(self) -> bool:
        """Whether there are bytes that a selector does not see."""

    @property
    def delivered(self) -> int:
        """Bytes sent that the other machine has confirmed, encrypted or not."""

    @property
    def binding(self) -> bytes:
        """Names the listener's certificate, the same at both ends; empty: not encrypted."""

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has all that was sent."""

    def flush(self) -> None:
        """Give the kernel all that was sent."""

    def send(self, pieces: Sequence[memoryview]) -> int:
        """Send a part of the pieces. Number of bytes."""

    def receive(self, into: memoryview) -> int:
        """Fill a part of the memory. Number of bytes; 0: the peer has closed."""

    def wants_write(self, *, has_more: bool) -> bool:
        """Whether to go on when the connection can be written. has_more: there is more to send."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Plain:
    """Bytes as they are."""

    has_received = is_partial = False
    is_flushed = True
    binding = b""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.received = self._sent = 0

    @property
    def delivered(self) -> int:
        """See :class:`Stream`."""
        return self._sent - _queued(self._socket)

    def flush(self) -> None:
        """See :class:`Stream`."""

    def send(self, pieces: Sequence[memoryview]) -> int:
        """See :class:`Stream`."""
        count = self._socket.sendmsg(pieces[:_IOV_MAX])
        self._sent += count
        return count

    def receive(self, into: memoryview) -> int:
        """See :class:`Stream`."""
        count = self._socket.recv_into(into)
        self.received += count
        return count

    def wants_write(self, *, has_more: bool) -> bool:
        """See :class:`Stream`."""
        return has_more

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Identity:
    """A process's certificate, and the TLS settings for both ends."""

    listening: ssl.SSLContext
    dialing: ssl.SSLContext
    certificate: bytes  # DER

    def accept(self, sock: socket.socket) -> Secure:
        """Encrypt a connection that a peer has made."""
        return Secure(sock, self.listening, server=True, certificate=self.certificate)

    def dial(self, sock: socket.socket) -> Secure:
        """Encrypt a connection to a peer. It may still be under way."""
        return Secure(sock, self.dialing, server=False, certificate=None)


def make_identity() -> Identity:
    """A new key and certificate. The key is never in a file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bamboo-agent")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFE)
        .sign(key, hashes.SHA256())
    )
    listening = _context(ssl.PROTOCOL_TLS_SERVER)
    listening.num_tickets = 0  # nobody resumes a session
    _load(listening, certificate, key)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return Identity(listening, _context(ssl.PROTOCOL_TLS_CLIENT), der)


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # see above: the proofs contain the certificate
    return context


def _load(
    context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Python takes certificates and keys from files only: from memory that looks like one."""
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = os.memfd_create("certificate")
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


class Secure:
    """TLS 1.3. What OpenSSL has encrypted waits here until the kernel takes it."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server: bool,
        certificate: bytes | None,
    ) -> None:
        self._socket = sock
        self._in, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._encrypted, server_side=server)
        self._certificate = certificate  # the listener's; None: not known yet
        self._waits_for_peer = False
        self._out = memoryview(b"")
        self._scratch = memoryview(bytearray(_CHUNK_BYTES))
        self.received, self.is_partial = 0, False
        self._sent = 0  # encrypted

    @property
    def has_received(self) -> bool:
        """See :class:`Stream`."""
        return self._in.pending > 0 or self._tls.pending() > 0

    @property
    def binding(self) -> bytes:
        """See :class:`Stream`. Known once a byte has come or gone."""
        if self._certificate is None:
            self._certificate = self._tls.getpeercert(binary_form=True)
        if not self._certificate:
            raise ConnectionError("the peer has shown no certificate")
        return hashlib.sha256(self._certificate).digest()

    def send(self, pieces: Sequence[memoryview]) -> int:
        """See :class:`Stream`. Takes nothing while the kernel has not taken what came before."""
        self.flush()
        taken = _first(pieces)
        try:
            count = self._tls.write(taken)
        except ssl.SSLWantReadError as error:
            self._waits_for_peer = True
            self.flush()
            raise BlockingIOError from error
        self._waits_for_peer = False
        self._begin_flush()
        return count

    def receive(self, into: memoryview) -> int:
        """See :class:`Stream`."""
        while (count := self._decrypt(into)) is None:
            encrypted = self._socket.recv_into(self._scratch)
            if not encrypted:
                return 0
            self._in.write(self._scratch[:encrypted])
            self.received, self.is_partial = self.received + encrypted, True
        self.is_partial = False
        return count

    def _decrypt(self, into: memoryview) -> int | None:
        """Many records at once, from what has come; None: that is not enough for one."""
        count = 0
        try:
            while count < len(into):
                got: Any = self._tls.read(len(into) - count, into[count:])
                if not got:
                    break
                count += got
        except ssl.SSLWantReadError:
            self._waits_for_peer = False  # what it has said may be what a send waits for
            self._begin_flush()
            return count or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return count
        return count

    def wants_write(self, *, has_more: bool) -> bool:
        """See :class:`Stream`."""
        return not self.is_flushed or (has_more and not self._waits_for_peer)

    @property
    def delivered(self) -> int:
        """See :class:`Stream`."""
        return self._sent - _queued(self._socket)

    @property
    def is_flushed(self) -> bool:
        """See :class:`Stream`."""
        return not (len(self._out) or self._encrypted.pending)

    def flush(self) -> None:
        """See :class:`Stream`."""
        while not self.is_flushed:
            if not len(self._out):
                self._out = memoryview(self._encrypted.read())
            count = self._socket.send(self._out)
            self._sent += count
            self._out = self._out[count:]

    def _begin_flush(self) -> None:
        try:
            self.flush()
        except BlockingIOError:
            return  # the rest goes later

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def _queued(sock: socket.socket) -> int:
    """Bytes that the kernel has taken and the other machine has not confirmed; 0: it cannot say."""
    try:
        answer = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_QUEUED.size))
    except OSError:
        return 0
    return int(_QUEUED.unpack(answer)[0])


def _first(pieces: Sequence[memoryview]) -> memoryview | bytes:
    """A part of the pieces in one: small ones together, since each record of TLS has a price."""
    if len(pieces[0]) >= _CHUNK_BYTES:
        return pieces[0][:_CHUNK_BYTES]
    found, size = list[memoryview](), 0
    for piece in pieces:
        found.append(piece[: _CHUNK_BYTES - size])
        size += len(found[-1])
        if size == _CHUNK_BYTES:
            break
    return found[0] if len(found) == 1 else b"".join(found)

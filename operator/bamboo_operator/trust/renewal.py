"""Renews the operator's certificates while it runs.

A server certificate is issued at a handshake when a third of the old one's life is left. An
authority is renewed likewise, in its Secret; the new one signs only after agents had time to read
it, and the old one stays trusted until then and longer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509

from bamboo_operator.kube.api import Api, ApiError
from bamboo_operator.trust import tls
from bamboo_operator.trust.tls import Authorities, Authority, ServerIdentity

log = logging.getLogger(__name__)

PERIOD_S = 600.0
"""Between two looks at the authority's age."""


@dataclass(frozen=True)
class Lives:
    """How long certificates are valid."""

    authority: timedelta = timedelta(days=3650)
    server: timedelta = timedelta(days=90)
    # The kubelet brings a new bundle to running pods within two minutes.
    settle: timedelta = timedelta(hours=1)


def _now() -> datetime:
    return datetime.now(UTC)


class Certificates:
    """The authority and the server's identity at the present time. :meth:`load` comes first."""

    def __init__(
        self,
        kube: Api,
        namespace: str,
        *,
        lives: Lives | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._kube, self._namespace = kube, namespace
        self._lives = lives if lives is not None else Lives()
        self._clock = clock
        self._lock = threading.Lock()  # gRPC asks for the identity in threads of its own
        self._known: Authorities | None = None
        self._server: tuple[Authority, ServerIdentity] | None = None

    async def load(self) -> None:
        """From the Secret, with a new authority if there is none or it is old. ApiError."""
        found = await tls.load_authorities(
            self._kube, self._namespace, now=self._clock(), life=self._lives.authority
        )
        with self._lock:
            self._known = found

    @property
    def bundle(self) -> str:
        """The certificates that agents trust, in PEM."""
        return self._loaded.bundle

    @property
    def authority(self) -> Authority:
        """The one that signs."""
        return self._loaded.signer(self._clock(), self._lives.settle)

    def server(self) -> ServerIdentity:
        """The server's certificate and key; the same ones until they are renewed."""
        with self._lock:
            now, authority = self._clock(), self.authority
            if self._server is not None:
                issuer, identity = self._server
                if issuer == authority and not is_old(identity.chain, now):
                    return identity
            identity = tls.issue(authority, now=now, life=self._lives.server)
            if self._server is not None:
                log.info("the server's certificate is renewed")
            self._server = (authority, identity)
            return identity

    async def renew_for_ever(self, changed: Callable[[str], None]) -> None:
        """Renew the authority when it is time. changed: called with each new bundle."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.renew(changed)

    async def renew(self, changed: Callable[[str], None]) -> None:
        """One look. After an error of the API the old authority stays until the next look."""
        before = self.bundle
        try:
            await self.load()
        except ApiError as error:
            log.warning("cannot look after the authority", extra={"error": str(error)})
            return
        if self.bundle != before:
            log.info("the authority is renewed")
            changed(self.bundle)

    @property
    def _loaded(self) -> Authorities:
        assert self._known is not None
        return self._known


def is_old(chain: bytes, now: datetime) -> bool:
    """Whether less than a third of a certificate's life is left."""
    return tls.is_old(x509.load_pem_x509_certificates(chain)[0], now)

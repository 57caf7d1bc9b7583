"""Certificates are renewed in the running process, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.core.controller.builders import JOB

from bamboo_operator.agents.servicer import AgentService, make_server
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.trust.bundle import Trust
from bamboo_operator.trust.renewal import Certificates, Lives
from bamboo_operator.trust.tls import ServerIdentity

from ..harness import failing
from ..memory_api import MemoryApi

LIVES = Lives(
    authority=timedelta(hours=90), server=timedelta(hours=9), settle=timedelta(minutes=60)
)


@dataclass
class Clock:
    """Whole seconds, as certificates have them."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now

    def forward(self, hours: float) -> None:
        self.now += timedelta(hours=hours)


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime.now(UTC).replace(microsecond=0))


async def loaded(kube: MemoryApi, clock: Clock) -> Certificates:
    found = Certificates(kube, "sys", lives=LIVES, clock=clock)
    await found.load()
    return found


def parts(identity: ServerIdentity) -> list[x509.Certificate]:
    """The server's certificate and its issuer's."""
    return x509.load_pem_x509_certificates(identity.chain)


async def test_the_servers_certificate_never_ends(clock: Clock) -> None:
    certificates = await loaded(MemoryApi(), clock)
    seen = [certificates.server()]
    for _ in range(40):
        clock.forward(1)
        found = certificates.server()
        server, issuer = parts(found)
        server.verify_directly_issued_by(issuer)
        assert server.not_valid_before_utc <= clock.now < server.not_valid_after_utc
        if found != seen[-1]:
            seen.append(found)
    assert len(seen) == 7  # one in 6 hours: then less than a third of 9 h 5 min is left
    assert len({issuer for _, issuer in map(parts, seen)}) == 1


async def test_a_new_authority_signs_when_agents_know_it(clock: Clock) -> None:
    kube = MemoryApi()
    certificates = await loaded(kube, clock)
    old, bundles = certificates.authority, list[str]()
    await certificates.renew(bundles.append)
    clock.forward(61)
    await certificates.renew(bundles.append)
    assert len(bundles) == 1
    assert bundles[0].count("BEGIN CERTIFICATE") == 2
    assert old.bundle in bundles[0]
    assert certificates.authority == old
    assert (await loaded(kube, clock)).authority == old  # another operator agrees
    clock.forward(1)
    new = certificates.authority
    assert new != old
    server, issuer = parts(certificates.server())
    server.verify_directly_issued_by(issuer)
    assert issuer.public_bytes(Encoding.PEM) == new.certificate
    clock.forward(60)
    await certificates.renew(bundles.append)
    assert old.bundle not in bundles[1]
    assert new.bundle in bundles[1]


async def test_without_the_api_the_old_authority_stays(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    kube = MemoryApi()
    certificates = await loaded(kube, clock)
    old = certificates.bundle
    clock.forward(80)
    kube.fail = failing("replace", "secrets", ApiError(409, "Conflict", "changed"))
    await certificates.renew(lambda bundle: pytest.fail("nothing has changed"))
    assert certificates.bundle == old
    assert "cannot look after the authority" in caplog.text
    server, issuer = parts(certificates.server())
    assert server.not_valid_after_utc <= issuer.not_valid_after_utc


async def test_the_next_handshake_gets_the_new_certificate(clock: Clock) -> None:
    """The server runs on; agents that trust the authority connect before and after."""
    clock.forward(-7)
    certificates = await loaded(MemoryApi(), clock)
    service = AgentService(None, None)  # type: ignore[arg-type]
    server, port = make_server(service, certificates.server, "127.0.0.1:0")
    await server.start()

    async def serial() -> int:
        text = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        return x509.load_pem_x509_certificate(text.encode()).serial_number

    async def connect() -> None:
        trusted = grpc.ssl_channel_credentials(certificates.authority.certificate)
        options = [("grpc.ssl_target_name_override", "bamboo-operator")]
        address = f"127.0.0.1:{port}"
        async with grpc.aio.secure_channel(address, trusted, options=options) as channel:
            await asyncio.wait_for(channel.channel_ready(), 20)

    try:
        await connect()
        first = await serial()
        assert await serial() == first
        clock.forward(7)
        assert await serial() != first
        await connect()
    finally:
        await server.stop(None)


async def test_a_new_bundle_is_published_at_once() -> None:
    kube = MemoryApi()
    trust = Trust(kube, "old", "op:1", clock=lambda: 0.0)
    await trust.publish(JOB)
    trust.renew("new")
    await trust.publish(JOB)
    (found,) = (o for path, o in kube.objects.items() if path.startswith(api.config_map("ns", "")))
    assert found["data"]["ca.crt"] == "new"

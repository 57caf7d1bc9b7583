"""The operator's certificate authority and where it is kept."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.trust import tls

from ..memory_api import MemoryApi

PATH = api.secret("sys", tls.SECRET)


async def test_the_authority_is_made_once_and_kept() -> None:
    kube = MemoryApi()
    first = await tls.load_authorities(kube, "sys")
    assert await tls.load_authorities(kube, "sys") == first
    assert kube.objects[PATH]["type"] == "kubernetes.io/tls"


async def test_an_unreadable_authority_is_replaced() -> None:
    kube = MemoryApi()
    kube.put(PATH, {"data": {"tls.crt": "eA==", "tls.key": "eA=="}})
    fresh = await tls.load_authorities(kube, "sys")
    assert await tls.load_authorities(kube, "sys") == fresh


async def test_two_operators_at_once_agree() -> None:
    kube = MemoryApi()
    other = tls.make_authority()

    def overtake(verb: str, path: str) -> None:
        if verb == "create":
            kube.fail = lambda verb, path: None
            kube.put(PATH, tls._to_secret("sys", tls.Authorities(other)))
            raise ApiError(409, "AlreadyExists", path)

    kube.fail = overtake
    assert await tls.load_authorities(kube, "sys") == tls.Authorities(other)


def test_a_server_certificate_is_signed_for_the_name_that_agents_check() -> None:
    authority = tls.make_authority()
    server, issuer = x509.load_pem_x509_certificates(tls.issue(authority).chain)
    server.verify_directly_issued_by(issuer)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["bamboo-operator"]
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
    assert authority.bundle.startswith("-----BEGIN CERTIFICATE-----")

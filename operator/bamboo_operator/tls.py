"""The operator's certificate authority, kept in a Secret, and its server certificate.

The server's key never leaves the process; every start makes a new one.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bamboo_operator import api
from bamboo_operator.api import Api, ApiError, Object
from bamboo_operator.config import SERVER_NAME

SECRET = "bamboo-operator-tls"

_CA_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
_RENEW_BEFORE = timedelta(days=400)


@dataclass(frozen=True)
class Authority:
    """certificate and key in PEM."""

    certificate: bytes
    key: bytes

    @property
    def bundle(self) -> str:
        return self.certificate.decode()


@dataclass(frozen=True)
class ServerIdentity:
    """The gRPC server's certificate chain and key, in PEM."""

    chain: bytes
    key: bytes


async def load_authority(kube: Api, namespace: str) -> Authority:
    """From the Secret. A new one if there is none, or if it would end before the server's."""
    found = await kube.get(api.secret(namespace, SECRET))
    if found is not None and (authority := _from_secret(found)) is not None:
        return authority
    fresh = make_authority()
    body = _to_secret(namespace, fresh)
    if found is not None:
        body["data"] = (found.get("data") or {}) | body["data"]  # other keys stay
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await kube.replace(api.secret(namespace, SECRET), body)
        return fresh
    try:
        await kube.create(api.secret(namespace), body)
    except ApiError as error:
        if error.is_conflict:
            return await load_authority(kube, namespace)
        raise
    return fresh


def make_authority() -> Authority:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bamboo-operator-ca")])
    builder = _builder(name, name, key.public_key(), _CA_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(ca=True), critical=True)
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(authority: Authority) -> ServerIdentity:
    """A server certificate for the name that agents check."""
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    builder = _builder(name, issuer.subject, key.public_key(), _SERVER_LIFE)
    names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(ca=False), critical=True)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(server, critical=False)
    certificate = _pem(builder.sign(signer, hashes.SHA256()))
    return ServerIdentity(certificate + authority.certificate, _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _to_secret(namespace: str, authority: Authority) -> Object:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": SECRET,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "bamboo"},
        },
        "data": {"tls.crt": text(authority.certificate), "tls.key": text(authority.key)},
    }


def _from_secret(secret: Object) -> Authority | None:
    """None if it is unreadable or ends too soon."""
    data = secret.get("data") or {}
    try:
        authority = Authority(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        serialization.load_pem_private_key(authority.key, password=None)
    except (KeyError, ValueError):
        return None
    ends = certificate.not_valid_after_utc
    return authority if ends > datetime.now(UTC) + _RENEW_BEFORE else None

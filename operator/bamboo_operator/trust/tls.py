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

from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.trust.identity import SERVER_NAME

SECRET = "bamboo-operator-tls"

_CA_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=90)
_SKEW = timedelta(minutes=5)


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


@dataclass(frozen=True)
class Authorities:
    """The newest authority, and the one before it, which stays trusted."""

    newest: Authority
    previous: Authority | None = None

    @property
    def bundle(self) -> str:
        """Both certificates in PEM."""
        return self.newest.bundle + (self.previous.bundle if self.previous is not None else "")

    def signer(self, now: datetime, settle: timedelta) -> Authority:
        """The previous one while agents may not know the newest, which is ``settle`` long."""
        is_known = now >= _certificate(self.newest).not_valid_before_utc + _SKEW + settle
        if (
            self.previous is None
            or is_known
            or now > _certificate(self.previous).not_valid_after_utc
        ):
            return self.newest
        return self.previous


async def load_authorities(
    kube: Api, namespace: str, *, now: datetime | None = None, life: timedelta = _CA_LIFE
) -> Authorities:
    """From the Secret. A new authority if there is none, or if it is old. ApiError."""
    now = now if now is not None else datetime.now(UTC)
    found = await kube.get(api.secret(namespace, SECRET))
    known = _from_secret(found) if found is not None else None
    if known is not None and not is_old(_certificate(known.newest), now):
        return known
    fresh = Authorities(make_authority(now=now, life=life), _still_valid(known, now))
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
            return await load_authorities(kube, namespace, now=now, life=life)
        raise
    return fresh


def _still_valid(known: Authorities | None, now: datetime) -> Authority | None:
    if known is None or now > _certificate(known.newest).not_valid_after_utc:
        return None
    return known.newest


def is_old(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether less than a third of its life is left."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return end - now < (end - begin) / 3


def make_authority(*, now: datetime | None = None, life: timedelta = _CA_LIFE) -> Authority:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bamboo-operator-ca")])
    now = now if now is not None else datetime.now(UTC)
    builder = _builder(name, name, key.public_key(), now, now + life)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(ca=True), critical=True)
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(
    authority: Authority, *, now: datetime | None = None, life: timedelta = _SERVER_LIFE
) -> ServerIdentity:
    """A server certificate for the name that agents check. It ends no later than its issuer."""
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = _certificate(authority)
    now = now if now is not None else datetime.now(UTC)
    end = min(now + life, issuer.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    builder = _builder(name, issuer.subject, key.public_key(), now, end)
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
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(end)
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


def _to_secret(namespace: str, authorities: Authorities) -> Object:
    data = {"tls.crt": authorities.newest.certificate, "tls.key": authorities.newest.key}
    if (previous := authorities.previous) is not None:
        data |= {"previous.crt": previous.certificate, "previous.key": previous.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": SECRET,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "bamboo"},
        },
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def _from_secret(secret: Object) -> Authorities | None:
    """None if the newest authority is unreadable."""
    data = secret.get("data") or {}
    newest = _read(data, "tls")
    return Authorities(newest, _read(data, "previous")) if newest is not None else None


def _read(data: Object, name: str) -> Authority | None:
    try:
        certificate, key = (base64.b64decode(data[f"{name}.{kind}"]) for kind in ("crt", "key"))
        x509.load_pem_x509_certificate(certificate)
        serialization.load_pem_private_key(key, password=None)
    except (KeyError, ValueError):
        return None
    return Authority(certificate, key)


def _certificate(authority: Authority) -> x509.Certificate:
    return x509.load_pem_x509_certificate(authority.certificate)

"""Certificates of one cluster: authority, control plane, clients and nodes.

Keys are written with mode 0600. All files are deleted with the cluster directory.
"""

import base64
import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=365)
# Certificates must be valid on machines whose clock is slightly behind.
_BACKDATE = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """The cluster's certificate authority; writes pairs into one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("bamboo-devcluster-ca")
        self.cert = directory / "ca.crt"
        self.cert.write_bytes(_pem(self._self_signed()))

    def issue(
        self,
        file_name: str,
        *,
        common_name: str,
        organization: str = "",
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Pair:
        """Write `file_name`.crt and .key, valid for servers and clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name, organization), key.public_key())
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority_id, critical=False)
        pair = Pair(self._directory / f"{file_name}.crt", self._directory / f"{file_name}.key")
        pair.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        write_private(pair.key, _key_pem(key))
        return pair

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> "_Builder":
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + _LIFETIME)
        )

    def _self_signed(self) -> x509.Certificate:
        public_key = self._key.public_key()
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = self._builder(self._name, public_key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        builder = builder.add_extension(usage, critical=True)
        key_id = x509.SubjectKeyIdentifier.from_public_key(public_key)
        return builder.add_extension(key_id, critical=False).sign(self._key, hashes.SHA256())


_Builder = x509.CertificateBuilder


def write_service_account_key(path: Path) -> None:
    """Write the RSA key that signs service account tokens."""
    write_private(path, _key_pem(rsa.generate_private_key(65537, 2048)))


def write_kubeconfig(path: Path, *, server: str, authority: Path, pair: Pair) -> None:
    """Write a self-contained kubeconfig, mode 0600."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {"client-certificate-data": _base64(pair.cert), "client-key-data": _base64(pair.key)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "devcluster", "cluster": cluster}],
        "users": [{"name": "devcluster", "user": user}],
        "contexts": [
            {"name": "devcluster", "context": {"cluster": "devcluster", "user": "devcluster"}}
        ],
        "current-context": "devcluster",
    }
    write_private(path, yaml.safe_dump(config).encode())


def server_context(pair: Pair, authority: Path) -> ssl.SSLContext:
    """Return a TLS context that requires a client certificate of the cluster."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pair.cert, pair.key)
    return context


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read. It never exists with a wider mode."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _name(common_name: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

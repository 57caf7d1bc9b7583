"""A certificate authority of one run, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class KeyPair:
    """PEM texts."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates for 127/8 addresses."""

    def __init__(self, name: str = "local CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @property
    def bundle(self) -> bytes:
        """The certificates that agents trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, *addresses: str, names: tuple[str, ...] = ("operator",)) -> KeyPair:
        """A server certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
        hosts: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(address)) for address in addresses
        ]
        hosts += [x509.DNSName(name) for name in names]
        builder = _builder(subject, self._name, key).add_extension(
            x509.SubjectAlternativeName(hosts), critical=False
        )
        signed = builder.sign(self._key, hashes.SHA256())
        return KeyPair(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )

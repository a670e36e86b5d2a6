"""Makes the certificates of a development broker: its own authority, and certificates
signed by it. Needs `cryptography`.

Turned down: `keytool` of the installed Java (it does not export private keys, which
clients need as PEM files).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 3650
_AN_HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key. Shape: PEM; the key is PKCS #8 without a
    password.
    """

    certificate: bytes
    key: bytes


def authority() -> Issued:
    """Return the certificate and key of a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("coopstreams dev")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return _issued(made, key)


def issue(
    by: Issued,
    name: str,
    hosts: Sequence[str],
) -> Issued:
    """Return a certificate of this authority for a server on these hosts, or for a
    client: its subject is `CN=name`.
    """
    signer = serialization.load_pem_private_key(by.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    root = x509.load_pem_x509_certificate(by.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _builder(_name(name), root.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    if hosts:
        made = made.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]),
            critical=False,
        )
    return _issued(made.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _AN_HOUR)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(*form),
    )

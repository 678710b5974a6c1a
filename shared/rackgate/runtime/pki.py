"""Certificate authorities and the certificates that they sign: P-256 keys, X.509 version 3."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# The clocks of peers may be behind ours.
MAX_BACKDATED: Final = timedelta(minutes=5)
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A private key and the certificate of its public key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The key as unencrypted PKCS #8."""
        return key_pem(self.key)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate alone."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    """A key as unencrypted PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_authority(common_name: str, *, validity: timedelta, now: datetime) -> CertifiedKey:
    """A new authority that signs leaf certificates only; `now` is aware."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = _builder(key, subject, subject, validity, now, is_authority=True)
    return CertifiedKey(key, builder.sign(key, hashes.SHA256()))


def issue_certificate(
    authority: CertifiedKey,
    common_name: str,
    *,
    purposes: Sequence[x509.ObjectIdentifier],
    names: Sequence[str] = (),
    organizations: Sequence[str] = (),
    validity: timedelta,
    now: datetime,
) -> CertifiedKey:
    """A new key with a certificate signed by the authority.

    Args:
        authority: signs it.
        common_name: of the subject; the user name that API servers see.
        purposes: `CLIENT`, `SERVER` or both.
        names: DNS names and IP addresses.
        organizations: of the subject; the groups that API servers see.
        validity: from now on.
        now: aware.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = (
        _builder(key, subject, authority.certificate.subject, validity, now, is_authority=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    if names:
        subjects = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = builder.add_extension(subjects, critical=False)
    return CertifiedKey(key, builder.sign(authority.key, hashes.SHA256()))


def _builder(
    key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    issuer: x509.Name,
    validity: timedelta,
    now: datetime,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - min(MAX_BACKDATED, validity / 10))
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

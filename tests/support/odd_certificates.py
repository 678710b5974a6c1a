"""Certificates as no authority issues them, made of a sound one."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from rackgate.certificates.certificates import IssuedPair
from rackgate.runtime import clock

_THIRD: Final = b"\xa0\x03\x02\x01\x02"  # [0] INTEGER 2: version 3
_AUTHORITY_KEY: Final = b"\x55\x1d\x23"
_SUBJECT_KEY: Final = b"\x55\x1d\x0e"


def _changed(pem: bytes, before: bytes, after: bytes) -> bytes:
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    assert der.count(before) == 1
    return _pem(der.replace(before, after))


def _pem(der: bytes) -> bytes:
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def other_version(pem: bytes) -> bytes:
    """Of a version that X.509 does not have."""
    return _changed(pem, _THIRD, _THIRD[:-1] + b"\x07")


def extension_twice(pem: bytes) -> bytes:
    """With two subject key identifiers, and none of the authority's key."""
    return _changed(pem, _AUTHORITY_KEY, _SUBJECT_KEY)


def cut_off(pem: bytes) -> bytes:
    """Sound, and behind it the beginning of another."""
    return pem + b"-----BEGIN CERTIFICATE-----\nAAAA"


def unreadable_name(pem: bytes) -> bytes:
    """Its subject's common name is no UTF-8."""
    certificate = x509.load_pem_x509_certificate(pem)
    der = certificate.public_bytes(Encoding.DER)
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    at = der.rindex(str(name.value).encode())  # the issuer's, which may be the same, comes first
    return _pem(der[:at] + b"\xff" + der[at + 1 :])


ODD: Final[dict[str, Callable[[bytes], bytes]]] = {
    "another version": other_version,
    "an extension twice": extension_twice,
    "cut off": cut_off,
    "an unreadable name": unreadable_name,
}


def with_authority_between() -> IssuedPair:
    """A serving certificate whose issuer was itself signed by the authority."""
    key, root_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    now = clock.now()

    def sign(subject: str, public: Any, issuer: str, signer: Any, authority: bool) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    between = sign("between", key.public_key(), "root", root_key, True)
    leaf = sign("leaf", leaf_key.public_key(), "between", key, False)
    return IssuedPair(
        sign("root", root_key.public_key(), "root", root_key, True),
        leaf + between,
        leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )

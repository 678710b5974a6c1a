"""Issues and reads certificates. Each certificate has an authority of its own. Pure.

The key of the authority signs once and is discarded, so a reader of the Secret cannot issue another
certificate that callers of the service trust (ADR 5). Malformed data never raises outside this
module: it counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from rackgate.runtime.pki import SERVER, issue_certificate, make_authority

_PEM: Final = serialization.Encoding.PEM
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
# The exceptions of cryptography for malformed data have no common base class.
UNREADABLE_ERRORS: Final = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class IssuedPair:
    """PEM bytes of an authority's certificate, a serving certificate, and its key."""

    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A serving certificate with a matching key and a known issuer.

    Attributes:
        authority: fingerprint of the authority that signed it.
        names: its DNS names and IP addresses.
        not_before: aware, UTC.
        not_after: aware, UTC.
    """

    authority: str
    names: frozenset[str]
    not_before: datetime
    not_after: datetime

    def valid_at(self, now: datetime) -> bool:
        """Whether it is valid at that time."""
        return self.not_before <= now < self.not_after


def issue(names: Iterable[str], *, validity: timedelta, now: datetime, owner: str) -> IssuedPair:
    """Make an authority and a serving certificate signed by it.

    Args:
        names: DNS names and IP addresses, at least one.
        validity: how long both live from now on.
        now: aware.
        owner: common name; that of the authority starts with it.

    Raises:
        ValueError: there is no name, or one is neither a DNS name nor an IP address.
    """
    subjects = sorted(names)
    if not subjects:
        raise ValueError("a serving certificate needs at least one DNS name or IP address")
    # A unique name: chains of the old and the new authority must not be confused.
    authority = make_authority(
        f"{_authority_prefix(owner)}{x509.random_serial_number():x}"[:64],
        validity=validity,
        now=now,
    )
    serving = issue_certificate(
        authority,
        owner,
        purposes=(SERVER,),
        names=subjects,
        validity=validity,
        now=now,
    )
    return IssuedPair(authority.certificate_pem, serving.certificate_pem, serving.key_pem)


def _authority_prefix(owner: str) -> str:
    return f"{owner}-ca-"


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def read_chain(pem: bytes) -> list[x509.Certificate]:
    """The certificates, in order; at least one.

    Raises:
        ValueError: there is no certificate, or one is malformed.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except UNREADABLE_ERRORS as error:
        raise ValueError(str(error)) from error
    # cryptography skips a truncated certificate, but OpenSSL does not accept the file.
    if len(found) < pem.count(_BEGIN):
        raise ValueError("a certificate is cut off")
    return found


def read_bundle(pem: bytes) -> dict[str, x509.Certificate]:
    """The certificates of a bundle by fingerprint, in order; empty if it is malformed."""
    try:
        return {fingerprint(found): found for found in read_chain(pem)}
    except ValueError:
        return {}


def own_authorities(bundles: Iterable[bytes], owner: str) -> bytes:
    """PEM of the authorities in these bundles that replicas of this owner issued."""
    found = {digest: one for bundle in bundles for digest, one in read_bundle(bundle).items()}
    return write_bundle(one for one in found.values() if _is_of(owner, one))


def _is_of(owner: str, certificate: x509.Certificate) -> bool:
    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE_ERRORS:  # raised when a field is first read
        return False
    return any(str(name.value).startswith(_authority_prefix(owner)) for name in names)


def write_bundle(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates as PEM, in order."""
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def read_serving_pair(
    certificate: bytes, key: bytes, authorities: Mapping[str, x509.Certificate]
) -> ServingPair | None:
    """The serving pair; None if it is malformed or no authority of the bundle signed it."""
    try:
        found = read_chain(certificate)[0]
        private = serialization.load_pem_private_key(key, password=None)
        if private.public_key() != found.public_key():
            return None
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        authority = next(
            (digest for digest, signer in authorities.items() if _signed_by(found, signer)), None
        )
    except UNREADABLE_ERRORS:
        return None
    if authority is None:
        return None
    return ServingPair(
        authority,
        frozenset(str(name.value) for name in names),
        found.not_valid_before_utc,
        # A chain is valid only as long as its authority.
        min(found.not_valid_after_utc, authorities[authority].not_valid_after_utc),
    )


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except UNREADABLE_ERRORS:
        return False
    return True

"""Certificates as the webhook issues and reads them: one throw-away authority for each. Pure.

The authority's key signs once and is forgotten, so nobody who reads the Secret can make another
certificate that callers of the webhook would trust (ADR 5). What cannot be read is never an
exception beyond this module: it counts as missing.
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

_AUTHORITY: Final = "rackgate-webhook-ca-"
_PEM: Final = serialization.Encoding.PEM
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
# What cryptography raises for what it cannot read; not all of it is of one family.
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
    """A serving certificate whose key fits and whose issuer is known.

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
        """Whether callers whose clocks are right accept it by its dates."""
        return self.not_before <= now < self.not_after


def issue(names: Iterable[str], *, validity: timedelta, now: datetime) -> IssuedPair:
    """Make an authority and a serving certificate signed by it.

    Args:
        names: DNS names and IP addresses, at least one.
        validity: how long both live from now on.
        now: aware.

    Raises:
        ValueError: no name at all, or one that is neither DNS name nor address.
    """
    subjects = sorted(names)
    if not subjects:
        raise ValueError("a serving certificate needs at least one DNS name or IP address")
    # A name of its own: chains of the old and the new authority must not be mixed up.
    authority = make_authority(
        f"{_AUTHORITY}{x509.random_serial_number():x}"[:64], validity=validity, now=now
    )
    serving = issue_certificate(
        authority,
        "rackgate-webhook",
        purposes=(SERVER,),
        names=subjects,
        validity=validity,
        now=now,
    )
    return IssuedPair(authority.certificate_pem, serving.certificate_pem, serving.key_pem)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def read_chain(pem: bytes) -> list[x509.Certificate]:
    """The certificates, in order, at least one.

    Raises:
        ValueError: there is none, or one that cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except UNREADABLE_ERRORS as error:
        raise ValueError(str(error)) from error
    # One without its end is passed over, but not by OpenSSL, which is to serve it.
    if len(found) < pem.count(_BEGIN):
        raise ValueError("a certificate is cut off")
    return found


def read_bundle(pem: bytes) -> dict[str, x509.Certificate]:
    """The certificates of a bundle by fingerprint, in order; empty when it cannot be read."""
    try:
        return {fingerprint(found): found for found in read_chain(pem)}
    except ValueError:
        return {}


def own_authorities(bundles: Iterable[bytes]) -> bytes:
    """PEM of the authorities in some bundles that replicas of this webhook have made."""
    found = {digest: one for bundle in bundles for digest, one in read_bundle(bundle).items()}
    return write_bundle(one for one in found.values() if _is_own(one))


def _is_own(certificate: x509.Certificate) -> bool:
    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE_ERRORS:  # read only now
        return False
    return any(str(name.value).startswith(_AUTHORITY) for name in names)


def write_bundle(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates as PEM, in order."""
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def read_serving_pair(
    certificate: bytes, key: bytes, authorities: Mapping[str, x509.Certificate]
) -> ServingPair | None:
    """Facts of a serving pair; None when it is broken, or no authority of the bundle signed it."""
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
        # The chain is no longer good once its authority has expired.
        min(found.not_valid_after_utc, authorities[authority].not_valid_after_utc),
    )


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except UNREADABLE_ERRORS:
        return False
    return True

"""A pair that somebody else put into the Secret: whether it can be served, and since when.

A pair whose authority the callers do not trust yet would be refused by them. So a replica goes
on serving the pair it has, as long as that is valid, until the registrations trust the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from rackgate_webhook.certificates.certificates import (
    UNREADABLE_ERRORS,
    read_bundle,
    read_chain,
    write_bundle,
)
from rackgate_webhook.certificates.secret import BUNDLE, CERTIFICATE, KEY

MAX_OTHERS: Final = 4


@dataclass(frozen=True, slots=True)
class ProvidedPair:
    """What a Secret of type kubernetes.io/tls offers.

    Attributes:
        problem: why it cannot be served; empty when it can.
        certificate: PEM of the serving certificate and of those between it and its authority.
        key: PEM.
        authorities: PEM of `ca.crt`; empty without one.
        not_after: when the serving certificate expires, aware; None when it cannot be read.
    """

    problem: str
    certificate: bytes = b""
    key: bytes = b""
    authorities: bytes = b""
    not_after: datetime | None = None


def read_provided_pair(
    data: Mapping[str, bytes], names: Iterable[str], now: datetime
) -> ProvidedPair:
    """Judge the fields of a Secret.

    Args:
        data: decoded.
        names: DNS names and IP addresses that the certificate must have.
        now: aware.
    """
    certificate, key = data.get(CERTIFICATE, b""), data.get(KEY, b"")
    for name, value in ((CERTIFICATE, certificate), (KEY, key)):
        if not value:
            return ProvidedPair(f"it has no {name}")
    try:
        leaf = read_chain(certificate)[0]
    except ValueError:
        return ProvidedPair(f"its {CERTIFICATE} is no certificate in PEM")
    problem = _key_mismatch(leaf, key) or _time_problem(leaf, now) or _name_problem(leaf, names)
    return ProvidedPair(problem, certificate, key, data.get(BUNDLE, b""), leaf.not_valid_after_utc)


def _key_mismatch(leaf: x509.Certificate, key: bytes) -> str:
    try:
        private = serialization.load_pem_private_key(key, password=None)
        fits = private.public_key() == leaf.public_key()
    except UNREADABLE_ERRORS:
        return f"its {KEY} is no private key in PEM, or needs a password"
    return "" if fits else f"its {KEY} does not fit its {CERTIFICATE}"


def _time_problem(leaf: x509.Certificate, now: datetime) -> str:
    if leaf.not_valid_after_utc <= now:
        return f"its certificate expired at {_rfc3339(leaf.not_valid_after_utc)}"
    if leaf.not_valid_before_utc > now:
        return f"its certificate is not valid before {_rfc3339(leaf.not_valid_before_utc)}"
    return ""


def _rfc3339(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _name_problem(leaf: x509.Certificate, names: Iterable[str]) -> str:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        has = {str(name.value) for name in found}
    except UNREADABLE_ERRORS:
        has = set()
    missing = sorted(name for name in names if name not in has and _wildcard_of(name) not in has)
    if not missing:
        return ""
    return f"its certificate is for {', '.join(sorted(has)) or 'no name'}, not {missing[0]}"


def _wildcard_of(name: str) -> str:
    return "*." + name.partition(".")[2]


def merge_bundle(
    provided: ProvidedPair, carried: Iterable[bytes], now: datetime, *, keep: bool
) -> bytes:
    """The bundle that a registration should carry while an offer is there.

    Args:
        provided: has authorities.
        carried: the bundles that its webhooks carry now.
        now: aware.
        keep: other authorities that are there and still valid stay, 4 at most.
    """
    offered = read_bundle(provided.authorities)
    others = {
        digest: found
        for bundle in (carried if keep else ())
        for digest, found in read_bundle(bundle).items()
        if digest not in offered and found.not_valid_after_utc > now
    }
    return write_bundle([*offered.values(), *list(others.values())[:MAX_OTHERS]])


@dataclass(frozen=True, slots=True)
class TrustState:
    """Who would trust what.

    Attributes:
        offered: every webhook of every registration trusts the offered pair.
        served: any of them trusts the pair that is served.
        any: there are registrations at all.
        since: how long `offered` has been so, as this replica has seen it.
    """

    offered: bool
    served: bool
    any: bool
    since: timedelta = timedelta()


def may_switch(
    trust: TrustState, served_until: datetime | None, *, now: datetime, settle: timedelta
) -> bool:
    """Whether the offered pair, which can be served, replaces the served one now.

    Args:
        trust: who would trust what.
        served_until: expiry of the served pair; None when there is none.
        now: aware.
        settle: time that API servers get to see a registration that has changed.
    """
    if served_until is None or served_until <= now or not trust.any:
        return True
    if trust.offered:
        return trust.since >= settle
    # Whoever writes the bundle took the old authority away: waiting longer helps nobody.
    return not trust.served

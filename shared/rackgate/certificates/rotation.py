"""The Secret that replicas share, and the steps of a rotation. Pure.

During a rotation, the bundle of every caller trusts the served certificate at all times:

1. *publish*: the next pair is issued, and its authority is added to the bundle;
2. the bundle is written into every webhook configuration, and `settle` passes;
3. *switch*: the next pair becomes the served one;
4. *prune*: the old authority is removed from the bundle when it expires, so a late replica stays
trusted.

If the Secret has no usable pair, *issue* creates one that is served at once. `next_step` decides
what is due; `with_issued_pair`, `with_next_pair`, `switch_pair` and `prune_expired` carry it out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from rackgate.certificates.certificates import (
    IssuedPair,
    ServingPair,
    read_bundle,
    read_serving_pair,
    write_bundle,
)

BUNDLE: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"
PUBLISHED_ANNOTATION: Final = "rackgate.dev/published-at"
MAX_AUTHORITIES: Final = 4


class RotationStep(StrEnum):
    """The next change of the Secret."""

    KEEP = "keep"
    ISSUE = "issue"  # no usable pair: issue one and serve it at once
    PUBLISH = "publish"  # issue the next pair and add its authority to the bundle
    SWITCH = "switch"  # the next pair becomes the served one
    PRUNE = "prune"  # remove expired authorities from the bundle


@dataclass(frozen=True, slots=True)
class TlsPairs:
    """The usable content of the Secret.

    Attributes:
        serving: the pair in use; None if missing or malformed.
        upcoming: the pair that is published but not yet in use.
        authorities: expiry of every authority in the bundle, by fingerprint.
    """

    serving: ServingPair | None = None
    upcoming: ServingPair | None = None
    authorities: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RotationRules:
    """When to rotate.

    Attributes:
        names: DNS names and IP addresses that the certificate must have.
        renew_before: time before expiry at which the next pair is published.
    """

    names: frozenset[str]
    renew_before: timedelta


def next_step(
    pairs: TlsPairs, rules: RotationRules, *, now: datetime, propagated: AbstractSet[str]
) -> RotationStep:
    """Decide what the Secret needs.

    Args:
        pairs: its usable content.
        rules: when to rotate.
        now: the wall clock, aware.
        propagated: fingerprints that every existing webhook configuration has contained for at
            least the settling time.
    """
    upcoming = pairs.upcoming
    if upcoming is not None and not _usable(upcoming, rules, now):
        upcoming = None
    if pairs.serving is None or not pairs.serving.valid_at(now):
        return RotationStep.ISSUE if upcoming is None else RotationStep.SWITCH
    if upcoming is not None:
        return RotationStep.SWITCH if upcoming.authority in propagated else RotationStep.KEEP
    if due_at(pairs.serving, rules) <= now or not rules.names <= pairs.serving.names:
        return RotationStep.PUBLISH
    if any(expiry <= now for expiry in pairs.authorities.values()):
        return RotationStep.PRUNE
    return RotationStep.KEEP


def due_at(serving: ServingPair, rules: RotationRules) -> datetime:
    """When to publish the next pair: before expiry, and not in the first half of the validity."""
    half = serving.not_before + (serving.not_after - serving.not_before) / 2
    return max(half, serving.not_after - rules.renew_before)


def _usable(pair: ServingPair, rules: RotationRules, now: datetime) -> bool:
    return pair.valid_at(now) and rules.names <= pair.names


def names_to_issue(pairs: TlsPairs, rules: RotationRules) -> frozenset[str]:
    """Names of the next certificate.

    In a rolling upgrade, replicas may have different names configured. If only names are missing,
    the names of the current certificate stay, so replicas do not undo each other's certificate.
    """
    names = rules.names
    if pairs.upcoming is not None:
        names |= pairs.upcoming.names
    if pairs.serving is not None and not rules.names <= pairs.serving.names:
        names |= pairs.serving.names
    return names


@dataclass(frozen=True, slots=True)
class TlsSecret:
    """PEM bytes by field name, if present. `published_at` is aware, and for people only."""

    data: Mapping[str, bytes] = field(default_factory=dict)
    published_at: datetime | None = None

    @property
    def bundle(self) -> bytes:
        """PEM of all authorities to trust."""
        return self.data.get(BUNDLE, b"")

    @property
    def pairs(self) -> TlsPairs:
        """The usable content."""
        authorities = read_bundle(self.bundle)
        return TlsPairs(
            read_serving_pair(self._get(CERTIFICATE), self._get(KEY), authorities),
            read_serving_pair(self._get(NEXT_CERTIFICATE), self._get(NEXT_KEY), authorities),
            {digest: found.not_valid_after_utc for digest, found in authorities.items()},
        )

    def _get(self, name: str) -> bytes:
        return self.data.get(name, b"")


def read_secret(data: Mapping[str, object], published_at: datetime | None) -> TlsSecret:
    """Decode the base64 values of a Secret; malformed values count as absent."""
    fields: dict[str, bytes] = {}
    for name, value in data.items():
        if not isinstance(value, str):
            continue
        try:
            fields[name] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
    return TlsSecret(fields, published_at)


def secret_data(secret: TlsSecret) -> dict[str, Any]:
    """The `data` of the Secret object."""
    return {name: base64.b64encode(value).decode("ascii") for name, value in secret.data.items()}


def with_authorities(secret: TlsSecret, others: bytes) -> TlsSecret:
    """The Secret with these authorities (PEM) first: other replicas may serve their pairs."""
    known = {**read_bundle(others), **read_bundle(secret.bundle)}
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(known.values())})


def with_issued_pair(
    secret: TlsSecret, pair: IssuedPair, now: datetime, known: bytes = b""
) -> TlsSecret:
    """The Secret with a new pair in use; authorities that are still valid stay trusted.

    Args:
        secret: as read.
        pair: the new one.
        now: aware.
        known: PEM of authorities to keep: other replicas may serve their pairs.
    """
    kept = replace(secret, data={**secret.data, BUNDLE: known})
    return TlsSecret(
        {BUNDLE: _merged_bundle(kept, pair, now), CERTIFICATE: pair.certificate, KEY: pair.key}
    )


def with_next_pair(secret: TlsSecret, pair: IssuedPair, now: datetime) -> TlsSecret:
    """The Secret with a next pair, and its authority in the bundle."""
    data = {
        **secret.data,
        BUNDLE: _merged_bundle(secret, pair, now),
        NEXT_CERTIFICATE: pair.certificate,
        NEXT_KEY: pair.key,
    }
    return TlsSecret(data, now)


def switch_pair(secret: TlsSecret) -> TlsSecret:
    """The Secret with the next pair in use."""
    moved = {CERTIFICATE: secret.data[NEXT_CERTIFICATE], KEY: secret.data[NEXT_KEY]}
    kept = {
        name: value
        for name, value in secret.data.items()
        if name not in (NEXT_CERTIFICATE, NEXT_KEY)
    }
    return TlsSecret({**kept, **moved})


def prune_expired(secret: TlsSecret, now: datetime) -> TlsSecret:
    """The Secret without expired authorities."""
    alive = [
        found for found in read_bundle(secret.bundle).values() if found.not_valid_after_utc > now
    ]
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(alive)})


def _merged_bundle(secret: TlsSecret, pair: IssuedPair, now: datetime) -> bytes:
    """The new authority, the one in use, then others that are still valid; at most 4."""
    alive = {
        digest: found
        for digest, found in read_bundle(secret.bundle).items()
        if found.not_valid_after_utc > now
    }
    serving = secret.pairs.serving
    in_use = [] if serving is None else [alive.pop(serving.authority, None)]
    chosen = [*read_bundle(pair.authority).values(), *in_use, *alive.values()]
    return write_bundle([found for found in chosen if found is not None][:MAX_AUTHORITIES])

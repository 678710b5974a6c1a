"""The Secret that replicas share: its fields, and what each step of a rotation makes of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from rackgate_webhook.certificates.certificates import (
    IssuedPair,
    read_bundle,
    read_serving_pair,
    write_bundle,
)
from rackgate_webhook.certificates.rotation_rules import TlsPairs

BUNDLE: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"
PUBLISHED_ANNOTATION: Final = "rackgate.dev/published-at"
MAX_AUTHORITIES: Final = 4


@dataclass(frozen=True, slots=True)
class TlsSecret:
    """PEM bytes by field name; absent fields are missing. `published_at`, for people, is aware."""

    data: Mapping[str, bytes] = field(default_factory=dict)
    published_at: datetime | None = None

    @property
    def bundle(self) -> bytes:
        """PEM of all authorities to trust."""
        return self.data.get(BUNDLE, b"")

    @property
    def pairs(self) -> TlsPairs:
        """What of it is usable."""
        authorities = read_bundle(self.bundle)
        return TlsPairs(
            read_serving_pair(self._get(CERTIFICATE), self._get(KEY), authorities),
            read_serving_pair(self._get(NEXT_CERTIFICATE), self._get(NEXT_KEY), authorities),
            {digest: found.not_valid_after_utc for digest, found in authorities.items()},
        )

    def _get(self, name: str) -> bytes:
        return self.data.get(name, b"")


def read_secret(data: Mapping[str, object], published_at: datetime | None) -> TlsSecret:
    """Decode the base64 values of a Secret; what is no base64 counts as absent."""
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
    """The Secret with authorities (PEM) before its own: other replicas may serve their pairs."""
    known = {**read_bundle(others), **read_bundle(secret.bundle)}
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(known.values())})


def with_issued_pair(
    secret: TlsSecret, pair: IssuedPair, now: datetime, known: bytes = b""
) -> TlsSecret:
    """A new pair in use at once; authorities that are still valid stay trusted.

    Args:
        secret: what is left of it.
        pair: new.
        now: aware.
        known: PEM of authorities that stay: other replicas may serve their pairs.
    """
    kept = replace(secret, data={**secret.data, BUNDLE: known})
    return TlsSecret(
        {
            BUNDLE: _merged_bundle(kept, pair, now),
            CERTIFICATE: pair.certificate,
            KEY: pair.key,
        }
    )


def with_next_pair(secret: TlsSecret, pair: IssuedPair, now: datetime) -> TlsSecret:
    """The next pair beside the one in use, its authority in the bundle."""
    data = {
        **secret.data,
        BUNDLE: _merged_bundle(secret, pair, now),
        NEXT_CERTIFICATE: pair.certificate,
        NEXT_KEY: pair.key,
    }
    return TlsSecret(data, now)


def switch_pair(secret: TlsSecret) -> TlsSecret:
    """The next pair in use."""
    moved = {CERTIFICATE: secret.data[NEXT_CERTIFICATE], KEY: secret.data[NEXT_KEY]}
    kept = {
        name: value
        for name, value in secret.data.items()
        if name not in (NEXT_CERTIFICATE, NEXT_KEY)
    }
    return TlsSecret({**kept, **moved})


def prune_expired(secret: TlsSecret, now: datetime) -> TlsSecret:
    """The bundle without authorities that have expired."""
    alive = [
        found for found in read_bundle(secret.bundle).values() if found.not_valid_after_utc > now
    ]
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(alive)})


def _merged_bundle(secret: TlsSecret, pair: IssuedPair, now: datetime) -> bytes:
    """The new authority, the one in use, then others that are still valid: 4 at most."""
    alive = {
        digest: found
        for digest, found in read_bundle(secret.bundle).items()
        if found.not_valid_after_utc > now
    }
    serving = secret.pairs.serving
    in_use = [] if serving is None else [alive.pop(serving.authority, None)]
    chosen = [*read_bundle(pair.authority).values(), *in_use, *alive.values()]
    return write_bundle([found for found in chosen if found is not None][:MAX_AUTHORITIES])

"""The Secret that replicas share: its fields, and what each step of a rotation makes of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from rackgate_webhook.certificates.certificates import (
    Issued,
    read_bundle,
    serving_facts,
    write_bundle,
)
from rackgate_webhook.certificates.rotation_rules import Holding

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
    def holding(self) -> Holding:
        """What of it is usable."""
        authorities = read_bundle(self.bundle)
        return Holding(
            serving_facts(self._get(CERTIFICATE), self._get(KEY), authorities),
            serving_facts(self._get(NEXT_CERTIFICATE), self._get(NEXT_KEY), authorities),
            {mark: found.not_valid_after_utc for mark, found in authorities.items()},
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


def trusting(secret: TlsSecret, others: bytes) -> TlsSecret:
    """The Secret with authorities (PEM) before its own: other replicas may serve their pairs."""
    known = {**read_bundle(others), **read_bundle(secret.bundle)}
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(known.values())})


def issued(secret: TlsSecret, pair: Issued, now: datetime, known: bytes = b"") -> TlsSecret:
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
            BUNDLE: _bundle(kept, pair, now),
            CERTIFICATE: pair.certificate,
            KEY: pair.key,
        }
    )


def published(secret: TlsSecret, pair: Issued, now: datetime) -> TlsSecret:
    """The next pair beside the one in use, its authority in the bundle."""
    data = {
        **secret.data,
        BUNDLE: _bundle(secret, pair, now),
        NEXT_CERTIFICATE: pair.certificate,
        NEXT_KEY: pair.key,
    }
    return TlsSecret(data, now)


def switched(secret: TlsSecret) -> TlsSecret:
    """The next pair in use."""
    moved = {CERTIFICATE: secret.data[NEXT_CERTIFICATE], KEY: secret.data[NEXT_KEY]}
    kept = {
        name: value
        for name, value in secret.data.items()
        if name not in (NEXT_CERTIFICATE, NEXT_KEY)
    }
    return TlsSecret({**kept, **moved})


def pruned(secret: TlsSecret, now: datetime) -> TlsSecret:
    """The bundle without authorities that have expired."""
    alive = [
        found for found in read_bundle(secret.bundle).values() if found.not_valid_after_utc > now
    ]
    return replace(secret, data={**secret.data, BUNDLE: write_bundle(alive)})


def _bundle(secret: TlsSecret, pair: Issued, now: datetime) -> bytes:
    """The new authority, the one in use, then others that are still valid: 4 at most."""
    alive = {
        mark: found
        for mark, found in read_bundle(secret.bundle).items()
        if found.not_valid_after_utc > now
    }
    serving = secret.holding.serving
    in_use = [] if serving is None else [alive.pop(serving.authority, None)]
    wanted = [*read_bundle(pair.authority).values(), *in_use, *alive.values()]
    return write_bundle([found for found in wanted if found is not None][:MAX_AUTHORITIES])

"""Timestamps in the formats of Kubernetes."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """`moment` as Kubernetes writes metav1.Time: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """`moment` as Kubernetes writes metav1.MicroTime: UTC, six decimals, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> datetime:
    """Read any RFC 3339 timestamp; the result is aware, in UTC.

    Raises:
        ValueError: not a timestamp, one without an offset, or outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"timestamp {text!r} has no offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"timestamp {text!r} is out of range") from error

"""The record of a Lease, and since when this process has observed it; without I/O or clock.

Expiry is measured with the monotonic clock of the observer, not with the timestamps in the Lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from rackgate.api.resources import LEASES
from rackgate.kube.errors import TransportError


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The record in a Lease."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None

    def is_same_tenure(self, other: LeaseSpec) -> bool:
        """Whether both were written by one holder since it acquired the Lease."""
        return (
            self.holder_identity == other.holder_identity
            and self.acquire_time == other.acquire_time
            and self.lease_transitions == other.lease_transitions
        )


class LeaseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The part of a Lease's metadata that is read, and preserved by writes."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Lease(msgspec.Struct, frozen=True, rename="camel"):
    """A coordination.k8s.io/v1 Lease."""

    metadata: LeaseMeta = LeaseMeta()
    spec: LeaseSpec = LeaseSpec()
    api_version: str = LEASES.api_version
    kind: str = LEASES.kind


decode_lease: Final = msgspec.json.Decoder(Lease).decode
encode_lease: Final = msgspec.json.Encoder().encode


def decode_answer(verb: str, body: bytes) -> Lease:
    """Decode the Lease in a response.

    Raises:
        TransportError: it is not a Lease, so the outcome is unknown.
    """
    try:
        return decode_lease(body)
    except ValueError as error:  # includes text that is not UTF-8
        raise TransportError(
            verb, LEASES.path(), reason="Garbage", message=str(error)[:300]
        ) from error


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease as this process last observed it.

    Attributes:
        spec: its record. For a deleted Lease, the last one: its holder may still act.
        since: monotonic seconds when this record was first observed. Its holder sent it earlier.
        lease: the object as last observed; None if there is none.
    """

    spec: LeaseSpec
    since: float
    lease: Lease | None

    def observe(self, lease: Lease | None, now: float) -> ObservedLease:
        """The next observation: `lease`, None for its absence, was seen at `now`."""
        if lease is None:
            return replace(self, lease=None)
        if lease.spec == self.spec:
            return replace(self, lease=lease)
        return ObservedLease(lease.spec, now, lease)

    def free_since(self, request_timeout_s: float, default_s: float) -> float:
        """Monotonic second from which another process may take the Lease.

        Args:
            request_timeout_s: request timeout, after which no write of its holder can arrive.
            default_s: duration, if the record has none.
        """
        if not self.spec.holder_identity:
            return self.since
        theirs_s = float(self.spec.lease_duration_seconds or default_s)
        return self.since + theirs_s + request_timeout_s


def observe_first(lease: Lease | None, now: float) -> ObservedLease:
    """The first observation of a Lease, None for its absence."""
    return ObservedLease(lease.spec if lease else LeaseSpec(), now, lease)

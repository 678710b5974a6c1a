"""What a Lease says, and since when it has looked so: records without I/O or clock.

Time goes by the reader's own monotonic clock: timestamps in a Lease are for people.
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
        """Whether both were written by one holder since it took the Lease once."""
        return (
            self.holder_identity == other.holder_identity
            and self.acquire_time == other.acquire_time
            and self.lease_transitions == other.lease_transitions
        )


class LeaseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The part of a Lease's metadata that is read, and kept when it is written."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Lease(msgspec.Struct, frozen=True, rename="camel"):
    """A coordination.k8s.io/v1 Lease."""

    metadata: LeaseMeta = LeaseMeta()
    spec: LeaseSpec = LeaseSpec()
    api_version: str = LEASES.api_version
    kind: str = LEASES.kind


decode_lease: Final = msgspec.json.Decoder(Lease).decode
encode_lease: Final = msgspec.json.Encoder().encode


def decode_answer(verb: str, body: bytes) -> Lease:
    """The Lease in an answer.

    Raises:
        TransportError: it is none: no telling what was done.
    """
    try:
        return decode_lease(body)
    except ValueError as error:  # also text that is not UTF-8
        raise TransportError(
            verb, LEASES.path(), reason="Garbage", message=str(error)[:300]
        ) from error


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """What a Lease looks like to this process.

    Attributes:
        spec: its record; of a deleted Lease the last one seen, for its holder's time counts on.
        since: monotonic seconds of the first sight of this record. Its holder sent it earlier.
        lease: the object as last seen; None when there is none.
    """

    spec: LeaseSpec
    since: float
    lease: Lease | None

    def observe(self, lease: Lease | None, now: float) -> ObservedLease:
        """The observation after `lease`, None for its absence, was seen at `now`."""
        if lease is None:
            return replace(self, lease=None)
        if lease.spec == self.spec:
            return replace(self, lease=lease)
        return ObservedLease(lease.spec, now, lease)

    def free_since(self, request_timeout_s: float, default_s: float) -> float:
        """From which monotonic second on the Lease may be taken; it may lie ahead.

        Args:
            request_timeout_s: longest time that a write of its holder may be on its way.
            default_s: duration, where the record names none.
        """
        if not self.spec.holder_identity:
            return self.since
        theirs_s = float(self.spec.lease_duration_seconds or default_s)
        return self.since + theirs_s + request_timeout_s


def observe_first(lease: Lease | None, now: float) -> ObservedLease:
    """The observation of a Lease, None for its absence, of which nothing was known before."""
    return ObservedLease(lease.spec if lease else LeaseSpec(), now, lease)

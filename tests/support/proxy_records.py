"""What a proxy saw of each write, and which of them came too late. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from rackgate.api import names
from rackgate.kube.client import resource_of

# What a process sent in time may reach the proxy this much later on a busy machine.
SLACK_S = 1.0


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] = {}


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int = 0


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _LeaseSpec = _LeaseSpec()


_decode = msgspec.json.Decoder(_Object).decode


@dataclass(slots=True, eq=False)
class Write:
    """One write of a service.

    Attributes:
        sender: replica and process id; two processes never share it.
        verb, path: of the request, without its query.
        received, sent, answered: monotonic seconds at the proxy: its last byte came in, it went
            on to the API server, its answer was there; None where that never happened.
        code: the API server's answer, 0 for none. The sender may have got another one.
        fault: what the proxy did to it.
        lease: name of the Lease it writes, "" for everything else.
        holder: who holds that Lease afterwards, "" when released.
        lasts_s: duration in that Lease.
        workload: `namespace/name` of the Workload that a patched pod names.
    """

    sender: str
    verb: str
    path: str
    received: float
    sent: float | None = None
    answered: float | None = None
    code: int = 0
    fault: str = ""
    lease: str = ""
    holder: str = ""
    lasts_s: float = 0.0
    workload: str = ""

    @property
    def applied(self) -> bool:
        """Whether the API server certainly took it."""
        return 200 <= self.code < 300

    @property
    def resource(self) -> str:
        """`pods`, `workloads/status`, ..."""
        return resource_of(self.path)

    @property
    def counts(self) -> bool:
        """Whether it is a decision of the service: neither a Lease nor an Event."""
        return self.resource not in ("leases", "events")

    def note(self, answer: bytes) -> None:
        """Keep what the analysis needs of the object as it was stored."""
        if self.resource == "leases":
            record = _decode(answer)
            self.lease = record.metadata.name
            self.holder = record.spec.holder_identity or ""
            self.lasts_s = float(record.spec.lease_duration_seconds)
        elif self.resource == "pods" and self.verb == "PATCH":
            meta = _decode(answer).metadata
            workload = meta.annotations.get(names.WORKLOAD_ANNOTATION, "")
            self.workload = f"{meta.namespace}/{workload}"

    def __str__(self) -> str:
        return f"{self.verb} {self.path} by {self.sender} at {self.received:.3f}: {self.code}"


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A write by a process whose time was over."""

    write: Write
    reason: str

    def __str__(self) -> str:
        return f"{self.write}: {self.reason}"


@dataclass(slots=True)
class _Tenures:
    """The applied writes of each Lease, in the order in which they were answered."""

    by_lease: dict[str, list[Write]] = field(default_factory=lambda: defaultdict(list))

    def last_before(self, lease: str, moment: float) -> Write | None:
        found = None
        for write in self.by_lease.get(lease, ()):
            if write.answered is None or write.answered >= moment:
                break
            found = write
        return found

    def renewed(self, lease: str, sender: str, moment: float) -> Write | None:
        """The sender's last write of the Lease that came in before `moment`."""
        own = [w for w in self.by_lease.get(lease, ()) if w.sender == sender and w.holder]
        return max((w for w in own if w.received <= moment), key=_received, default=None)


def _received(write: Write) -> float:
    return write.received


def late_writes(
    writes: Sequence[Write], lease_of: Callable[[Write], str | None], slack_s: float = SLACK_S
) -> list[LateWrite]:
    """Applied writes that were sent on after another process had taken the Lease, or that
    came in after the sender's own time was over.

    Args:
        writes: of all replicas, Leases included.
        lease_of: the Lease under which a write may happen; None for those that need none.
        slack_s: how much later than it was sent a write may have reached the proxy.
    """
    tenures = _Tenures()
    for lease in sorted((w for w in writes if w.lease and w.applied), key=_answered):
        tenures.by_lease[lease.lease].append(lease)
    found = []
    for write in writes:
        if not (write.applied and write.counts):
            continue
        name = lease_of(write)
        reason = _too_late(write, name, tenures, slack_s) if name else None
        if reason is not None:
            found.append(LateWrite(write, reason))
    return found


def _answered(write: Write) -> float:
    return write.answered or 0.0


def _too_late(write: Write, lease: str, tenures: _Tenures, slack_s: float) -> str | None:
    last = tenures.last_before(lease, write.sent or write.received)
    if last is not None and last.holder and last.sender != write.sender:
        return f"{last.sender} had Lease {lease} since {last.answered:.3f}"
    own = tenures.renewed(lease, write.sender, write.received)
    if own is None:
        return f"never held Lease {lease}"
    if write.received > own.received + own.lasts_s + slack_s:
        return f"its Lease {lease} was renewed last at {own.received:.3f} for {own.lasts_s:g} s"
    return None


def senders(writes: Iterable[Write]) -> dict[str, float]:
    """Who wrote decisions, and when last: sender -> monotonic seconds."""
    found: dict[str, float] = {}
    for write in writes:
        if write.counts:
            found[write.sender] = max(write.received, found.get(write.sender, 0.0))
    return found

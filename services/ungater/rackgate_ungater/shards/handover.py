"""Decides which replica should act on which shard, and when a shard is handed over. Pure.

A Workload belongs to one of 16 shards by its UID, and a replica acts on a shard only while it
holds the shard's Lease. This module only decides which replica *should* hold it. Replicas may see
different members for a while; then another replica holds the shard, which is safe.

Rendezvous hashing ranks the members for each shard. The first member acquires a free Lease at once,
the n-th after n pauses in which the members before it did not. A holder hands over to a member that
ranks higher and has been live for a while. It skips that member for some time if the member did not
acquire the shard when it was free. So a member that is live but does not act causes at most one
handover, and then fewer and fewer.

`Members` tracks live replicas: each changes its annotation regularly. Only the change counts; the
content is for people, so clocks do not matter. An entry that is seen for the first time counts as
live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

SHARDS: Final = 16
MEMBERS_LEASE: Final = "rackgate-ungater"
ANNOTATION_PREFIX: Final = "members.rackgate.dev/"


def member_annotation(member: str) -> str:
    """The annotation of a member. It is a hash, because the name may not be a valid key."""
    return ANNOTATION_PREFIX + blake2b(member.encode(), digest_size=8).hexdigest()


def annotation_value(member: str, stamp: str) -> str:
    """The value that a member writes: a timestamp and its name."""
    return f"{stamp} {member}"


class Members:
    """Entries as last seen, and since when.

    Args:
        identity: this replica; always live.
        live_within_s: seconds without a change after which a member counts as away.
        remove_after_s: seconds without a change after which its entry may be removed: the replica
            no longer runs, and none of its requests can still be applied.
    """

    def __init__(self, identity: str, *, live_within_s: float, remove_after_s: float) -> None:
        self._identity, self._live_s, self._forget_s = identity, live_within_s, remove_after_s
        self._entries: dict[str, tuple[str, float]] = {}

    def update(self, annotations: Mapping[str, str] | None, now: float) -> None:
        """Update all entries; None if the Lease does not exist.

        Entries that are missing were removed. Without the Lease, known members count as live until
        their time is over.
        """
        if annotations is None:
            return
        entries = {
            key: value for key, value in annotations.items() if key.startswith(ANNOTATION_PREFIX)
        }
        self._entries = {
            key: known
            if (known := self._entries.get(key)) is not None and known[0] == value
            else (value, now)
            for key, value in entries.items()
        }

    def live(self, now: float) -> frozenset[str]:
        """The members that are live at `now`, including this one."""
        names = {
            value.partition(" ")[2]
            for value, since in self._entries.values()
            if now - since < self._live_s
        }
        return frozenset(names | {self._identity})

    def expired(self, now: float) -> list[str]:
        """Keys of the entries to remove, sorted."""
        return sorted(
            key
            for key, (_, since) in self._entries.items()
            if now - since >= self._forget_s and key != member_annotation(self._identity)
        )

    def is_alone(self) -> bool:
        """Whether no other replica has an entry, live or not."""
        return not self._entries.keys() - {member_annotation(self._identity)}


def lease_name(shard: int) -> str:
    """Name of a shard's Lease."""
    return f"{MEMBERS_LEASE}-{shard:02}"


@lru_cache(maxsize=65536)
def shard_of(uid: str) -> int:
    """The shard of a Workload, from its UID.

    All replicas of all versions must agree on it: otherwise two replicas could act on one Workload
        under different Leases. A new rule needs new Lease names.
    """
    return int.from_bytes(blake2b(uid.encode(), digest_size=8).digest(), "big") % SHARDS


@lru_cache(maxsize=65536)
def _score(shard: int, member: str) -> bytes:
    return blake2b(f"{shard}/{member}".encode(), digest_size=8).digest()


def ranking(shard: int, members: Iterable[str]) -> list[str]:
    """The members in the order in which they should hold a shard; by hash, then by name."""
    return sorted(members, key=lambda member: (_score(shard, member), member), reverse=True)


@dataclass(frozen=True, slots=True)
class HandoverTimings:
    """How long replicas wait for each other, in seconds.

    Attributes:
        grace_s: for each higher-ranked member that does not acquire a free shard.
        stable_s: a higher-ranked member must have been live this long before a holder hands over.
        skip_s: how long a member that did not acquire its shard is first skipped.
        skip_max_s: maximum of that time, which doubles each time.
    """

    grace_s: float
    stable_s: float
    skip_s: float
    skip_max_s: float

    @classmethod
    def of(cls, lease_duration_s: float) -> HandoverTimings:
        """The timings for a Lease duration."""
        return cls(
            grace_s=lease_duration_s / 4,
            stable_s=lease_duration_s / 8,
            skip_s=lease_duration_s,
            skip_max_s=lease_duration_s * 64,
        )


class HandoverPolicy:
    """When this replica should acquire a shard, and when it should hand one over.

    Args:
        identity: this replica.
        timings: waiting times.
    """

    def __init__(self, identity: str, timings: HandoverTimings) -> None:
        self._identity, self._timings = identity, timings
        self._ahead: dict[int, tuple[tuple[str, ...], float]] = {}
        self._skipped: dict[tuple[int, str], tuple[float, float]] = {}

    def acquire_at(
        self, shard: int, free_since: float, members: Iterable[str], now: float
    ) -> float:
        """The monotonic time at which to acquire a shard, given what is known `now`.

        Args:
            shard: which one.
            free_since: when its Lease became or becomes free.
            members: the live replicas.
            now: monotonic seconds.
        """
        ahead, since = self._better_ranked(shard, members, now)
        if not ahead:
            return free_since
        # Higher-ranked members may have joined after the Lease was free: their time starts then.
        return max(free_since, since) + len(ahead) * self._timings.grace_s

    def acquired(self, shard: int, members: Iterable[str], now: float) -> None:
        """Record that this replica acquired a shard: skip higher-ranked members for a while."""
        old = now - self._timings.skip_max_s
        self._skipped = {key: skip for key, skip in self._skipped.items() if skip[0] > old}
        for member in self._better_ranked(shard, members, now)[0]:
            _, pause_s = self._skipped.get((shard, member), (0.0, self._timings.skip_s / 2))
            pause_s = min(pause_s * 2, self._timings.skip_max_s)
            self._skipped[shard, member] = (now + pause_s, pause_s)

    def holder_seen(self, shard: int, holder: str) -> None:
        """Record that a replica holds a shard: it is no longer skipped."""
        self._skipped.pop((shard, holder), None)

    def hand_over_at(self, shard: int, members: Iterable[str], now: float) -> float | None:
        """When to hand over a held shard; None while no other replica should hold it."""
        ahead, since = self._better_ranked(shard, members, now)
        return since + self._timings.stable_s if ahead else None

    def _better_ranked(
        self, shard: int, members: Iterable[str], now: float
    ) -> tuple[tuple[str, ...], float]:
        """The members that rank higher, best first, and since when."""
        trusted = [
            member
            for member in members
            if member != self._identity and self._skipped.get((shard, member), (0.0,))[0] <= now
        ]
        ranked = ranking(shard, [*trusted, self._identity])
        ahead = tuple(ranked[: ranked.index(self._identity)])
        known = self._ahead.get(shard)
        if known is None or known[0] != ahead:
            known = self._ahead[shard] = (ahead, now)
        return known

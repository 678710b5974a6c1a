"""Which replica should act on which Workloads, and when one hands over to another. Pure.

A Workload belongs to one of 16 shards by its UID, and a replica acts on a shard only while it
holds the shard's Lease. What is decided here is merely who *should* hold it: replicas may see
different members for a while, and nothing worse follows than a shard held elsewhere.

Rendezvous hashing ranks the members for each shard. The first one takes a free Lease at once,
the n-th after n pauses in which those before it did not. A holder hands over to a better placed
member that has been there for a while, unless it had to take the shard because that member did
not: so a member that is there but does not act costs one hand-over at most, and then fewer and
fewer.

`Members` says which replicas are live: each changes an annotation from time to time, and an entry
that changes is a sign of life. Its content is for people, so clocks do not matter, and an entry
seen for the first time counts as fresh.
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
    """The annotation of a member: its name may be too long for a key, or hold other signs."""
    return ANNOTATION_PREFIX + blake2b(member.encode(), digest_size=8).hexdigest()


def annotation_value(member: str, stamp: str) -> str:
    """What a member writes: when it did, and its name."""
    return f"{stamp} {member}"


class Members:
    """Entries as last seen, and since when.

    Args:
        identity: this replica; always there.
        live_within_s: seconds without a change after which a member counts as away.
        remove_after_s: seconds without a change after which its entry may be taken out: it is dead,
            and none of its requests is on its way any more.
    """

    def __init__(self, identity: str, *, live_within_s: float, remove_after_s: float) -> None:
        self._identity, self._live_s, self._forget_s = identity, live_within_s, remove_after_s
        self._entries: dict[str, tuple[str, float]] = {}

    def update(self, annotations: Mapping[str, str] | None, now: float) -> None:
        """Take in all entries; None when the object that holds them is gone.

        An entry that is not there any more was taken out. Without the object nothing is known:
        what was seen before counts on for its time.
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
        """The members that are there at `now`, this one included."""
        names = {
            value.partition(" ")[2]
            for value, since in self._entries.values()
            if now - since < self._live_s
        }
        return frozenset(names | {self._identity})

    def expired(self, now: float) -> list[str]:
        """Keys of the entries to take out, sorted."""
        return sorted(
            key
            for key, (_, since) in self._entries.items()
            if now - since >= self._forget_s and key != member_annotation(self._identity)
        )

    def is_alone(self) -> bool:
        """Whether no other replica has an entry, be it alive or not."""
        return not self._entries.keys() - {member_annotation(self._identity)}


def lease_name(shard: int) -> str:
    """Name of a shard's Lease."""
    return f"{MEMBERS_LEASE}-{shard:02}"


@lru_cache(maxsize=65536)
def shard_of(uid: str) -> int:
    """The shard of a Workload, from its UID.

    All replicas of all versions must agree on it: under another rule two of them would act on
    one Workload under different Leases. A new rule needs new names of Leases.
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
        grace_s: for each better placed member that does not take a free shard.
        stable_s: a better placed member must have been there this long before a holder yields.
        skip_s: for how long a member that did not take its shard is passed over at first.
        skip_max_s: longest such time; it doubles up to here.
    """

    grace_s: float
    stable_s: float
    skip_s: float
    skip_max_s: float

    @classmethod
    def of(cls, lease_duration_s: float) -> HandoverTimings:
        """The timings that go with a Lease's duration."""
        return cls(
            grace_s=lease_duration_s / 4,
            stable_s=lease_duration_s / 8,
            skip_s=lease_duration_s,
            skip_max_s=lease_duration_s * 64,
        )


class HandoverPolicy:
    """When this replica should take a shard, and when it should hand one over.

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
        """The monotonic second at which to take a shard, by what is known `now`.

        Args:
            shard: which one.
            free_since: when its Lease became free, or will.
            members: the replicas that are there.
            now: monotonic seconds.
        """
        ahead, since = self._better_ranked(shard, members, now)
        if not ahead:
            return free_since
        # Those ahead may have come after the Lease was free: their time counts from then.
        return max(free_since, since) + len(ahead) * self._timings.grace_s

    def acquired(self, shard: int, members: Iterable[str], now: float) -> None:
        """We took a shard: whoever should have done so before us is passed over for a while."""
        old = now - self._timings.skip_max_s
        self._skipped = {key: skip for key, skip in self._skipped.items() if skip[0] > old}
        for member in self._better_ranked(shard, members, now)[0]:
            _, pause_s = self._skipped.get((shard, member), (0.0, self._timings.skip_s / 2))
            pause_s = min(pause_s * 2, self._timings.skip_max_s)
            self._skipped[shard, member] = (now + pause_s, pause_s)

    def holder_seen(self, shard: int, holder: str) -> None:
        """Somebody holds a shard, so that one does take it."""
        self._skipped.pop((shard, holder), None)

    def hand_over_at(self, shard: int, members: Iterable[str], now: float) -> float | None:
        """When to hand over a shard that we hold; None while nobody else should have it."""
        ahead, since = self._better_ranked(shard, members, now)
        return since + self._timings.stable_s if ahead else None

    def _better_ranked(
        self, shard: int, members: Iterable[str], now: float
    ) -> tuple[tuple[str, ...], float]:
        """Who is placed better than we are, best first, and since when it has been so."""
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

"""Which replicas are there, from what each of them writes down from time to time. Pure.

An entry that changes is a sign of life; what it says is for people. So clocks never matter, and
an entry seen for the first time counts as fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

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

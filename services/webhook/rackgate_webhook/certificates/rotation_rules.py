"""When certificates are made, published, put to use and forgotten.

A rotation never has a moment in which a caller's bundle and the served certificate do not fit:
the next pair's authority is first published beside the one in use, and only when every
registration carries it does the served certificate change. The old authority stays in the
bundle until it expires, so a replica that is late keeps being trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class RotationStep(StrEnum):
    """What to do with the Secret now."""

    KEEP = "keep"
    ISSUE = "issue"  # nothing usable is there: make a pair and use it at once
    PUBLISH = "publish"  # make the next pair, its authority joins the bundle
    SWITCH = "switch"  # the next pair becomes the served one
    PRUNE = "prune"  # drop authorities that have expired


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A serving certificate whose key fits and whose issuer is known.

    Attributes:
        authority: fingerprint of the authority that signed it.
        names: its DNS names and IP addresses.
        not_before: aware, UTC.
        not_after: aware, UTC.
    """

    authority: str
    names: frozenset[str]
    not_before: datetime
    not_after: datetime

    def valid_at(self, now: datetime) -> bool:
        """Whether callers whose clocks are right accept it by its dates."""
        return self.not_before <= now < self.not_after


@dataclass(frozen=True, slots=True)
class TlsPairs:
    """What the Secret holds, as far as it is usable.

    Attributes:
        serving: the pair in use; None when missing or broken.
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
        pairs: what it holds.
        rules: when to rotate.
        now: the wall clock, aware.
        propagated: fingerprints that every existing registration has carried for so long that API
            servers have seen it.
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
    """When the next pair is published: before expiry, and not in the first half of its life."""
    half = serving.not_before + (serving.not_after - serving.not_before) / 2
    return max(half, serving.not_after - rules.renew_before)


def _usable(pair: ServingPair, rules: RotationRules, now: datetime) -> bool:
    return pair.valid_at(now) and rules.names <= pair.names


def names_to_issue(pairs: TlsPairs, rules: RotationRules) -> frozenset[str]:
    """Names of the next certificate.

    Replicas of two configurations (a rolling upgrade) would undo each other's certificate if
    each asked only for its own names: where names are what is missing, those there stay.
    """
    names = rules.names
    if pairs.upcoming is not None:
        names |= pairs.upcoming.names
    if pairs.serving is not None and not rules.names <= pairs.serving.names:
        names |= pairs.serving.names
    return names

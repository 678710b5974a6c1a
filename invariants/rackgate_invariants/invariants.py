"""The invariants every cluster must keep, checked on the API server's own objects.

Pure: takes one reading, gives breaches. The rules are in `rackgate_invariants`, which shares no
code with the accounting of the services, so that a mistake there cannot hide itself here.
"""

from __future__ import annotations

from collections.abc import Iterable

from rackgate_invariants.cluster import Cluster
from rackgate_invariants.judge import judge, without_patient
from rackgate_invariants.rules.catalog import RULES, Breach, Rule
from rackgate_invariants.tracker import Change, Tracker

__all__ = [
    "RULES",
    "Breach",
    "Change",
    "Cluster",
    "Rule",
    "Tracker",
    "breaches",
    "judge",
    "lasting",
]


def breaches(cluster: Cluster) -> list[Breach]:
    """Breaches of one reading that a correct cluster never shows, sorted.

    What a correct cluster shows for a while (a Job that is about to be started) is left out: a
    `Tracker` over readings of `judge` tells when that lasts too long.
    """
    return without_patient(judge(cluster))


def lasting(first: Iterable[Breach], second: Iterable[Breach]) -> list[Breach]:
    """Breaches that both readings show, whatever the figures in them."""
    again = {(breach.rule, breach.subject) for breach in second}
    return [breach for breach in first if (breach.rule, breach.subject) in again]

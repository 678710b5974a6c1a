"""Nominations of one plan, kept from cycle to cycle while nothing that they read has changed.

Most heads of a cycle are those of the cycle before: they wait for their targets, or lost to another
head. A nomination reads the tree of quota of its ClusterQueue, the Workloads that run there, and
what is free of domains; `QuotaState.version` counts the changes of all these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nomination import (
    Nomination,
    PendingWorkload,
    RejectedFlavors,
)


@dataclass(slots=True)
class _Kept:
    nomination: Nomination
    domains: list[TopologyAssignment | None]
    version: tuple[int, int]
    rejected: RejectedFlavors


@dataclass(slots=True)
class KeptNominations:
    """The last nomination of each head, by key; for one state."""

    _by_key: dict[str, _Kept] = field(default_factory=dict)

    def get(self, state: QuotaState, head: PendingWorkload) -> Nomination | None:
        """The nomination that `nominate_head` would make again, if it is known.

        A nomination is used by one cycle at a time, which may set its domains.
        """
        kept = self._by_key.get(head.key)
        if (
            kept is None
            or kept.version != state.version(head.cluster_queue)
            or kept.rejected != head.rejected
        ):
            return None
        for podset, domains in zip(kept.nomination.podsets, kept.domains, strict=True):
            podset.topology = domains
        return kept.nomination

    def put(self, state: QuotaState, head: PendingWorkload, nomination: Nomination) -> None:
        """Keep a nomination that was just made."""
        domains = [podset.topology for podset in nomination.podsets]
        version = state.version(head.cluster_queue)
        self._by_key[head.key] = _Kept(nomination, domains, version, head.rejected)

"""What pods of each job take beyond what was granted, kept in the totals of its queues.

See `living` for the cases. A root is settled anew whenever its pods, its Workloads or what those
hold change; roots whose charge depends on queues, flavors or node labels (cases 1 with several
flavors, and 2) also when any of these change. There are few of them: jobs that stop, and pods that
outlive their job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from rackgate_assigner.cache.living import (
    Excess,
    beyond,
    by_flavor,
    choices_of_grant,
    choices_of_queue,
)
from rackgate_assigner.cache.totals import Holding
from rackgate_assigner.core.admission.queues import FlavorResource
from rackgate_assigner.core.rows import WorkloadRow, quota_of

if TYPE_CHECKING:
    from rackgate_assigner.cache.fold import Cache


class Excesses:
    """Excess by root, charged to the totals of the cache.

    Attributes:
        found: by root; roots without any are left out.
    """

    def __init__(self, cache: Cache, *, charge_released: bool) -> None:
        """Start empty.

        Args:
            cache: whose rows are read and whose totals are changed.
            charge_released: pods of a job that holds no quota any more are charged.
        """
        self.found: dict[str, Excess] = {}
        self._cache, self._charge_released = cache, charge_released
        self._by_root: dict[str, set[str]] = {}
        self._roots: dict[str, str] = {}
        self._depending: set[str] = set()

    def link(self, row: WorkloadRow) -> set[str]:
        """A Workload was added or changed; returns roots that have to be settled for it.

        Slices count with their parent.
        """
        root = "" if row.parent else row.job_uid
        if self._roots.get(row.key, "") == root:
            return set()
        before = self.unlink(row.key)
        if root:
            self._roots[row.key] = root
            self._by_root.setdefault(root, set()).add(row.key)
        return {before, root}

    def unlink(self, key: str) -> str:
        """A Workload is gone; returns the root that it was of, "" for none."""
        root = self._roots.pop(key, "")
        if root:
            self._by_root[root].discard(key)
            if not self._by_root[root]:
                del self._by_root[root]
        return root

    def roots_of(self, keys: Iterable[str]) -> set[str]:
        """The roots of these Workloads."""
        return {root for key in keys if (root := self._roots.get(key))}

    def by_queue(self) -> set[str]:
        """Roots whose charge depends on queues, flavors or labels of nodes."""
        return set(self._depending)

    def of_workload(self, key: str) -> Mapping[FlavorResource, int]:
        """What the pods of a Workload's job take beyond all that it was granted."""
        excess = self.found.get(self._roots.get(key, ""))
        return {} if excess is None else excess.amounts

    def workload_of(self, root: str) -> str:
        """A Workload of the job, "" when there is none."""
        return min(self._by_root.get(root, ()), default="")

    def settle(self, root: str) -> bool:
        """Charge what the pods of a job take now; whether that changed."""
        if not root:
            return False
        old, new = self.found.get(root), self._excess(root)
        if old == new:
            return False
        totals = self._cache.totals
        if old is not None:
            totals.add_excess(old, -1)
            del self.found[root]
        if new is not None:
            self.found[root] = new
            totals.add_excess(new, 1)
        return True

    def _excess(self, root: str) -> Excess | None:
        self._depending.discard(root)
        cache = self._cache
        amounts = cache.living.amounts(root)
        if not amounts:
            return None
        held = list(self._held(root))
        if not held:
            return self._released(root) if self._charge_released else None
        first = held[0]
        granted: dict[FlavorResource, int] = {}
        for holding in held:
            for pair, amount in holding.quota.items():
                granted[pair] = granted.get(pair, 0) + amount
        found = beyond(amounts, granted)
        if found is None:
            self._depending.add(root)
            taken = self._taken(root, choices_of_grant(granted), granted)
            found = {
                pair: more
                for pair, amount in taken.items()
                if (more := amount - granted.get(pair, 0)) > 0
            }
        return Excess(first.local_queue, first.cluster_queue, found) if found else None

    def _held(self, root: str) -> Iterator[Holding]:
        """What Workloads of the job, and their slices, hold."""
        cache = self._cache
        for key in sorted(self._by_root.get(root, ())):
            for member in (key, *cache.families.slices_of(key)):
                holding = cache.holdings.get(member)
                if holding is not None and holding.cluster_queue:
                    yield holding

    def _released(self, root: str) -> Excess | None:
        """All that the pods of a job take for which no Workload holds quota."""
        cache = self._cache
        rows = [
            row
            for key in sorted(self._by_root.get(root, ()))
            if (row := cache.workloads.get(key)) is not None
        ]
        queue = next((row.queue for row in rows if row.queue), cache.living.queues.get(root, ""))
        if not rows and not queue:
            return None  # nobody's
        self._depending.add(root)
        grant = next((row.reserved for row in rows if row.reserved is not None), None)
        if grant is not None:
            name, choices = grant.cluster_queue, choices_of_grant(quota_of(grant))
        else:
            local = cache.local_queues.get(queue)
            name = local.cluster_queue if local is not None else ""
            choices = choices_of_queue(cache.cluster_queues.get(name))
        taken = self._taken(root, choices)
        return Excess(queue, name, taken) if name and taken else None

    def _taken(
        self,
        root: str,
        choices: Mapping[str, tuple[str, ...]],
        granted: Mapping[FlavorResource, int] = MappingProxyType({}),
    ) -> dict[FlavorResource, int]:
        cache = self._cache
        rows = cache.living.rows_of(root)
        return by_flavor(rows, choices, cache.nodes, cache.flavors, granted)

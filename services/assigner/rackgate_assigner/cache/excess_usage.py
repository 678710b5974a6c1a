"""What pods of each job take beyond what was granted, kept in the totals of its queues.

See `living` for the cases. A root is settled again whenever its pods, its Workloads or what those
hold change. Sums per job answer at once for nearly all; where a resource has several flavors, every
pod of the job has to be looked at: that is put off until somebody reads the totals. Roots are also
settled when the ClusterQueue, the LocalQueue, a flavor or the labels of a node change on which
their charge depends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from rackgate_assigner.cache.live_pods import (
    ExcessUsage,
    amounts_by_flavor,
    excess_over,
    flavors_of_assignment,
    flavors_of_queue,
)
from rackgate_assigner.cache.queue_usage import Totals, WorkloadUsage
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.workload.info import WorkloadInfo, quota_usage

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


class ExcessUsageTracker:
    """ExcessUsage by root, charged to the totals of the cache."""

    def __init__(self, cache: Cache, totals: Totals, *, charge_released: bool) -> None:
        """Start empty.

        Args:
            cache: whose rows are read.
            totals: that are changed.
            charge_released: pods of a job that holds no quota any more are charged.
        """
        self._found: dict[str, ExcessUsage] = {}
        self._cache, self._totals = cache, totals
        self._charge_released = charge_released
        self._by_root: dict[str, set[str]] = {}
        self._roots: dict[str, str] = {}
        # Roots whose pods have to be looked at one by one, and those not settled since.
        self._flavor_dependent: set[str] = set()
        self._outdated: set[str] = set()
        # Roots by the queues that their charge also depends on, as (kind, key).
        self._by_queue: dict[tuple[str, str], set[str]] = {}
        self._queues_of: dict[str, tuple[tuple[str, str], ...]] = {}

    @property
    def found(self) -> Mapping[str, ExcessUsage]:
        """By root; roots without any are left out."""
        self.flush()
        return self._found

    def link(self, row: WorkloadInfo) -> set[str]:
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

    def flavor_dependent_of(self, roots: Iterable[str]) -> set[str]:
        """Of these roots, those whose charge depends on flavors and labels of nodes."""
        return self._flavor_dependent & set(roots)

    def all_flavor_dependent(self) -> set[str]:
        """All roots whose charge depends on flavors and labels of nodes."""
        return set(self._flavor_dependent)

    def roots_of_queue(self, kind: str, key: str) -> set[str]:
        """Roots whose charge depends on a ClusterQueue or LocalQueue."""
        return set(self._by_queue.get((kind, key), ()))

    def excess_of_workload(self, key: str) -> Mapping[FlavorResource, int]:
        """What the pods of a Workload's job take beyond all that it was granted."""
        excess = self.found.get(self._roots.get(key, ""))
        return {} if excess is None else excess.amounts

    def workloads_of(self, root: str) -> list[str]:
        """All Workloads of the job."""
        return sorted(self._by_root.get(root, ()))

    def workload_of(self, root: str) -> str:
        """A Workload of the job, "" when there is none."""
        return min(self._by_root.get(root, ()), default="")

    def update(self, root: str) -> bool:
        """Charge what the pods of a job take now; whether that changed, or may have."""
        if not root:
            return False
        self._set_queue_dependencies(root)
        usages = list(self._usages_of(root))
        amounts = self._cache.live_pods.amounts(root)
        if not amounts:
            self._flavor_dependent.discard(root)
            return self._replace(root, None)
        if usages:
            new, flavor_dependent = self._excess_over(root, usages, amounts)
        else:
            new, flavor_dependent = (
                self._excess_without_quota(root, amounts)
                if self._charge_released
                else (None, False)
            )
        if not flavor_dependent:
            self._flavor_dependent.discard(root)
            return self._replace(root, new)
        self._flavor_dependent.add(root)
        self._outdated.add(root)
        return True

    def flush(self) -> None:
        """Settle what was put off."""
        while self._outdated:
            root = self._outdated.pop()
            usages = list(self._usages_of(root))
            if not self._cache.live_pods.amounts(root):
                self._replace(root, None)
            elif usages:
                admitted_quota = self._admitted_quota(root, usages)
                taken = self._amounts_by_flavor(
                    root, flavors_of_assignment(admitted_quota), admitted_quota
                )
                over = {
                    pair: more
                    for pair, amount in taken.items()
                    if (more := amount - admitted_quota.get(pair, 0)) > 0
                }
                self._replace(root, _excess(usages[0].local_queue, usages[0].cluster_queue, over))
            elif self._charge_released:
                queue, name, choices = self._last_admitted_queue(root)
                self._replace(root, _excess(queue, name, self._amounts_by_flavor(root, choices)))
            else:
                self._replace(root, None)

    def _replace(self, root: str, new: ExcessUsage | None) -> bool:
        self._outdated.discard(root)
        old = self._found.get(root)
        if old == new:
            return False
        if old is not None:
            self._totals.add_excess_usage(old, -1)
            del self._found[root]
        if new is not None:
            self._found[root] = new
            self._totals.add_excess_usage(new, 1)
        for excess in (old, new):
            if excess is not None:
                self._cache.on_excess_usage_changed(excess)
        return True

    def _set_queue_dependencies(self, root: str, *queues: tuple[str, str]) -> None:
        """Say on which queues the charge of a root depends."""
        for queue in self._queues_of.pop(root, ()):
            roots = self._by_queue[queue]
            roots.discard(root)
            if not roots:
                del self._by_queue[queue]
        if queues:
            self._queues_of[root] = queues
        for queue in queues:
            self._by_queue.setdefault(queue, set()).add(root)

    def _excess_over(
        self, root: str, usages: Sequence[WorkloadUsage], amounts: Mapping[str, int]
    ) -> tuple[ExcessUsage | None, bool]:
        """What pods take beyond an assignment; and whether they have to be looked at one by one."""
        first = usages[0]
        found = excess_over(amounts, self._admitted_quota(root, usages))
        if found is None:
            return None, True
        return _excess(first.local_queue, first.cluster_queue, found), False

    def _admitted_quota(
        self, root: str, usages: Sequence[WorkloadUsage]
    ) -> dict[FlavorResource, int]:
        """All that was granted; zero for other resources that pods take and the queue covers."""
        admitted_quota: dict[FlavorResource, int] = {}
        for usage in usages:
            for pair, amount in usage.quota.items():
                admitted_quota[pair] = admitted_quota.get(pair, 0) + amount
        amounts = self._cache.live_pods.amounts(root)
        self._add_covered(root, usages[0].cluster_queue, amounts, admitted_quota)
        return admitted_quota

    def _usages_of(self, root: str) -> Iterator[WorkloadUsage]:
        """What Workloads of the job, and their slices, hold."""
        cache = self._cache
        for key in sorted(self._by_root.get(root, ())):
            for member in (key, *cache.families.slices_of(key)):
                usage = cache.usages.get(member)
                if usage is not None and usage.cluster_queue:
                    yield usage

    def _add_covered(
        self,
        root: str,
        name: str,
        amounts: Mapping[str, int],
        admitted_quota: dict[FlavorResource, int],
    ) -> None:
        """Add resources that were not asked for, but pods take and the queue covers, as zero.

        Operators add containers of their own to pods.
        """
        missing = amounts.keys() - {resource for _, resource in admitted_quota}
        if not missing:
            return
        self._set_queue_dependencies(root, ("ClusterQueue", name))
        flavors = {flavor for flavor, _ in admitted_quota}
        choices = flavors_of_queue(self._cache.cluster_queues.get(name))
        for resource in sorted(missing & choices.keys()):
            offered = choices[resource]
            used = [flavor for flavor in offered if flavor in flavors]
            admitted_quota.update(((flavor, resource), 0) for flavor in used or offered)

    def _excess_without_quota(
        self, root: str, amounts: Mapping[str, int]
    ) -> tuple[ExcessUsage | None, bool]:
        """All that pods take for which no Workload holds quota; as `_excess_over`."""
        queue, name, choices = self._last_admitted_queue(root)
        flavor_dependent = any(len(choices.get(resource, ())) > 1 for resource in amounts)
        if flavor_dependent and name:
            return None, True
        taken = {
            (choices[resource][0], resource): amount
            for resource, amount in amounts.items()
            if choices.get(resource)
        }
        return _excess(queue, name, taken), False

    def _last_admitted_queue(self, root: str) -> tuple[str, str, Mapping[str, tuple[str, ...]]]:
        """LocalQueue and ClusterQueue of a job that holds nothing, and the flavors by resource."""
        cache = self._cache
        rows = [
            row
            for key in sorted(self._by_root.get(root, ()))
            if (row := cache.workloads.get(key)) is not None
        ]
        queue = next((row.queue for row in rows if row.queue), cache.live_pods.queues.get(root, ""))
        assignment = next((row.reserved for row in rows if row.reserved is not None), None)
        if assignment is not None:
            return queue, assignment.cluster_queue, flavors_of_assignment(quota_usage(assignment))
        if not queue:
            return "", "", {}  # nobody's
        local = cache.local_queues.get(queue)
        name = local.cluster_queue if local is not None else ""
        self._set_queue_dependencies(
            root, ("LocalQueue", queue), *((("ClusterQueue", name),) if name else ())
        )
        return queue, name, flavors_of_queue(cache.cluster_queues.get(name))

    def _amounts_by_flavor(
        self,
        root: str,
        choices: Mapping[str, tuple[str, ...]],
        admitted_quota: Mapping[FlavorResource, int] = MappingProxyType({}),
    ) -> dict[FlavorResource, int]:
        cache = self._cache
        rows = cache.live_pods.rows_of(root)
        return amounts_by_flavor(rows, choices, cache.nodes, cache.flavors, admitted_quota)


def _excess(
    local_queue: str, cluster_queue: str, found: Mapping[FlavorResource, int]
) -> ExcessUsage | None:
    return ExcessUsage(local_queue, cluster_queue, found) if cluster_queue and found else None

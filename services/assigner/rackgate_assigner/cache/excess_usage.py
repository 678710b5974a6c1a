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
    Excess,
    beyond,
    by_flavor,
    choices_of_grant,
    choices_of_queue,
)
from rackgate_assigner.cache.queue_usage import Holding, Totals
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.workload.info import WorkloadRow, quota_of

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


class Excesses:
    """Excess by root, charged to the totals of the cache."""

    def __init__(self, cache: Cache, totals: Totals, *, charge_released: bool) -> None:
        """Start empty.

        Args:
            cache: whose rows are read.
            totals: that are changed.
            charge_released: pods of a job that holds no quota any more are charged.
        """
        self._found: dict[str, Excess] = {}
        self._cache, self._totals = cache, totals
        self._charge_released = charge_released
        self._by_root: dict[str, set[str]] = {}
        self._roots: dict[str, str] = {}
        # Roots whose pods have to be looked at one by one, and those not settled since.
        self._single: set[str] = set()
        self._open: set[str] = set()
        # Roots by the queues that their charge also depends on, as (kind, key).
        self._by_queue: dict[tuple[str, str], set[str]] = {}
        self._queues_of: dict[str, tuple[tuple[str, str], ...]] = {}

    @property
    def found(self) -> Mapping[str, Excess]:
        """By root; roots without any are left out."""
        self.flush()
        return self._found

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

    def by_flavor(self, roots: Iterable[str]) -> set[str]:
        """Of these roots, those whose charge depends on flavors and labels of nodes."""
        return self._single & set(roots)

    def by_flavors(self) -> set[str]:
        """All roots whose charge depends on flavors and labels of nodes."""
        return set(self._single)

    def by_queue(self, kind: str, key: str) -> set[str]:
        """Roots whose charge depends on a ClusterQueue or LocalQueue."""
        return set(self._by_queue.get((kind, key), ()))

    def of_workload(self, key: str) -> Mapping[FlavorResource, int]:
        """What the pods of a Workload's job take beyond all that it was granted."""
        excess = self.found.get(self._roots.get(key, ""))
        return {} if excess is None else excess.amounts

    def workloads_of(self, root: str) -> list[str]:
        """All Workloads of the job."""
        return sorted(self._by_root.get(root, ()))

    def workload_of(self, root: str) -> str:
        """A Workload of the job, "" when there is none."""
        return min(self._by_root.get(root, ()), default="")

    def settle(self, root: str) -> bool:
        """Charge what the pods of a job take now; whether that changed, or may have."""
        if not root:
            return False
        self._depend(root)
        held = list(self._held(root))
        amounts = self._cache.living.amounts(root)
        if not amounts:
            self._single.discard(root)
            return self._swap(root, None)
        if held:
            new, single = self._beyond(root, held, amounts)
        else:
            new, single = self._released(root, amounts) if self._charge_released else (None, False)
        if not single:
            self._single.discard(root)
            return self._swap(root, new)
        self._single.add(root)
        self._open.add(root)
        return True

    def flush(self) -> None:
        """Settle what was put off."""
        while self._open:
            root = self._open.pop()
            held = list(self._held(root))
            if not self._cache.living.amounts(root):
                self._swap(root, None)
            elif held:
                granted = self._granted(root, held)
                taken = self._taken(root, choices_of_grant(granted), granted)
                over = {
                    pair: more
                    for pair, amount in taken.items()
                    if (more := amount - granted.get(pair, 0)) > 0
                }
                self._swap(root, _excess(held[0].local_queue, held[0].cluster_queue, over))
            elif self._charge_released:
                queue, name, choices = self._last_queue(root)
                self._swap(root, _excess(queue, name, self._taken(root, choices)))
            else:
                self._swap(root, None)

    def _swap(self, root: str, new: Excess | None) -> bool:
        self._open.discard(root)
        old = self._found.get(root)
        if old == new:
            return False
        if old is not None:
            self._totals.add_excess(old, -1)
            del self._found[root]
        if new is not None:
            self._found[root] = new
            self._totals.add_excess(new, 1)
        for excess in (old, new):
            if excess is not None:
                self._cache.on_excess(excess)
        return True

    def _depend(self, root: str, *queues: tuple[str, str]) -> None:
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

    def _beyond(
        self, root: str, held: Sequence[Holding], amounts: Mapping[str, int]
    ) -> tuple[Excess | None, bool]:
        """What pods take beyond a grant; and whether they have to be looked at one by one."""
        first = held[0]
        found = beyond(amounts, self._granted(root, held))
        if found is None:
            return None, True
        return _excess(first.local_queue, first.cluster_queue, found), False

    def _granted(self, root: str, held: Sequence[Holding]) -> dict[FlavorResource, int]:
        """All that was granted; zero for other resources that pods take and the queue covers."""
        granted: dict[FlavorResource, int] = {}
        for holding in held:
            for pair, amount in holding.quota.items():
                granted[pair] = granted.get(pair, 0) + amount
        amounts = self._cache.living.amounts(root)
        self._add_covered(root, held[0].cluster_queue, amounts, granted)
        return granted

    def _held(self, root: str) -> Iterator[Holding]:
        """What Workloads of the job, and their slices, hold."""
        cache = self._cache
        for key in sorted(self._by_root.get(root, ())):
            for member in (key, *cache.families.slices_of(key)):
                holding = cache.holdings.get(member)
                if holding is not None and holding.cluster_queue:
                    yield holding

    def _add_covered(
        self,
        root: str,
        name: str,
        amounts: Mapping[str, int],
        granted: dict[FlavorResource, int],
    ) -> None:
        """Add resources that were not asked for, but pods take and the queue covers, as zero.

        Operators add containers of their own to pods.
        """
        missing = amounts.keys() - {resource for _, resource in granted}
        if not missing:
            return
        self._depend(root, ("ClusterQueue", name))
        flavors = {flavor for flavor, _ in granted}
        choices = choices_of_queue(self._cache.cluster_queues.get(name))
        for resource in sorted(missing & choices.keys()):
            offered = choices[resource]
            used = [flavor for flavor in offered if flavor in flavors]
            granted.update(((flavor, resource), 0) for flavor in used or offered)

    def _released(self, root: str, amounts: Mapping[str, int]) -> tuple[Excess | None, bool]:
        """All that pods take for which no Workload holds quota; as `_beyond`."""
        queue, name, choices = self._last_queue(root)
        single = any(len(choices.get(resource, ())) > 1 for resource in amounts)
        if single and name:
            return None, True
        taken = {
            (choices[resource][0], resource): amount
            for resource, amount in amounts.items()
            if choices.get(resource)
        }
        return _excess(queue, name, taken), False

    def _last_queue(self, root: str) -> tuple[str, str, Mapping[str, tuple[str, ...]]]:
        """LocalQueue and ClusterQueue of a job that holds nothing, and the flavors by resource."""
        cache = self._cache
        rows = [
            row
            for key in sorted(self._by_root.get(root, ()))
            if (row := cache.workloads.get(key)) is not None
        ]
        queue = next((row.queue for row in rows if row.queue), cache.living.queues.get(root, ""))
        grant = next((row.reserved for row in rows if row.reserved is not None), None)
        if grant is not None:
            return queue, grant.cluster_queue, choices_of_grant(quota_of(grant))
        if not queue:
            return "", "", {}  # nobody's
        local = cache.local_queues.get(queue)
        name = local.cluster_queue if local is not None else ""
        self._depend(root, ("LocalQueue", queue), *((("ClusterQueue", name),) if name else ()))
        return queue, name, choices_of_queue(cache.cluster_queues.get(name))

    def _taken(
        self,
        root: str,
        choices: Mapping[str, tuple[str, ...]],
        granted: Mapping[FlavorResource, int] = MappingProxyType({}),
    ) -> dict[FlavorResource, int]:
        cache = self._cache
        rows = cache.living.rows_of(root)
        return by_flavor(rows, choices, cache.nodes, cache.flavors, granted)


def _excess(
    local_queue: str, cluster_queue: str, found: Mapping[FlavorResource, int]
) -> Excess | None:
    return Excess(local_queue, cluster_queue, found) if cluster_queue and found else None

"""Usage and pending Workloads of queues, and free capacity of topologies, computed in each scrape.

Only the replica that holds the Lease serves these, so a sum over replicas counts nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate.runtime.metrics import scraped_gauge
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import BACKING_OFF, QueueTotals
from rackgate_assigner.quota.active import Activity, cluster_queue_activity, local_queue_activity
from rackgate_assigner.quota.fair_sharing import share_of
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.tree import QuotaNode, QuotaTree
from rackgate_assigner.topology.capacity import summarize_free_capacity

Sample: TypeAlias = tuple[Sequence[str], float]

# Workloads with these reasons need a change of the Workload, its queue or a flavor, or the end of a
# backoff. The others need free quota or capacity.
INADMISSIBLE: Final = frozenset(
    {
        BACKING_OFF,
        PendingReason.EXCEEDS_MAX_QUOTA,
        PendingReason.NO_MATCHING_FLAVOR,
        PendingReason.MISCONFIGURED,
        PendingReason.SUSPENDED,
        PendingReason.ON_HOLD,
    }
)

_PENDING: Final = (
    "active ones may be admitted as soon as quota and capacity are free; inadmissible ones need "
    "a change of the Workload, its queue or a flavor, or the end of a backoff after an eviction."
)
PENDING: Final = scraped_gauge(
    "pending_workloads",
    f"Pending Workloads by ClusterQueue; {_PENDING}",
    ("cluster_queue", "status"),
)
UNADMITTED: Final = scraped_gauge(
    "unadmitted_workloads",
    "Pending Workloads by the reason of their condition QuotaReserved; PendingEvaluation before "
    "the first decision, BackingOff during the backoff after an eviction. ClusterQueue is "
    "empty if the LocalQueue leads to none.",
    ("cluster_queue", "reason"),
)
RESERVING: Final = scraped_gauge(
    "reserving_active_workloads", "Workloads that hold quota.", ("cluster_queue",)
)
ADMITTED_ACTIVE: Final = scraped_gauge(
    "admitted_active_workloads", "Workloads that are admitted and not finished.", ("cluster_queue",)
)
STATUS: Final = scraped_gauge(
    "cluster_queue_status", "1 for the status a ClusterQueue has.", ("cluster_queue", "status")
)
_PAIR: Final = ("flavor", "resource")
NOMINAL: Final = scraped_gauge(
    "cluster_queue_nominal_quota",
    "Nominal quota; cpu in cores, memory in bytes, others in their own unit.",
    ("cluster_queue", *_PAIR),
)
BORROWING_LIMIT: Final = scraped_gauge(
    "cluster_queue_borrowing_limit",
    "Quota that the queue may use beyond its nominal quota; units as for quota. Without a limit "
    "there is no series.",
    ("cluster_queue", *_PAIR),
)
LENDING_LIMIT: Final = scraped_gauge(
    "cluster_queue_lending_limit",
    "Nominal quota that others of the cohort may use; units as for quota. Without a limit there "
    "is no series.",
    ("cluster_queue", *_PAIR),
)
WEIGHTED_SHARE: Final = scraped_gauge(
    "cluster_queue_weighted_share",
    "Share of the queue in what its cohort can lend, in thousandths, divided by its weight; "
    "NaN while it borrows with weight 0.",
    ("cluster_queue", "cohort"),
)
COHORT_WEIGHTED_SHARE: Final = scraped_gauge(
    "cohort_weighted_share",
    "Share of the Cohort in what its parent can lend, in thousandths, divided by its weight; "
    "NaN while it borrows with weight 0.",
    ("cohort",),
)
CLUSTER_QUEUE_INFO: Final = scraped_gauge(
    "cluster_queue_info",
    "1 for the Cohort of a ClusterQueue and the root above it; empty without a Cohort.",
    ("cluster_queue", "parent_cohort", "root_cohort"),
)
COHORT_INFO: Final = scraped_gauge(
    "cohort_info",
    "1 for the parent of a Cohort and the root above it; a root has no parent.",
    ("cohort", "parent_cohort", "root_cohort"),
)
COHORT_QUOTA: Final = scraped_gauge(
    "cohort_subtree_quota",
    "Quota of the Cohort, and what is lent to it from below; units as for quota.",
    ("cohort", "flavor", "resource"),
)
COHORT_RESERVATION: Final = scraped_gauge(
    "cohort_subtree_resource_reservations",
    "Quota held by Workloads of all ClusterQueues below the Cohort; units as for quota.",
    ("cohort", "flavor", "resource"),
)
COHORT_ADMITTED: Final = scraped_gauge(
    "cohort_subtree_admitted_active_workloads",
    "Workloads of all ClusterQueues below the Cohort that are admitted and not finished.",
    ("cohort",),
)
RESERVATION: Final = scraped_gauge(
    "cluster_queue_resource_reservation",
    "Quota held by Workloads with reserved quota, and usage of their pods beyond it.",
    ("cluster_queue", *_PAIR),
)
USAGE: Final = scraped_gauge(
    "cluster_queue_resource_usage",
    "Quota held by admitted Workloads, and usage of their pods beyond it.",
    ("cluster_queue", *_PAIR),
)
_LOCAL: Final = ("name", "namespace")
LOCAL_PENDING: Final = scraped_gauge(
    "local_queue_pending_workloads",
    f"Pending Workloads by LocalQueue; {_PENDING}",
    (*_LOCAL, "status"),
)
LOCAL_RESERVING: Final = scraped_gauge(
    "local_queue_reserving_active_workloads", "Workloads that hold quota.", _LOCAL
)
LOCAL_ADMITTED: Final = scraped_gauge(
    "local_queue_admitted_active_workloads",
    "Workloads that are admitted and not finished.",
    _LOCAL,
)
LOCAL_STATUS: Final = scraped_gauge(
    "local_queue_status", "1 for the status a LocalQueue has.", (*_LOCAL, "status")
)
LOCAL_RESERVATION: Final = scraped_gauge(
    "local_queue_resource_reservation",
    "Quota held by Workloads with reserved quota, and usage of their pods beyond it.",
    (*_LOCAL, *_PAIR),
)
LOCAL_USAGE: Final = scraped_gauge(
    "local_queue_resource_usage",
    "Quota held by admitted Workloads, and usage of their pods beyond it.",
    (*_LOCAL, *_PAIR),
)
LOCAL_CONSUMED: Final = scraped_gauge(
    "local_queue_admission_fair_sharing_usage",
    "Usage over time that orders LocalQueues: the sum over resources, by their weights, of what "
    "was consumed and of pending entry penalties, divided by the weight of the LocalQueue; "
    "+Inf for weight 0. Only with admission fair sharing.",
    _LOCAL,
)
DOMAINS: Final = scraped_gauge("topology_domains", "Domains by level.", ("flavor", "level"))
IDLE_DOMAINS: Final = scraped_gauge(
    "topology_idle_domains",
    "Domains without pods placed by TAS, by level.",
    ("flavor", "level"),
)
FREE: Final = scraped_gauge(
    "topology_free",
    "Free capacity of all nodes of the flavor; units as for quota.",
    _PAIR,
)
FRAGMENTED: Final = scraped_gauge(
    "topology_fragmented_free",
    "Free capacity of the domains of the level that have pods placed by TAS: a job that needs a "
    "whole domain cannot use it; units as for quota.",
    ("flavor", "level", "resource"),
)
LARGEST_FREE: Final = scraped_gauge(
    "topology_largest_free",
    "Free capacity of the domain of the level with the most: the limit of a job that requires one.",
    ("flavor", "level", "resource"),
)


def queue_families(cache: Cache, features: Features) -> Iterator[GaugeMetricFamily]:
    """Usage and pending Workloads of ClusterQueues and LocalQueues."""
    activities = {
        name: cluster_queue_activity(queue, cache.flavors, cache.checks, features, cache.cohorts)
        for name, queue in cache.cluster_queues.items()
    }
    yield from _waiting(cache)
    totals = {
        (name,): cache.totals.cluster_queues.get(name, QueueTotals())
        for name in cache.cluster_queues
    }
    yield RESERVING.family((key, found.reserving) for key, found in totals.items())
    yield ADMITTED_ACTIVE.family((key, found.admitted) for key, found in totals.items())
    yield STATUS.family(_statuses({(name,): found for name, found in activities.items()}))
    pairs: dict[tuple[str, ...], Sequence[FlavorResource]] = {
        (name,): tuple(queue.nominal) for name, queue in cache.cluster_queues.items()
    }
    yield NOMINAL.family(
        ((name, *pair), in_units(pair[1], amount))
        for name, queue in cache.cluster_queues.items()
        for pair, amount in queue.nominal.items()
    )
    yield BORROWING_LIMIT.family(
        ((name, *pair), in_units(pair[1], amount))
        for name, queue in cache.cluster_queues.items()
        for group in queue.groups
        for pair, amount in group.borrowing_limit.items()
    )
    yield LENDING_LIMIT.family(
        ((name, *pair), in_units(pair[1], amount))
        for name, queue in cache.cluster_queues.items()
        for group in queue.groups
        for pair, amount in group.lending_limit.items()
    )
    tree = cache.quota_usage().tree
    yield WEIGHTED_SHARE.family(
        ((name, node.parent.name), _share(node))
        for name, node in tree.queues.items()
        if node.parent is not None
    )
    yield COHORT_WEIGHTED_SHARE.family(
        ((name,), _share(node)) for name, node in tree.cohorts.items()
    )
    yield from _cohorts(tree, cache.totals.cluster_queues)
    yield RESERVATION.family(
        _amounts(pairs, {key: found.reserved_quota for key, found in totals.items()})
    )
    yield USAGE.family(
        _amounts(pairs, {key: found.admitted_quota for key, found in totals.items()})
    )
    yield from _local(cache, activities)


def topology_families(cache: Cache) -> Iterator[GaugeMetricFamily]:
    """Free capacity of the domains of each flavor with a topology."""
    rooms = {
        name: summarize_free_capacity(flavor_topology.tree, flavor_topology.capacity)
        for name, flavor_topology in cache.flavor_topologies().by_flavor.items()
    }
    levels = [(name, level) for name, room in rooms.items() for level in room.levels]
    yield DOMAINS.family(((name, level.key), level.domains) for name, level in levels)
    yield IDLE_DOMAINS.family(((name, level.key), level.idle) for name, level in levels)
    yield FREE.family(
        ((name, resource), in_units(resource, amount))
        for name, room in rooms.items()
        for resource, amount in room.free.items()
    )
    yield FRAGMENTED.family(
        ((name, level.key, resource), in_units(resource, amount))
        for name, level in levels
        for resource, amount in level.fragmented.items()
    )
    yield LARGEST_FREE.family(
        ((name, level.key, resource), in_units(resource, amount))
        for name, level in levels
        for resource, amount in level.largest_free.items()
    )


def _cohorts(tree: QuotaTree, totals: Mapping[str, QueueTotals]) -> Iterator[GaugeMetricFamily]:
    """The tree of Cohorts, and what the ClusterQueues below each of them hold."""
    yield CLUSTER_QUEUE_INFO.family(
        ((name, node.parent.name, node.root.name) if node.parent is not None else (name, "", ""), 1)
        for name, node in tree.queues.items()
    )
    yield COHORT_INFO.family(
        ((name, node.parent.name if node.parent is not None else "", node.root.name), 1)
        for name, node in tree.cohorts.items()
    )
    yield COHORT_QUOTA.family(
        ((name, *pair), in_units(pair[1], amount))
        for name, node in tree.cohorts.items()
        for pair, amount in node.subtree.items()
    )
    admitted: Counter[str] = Counter()
    reserved: dict[str, Counter[FlavorResource]] = {
        name: Counter(dict.fromkeys(node.subtree, 0)) for name, node in tree.cohorts.items()
    }
    for name, node in tree.queues.items():
        found = totals.get(name, QueueTotals())
        for cohort in node.path[1:]:
            admitted[cohort.name] += found.admitted
            reserved[cohort.name].update(found.reserved_quota)
    yield COHORT_RESERVATION.family(
        ((name, *pair), in_units(pair[1], amount))
        for name, amounts in reserved.items()
        for pair, amount in amounts.items()
    )
    yield COHORT_ADMITTED.family(((name,), admitted[name]) for name in tree.cohorts)


def _share(node: QuotaNode) -> float:
    unbounded, share = share_of(node)
    return nan if unbounded else share


def in_units(resource: str, amount: int) -> float:
    """An amount as dashboards show it: cpu in cores."""
    return amount / 1000 if resource == "cpu" else float(amount)


def _waiting(cache: Cache) -> Iterator[GaugeMetricFamily]:
    reasons: dict[str, Counter[str]] = {name: Counter() for name in cache.cluster_queues}
    for key, found in cache.totals.local_queues.items():
        local = cache.local_queues.get(key)
        queue = local.cluster_queue if local is not None else ""
        known = queue if queue in cache.cluster_queues else ""
        reasons.setdefault(known, Counter()).update(found.pending_reasons)
    yield PENDING.family(
        _by_status(
            {(name,): found for name, found in reasons.items() if name in cache.cluster_queues}
        )
    )
    yield UNADMITTED.family(
        ((name, reason), count)
        for name, found in reasons.items()
        for reason, count in found.items()
    )


def _local(cache: Cache, activities: Mapping[str, Activity]) -> Iterator[GaugeMetricFamily]:
    keys = {key: _name_first(key) for key in cache.local_queues}
    totals = {
        keys[key]: cache.totals.local_queues.get(key, QueueTotals()) for key in cache.local_queues
    }
    pairs: dict[tuple[str, ...], Sequence[FlavorResource]] = {}
    for key, local in cache.local_queues.items():
        queue = cache.cluster_queues.get(local.cluster_queue)
        pairs[keys[key]] = tuple(queue.nominal) if queue is not None else ()
    yield LOCAL_PENDING.family(
        _by_status({key: found.pending_reasons for key, found in totals.items()})
    )
    yield LOCAL_RESERVING.family((key, found.reserving) for key, found in totals.items())
    yield LOCAL_ADMITTED.family((key, found.admitted) for key, found in totals.items())
    yield LOCAL_STATUS.family(
        _statuses(
            {
                keys[key]: local_queue_activity(local, activities.get(local.cluster_queue))
                for key, local in cache.local_queues.items()
            }
        )
    )
    yield LOCAL_RESERVATION.family(
        _amounts(pairs, {key: found.reserved_quota for key, found in totals.items()})
    )
    yield LOCAL_USAGE.family(
        _amounts(pairs, {key: found.admitted_quota for key, found in totals.items()})
    )
    usage = cache.local_queue_usage()
    if usage is not None:
        yield LOCAL_CONSUMED.family((keys[key], usage.of(key)) for key in cache.local_queues)


def _name_first(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return name, namespace


def _by_status(reasons: Mapping[tuple[str, ...], Mapping[str, int]]) -> Iterator[Sample]:
    for key, found in reasons.items():
        inadmissible = sum(count for reason, count in found.items() if reason in INADMISSIBLE)
        yield (*key, "active"), sum(found.values()) - inadmissible
        yield (*key, "inadmissible"), inadmissible


def _statuses(activities: Mapping[tuple[str, ...], Activity]) -> Iterator[Sample]:
    for key, found in activities.items():
        yield (*key, "active"), found.active
        yield (*key, "pending"), not found.active


def _amounts(
    pairs: Mapping[tuple[str, ...], Sequence[FlavorResource]],
    held: Mapping[tuple[str, ...], Mapping[FlavorResource, int]],
) -> Iterator[Sample]:
    """Every pair that a queue offers, zeros included, and what is held beyond its offer."""
    for key, amounts in held.items():
        for pair in dict.fromkeys((*pairs[key], *amounts)):
            yield (*key, *pair), in_units(pair[1], amounts.get(pair, 0))

"""The queues of a Workload: its position, why they do not admit it, and its quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rackgate.api.names import QueueReason
from rackgate.features import Features
from rackgate_assigner.explain.explanation import Holder, QueuePosition, QuotaLine, WorkloadAhead
from rackgate_assigner.quota.active import cluster_queue_activity
from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    FlavorInfo,
    FlavorResource,
    ResourceGroupInfo,
    selects,
    without_topologies,
)
from rackgate_assigner.quota.quota import quantity
from rackgate_assigner.scheduler.cycle import cycle_order
from rackgate_assigner.scheduler.flavor_assigner import Offer, flavor_problem
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.info import WorkloadInfo, priority_of
from rackgate_assigner.workload_slices.admission import queue_with_parent_flavors
from rackgate_assigner.workload_slices.families import SliceFamily

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


def queue_position(cache: Cache, row: WorkloadInfo, features: Features, top: int) -> QueuePosition:
    """The queues of a Workload and, while it is pending, the last `top` Workloads before it."""
    local = cache.local_queues.get(row.queue)
    name = local.cluster_queue if local is not None else ""
    queue = cache.cluster_queues.get(name)
    problems = _problems(cache, row, queue, features)
    strategy = queue.strategy if queue is not None else ""
    if not row.pending:
        return QueuePosition(
            local_queue=row.queue, cluster_queue=name, strategy=strategy, problems=problems
        )
    line = pending_order(cache, row)
    place = next(at for at, other in enumerate(line) if other.key == row.key)
    return QueuePosition(
        local_queue=row.queue,
        cluster_queue=name,
        strategy=strategy,
        problems=problems,
        position=place,
        waiting=len(line),
        local_position=sum(other.queue == row.queue for other in line[:place]),
        ahead=tuple(
            WorkloadAhead(
                workload=other.key,
                priority=priority_of(other, cache.priorities),
                since=other.queue_timestamp,
            )
            for other in line[max(0, place - top) : place]
        ),
    )


def pending_order(cache: Cache, row: WorkloadInfo) -> list[WorkloadInfo]:
    """Pending Workloads of a Workload's ClusterQueue, including itself, in scheduling order."""
    local = cache.local_queues.get(row.queue)
    name = local.cluster_queue if local is not None else None
    queues = {key for key, found in cache.local_queues.items() if found.cluster_queue == name}
    queues.add(row.queue)
    rows = [
        other
        for other in cache.snapshot().pending
        if other.queue in queues and other.key != row.key
    ]
    return cycle_order([*rows, row], cache.priorities)


def _problems(
    cache: Cache,
    row: WorkloadInfo,
    queue: ClusterQueueInfo | None,
    features: Features,
) -> tuple[str, ...]:
    local = cache.local_queues.get(row.queue)
    short = row.queue.partition("/")[2]
    if local is None:
        there = sorted(
            key.partition("/")[2]
            for key in cache.local_queues
            if key.startswith(f"{row.namespace}/")
        )
        known = f"; there are: {', '.join(there)}" if there else "; the namespace has none"
        return (f'LocalQueue "{short}" does not exist{known}' if short else "no queue is named",)
    problems = []
    if local.deleting:
        problems.append(f'LocalQueue "{short}" is terminating')
    if local.stop_policy != "None":
        problems.append(f'LocalQueue "{short}" is stopped (stopPolicy: {local.stop_policy})')
    if queue is None:
        problems.append(f'ClusterQueue "{local.cluster_queue}" does not exist')
        return tuple(problems)
    activity = cluster_queue_activity(queue, cache.flavors, cache.checks, features)
    for reason, text in activity.problems:
        if reason == QueueReason.STOPPED:
            problems.append(
                f'ClusterQueue "{queue.name}" is stopped (stopPolicy: {queue.stop_policy})'
            )
        else:
            problems.append(f'ClusterQueue "{queue.name}": {text}')
    if not selects(queue.selector, cache.namespaces.get(row.namespace, {})):
        problems.append(
            f'ClusterQueue "{queue.name}": its namespaceSelector does not match the labels of '
            f'namespace "{row.namespace}"'
        )
    return tuple(problems)


def quota_lines(
    cache: Cache, row: WorkloadInfo, queue: ClusterQueueInfo, offer: Offer, top: int
) -> tuple[QuotaLine, ...]:
    """Every flavor that could provide some resource of the Workload, in the queue's order."""
    requests = [podset.request for podset in row.podsets]
    asked: dict[str, int] = {}
    for request in requests:
        for resource, amount in request.requests.items():
            asked[resource] = asked.get(resource, 0) + amount * request.count
    asked["pods"] = sum(request.count for request in requests)
    lines: list[QuotaLine] = []
    for group in queue.groups:
        for flavor in group.flavors:
            known: dict[str, Any] = {"problem": problem_of(offer, flavor, requests, group)}
            for resource in group.covered:
                if asked.get(resource):
                    pair = (flavor, resource)
                    holders = _quota_holders(cache, queue.name, pair)
                    known["holders"] = tuple(holders[:top])
                    known["more_holders"] = max(0, len(holders) - top)
                    nominal = group.nominal.get(pair, 0)
                    used = offer.used.get(pair, 0)
                    lines.append(_quota_line(pair, asked[resource], nominal, used, known))
    uncovered = [r for r in sorted(asked) if asked[r] and r != "pods" and not offer.group_of(r)]
    return (*lines, *(_uncovered_quota_line(resource, asked[resource]) for resource in uncovered))


def problem_of(
    offer: Offer, flavor: str, requests: list[PodSetRequest], group: ResourceGroupInfo
) -> str:
    """Why one of the PodSets cannot use a flavor, "" if all can."""
    found = (flavor_problem(offer, flavor, request, group) for request in requests)
    return next((problem for problem in found if problem), "")


def _quota_holders(cache: Cache, cluster_queue: str, pair: FlavorResource) -> list[Holder]:
    """Workloads of a ClusterQueue that use a resource of a flavor, largest usage first.

    Pods whose Workload is gone are listed under their LocalQueue.
    """
    held = {
        key: holding.quota[pair]
        for key, holding in cache.usages.items()
        if holding.cluster_queue == cluster_queue and holding.quota.get(pair)
    }
    for root, excess in cache.excess_usage.found.items():
        # Pods beyond what was admitted count for the Workload that they belong to.
        if excess.cluster_queue == cluster_queue and (more := excess.amounts.get(pair)):
            key = cache.excess_usage.workload_of(root) or excess.local_queue
            held[key] = held.get(key, 0) + more
    resource = pair[1]
    return [
        Holder(kind="Workload", name=key, amounts={resource: quantity(resource, held[key])})
        for key in sorted(held, key=lambda key: (-held[key], key))
    ]


def _quota_line(
    pair: FlavorResource, asked: int, nominal: int, used: int, known: Mapping[str, Any]
) -> QuotaLine:
    flavor, resource = pair
    available = max(0, nominal - used)
    return QuotaLine(
        flavor=flavor,
        resource=resource,
        requested=quantity(resource, asked),
        nominal=quantity(resource, nominal),
        used=quantity(resource, used),
        available=quantity(resource, available),
        missing=quantity(resource, max(0, asked - available)),
        never=asked > nominal,
        **known,
    )


def _uncovered_quota_line(resource: str, asked: int) -> QuotaLine:
    amount = quantity(resource, asked)
    return QuotaLine(
        flavor="",
        resource=resource,
        requested=amount,
        nominal="0",
        used="0",
        available="0",
        missing=amount,
        never=True,
        problem=f"resource {resource} unavailable in ClusterQueue",
    )


def offer_of(cache: Cache, row: WorkloadInfo, queue: ClusterQueueInfo, features: Features) -> Offer:
    """What a ClusterQueue offers to a Workload now."""
    parent = cache.workloads.get(row.parent) if row.parent else None
    restricted_queue = (
        queue_with_parent_flavors(row, parent, queue) if parent is not None else queue
    )
    if isinstance(restricted_queue, ClusterQueueInfo):
        queue = restricted_queue
    flavors: Mapping[str, FlavorInfo] = cache.flavors
    if not features.topology_aware_scheduling:
        flavors = without_topologies(flavors)
    used: Mapping[FlavorResource, int] = cache.totals.used().get(queue.name, {})
    if row.parent:
        excess = dict(cache.excess_usage.excess_of_workload(row.parent))
        used = SliceFamily(parent, excess=excess).used_by_others(used)
    return Offer(queue, flavors, used)

"""The queues of a Workload: its position, why they do not admit it, and its quota."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from rackgate.api.names import QueueReason
from rackgate.features import Features
from rackgate_assigner.explain.explanation import Holder, QueuePosition, QuotaLine, WorkloadAhead
from rackgate_assigner.quota.active import cluster_queue_activity
from rackgate_assigner.quota.amounts import quantity
from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    FlavorInfo,
    FlavorResource,
    ResourceGroupInfo,
    selects,
    without_topologies,
)
from rackgate_assigner.scheduler.cycle import cycle_order
from rackgate_assigner.scheduler.local_queue_order import pending_ranks
from rackgate_assigner.scheduler.nomination.offer import Offer, flavor_problem
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.info import WorkloadInfo, priority_of
from rackgate_assigner.workload_slices.admission import queue_with_parent_flavors

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
    rows = [other for other in cache.pending() if other.queue in queues and other.key != row.key]
    usage, features = cache.local_queue_usage(), cache.features
    rank_of = pending_ranks(cache.local_queues, cache.cluster_queues, usage, features)
    return sorted(cycle_order([*rows, row], cache.priorities), key=rank_of)


def _problems(
    cache: Cache, row: WorkloadInfo, queue: ClusterQueueInfo | None, features: Features
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
    activity = cluster_queue_activity(queue, cache.flavors, cache.checks, features, cache.cohorts)
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
    own, used = cache.cluster_queues[queue.name].nominal, cache.totals.used().get(queue.name, {})
    node = cache.quota_usage().tree.queues[queue.name]
    # A slice takes over what pods of its job use beyond admission.
    taken_over = dict(cache.excess_usage.excess_of_workload(row.parent)) if row.parent else {}
    for group in offer.queue.groups:
        for flavor in group.flavors:
            known: dict[str, Any] = {"problem": problem_of(offer, flavor, requests, group)}
            for resource in group.covered:
                if asked.get(resource):
                    pair = (flavor, resource)
                    holders = _quota_holders(cache, _sharing(cache, queue), pair)
                    known["holders"] = tuple(holders[:top])
                    known["more_holders"] = max(0, len(holders) - top)
                    most = node.potential(pair)
                    known["available"] = max(0, node.available(pair) + taken_over.get(pair, 0))
                    known["never"] = asked[resource] > most
                    amounts = (asked[resource], own.get(pair, 0), used.get(pair, 0))
                    lines.append(_quota_line(pair, *amounts, **known))
    uncovered = [r for r in sorted(asked) if asked[r] and r != "pods" and not offer.group_of(r)]
    covered = ", ".join(covered_resources(offer.queue))
    for resource in uncovered:
        problem = f'no flavor of ClusterQueue "{queue.name}" covers {resource}'
        problem += f" (covered: {covered})" if covered else ""
        amounts = (asked[resource], 0, 0)
        lines.append(
            _quota_line(("", resource), *amounts, available=0, never=True, problem=problem)
        )
    return tuple(lines)


def covered_resources(queue: ClusterQueueInfo) -> list[str]:
    """Resources for which some flavor of the queue has quota."""
    return list(dict.fromkeys(resource for group in queue.groups for resource in group.covered))


def problem_of(
    offer: Offer, flavor: str, requests: list[PodSetRequest], group: ResourceGroupInfo
) -> str:
    """Why one of the PodSets cannot use a flavor, "" if all can."""
    found = (flavor_problem(offer, flavor, request, group) for request in requests)
    return next((problem for problem in found if problem), "")


def _sharing(cache: Cache, queue: ClusterQueueInfo) -> Collection[str]:
    """Names of the ClusterQueues that share quota with one, itself included."""
    if not queue.cohort:
        return (queue.name,)
    tree = cache.quota_usage().tree
    root = tree.queues[queue.name].root
    return [name for name, node in tree.queues.items() if node.root is root]


def _quota_holders(
    cache: Cache, cluster_queues: Collection[str], pair: FlavorResource
) -> list[Holder]:
    """Workloads of these ClusterQueues that use a resource of a flavor, largest usage first.

    Pods whose Workload is gone are listed under their LocalQueue.
    """
    held = {
        key: holding.quota[pair]
        for key, holding in cache.usages.items()
        if holding.cluster_queue in cluster_queues and holding.quota.get(pair)
    }
    for root, excess in cache.excess_usage.found.items():
        # Pods beyond what was admitted count for the Workload that they belong to.
        if excess.cluster_queue in cluster_queues and (more := excess.amounts.get(pair)):
            key = cache.excess_usage.workload_of(root) or excess.local_queue
            held[key] = held.get(key, 0) + more
    resource = pair[1]
    return [
        Holder(kind="Workload", name=key, amounts={resource: quantity(resource, held[key])})
        for key in sorted(held, key=lambda key: (-held[key], key))
    ]


def _quota_line(
    pair: FlavorResource,
    asked: int,
    nominal: int,
    used: int,
    *,
    available: int,
    **known: Any,
) -> QuotaLine:
    flavor, resource = pair
    return QuotaLine(
        flavor=flavor,
        resource=resource,
        requested=quantity(resource, asked),
        nominal=quantity(resource, nominal),
        used=quantity(resource, used),
        available=quantity(resource, available),
        missing=quantity(resource, max(0, asked - available)),
        **known,
    )


def offer_of(cache: Cache, row: WorkloadInfo, queue: ClusterQueueInfo, features: Features) -> Offer:
    """What a ClusterQueue offers to a Workload; to a slice, the flavors of its parent."""
    parent = cache.workloads.get(row.parent) if row.parent else None
    if parent is not None:
        restricted_queue = queue_with_parent_flavors(row, parent, queue)
        queue = restricted_queue if isinstance(restricted_queue, ClusterQueueInfo) else queue
    flavors: Mapping[str, FlavorInfo] = cache.flavors
    if not features.topology_aware_scheduling:
        flavors = without_topologies(flavors)
    return Offer(queue, flavors)

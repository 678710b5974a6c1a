"""Answer the scenarios of a file with one scheduling cycle: `quota-scenario/1` in, JSON out.

The heads are those of the ClusterQueues, the cycle is that of `scheduler.quota_cycle`, and what
happens to the other pending Workloads follows from its results.
Source: conformance/quota, sections 1, 5 and 15.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from rackgate.features import Features
from rackgate.resources.quantity import amount, quota_amount, request_amount, to_milli
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies, build_flavor_topology
from rackgate_assigner.quota.queues import (
    BorrowWithinCohort,
    ClusterQueueInfo,
    CohortInfo,
    FlavorFungibility,
    FlavorInfo,
    FlavorResource,
    ResourceGroupInfo,
)
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaTree
from rackgate_assigner.quota_scenario.format import (
    FORMAT,
    QuotaScenario,
    QuotaScenarioError,
    ScenarioAdmittedPodSet,
    ScenarioClusterQueue,
    ScenarioPodSet,
    ScenarioResourceGroup,
    ScenarioTaint,
    ScenarioToleration,
    ScenarioTopologyRequest,
    ScenarioWorkload,
    read_quota_scenarios,
)
from rackgate_assigner.scheduler.nomination.nomination import PendingPodSet, PendingWorkload
from rackgate_assigner.scheduler.quota_cycle import (
    HeadAdmission,
    HeadRequeue,
    HeadResult,
    run_cycle,
)
from rackgate_assigner.topology.model import (
    NodeInfo,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.workload.decisions import PodSetAssignment
from rackgate_assigner.workload.info import Charge

__all__ = [
    "FORMAT",
    "PendingQueues",
    "QuotaScenarioError",
    "answer",
    "answers",
    "build_state",
    "read_quota_scenarios",
]

ENDED_PHASES = ("Succeeded", "Failed")
WAITING_FOR_REPLACEMENT = "WaitingForReplacementPods"
# Evictions after which a Workload waits at the back.
RENEWING_EVICTIONS = ("PodsReadyTimeout", "AdmissionCheck")


def answers(text: bytes) -> Iterator[dict[str, Any]]:
    """Answer all scenarios of a file, as `{"id", "expected"}`, in its order.

    Raises:
        QuotaScenarioError: as `read_quota_scenarios`.
    """
    for scenario in read_quota_scenarios(text):
        yield {"id": scenario.id, "expected": answer(scenario)}


def answer(
    scenario: QuotaScenario,
    first: AbstractSet[str] = frozenset(),
    preempted: AbstractSet[str] | None = None,
) -> dict[str, Any]:
    """Run one scheduling cycle.

    Args:
        scenario: from `read_quota_scenarios`.
        first: keys of heads that are processed before all others.
        preempted: keys of Workloads that were preempted before, with the feature gate
            `RackgateNoMutualPreemption`; None: the gate is off, as in Kueue.

    Returns:
        `admitted`, `preempted` and `pending`, as `expected` in the data.
    """
    state = build_state(scenario, preempted)
    queues = PendingQueues(scenario, state)
    namespaces = {space.name: space.labels for space in scenario.namespaces}
    results = run_cycle(state, queues.heads(), namespaces, first)
    return {
        "admitted": {
            found.head.key: _admitted(found)
            for found in results
            if isinstance(found, HeadAdmission)
        },
        "preempted": _preempted(results),
        "pending": queues.pending(results),
    }


# The state.


def build_state(scenario: QuotaScenario, preempted: AbstractSet[str] | None = None) -> QuotaState:
    """The queues, the topologies, and the Workloads that hold quota.

    Args:
        scenario: from `read_quota_scenarios`.
        preempted: keys of Workloads that were preempted before, with the feature gate
            `RackgateNoMutualPreemption`; None: the gate is off, as in Kueue.
    """
    cohorts = [
        CohortInfo(
            cohort.name,
            cohort.parent or "",
            _groups(cohort.resource_groups),
            _weight(cohort.fair_weight),
        )
        for cohort in scenario.cohorts
    ]
    levels = {topology.name: topology.levels for topology in scenario.topologies}
    flavors = {
        flavor.name: FlavorInfo(
            name=flavor.name,
            node_labels=flavor.node_labels,
            node_taints=_taints(flavor.taints),
            tolerations=_tolerations(flavor.tolerations),
            topology=flavor.topology,
            levels=levels[flavor.topology] if flavor.topology is not None else (),
        )
        for flavor in scenario.flavors
    }
    queues = {queue.name: _cluster_queue(queue) for queue in scenario.cluster_queues}
    stopped = {queue.name for queue in queues.values() if _is_stopped(queue, flavors)}
    sharing = scenario.fair_sharing
    state = QuotaState(
        QuotaTree.build(queues.values(), cohorts, stopped),
        queues,
        flavors,
        _topologies(scenario, flavors),
        fair_sharing=sharing.strategies if sharing is not None else None,
        features=replace(Features.of(scenario.gates), no_mutual_preemption=preempted is not None),
    )
    for workload in scenario.workloads:
        running = _running(workload)
        if running is not None and running.cluster_queue in queues:
            state.add(replace(running, was_preempted=running.key in (preempted or ())))
    return state


def _is_stopped(queue: ClusterQueueInfo, flavors: Mapping[str, FlavorInfo]) -> bool:
    return queue.stop_policy != "None" or any(name not in flavors for name in queue.flavors)


def _groups(groups: Iterable[ScenarioResourceGroup]) -> tuple[ResourceGroupInfo, ...]:
    found = []
    for group in groups:
        nominal: dict[FlavorResource, int] = {}
        borrowing: dict[FlavorResource, int] = {}
        lending: dict[FlavorResource, int] = {}
        for flavor in group.flavors:
            for resource, quota in flavor.quotas.items():
                pair = (flavor.name, resource)
                nominal[pair] = quota_amount(resource, quota.nominal)
                if quota.borrowing_limit is not None:
                    borrowing[pair] = quota_amount(resource, quota.borrowing_limit)
                if quota.lending_limit is not None:
                    lending[pair] = quota_amount(resource, quota.lending_limit)
        names = tuple(flavor.name for flavor in group.flavors)
        found.append(ResourceGroupInfo(group.resources, names, nominal, borrowing, lending))
    return tuple(found)


def _weight(text: str) -> float:
    return to_milli(text) / 1000


def _cluster_queue(queue: ScenarioClusterQueue) -> ClusterQueueInfo:
    preemption, fungibility = queue.preemption, queue.flavor_fungibility
    borrow = preemption.borrow_within_cohort
    return ClusterQueueInfo(
        name=queue.name,
        cohort=queue.cohort or "",
        strategy=queue.queueing_strategy,
        stop_policy=queue.stop_policy,
        selector=queue.namespace_selector.model_dump(by_alias=True),
        groups=_groups(queue.resource_groups),
        within_cluster_queue=preemption.within_cluster_queue,
        reclaim_within_cohort=preemption.reclaim_within_cohort,
        borrow_within_cohort=BorrowWithinCohort(borrow.policy, borrow.max_priority_threshold),
        fungibility=FlavorFungibility(
            fungibility.when_can_borrow, fungibility.when_can_preempt, fungibility.preference
        ),
        fair_weight=_weight(queue.fair_weight),
    )


def _topologies(scenario: QuotaScenario, flavors: Mapping[str, FlavorInfo]) -> FlavorTopologies:
    nodes = [
        NodeInfo(
            name=node.name,
            labels=node.labels,
            allocatable=_amounts(node.allocatable),
            taints=_taints(node.taints),
            unschedulable=node.unschedulable,
            ready=node.ready,
        )
        for node in scenario.nodes
    ]
    found = FlavorTopologies(
        {
            flavor.name: build_flavor_topology(flavor, nodes)
            for flavor in flavors.values()
            if flavor.topology is not None
        }
    )
    for pod in scenario.pods:
        if pod.node and pod.phase not in ENDED_PHASES:
            found.charge_node(pod.node, _amounts(pod.requests), 1)
    return found


def _running(workload: ScenarioWorkload) -> RunningWorkload | None:
    """A Workload that holds quota; None: it does not."""
    admission = workload.admission
    if admission is None or workload.reserved_at is None:
        return None
    if workload.inactive or workload.is_true("Finished"):
        return None
    usage: dict[FlavorResource, int] = {}
    counts = {podset.name: podset.count for podset in workload.pod_sets}
    for part in admission.pod_sets:
        left = max(0, counts.get(part.name, part.count) - workload.reclaimable.get(part.name, 0))
        for resource, flavor in part.flavors.items():
            total = quota_amount(resource, part.usage.get(resource, "0"))
            if left < part.count:
                total = total // part.count * left
            usage[flavor, resource] = usage.get((flavor, resource), 0) + total
    return RunningWorkload(
        key=workload.key,
        uid=workload.uid or workload.name,
        cluster_queue=admission.cluster_queue,
        priority=workload.priority,
        queue_timestamp=_queue_timestamp(workload),
        reserved_at=workload.reserved_at,
        evicted=workload.is_true("Evicted"),
        usage=usage,
        charges=tuple(_charges(admission.pod_sets)),
    )


def _charges(parts: Iterable[ScenarioAdmittedPodSet]) -> Iterator[Charge]:
    for part in parts:
        if part.topology is None:
            continue
        requests = {
            resource: quota_amount(resource, total) // max(1, part.count)
            for resource, total in part.usage.items()
            if resource != "pods"
        }
        domains = tuple((domain.values, domain.count) for domain in part.topology.domains)
        flavor = min(part.flavors.values(), default="")
        yield Charge(flavor, requests, TopologyAssignment(part.topology.levels, domains))


def _queue_timestamp(workload: ScenarioWorkload) -> int:
    evicted = workload.condition("Evicted")
    if evicted is not None and evicted.status and evicted.reason in RENEWING_EVICTIONS:
        return evicted.at
    return workload.created


# Pending Workloads.


class PendingQueues:
    """Pending Workloads by ClusterQueue, and what becomes of them."""

    def __init__(self, scenario: QuotaScenario, state: QuotaState) -> None:
        self._state = state
        self._places: dict[str, str] = {}
        self._waiting: dict[str, list[PendingWorkload]] = {}
        local_queues = {
            (queue.namespace, queue.name): queue.cluster_queue for queue in scenario.local_queues
        }
        for workload in scenario.workloads:
            if workload.reserved_at is not None:
                continue
            name = local_queues.get((workload.namespace, workload.queue), "")
            if name not in state.queues or not _may_run(workload):
                self._places[workload.key] = "none"
                continue
            requeued = workload.condition("Requeued")
            if requeued is not None and not requeued.status:
                self._places[workload.key] = "inadmissible"
                continue
            self._places[workload.key] = "queue"
            self._waiting.setdefault(name, []).append(_pending(workload, name))

    def waiting(self) -> list[PendingWorkload]:
        """All that may be a head."""
        return [pending for waiting in self._waiting.values() for pending in waiting]

    def heads(self) -> list[PendingWorkload]:
        """The first of each ClusterQueue that is not stopped."""
        return [
            min(waiting, key=lambda pending: pending.order)
            for name, waiting in self._waiting.items()
            if not _is_stopped(self._state.queues[name], self._state.flavors)
        ]

    def pending(self, results: Iterable[HeadResult]) -> dict[str, Any]:
        """Where each Workload is after the cycle, and for heads why."""
        found: dict[str, Any] = {
            key: {"evaluated": False, "place": place} for key, place in self._places.items()
        }
        for result in results:
            head = result.head
            if isinstance(result, HeadAdmission):
                del found[head.key]
                continue
            found[head.key] = _requeued(result)
            if result.inadmissible and result.is_of_shape:
                for other in self._waiting[head.cluster_queue]:
                    if other.shape == head.shape:
                        found[other.key]["place"] = "inadmissible"
        return found


def _may_run(workload: ScenarioWorkload) -> bool:
    quota = workload.condition("QuotaReserved")
    on_hold = quota is not None and not quota.status and quota.reason == "OnHold"
    replaced = workload.is_true(WAITING_FOR_REPLACEMENT)
    return not (workload.inactive or workload.is_true("Finished") or on_hold or replaced)


def _pending(workload: ScenarioWorkload, queue: str) -> PendingWorkload:
    podsets = tuple(
        PendingPodSet(_request(podset), podset.min_count, workload.reclaimable.get(podset.name, 0))
        for podset in workload.pod_sets
    )
    return PendingWorkload(
        key=workload.key,
        uid=workload.uid or workload.name,
        namespace=workload.namespace,
        cluster_queue=queue,
        priority=workload.priority,
        queue_timestamp=_queue_timestamp(workload),
        podsets=podsets,
        shape=(workload.priority, tuple(_shape(found) for found in podsets)),
    )


def _shape(podset: PendingPodSet) -> Hashable:
    request = podset.request
    affinity = request.node_affinity
    return (
        request.name,
        request.count - podset.reclaimable,
        podset.min_count,
        tuple(sorted(request.requests.items())),
        request.topology,
        request.group,
        tuple(sorted(request.node_selector.items())),
        None if affinity is None else json.dumps(affinity, sort_keys=True),
        request.tolerations,
    )


def _request(podset: ScenarioPodSet) -> PodSetRequest:
    return PodSetRequest(
        name=podset.name,
        count=podset.count,
        requests={name: request_amount(name, value) for name, value in podset.requests.items()},
        topology=_topology(podset.topology_request),
        group=podset.group,
        node_selector=podset.node_selector,
        tolerations=_tolerations(podset.tolerations),
        node_affinity=podset.node_affinity,
    )


def _topology(request: ScenarioTopologyRequest | None) -> TopologyRequest | None:
    """The request; None if it names no level and no slices."""
    if request is None:
        return None
    slices = tuple(SliceLayer(layer.topology, layer.size) for layer in request.slices)
    if not (request.required or request.preferred or request.unconstrained or slices):
        return None
    return TopologyRequest(request.required, request.preferred, request.unconstrained, slices)


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    return {resource: amount(resource, value) for resource, value in quantities.items()}


def _taints(taints: Iterable[ScenarioTaint]) -> tuple[Taint, ...]:
    return tuple(Taint(taint.key, taint.value, taint.effect) for taint in taints)


def _tolerations(tolerations: Iterable[ScenarioToleration]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(found.key, found.operator, found.value, found.effect) for found in tolerations
    )


# The answer.


def _admitted(result: HeadAdmission) -> dict[str, Any]:
    found = result.assignment
    return {
        "clusterQueue": found.cluster_queue,
        "podSets": [_admitted_podset(part) for part in found.podsets],
    }


def _admitted_podset(part: PodSetAssignment) -> dict[str, Any]:
    found: dict[str, Any] = {"name": part.name, "count": part.count, "flavors": dict(part.flavors)}
    if part.topology is not None:
        found["topology"] = {
            "levels": list(part.topology.levels),
            "domains": [
                {"values": list(values), "count": count} for values, count in part.topology.domains
            ],
        }
    return found


def _preempted(results: Iterable[HeadResult]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for result in results:
        if isinstance(result, HeadAdmission):
            continue
        for target in result.targets:
            entry: dict[str, Any] = {
                "workload": target.workload.key,
                "by": result.head.key,
                "reason": str(target.reason),
            }
            if target.workload.evicted:
                entry["ongoing"] = True
            found.append(entry)
    return sorted(found, key=lambda entry: entry["workload"])


def _requeued(result: HeadRequeue) -> dict[str, Any]:
    found: dict[str, Any] = {"evaluated": True}
    if result.reason:
        found["reason"] = str(result.reason)
    if result.message:
        found["message"] = result.message
    found["requeue"] = str(result.requeue)
    found["place"] = "inadmissible" if result.inadmissible else "queue"
    return found

"""Slim rows of what scheduling needs to know of Workloads and pods: no raw template is kept."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from rackgate.api import names
from rackgate.domains import AssignmentError, TopologyAssignment, decode
from rackgate.govern.predicates import podset_of_pod
from rackgate.govern.requests import request_errors
from rackgate.quantity import QuantityError, amount, quota_amount
from rackgate.resources import pod_requests
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.core.admission.storable import rounded
from rackgate_assigner.core.decisions import Grant, PodSetGrant
from rackgate_assigner.core.engine.affinity import node_affinity
from rackgate_assigner.core.model import NodeFacts, PodSetRequest, SliceLayer, TopologyRequest

REQUIRED_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"
HOST_LEVELS: Final = (names.HOSTNAME_LABEL,)
# Evictions that keep a Workload's place by the time of the eviction instead of its creation.
_AGEING_EVICTIONS: Final = frozenset(
    {"PodsReadyTimeout", "AdmissionCheck", names.EvictionReason.JOB_SUSPENDED}
)

PodShape: TypeAlias = tuple[tuple[str, int], ...]

_template_decoder = msgspec.json.Decoder(wire.PodTemplate)


@dataclass(frozen=True, slots=True)
class PodSetRow:
    """One PodSet: what placement asks, ready to be handed over, and the shape it is compared by.

    Attributes:
        request: per-pod amounts, selectors and topology request; `previous` is never set.
        shape: equal for PodSets that get the same answer from the same state.
        problem: why the template cannot be scheduled at all; None when it can.
        size: bytes of the template.
    """

    request: PodSetRequest
    shape: Hashable
    problem: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """What scheduling knows of one Workload.

    Attributes:
        key: `namespace/name`.
        generation: of the spec; the PodSets of one generation never change.
        queue: `namespace/name` of the LocalQueue, or "" when none is named.
        priority: `spec.priority`, None when absent.
        priority_class: name of the WorkloadPriorityClass, used while `priority` is absent.
        age: RFC 3339 time that orders equal priorities: creation, or an eviction that renews it.
        deleting: a deletion is under way; what is held stays held until the object is gone.
        evicted: condition Evicted is True.
        reserved: quota and topology held, decoded from `status.admission`; None while pending.
        shape: equal for Workloads that get the same answer from the same queue and state.
        pending_reason: reason of QuotaReserved=False as last written, "" when there is none.
        broken: why `status.admission` cannot be read; such a Workload holds and asks nothing.
        unhealthy: names in `status.unhealthyNodes`: hosts that await replacement.
        owned_by_pod: its controller is one plain pod, which cannot move.
        size: bytes of templates and annotations, rounded up.
    """

    key: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    owner_uid: str
    queue: str
    priority: int | None
    priority_class: str
    age: str
    active: bool
    deleting: bool
    finished: bool
    evicted: bool
    admitted: bool
    podsets: tuple[PodSetRow, ...]
    shape: Hashable
    reserved: Grant | None = None
    pending_reason: str = ""
    pending_message: str = ""
    broken: str | None = None
    unhealthy: tuple[str, ...] = ()
    owned_by_pod: bool = False
    size: int = 0

    @property
    def holds(self) -> bool:
        """Whether quota and room are taken: reserved and not finished."""
        return self.reserved is not None and not self.finished

    @property
    def waiting(self) -> bool:
        """Whether the Workload itself asks for admission, whatever its queues say."""
        idle = self.finished or self.deleting or not self.active
        return self.reserved is None and self.broken is None and not idle


@dataclass(frozen=True, slots=True)
class PodRow:
    """A bound pod that has not ended.

    Attributes:
        workload: `namespace/name` of the Workload its annotation names, "" for foreign pods.
        podset: PodSet its label names, "" for foreign pods.
        owner_uid: uid of its controller.
        requests: effective amounts by resource, sorted, without the implied 1 of `pods`.
    """

    key: str
    node: str
    workload: str
    podset: str
    owner_uid: str
    requests: PodShape


@dataclass(frozen=True, slots=True)
class Charge:
    """What one PodSet of a reservation takes of a topology.

    Attributes:
        requests: per pod, without the implied 1 of `pods`.
    """

    flavor: str
    requests: Mapping[str, int]
    assignment: TopologyAssignment

    @property
    def by_host(self) -> bool:
        """Whether the domains are hosts, known by their hostname label alone."""
        return self.assignment.levels == HOST_LEVELS


def charges_of(row: WorkloadRow, grant: Grant) -> tuple[Charge, ...]:
    """What a grant takes of the topology: one charge for each PodSet with an assignment."""
    requests = {podset.request.name: podset.request.requests for podset in row.podsets}
    return tuple(
        Charge(min(part.flavors.values(), default=""), requests.get(part.name, {}), part.topology)
        for part in grant.podsets
        if part.topology is not None
    )


def quota_of(grant: Grant) -> dict[tuple[str, str], int]:
    """What a grant takes of the quota: amounts by (flavor, resource)."""
    total: dict[tuple[str, str], int] = {}
    for part in grant.podsets:
        for resource, flavor in part.flavors.items():
            pair = (flavor, resource)
            total[pair] = total.get(pair, 0) + part.usage.get(resource, 0)
    return total


def node_facts(node: wire.Node) -> NodeFacts:
    """What placement needs of a node; quantities that cannot be read count as absent."""
    allocatable: dict[str, int] = {}
    for resource, value in node.status.allocatable.items():
        try:
            allocatable[resource] = amount(resource, value)
        except QuantityError:
            continue
    return NodeFacts(
        name=node.metadata.name,
        labels=node.metadata.labels,
        allocatable=allocatable,
        taints=node.spec.taints,
        unschedulable=node.spec.unschedulable,
        ready=node.ready,
    )


def pod_row(pod: wire.Pod) -> PodRow | None:
    """The row of a pod that takes room on a node; None when it is not bound or has ended."""
    if not pod.spec.node_name or pod.terminal:
        return None
    meta = pod.metadata
    try:
        status = pod.status
        statuses = (*status.container_statuses, *status.init_container_statuses)
        requests = pod_requests(pod.spec, statuses)
    except QuantityError:  # the API server lets no such pod through
        requests = {}
    claim = podset_of_pod(meta.annotations, meta.labels)
    owner = meta.controller
    return PodRow(
        key=meta.key,
        node=pod.spec.node_name,
        workload=f"{meta.namespace}/{claim[0]}" if claim else "",
        podset=claim[1] if claim else "",
        owner_uid=owner.uid if owner else "",
        requests=tuple(sorted(requests.items())),
    )


def _topology_request(asked: kueue.PodSetTopologyRequest | None) -> TopologyRequest | None:
    """The request in the engine's terms; None when neither a level nor slices are asked for."""
    if asked is None:
        return None
    slices = tuple(
        SliceLayer(layer.topology, layer.size)
        for layer in asked.podset_slice_required_topology_constraints
    )
    layered = bool(slices)
    if not slices and asked.pod_set_slice_required_topology:
        # Size 0 makes the engine answer that the size was not provided.
        size = asked.pod_set_slice_size or 0
        slices = (SliceLayer(asked.pod_set_slice_required_topology, size),)
    unconstrained = bool(asked.unconstrained)
    if not (asked.required or asked.preferred or unconstrained or slices):
        return None
    return TopologyRequest(asked.required, asked.preferred, unconstrained, slices, layered)


def _shape_of(request: PodSetRequest) -> Hashable:
    affinity = request.node_affinity
    return (
        request.name,
        request.count,
        tuple(sorted(request.requests.items())),
        request.topology,
        request.group,
        tuple(sorted(request.node_selector.items())),
        request.tolerations,
        None if affinity is None else json.dumps(affinity, sort_keys=True),
    )


def _podset_row(index: int, podset: kueue.PodSet, excluded: tuple[str, ...]) -> PodSetRow:
    problem = _asked_problem(f"spec.podSets[{index}]", podset)
    spec, requests, affinity = wire.PodSpec(), {}, None
    try:
        spec = _template_decoder.decode(podset.template).spec
        requests = without_excluded(pod_requests(spec), excluded)
        affinity = node_affinity(spec)
    except (msgspec.MsgspecError, QuantityError, RecursionError) as error:
        problem = problem or f"spec.podSets[{podset.name}].template: {error}"
    negative = sorted(resource for resource, value in requests.items() if value < 0)
    if negative:
        problem = f"spec.podSets[{podset.name}].template: negative request of {negative[0]}"
    asked = podset.topology_request
    request = PodSetRequest(
        name=podset.name,
        count=podset.count,
        requests=requests,
        topology=_topology_request(asked),
        group=(asked.pod_set_group_name if asked else None) or None,
        node_selector=spec.node_selector,
        tolerations=spec.tolerations,
        node_affinity=affinity,
    )
    return PodSetRow(request, (_shape_of(request), problem), problem, len(podset.template))


def without_excluded(requests: Mapping[str, int], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Requests without the resources whose names start with one of the prefixes (C16)."""
    return {name: value for name, value in requests.items() if not name.startswith(prefixes)}


def _asked_problem(path: str, podset: kueue.PodSet) -> str | None:
    """What no API server of ours stores: a count or a topology request that makes no sense."""
    if podset.count < 0:
        return f"{path}.count: {podset.count} is not a number of pods"
    if podset.topology_request is None:
        return None
    asked = msgspec.to_builtins(podset.topology_request)
    errors = request_errors(asked, f"{path}.topologyRequest", count=podset.count)
    return "; ".join(map(str, errors)) or None


def _grant_of(admission: kueue.Admission) -> Grant:
    """Decode what the API server stores.

    Raises:
        AssignmentError: a topology assignment cannot be read.
        QuantityError: an amount cannot be read.
    """
    podsets = tuple(
        PodSetGrant(
            name=part.name,
            flavors=part.flavors,
            usage={
                resource: quota_amount(resource, value)
                for resource, value in part.resource_usage.items()
            },
            count=part.count,
            topology=None if part.topology_assignment is None else decode(part.topology_assignment),
        )
        for part in admission.pod_set_assignments
    )
    return Grant(admission.cluster_queue, podsets)


def _reservation(workload: kueue.Workload) -> tuple[Grant | None, str | None]:
    """The grant held, and why it cannot be read."""
    admission = workload.status.admission
    if admission is None or not workload.is_true(names.WorkloadCondition.QUOTA_RESERVED):
        return None, None
    try:
        return _grant_of(admission), None
    except (AssignmentError, QuantityError) as error:
        return None, f"status.admission: {error}"


def _age(workload: kueue.Workload) -> str:
    evicted = workload.condition(names.WorkloadCondition.EVICTED)
    renewed = evicted is not None and evicted.status == "True"
    if evicted is not None and renewed and evicted.reason in _AGEING_EVICTIONS:
        return evicted.last_transition_time or ""
    return workload.metadata.creation_timestamp or ""


def _podset_rows(
    workload: kueue.Workload, previous: WorkloadRow | None, excluded: tuple[str, ...]
) -> tuple[PodSetRow, ...]:
    """PodSets of the spec; templates of a generation that is known are not decoded again."""
    meta = workload.metadata
    if previous is not None and meta.generation:
        known = (previous.uid, previous.generation)
        if known == (meta.uid, meta.generation):
            return previous.podsets
    return tuple(
        _podset_row(index, podset, excluded) for index, podset in enumerate(workload.spec.pod_sets)
    )


def workload_row(
    workload: kueue.Workload,
    previous: WorkloadRow | None = None,
    excluded: tuple[str, ...] = (),
) -> WorkloadRow:
    """Project a Workload; what cannot be read is named in `problem` and `broken`, never raised.

    Args:
        workload: as the watch decoded it.
        previous: the row it replaces, if any; of the same `excluded`.
        excluded: prefixes of resources that count neither for quota nor for room.
    """
    meta, spec = workload.metadata, workload.spec
    podsets = _podset_rows(workload, previous, excluded)
    reserved, broken = _reservation(workload)
    quota = workload.condition(names.WorkloadCondition.QUOTA_RESERVED)
    pending = quota if quota is not None and quota.status == "False" else wire.Condition()
    owner = meta.controller
    reference = spec.priority_class_ref
    annotations = sum(len(key) + len(value) for key, value in meta.annotations.items())
    size = rounded(sum(podset.size for podset in podsets) + annotations)
    return WorkloadRow(
        key=meta.key,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        owner_uid=owner.uid if owner else "",
        queue=f"{meta.namespace}/{spec.queue_name}" if spec.queue_name else "",
        priority=spec.priority,
        priority_class=reference.name if reference and reference.group == names.GROUP else "",
        age=_age(workload),
        active=spec.active,
        deleting=meta.deletion_timestamp is not None,
        finished=workload.is_true(names.WorkloadCondition.FINISHED),
        evicted=workload.is_true(names.WorkloadCondition.EVICTED),
        admitted=workload.is_true(names.WorkloadCondition.ADMITTED),
        podsets=podsets,
        shape=(size, *(podset.shape for podset in podsets)),
        reserved=reserved,
        pending_reason=pending.reason,
        pending_message=pending.message,
        broken=broken,
        unhealthy=tuple(node.name for node in workload.status.unhealthy_nodes),
        owned_by_pod=owner is not None and (owner.kind, owner.api_version) == ("Pod", "v1"),
        size=size,
    )

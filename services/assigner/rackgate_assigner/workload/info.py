"""Projections of Workloads, pods and nodes for scheduling; no raw template is kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeAlias

from rackgate.api import names
from rackgate.jobframework.managed import is_group_pod, owner_uid_of_pod, podset_of_pod
from rackgate.jobframework.registry import KINDS
from rackgate.resources.pod_requests import pod_requests
from rackgate.resources.quantity import QuantityError, amount, quota_amount
from rackgate.topology.assignment import AssignmentError, TopologyAssignment, decode
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.execution_time import execution_time_limit
from rackgate_assigner.workload.object_size import rounded
from rackgate_assigner.workload.podsets import Nesting, PodSetResources, podset_resources

REQUIRED_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"
HOST_LEVELS: Final = (names.HOSTNAME_LABEL,)
# Evictions that order a Workload by the time of the eviction instead of its creation.
_EVICTIONS_THAT_REQUEUE_AT_THE_BACK: Final = frozenset(
    {
        names.EvictionReason.PODS_READY_TIMEOUT,
        names.EvictionReason.ADMISSION_CHECK,
        names.EvictionReason.JOB_SUSPENDED,
    }
)

# Others may write any cause; metrics and counts have these only.
_CAUSES: Final = frozenset(names.UnderlyingCause)

# Seconds for which a replacement pod may overlap the old one; twice the default grace period.
LONG_GRACE_PERIOD_S: Final = 60

PodShape: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """What scheduling knows of one Workload.

    Attributes:
        key: `namespace/name`.
        generation: of the spec; the PodSets of one generation never change.
        queue: `namespace/name` of the LocalQueue, or "" if none is named.
        priority: `spec.priority`, None if absent.
        priority_class: name of the WorkloadPriorityClass, used if `priority` is absent.
        queue_timestamp: RFC 3339 time that orders equal priorities: creation, or an eviction that
            renews it.
        deleting: being deleted; its usage stays charged until the object is gone.
        evicted: condition Evicted is True.
        reserved: reserved quota and topology, decoded from `status.admission`; None while pending.
        shape: equal for Workloads that get the same decision from the same queue and state.
        pending_reason: reason of QuotaReserved=False as last written, "" if there is none.
        admission_error: why `status.admission` cannot be read; such a Workload has no usage and
            is not admitted.
        unhealthy: names in `status.unhealthyNodes`: hosts to be replaced.
        owned_by_pod: its controller is one plain pod, which cannot move.
        size: bytes of templates and annotations, rounded up.
        elastic: it may be resized while it runs; slices are elastic, too.
        parent: `namespace/name` of the Workload that this one is a slice of, "" for all others.
        merged_slices: uids in `status.foldedSlices`: slices whose pods `reserved` already includes.
        reclaimable: pods that are done and not created again, by PodSet.
        reserved_at: RFC 3339 time since when quota is reserved, "" without a reservation.
        evicted_at: RFC 3339 time of the eviction that is under way, "" without one.
        evicted_reason: reason of its last eviction, "" after it reserved quota again.
        requeue_at: RFC 3339 time of the end of its backoff after an eviction, "" without one.
        deactivation_cause: reason of condition DeactivationTarget if that is True, see
            `UnderlyingCause`; else "".
        deactivation_message: its message.
        not_ready_reason: why not all of its pods are ready: WaitForRecovery if PodsReady says that
            they were ready before, else WaitForStart, also while an admitted job has no PodsReady;
            "" if all are ready or none should be.
        not_ready_since: RFC 3339 time since when they are not ready, according to PodsReady.
        job_uid: of the job that it was made for, even if that is not its owner any more; else its
            controller.
        passed_checks: it has quota and passed its admission checks, and is to be placed.
        checks: states of its admission checks.
        admitted_at: RFC 3339 time of its admission, "" if it is not admitted.
        execution_time_s: seconds that one admission may last; inf without a maximum.
        was_preempted: an earlier admission ended with a preemption.
        nesting: its annotation about domains that PodSets share, "" without one.
        hold: why its gangs do not allow an admission; "" if they do.
        slice_chain: see `SliceChains`; "" without one, or if it is Finished.
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
    queue_timestamp: str
    active: bool
    deleting: bool
    finished: bool
    evicted: bool
    admitted: bool
    podsets: tuple[PodSetResources, ...]
    shape: Hashable
    reserved: Assignment | None = None
    pending_reason: str = ""
    pending_message: str = ""
    admission_error: str | None = None
    unhealthy: tuple[str, ...] = ()
    owned_by_pod: bool = False
    size: int = 0
    elastic: bool = False
    parent: str = ""
    merged_slices: frozenset[str] = frozenset()
    reclaimable: Mapping[str, int] = field(default_factory=dict)
    reserved_at: str = ""
    evicted_at: str = ""
    evicted_reason: str = ""
    job_uid: str = ""
    requeue_at: str = ""
    deactivation_cause: str = ""
    deactivation_message: str = ""
    not_ready_reason: str = ""
    not_ready_since: str = ""
    passed_checks: bool = False
    checks: tuple[kueue.AdmissionCheckState, ...] = ()
    admitted_at: str = ""
    execution_time_s: float = inf
    was_preempted: bool = False
    nesting: str = ""
    hold: str = ""
    slice_chain: str = ""

    @property
    def across(self) -> str:
        """The Workload of gangs with whose other Workloads it shares a domain; "" for none."""
        if not self.nesting:
            return ""
        shared = (one for podset in self.podsets for one in podset.request.shared[:1])
        return next((one.across for one in shared if one.across), "")

    @property
    def grace_period_s(self) -> int:
        """Seconds that its pods may take to terminate."""
        return max((podset.grace_period_s for podset in self.podsets), default=0)

    @property
    def holds_quota(self) -> bool:
        """Whether it has quota and capacity: reserved and not finished."""
        return self.reserved is not None and not self.finished

    @property
    def pending(self) -> bool:
        """Whether the Workload is to be admitted, regardless of its queues."""
        idle = self.finished or self.deleting or not self.active
        return self.reserved is None and self.admission_error is None and not idle

    @property
    def scheduling_inputs(self) -> tuple[object, ...]:
        """The fields that a scheduling cycle uses, for the Workload itself or for its slices."""
        place = (self.uid, self.queue, self.priority, self.priority_class, self.queue_timestamp)
        running = self.elastic and self.admitted
        state = (self.active, self.evicted, self.requeue_at, running, self.passed_checks)
        return (*place, *state, self.shape, self.unhealthy, self.execution_time_s)

    @property
    def pending_inputs(self) -> tuple[object, ...]:
        """The fields that decide about the Workload itself while it is pending."""
        who = (self.owner_uid, self.evicted_reason, self.reclaimable, self.hold)
        return (*self.scheduling_inputs, *who)

    @property
    def preemption_inputs(self) -> tuple[object, ...]:
        """The fields that decide whether others may preempt it."""
        order = (self.priority, self.priority_class, self.queue_timestamp)
        return (self.uid, *order, self.evicted, self.parent, self.was_preempted)

    @property
    def family_inputs(self) -> tuple[object, ...]:
        """The fields that decisions about its slices depend on."""
        states = (self.active, self.deleting, self.finished, self.evicted, self.admitted)
        held = (self.reserved, self.admission_error, self.elastic, self.merged_slices)
        return (self.uid, self.owner_uid, self.job_uid, *states, *held, self.shape)


def priority_of(info: WorkloadInfo, classes: Mapping[str, int]) -> int:
    """`spec.priority`, else the value of its WorkloadPriorityClass, else 0."""
    if info.priority is not None:
        return info.priority
    return classes.get(info.priority_class, 0)


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A bound pod that has not ended.

    Attributes:
        workload: `namespace/name` of the Workload its annotation names, or that Kueue replaced that
            one with; "" for foreign pods.
        podset: PodSet its label names, "" for foreign pods.
        owner_uid: uid of its controller or group; of the last one, for a pod that lost it.
        requests: effective amounts by resource, sorted, without the implied 1 of `pods`.
        terminating: a deletion timestamp is set.
        has_long_grace_period: it is being deleted, with a long grace period.
        is_job_pod: its controller is of a kind whose pods may use quota, it names a Workload, or
            it is one of a group of plain pods.
        workload_annotation: `namespace/name` of the Workload that it names, whether or not it is
            placed by topology.
        slice_chain: see `SliceChains`; "" without one.
    """

    key: str
    node: str
    workload: str
    podset: str
    owner_uid: str
    requests: PodShape
    uid: str = ""
    terminating: bool = False
    has_long_grace_period: bool = False
    is_job_pod: bool = False
    workload_annotation: str = ""
    slice_chain: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """Usage of a topology by one PodSet of a reservation.

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


def topology_charges(row: WorkloadInfo, assignment: Assignment) -> tuple[Charge, ...]:
    """Usage of the topology by an assignment: one charge for each PodSet with an assignment."""
    podsets = {podset.request.name: podset for podset in row.podsets}
    return tuple(
        Charge(
            min(part.flavors.values(), default=""),
            assigned_per_pod(part, podsets.get(part.name)),
            part.topology,
        )
        for part in assignment.podsets
        if part.topology is not None
    )


def assigned_per_pod(part: PodSetAssignment, podset: PodSetResources | None) -> Mapping[str, int]:
    """Usage of one pod of an admitted PodSet, without the implied 1 of `pods`.

    The admission counts, regardless of LimitRanges and RuntimeClasses now. For resources without a
    flavor the template counts.
    """
    now: Mapping[str, int] = {} if podset is None else podset.request.requests
    found = {} if podset is None else dict(podset.template_requests)
    if part.count > 0:
        usage = part.usage.items()
        found |= {name: -(-amount // part.count) for name, amount in usage if name != "pods"}
    return now if found == now else found


def replacement_requests(row: WorkloadInfo) -> dict[str, PodSetRequest]:
    """Requests by PodSet for pods that are created again.

    They request according to the current defaults, but no less than was admitted.
    """
    parts = {} if row.reserved is None else {part.name: part for part in row.reserved.podsets}
    found = {}
    for podset in row.podsets:
        request = podset.request
        part = parts.get(request.name)
        admitted = request.requests if part is None else assigned_per_pod(part, podset)
        if admitted != request.requests:
            names = {**admitted, **request.requests}
            now = request.requests
            larger = {name: max(admitted.get(name, 0), now.get(name, 0)) for name in names}
            request = replace(request, requests=larger)
        found[request.name] = request
    return found


def quota_usage(
    assignment: Assignment, left: Mapping[str, int] | None = None
) -> dict[tuple[str, str], int]:
    """Usage of quota by an assignment: amounts by (flavor, resource).

    Args:
        assignment: of the Workload.
        left: by PodSet, number of remaining pods; all pods if a PodSet is not in it.
    """
    total: dict[tuple[str, str], int] = {}
    for part in assignment.podsets:
        pods = (left or {}).get(part.name, part.count)
        for resource, flavor in part.flavors.items():
            pair, amount = (flavor, resource), part.usage.get(resource, 0)
            if pods < part.count:
                amount = amount // part.count * pods
            total[pair] = total.get(pair, 0) + amount
    return total


def remaining_pods(row: WorkloadInfo) -> dict[str, int]:
    """By PodSet, the pods that are not done: only PodSets with reclaimable pods."""
    return {
        podset.request.name: max(0, podset.request.count - row.reclaimable[podset.request.name])
        for podset in row.podsets
        if row.reclaimable.get(podset.request.name, 0) > 0
    }


def node_info(node: wire.Node) -> NodeInfo:
    """Fields of a node that placement needs; unreadable quantities count as absent."""
    allocatable: dict[str, int] = {}
    for resource, value in node.status.allocatable.items():
        try:
            allocatable[resource] = amount(resource, value)
        except QuantityError:
            continue
    return NodeInfo(
        name=node.metadata.name,
        labels=node.metadata.labels,
        allocatable=allocatable,
        taints=node.spec.taints,
        unschedulable=node.spec.unschedulable,
        ready=node.ready,
    )


def pod_info(pod: wire.Pod) -> PodInfo | None:
    """A bound pod; None when it is not bound or has ended."""
    if not pod.spec.node_name or pod.terminal:
        return None
    meta = pod.metadata
    try:
        status = pod.status
        statuses = (*status.container_statuses, *status.init_container_statuses)
        requests = pod_requests(pod.spec, statuses)
    except QuantityError:  # the API server rejects such a pod
        requests = {}
    claim = podset_of_pod(meta.annotations, meta.labels)
    named = meta.annotations.get(names.WORKLOAD_ANNOTATION)
    owner, owner_uid = meta.controller, owner_uid_of_pod(meta)
    return PodInfo(
        key=meta.key,
        node=pod.spec.node_name,
        workload=f"{meta.namespace}/{claim[0]}" if claim else "",
        podset=claim[1] if claim else "",
        owner_uid=owner_uid,
        requests=tuple(sorted(requests.items())),
        uid=meta.uid,
        terminating=meta.deletion_timestamp is not None,
        has_long_grace_period=(meta.deletion_grace_period_seconds or 0) > LONG_GRACE_PERIOD_S,
        is_job_pod=bool(named)
        or (owner is not None and _controls_pods(owner.kind))
        or is_group_pod(meta),
        workload_annotation=f"{meta.namespace}/{named}" if named else "",
        slice_chain=_slice_chain(meta) if claim else "",
    )


def _slice_chain(meta: wire.Meta) -> str:
    first = meta.annotations.get(names.KUEUE_SLICE_CHAIN_ANNOTATION)
    return f"{meta.namespace}/{first}" if first else ""


def _controls_pods(kind: str) -> bool:
    """Whether pods of managed jobs are controlled by this kind; those of JobSets are by Jobs."""
    found = KINDS.get(kind)
    return found is not None and not found.child_job_label


def _decode_assignment(admission: kueue.Admission) -> Assignment:
    """Decode an admission as stored by the API server.

    Raises:
        AssignmentError: a topology assignment cannot be read.
        QuantityError: an amount cannot be read.
    """
    podsets = tuple(
        PodSetAssignment(
            name=part.name,
            flavors=part.flavors,
            usage={
                resource: quota_amount(resource, value)
                for resource, value in part.resource_usage.items()
            },
            count=part.count,
            topology=None if part.topology_assignment is None else decode(part.topology_assignment),
            delayed=part.delayed_topology_request or "",
        )
        for part in admission.pod_set_assignments
    )
    return Assignment(admission.cluster_queue, podsets)


def _reservation(workload: kueue.Workload) -> tuple[Assignment | None, str | None]:
    """The current assignment, and why it cannot be read."""
    admission = workload.status.admission
    if admission is None or not workload.is_true(names.WorkloadCondition.QUOTA_RESERVED):
        return None, None
    try:
        return _decode_assignment(admission), None
    except (AssignmentError, QuantityError) as error:
        return None, f"status.admission: {error}"


def _queue_timestamp(workload: kueue.Workload, *, requeue_by_creation: bool) -> str:
    evicted = workload.condition(names.WorkloadCondition.EVICTED)
    renewed = evicted is not None and evicted.status == "True"
    if evicted is not None and evicted.reason == names.EvictionReason.PODS_READY_TIMEOUT:
        renewed = renewed and not requeue_by_creation
    if evicted is not None and renewed and evicted.reason in _EVICTIONS_THAT_REQUEUE_AT_THE_BACK:
        return evicted.last_transition_time or ""
    return workload.metadata.creation_timestamp or ""


def _is_true(condition: wire.Condition | None) -> bool:
    return condition is not None and condition.status == "True"


def _transition_time(condition: wire.Condition | None) -> str:
    return (condition.last_transition_time or "") if condition is not None else ""


def _podset_resources(
    workload: kueue.Workload, previous: WorkloadInfo | None, excluded: tuple[str, ...]
) -> tuple[PodSetResources, ...]:
    """PodSets of the spec; templates of a known generation are not decoded again."""
    meta = workload.metadata
    written = meta.annotations.get(names.GANG_NESTING_ANNOTATION, "")
    if previous is not None and meta.generation:
        known = (previous.uid, previous.generation, previous.nesting)
        if known == (meta.uid, meta.generation, written):
            return previous.podsets
    podsets = [podset.name for podset in workload.spec.pod_sets]
    nesting = Nesting.read(written, podsets, meta.namespace)
    return tuple(
        podset_resources(index, podset, excluded, nesting)
        for index, podset in enumerate(workload.spec.pod_sets)
    )


def _shape_of(size: int, parent: str, podsets: tuple[PodSetResources, ...]) -> Hashable:
    return (size, parent, *(podset.shape for podset in podsets))


def with_podsets(row: WorkloadInfo, podsets: tuple[PodSetResources, ...]) -> WorkloadInfo:
    """The Workload with other PodSets."""
    return replace(row, podsets=podsets, shape=_shape_of(row.size, row.parent, podsets))


def _passed_checks(workload: kueue.Workload, reserved: Assignment | None) -> bool:
    """Whether only its placement is missing."""
    if reserved is None or not reserved.awaits_topology:
        return False
    admitted = workload.condition(names.WorkloadCondition.ADMITTED)
    reason = admitted.reason if admitted is not None and admitted.status == "False" else ""
    return reason == names.PendingReason.PENDING_DELAYED_TOPOLOGY


def _was_preempted(workload: kueue.Workload) -> bool:
    stats = workload.status.scheduling_stats
    evictions = () if stats is None else stats.evictions
    return any(found.reason == names.EvictionReason.PREEMPTED for found in evictions)


def _not_ready_reason(workload: kueue.Workload, ready: wire.Condition | None) -> str:
    if ready is not None:
        return ready.reason if ready.status == "False" else ""
    # Workloads without a job have no such condition, and slices neither: their parents have it.
    reported = bool(workload.job_uid) and workload.parent is None
    starts = reported and workload.is_true(names.WorkloadCondition.ADMITTED)
    return "WaitForStart" if starts else ""


def workload_info(
    workload: kueue.Workload,
    previous: WorkloadInfo | None = None,
    excluded: tuple[str, ...] = (),
    *,
    requeue_by_creation: bool = False,
) -> WorkloadInfo:
    """Project a Workload; unreadable fields are reported in `problem` and `admission_error`.

    Args:
        workload: as decoded by the watch.
        previous: the projection it replaces, if any; of the same `excluded`.
        excluded: prefixes of resources that count neither for quota nor for capacity.
        requeue_by_creation: its creation orders it even after an eviction for missing pods.
    """
    meta, spec = workload.metadata, workload.spec
    podsets = _podset_resources(workload, previous, excluded)
    reserved, admission_error = _reservation(workload)
    quota = workload.condition(names.WorkloadCondition.QUOTA_RESERVED)
    admitted = workload.condition(names.WorkloadCondition.ADMITTED)
    evicted = workload.condition(names.WorkloadCondition.EVICTED)
    leaving = evicted is not None and evicted.status == "True"
    ready = workload.condition(names.WorkloadCondition.PODS_READY)
    not_ready_reason = ready is not None and ready.status == "False"
    target = workload.condition(names.WorkloadCondition.DEACTIVATION_TARGET)
    if target is None or target.status != "True" or target.reason not in _CAUSES:
        target = wire.Condition()
    pending = quota if quota is not None and quota.status == "False" else wire.Condition()
    owner = meta.controller
    parent = f"{meta.namespace}/{workload.parent.name}" if workload.parent is not None else ""
    reference = spec.priority_class_ref
    annotations = sum(len(key) + len(value) for key, value in meta.annotations.items())
    size = rounded(sum(podset.size for podset in podsets) + annotations)
    return WorkloadInfo(
        key=meta.key,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        owner_uid=workload.owner_uid,
        queue=f"{meta.namespace}/{spec.queue_name}" if spec.queue_name else "",
        priority=spec.priority,
        priority_class=reference.name if reference and reference.group == names.GROUP else "",
        queue_timestamp=_queue_timestamp(workload, requeue_by_creation=requeue_by_creation),
        active=spec.active,
        deleting=meta.deletion_timestamp is not None,
        finished=workload.is_true(names.WorkloadCondition.FINISHED),
        evicted=leaving,
        admitted=_is_true(admitted),
        podsets=podsets,
        shape=_shape_of(size, parent, podsets),
        reserved=reserved,
        pending_reason=pending.reason,
        pending_message=pending.message,
        admission_error=admission_error,
        unhealthy=tuple(node.name for node in workload.status.unhealthy_nodes),
        owned_by_pod=owner is not None and (owner.kind, owner.api_version) == ("Pod", "v1"),
        size=size,
        elastic=workload.elastic,
        parent=parent,
        merged_slices=frozenset(found.uid for found in workload.status.folded_slices),
        reclaimable={found.name: found.count for found in workload.status.reclaimable_pods},
        reserved_at=_transition_time(quota) if reserved is not None else "",
        evicted_at=_transition_time(evicted) if leaving else "",
        evicted_reason=evicted.reason if evicted is not None and leaving else "",
        job_uid=workload.job_uid,
        requeue_at=(retry.requeue_at or "") if (retry := workload.status.requeue_state) else "",
        deactivation_cause=target.reason,
        deactivation_message=target.message,
        not_ready_reason=_not_ready_reason(workload, ready),
        not_ready_since=_transition_time(ready) if not_ready_reason else "",
        passed_checks=_passed_checks(workload, reserved),
        checks=workload.status.admission_checks,
        admitted_at=_transition_time(admitted) if _is_true(admitted) else "",
        execution_time_s=execution_time_limit(workload),
        was_preempted=_was_preempted(workload),
        nesting=meta.annotations.get(names.GANG_NESTING_ANNOTATION, ""),
        slice_chain=_slice_chain(meta)
        if workload.elastic and not workload.is_true(names.WorkloadCondition.FINISHED)
        else "",
    )

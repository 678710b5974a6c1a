"""The fields of pods and Workloads that ungating needs. Others are not decoded.

Watched objects are not kept. Rows share repeated strings, and topology assignments stay bytes until
they are needed, so other status writes cost no decoding.
"""

from __future__ import annotations

from sys import intern
from typing import Final, NewType

import msgspec

from rackgate.api import names
from rackgate.gang.link import link_of
from rackgate.gang.runs.done_pods import DonePods, decode_done_pods
from rackgate.jobframework.managed import podset_of_pod
from rackgate.jobframework.pod_group.membership import group_uid, is_gang_id
from rackgate.jobframework.registry import has_child_jobs
from rackgate.wire.core import Condition, Meta, MetadataOnly, SchedulingGate, View
from rackgate.wire.depth import tolerant
from rackgate.wire.kueue import MergedSlice, NodeName, PodSetTopologyRequest, ReclaimablePod

PodUid = NewType("PodUid", str)
WorkloadKey = NewType("WorkloadKey", str)

# Bits of `GatedPod.gates`.
TOPOLOGY: Final = 1
ELASTIC: Final = 2
GANG: Final = 4
ADMISSION: Final = 8  # of plain pods
GATES: Final = {
    names.TOPOLOGY_GATE: TOPOLOGY,
    names.ELASTIC_GATE: ELASTIC,
    names.GANG_GATE: GANG,
    names.ADMISSION_GATE: ADMISSION,
}
_GATES_WITHOUT_GANGS: Final = {name: bit for name, bit in GATES.items() if bit != GANG}

_MAX_INDEX_DIGITS = 9  # an index is an int32; longer digit strings are not an index
_INVALID_OFFSET = -1


class GatedPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of one pod.

    Attributes:
        workload: name from the annotation; empty when the pod names none.
        owner_uid: UID of the controlling owner, empty when there is none.
        gates: our gates on the pod, as bits.
        terminating: a deletion timestamp is set.
        terminal: phase Succeeded or Failed: takes no capacity any more.
        selector: the pod's whole nodeSelector.
        indices: labels whose value is a small integer; of pods of gangs annotations as well.
        index_offset: the pod-index-offset annotation, -1 if it is not an integer.
        version: resourceVersion as a number, 0 if it is not a number.
        grace_s: grace period of its deletion in seconds; 0 if it is not being deleted.
        terms: JSON of its required `nodeSelectorTerms` while it is gated; empty without any.
        group_uid: what identifies the group of a plain pod, see `membership`; empty for others.
        slice_chain: of a pod whose elastic job Kueue started, the first Workload slice of the job.
    """

    namespace: str
    name: str
    uid: PodUid
    resource_version: str
    workload: str
    podset: str
    owner_uid: str
    gates: int
    terminating: bool
    terminal: bool
    selector: dict[str, str]
    indices: dict[str, int]
    index_offset: int | None = None
    version: int = 0
    grace_s: float = 0.0
    terms: str = ""
    group_uid: str = ""
    slice_chain: str = ""

    @property
    def gated(self) -> bool:
        """Whether it has one of our gates."""
        return self.gates != 0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def chain(self) -> str:
        """Its chain of Workload slices; "" for none."""
        return f"{self.namespace}/{self.slice_chain}" if self.slice_chain else ""

    @property
    def workload_key(self) -> WorkloadKey:
        """`namespace/name` of the Workload that the pod names."""
        return WorkloadKey(intern(f"{self.namespace}/{self.workload}"))

    def is_equal_except_version(self, other: GatedPod) -> bool:
        """Whether all fields that planning reads are equal."""
        return (
            self.gates == other.gates
            and self.terminating == other.terminating
            and self.terminal == other.terminal
            and self.selector == other.selector
            and self.indices == other.indices
            and self.podset == other.podset
            and self.owner_uid == other.owner_uid
            and self.group_uid == other.group_uid
            and self.workload == other.workload
            and self.index_offset == other.index_offset
        )


class GangPod(GatedPod, frozen=True, gc=False, kw_only=True):
    """A pod that names a Workload of gangs, or has the gate of gangs. Others have no such fields.

    Attributes:
        link: name of the Workload of gangs; empty if it names none.
        run: id of the run under which it was released; empty if it was not.
        labels: all of them: selectors of groups may read any.
        foreign_gates: names of gates of other owners.
        succeeded: phase Succeeded.
        pod_group: name of its native PodGroup; empty if it has none. It never changes.
        priority_class: of the pod. It never changes.
    """

    link: str
    run: str = ""
    labels: dict[str, str] = {}
    foreign_gates: tuple[str, ...] = ()
    succeeded: bool = False
    pod_group: str = ""
    priority_class: str = ""

    @property
    def link_key(self) -> str:
        """`namespace/name` of the Workload of gangs."""
        return f"{self.namespace}/{self.link}"

    def is_equal_except_version(self, other: GatedPod) -> bool:
        """Whether all fields that planning reads are equal."""
        return (
            isinstance(other, GangPod)
            and GatedPod.is_equal_except_version(self, other)
            and self.link == other.link
            and self.run == other.run
            and self.labels == other.labels
            and self.foreign_gates == other.foreign_gates
            and self.succeeded == other.succeeded
        )


class GatedPodSet(msgspec.Struct, frozen=True, gc=False):
    """What was admitted for one PodSet, and how its pods are numbered.

    Attributes:
        count: admitted pods; None if only the assignment has it.
        assignment: JSON of `topologyAssignment`, None without one.
        requested: the PodSet carries a topologyRequest.
        reclaimable: admitted pods that have succeeded since, and whose quota is released.
        succeeded: pods that have succeeded and are not needed again, in this run or an earlier one.
    """

    name: str
    count: int | None
    assignment: bytes | None
    requested: bool = False
    pod_index_label: str | None = None
    sub_group_index_label: str | None = None
    sub_group_count: int | None = None
    group_name: str | None = None
    reclaimable: int = 0
    succeeded: int = 0


class GatedWorkload(msgspec.Struct, frozen=True, gc=False):
    """The fields of one Workload.

    Attributes:
        admitted: admitted, and neither evicted, finished, deactivated nor being deleted.
        admitted_at: RFC 3339 time of the Admitted condition, None when not admitted.
        unhealthy: names of nodes that await replacement.
        elastic: its PodSets may be resized while they run.
        owned_by_jobset: its pods belong to child Jobs of its owner.
        owned_by_ray_job: its pods belong to the RayCluster and to the Job of its owner.
        of_plain_pods: its pods are plain pods.
        parent: the Workload that this one is a slice of.
        merged: UIDs of slices that the counts already include.
        run_spec: of a gang of pods that no job owns, the numbers of its run as JSON.
        done_pods: of gangs, those that child Jobs have completed; empty for none.
        slice_chain: if Kueue wrote it for an elastic job, the first Workload slice of the job.
            Empty once it is Finished: Kueue finishes a slice that it replaces.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str
    admitted: bool
    cluster_queue: str = ""
    admitted_at: str | None = None
    unhealthy: tuple[str, ...] = ()
    podsets: tuple[GatedPodSet, ...] = ()
    version: int = 0
    elastic: bool = False
    owned_by_jobset: bool = False
    owned_by_ray_job: bool = False
    of_plain_pods: bool = False
    parent: WorkloadKey | None = None
    merged: tuple[str, ...] = ()
    run_spec: str = ""
    done_pods: DonePods = {}
    slice_chain: str = ""

    @property
    def key(self) -> WorkloadKey:
        """`namespace/name`."""
        return WorkloadKey(intern(f"{self.namespace}/{self.name}"))

    @property
    def chain(self) -> str:
        """Its chain of Workload slices; "" for none."""
        return f"{self.namespace}/{self.slice_chain}" if self.slice_chain else ""

    @property
    def has_children(self) -> bool:
        """Whether children of its owner control its pods."""
        return self.owned_by_jobset or self.owned_by_ray_job

    def has_same_admission(self, other: GatedWorkload) -> bool:
        """Whether both allow the same ungating."""
        return (
            self.uid == other.uid
            and self.owner_uid == other.owner_uid
            and self.admitted == other.admitted
            and self.admitted_at == other.admitted_at
            and self.unhealthy == other.unhealthy
            and self.podsets == other.podsets
            and self.merged == other.merged
            and self.elastic == other.elastic
            and self.parent == other.parent
            and self.owned_by_jobset == other.owned_by_jobset
            and self.owned_by_ray_job == other.owned_by_ray_job
            and self.of_plain_pods == other.of_plain_pods
            and self.run_spec == other.run_spec
            and self.done_pods == other.done_pods
            and self.slice_chain == other.slice_chain
        )


class _OwnerView(View, frozen=True):
    uid: str = ""
    controller: bool = False


class _PodMeta(View, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    annotations: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    owner_references: tuple[_OwnerView, ...] = ()


class _NodeSelectorView(View, frozen=True):
    node_selector_terms: msgspec.Raw = msgspec.Raw()


class _NodeAffinityView(View, frozen=True):
    required_during_scheduling_ignored_during_execution: _NodeSelectorView | None = None


class _AffinityView(View, frozen=True):
    node_affinity: _NodeAffinityView | None = None


class _SchedulingGroupView(View, frozen=True):
    pod_group_name: str = ""


class _PodSpecView(View, frozen=True):
    node_selector: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    affinity: _AffinityView | None = None
    scheduling_group: _SchedulingGroupView | None = None
    priority_class_name: str = ""


class _PodStatusView(View, frozen=True):
    phase: str = ""


class _PodView(View, frozen=True):
    """The spec of a pod, without containers and volumes: these are large and not decoded."""

    metadata: _PodMeta = _PodMeta()
    spec: _PodSpecView = _PodSpecView()
    status: _PodStatusView = _PodStatusView()


class _PodSetView(View, frozen=True):
    name: str = ""
    count: int | None = None
    topology_request: PodSetTopologyRequest | None = None


class _WorkloadSpecView(View, frozen=True):
    active: bool = True
    pod_sets: tuple[_PodSetView, ...] = ()


class _PodSetAssignmentView(View, frozen=True):
    name: str = ""
    count: int | None = None
    topology_assignment: msgspec.Raw = msgspec.Raw()


class _AdmissionView(View, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[_PodSetAssignmentView, ...] = ()


class _WorkloadStatusView(View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _AdmissionView | None = None
    unhealthy_nodes: tuple[NodeName, ...] = ()
    folded_slices: tuple[MergedSlice, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()


class _WorkloadView(View, frozen=True):
    """Pod templates are skipped, assignments stay raw."""

    metadata: Meta = Meta()
    spec: _WorkloadSpecView = _WorkloadSpecView()
    status: _WorkloadStatusView = _WorkloadStatusView()


_decode_object = tolerant(msgspec.json.Decoder(MetadataOnly).decode)
_decode_pod = tolerant(msgspec.json.Decoder(_PodView).decode)
_decode_workload = tolerant(msgspec.json.Decoder(_WorkloadView).decode)


def decode_metadata(data: bytes | msgspec.Raw) -> Meta:
    """Decode the metadata of an object's JSON.

    Raises:
        msgspec.MsgspecError: the JSON is no object.
    """
    return _decode_object(data).metadata


def decode_pod(data: bytes | msgspec.Raw, *, gangs: bool = False) -> GatedPod:
    """Decode a pod's JSON.

    Args:
        data: the object.
        gangs: gangs are enabled. If not, their gate counts as one of another owner.

    Raises:
        msgspec.MsgspecError: the JSON is not a pod.
    """
    # Hot path: loops instead of generators and calls.
    view = _decode_pod(data)
    meta = view.metadata
    gates, owner_uid = 0, ""
    ours = GATES if gangs else _GATES_WITHOUT_GANGS
    for gate in view.spec.scheduling_gates:
        gates |= ours.get(gate.name, 0)
    for owner in meta.owner_references:
        if owner.controller:
            owner_uid = intern(owner.uid)
            break
    workload, podset = podset_of_pod(meta.annotations, meta.labels) or ("", "")
    indices = indices_of(meta.labels)
    of_gang = gangs and (gates & GANG or names.GANG_LINK_ANNOTATION in meta.annotations)
    if of_gang:
        # A rank may be in an annotation; a label of the same name counts first.
        indices = indices_of(meta.annotations) | indices
    pod = GatedPod(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=PodUid(meta.uid),
        resource_version=meta.resource_version,
        workload=intern(workload),
        podset=intern(podset),
        owner_uid=owner_uid,
        gates=gates,
        terminating=meta.deletion_timestamp is not None,
        terminal=view.status.phase in ("Succeeded", "Failed"),
        selector={intern(key): intern(value) for key, value in view.spec.node_selector.items()},
        indices=indices,
        index_offset=_parse_offset(meta.annotations.get(names.POD_INDEX_OFFSET)),
        version=_version_number(meta.resource_version),
        grace_s=float(meta.deletion_grace_period_seconds or 0) or 0.0,  # zeros are shared
        # Needed only by the patch that ungates the pod.
        terms=_required_terms_json(view.spec.affinity)
        if gates and view.spec.affinity is not None
        else "",
        group_uid=group_uid(meta.uid, meta.namespace, meta.labels)
        if names.MANAGED_LABEL in meta.labels
        else "",
        slice_chain=intern(meta.annotations.get(names.KUEUE_SLICE_CHAIN_ANNOTATION, "")),
    )
    return _gang_pod(pod, view) if of_gang else pod


def indices_of(values: dict[str, str]) -> dict[str, int]:
    """Labels or annotations whose value is a number."""
    return {
        intern(key): int(value)
        for key, value in values.items()
        if value.isdigit() and len(value) <= _MAX_INDEX_DIGITS and value.isascii()
    }


def _gang_pod(pod: GatedPod, view: _PodView) -> GangPod:
    meta, group = view.metadata, view.spec.scheduling_group
    foreign = {intern(one.name) for one in view.spec.scheduling_gates if one.name not in GATES}
    return GangPod(
        *msgspec.structs.astuple(pod),
        link=intern(link_of(meta.annotations)),
        run=intern(meta.annotations.get(names.GANG_RUN_ANNOTATION, "")),
        labels={intern(key): intern(value) for key, value in meta.labels.items()},
        foreign_gates=tuple(sorted(foreign)),
        succeeded=view.status.phase == "Succeeded",
        pod_group=intern(group.pod_group_name) if group is not None else "",
        priority_class=intern(view.spec.priority_class_name),
    )


def _required_terms_json(affinity: _AffinityView) -> str:
    nodes = affinity.node_affinity
    if nodes is None or nodes.required_during_scheduling_ignored_during_execution is None:
        return ""
    raw = nodes.required_during_scheduling_ignored_during_execution.node_selector_terms
    text = bytes(raw).decode()
    return "" if text == "null" else intern(text)  # equal for all pods of a template


def decode_workload(data: bytes | msgspec.Raw, *, elastic: bool = False) -> GatedWorkload:
    """Decode a Workload's JSON.

    Args:
        data: the object.
        elastic: elastic jobs are enabled. If not, their Workloads are treated as any other.

    Raises:
        msgspec.MsgspecError: the JSON is not a Workload.
    """
    view = _decode_workload(data)
    meta, status = view.metadata, view.status
    owner = meta.controller
    true = {c.type: c for c in status.conditions if c.status == "True"}
    admitted = true.get(names.WorkloadCondition.ADMITTED)
    group = ""
    if owner is None and meta.annotations.get(names.GROUP_WORKLOAD_ANNOTATION) == "true":
        group = meta.labels.get(names.JOB_UID_LABEL, "")
    has_children = owner is not None and has_child_jobs(owner.api_version, owner.kind)
    of_ray_job = owner is not None and owner.kind == names.RAY_JOB_KIND
    elastic = elastic and meta.annotations.get(names.ELASTIC_ANNOTATION) == "true"
    return GatedWorkload(
        namespace=intern(meta.namespace),
        name=intern(meta.name),
        uid=meta.uid,
        resource_version=meta.resource_version,
        owner_uid=owner.uid if owner else group,
        admitted=admitted is not None
        and status.admission is not None
        and view.spec.active
        and meta.deletion_timestamp is None
        and names.WorkloadCondition.EVICTED not in true
        and names.WorkloadCondition.FINISHED not in true,
        cluster_queue=intern(status.admission.cluster_queue) if status.admission else "",
        admitted_at=admitted.last_transition_time if admitted else None,
        unhealthy=tuple(sorted(node.name for node in status.unhealthy_nodes)),
        podsets=_gated_podsets(view),
        version=_version_number(meta.resource_version),
        elastic=elastic,
        owned_by_jobset=has_children and not of_ray_job,
        owned_by_ray_job=has_children and of_ray_job,
        of_plain_pods=bool(group)
        or (owner is not None and (owner.kind, owner.api_version) == ("Pod", "v1")),
        parent=WorkloadKey(f"{meta.namespace}/{owner.name}")
        if elastic
        and owner is not None
        and (owner.kind, owner.api_version.partition("/")[0]) == ("Workload", names.GROUP)
        else None,
        merged=tuple(sorted(slice_.uid for slice_ in status.folded_slices)) if elastic else (),
        run_spec=meta.annotations.get(names.GANG_RUN_SPEC_ANNOTATION, "")
        if is_gang_id(group)
        else "",
        done_pods=decode_done_pods(meta.annotations) if has_children else {},
        slice_chain=intern(meta.annotations.get(names.KUEUE_SLICE_CHAIN_ANNOTATION, ""))
        if elastic and names.WorkloadCondition.FINISHED not in true
        else "",
    )


def _gated_podsets(view: _WorkloadView) -> tuple[GatedPodSet, ...]:
    if view.status.admission is None:
        return ()
    podsets = {podset.name: podset for podset in view.spec.pod_sets}
    reclaimable = {found.name: max(0, found.count) for found in view.status.reclaimable_pods}
    return tuple(
        _gated_podset(
            assigned, podsets.get(assigned.name, _PodSetView()), reclaimable.get(assigned.name, 0)
        )
        for assigned in view.status.admission.pod_set_assignments
    )


def _gated_podset(
    assigned: _PodSetAssignmentView, podset: _PodSetView, reclaimable: int
) -> GatedPodSet:
    # Copied, because a Raw keeps the whole page or watch line in memory.
    raw = bytes(assigned.topology_assignment)
    request = podset.topology_request or PodSetTopologyRequest()
    succeeded = reclaimable
    if assigned.count is not None and podset.count is not None:
        # Pods that had succeeded before were not admitted again.
        remaining = max(0, podset.count - reclaimable)
        reclaimable = max(0, assigned.count - remaining)
    return GatedPodSet(
        name=assigned.name,
        # A missing count means the requested count; 0 is a valid count.
        count=podset.count if assigned.count is None else assigned.count,
        assignment=None if raw in (b"", b"null") else raw,
        requested=podset.topology_request is not None,
        pod_index_label=request.pod_index_label or None,
        sub_group_index_label=request.sub_group_index_label or None,
        sub_group_count=request.sub_group_count,
        group_name=request.pod_set_group_name or None,
        reclaimable=reclaimable,
        succeeded=succeeded,
    )


def _parse_offset(value: str | None) -> int | None:
    if value is None:
        return None
    valid = value.isascii() and value.isdigit() and len(value) <= _MAX_INDEX_DIGITS
    return int(value) if valid else _INVALID_OFFSET


def _version_number(resource_version: str) -> int:
    """The resourceVersion as a number; 0 (always new) if the server uses other values."""
    return int(resource_version) if resource_version.isdigit() else 0

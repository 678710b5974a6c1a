"""Converts a Workload's JSON to a row."""

from __future__ import annotations

import re
from sys import intern
from typing import Final

import msgspec

from rackgate.api import names
from rackgate.gang.link import run_id
from rackgate.resources.quantity import QuantityError, quota_amount
from rackgate.topology.assignment import AssignmentError, TopologyAssignment, decode
from rackgate.wire import kueue
from rackgate.wire.depth import tolerant
from rackgate_invariants.rows import rows
from rackgate_invariants.rows.jobs import Template, node_constraints_of
from rackgate_invariants.rows.projections import (
    ADMISSION_MANAGERS,
    POD_GROUP,
    ManagedMeta,
    amounts_of,
    seconds,
    written_at,
)

SLICE_MANAGERS = (str(names.FieldManager.SLICES),)
# Field manager of the assigner's creations (its user agent); only the assigner creates Workloads.
WORKLOAD_CREATORS = ("rackgate-assigner",)
# How Kueue's message of a preemption names the Workload that others gave way to.
_PREEMPTOR: Final = re.compile(r"\(UID: ([^ ,)]+)")


class _PodSetAssignment(kueue.PodSetAssignment, frozen=True):
    delayed_topology_request: str | None = None


class _Admission(kueue.Admission, frozen=True):
    pod_set_assignments: tuple[_PodSetAssignment, ...] = ()


class _Status(kueue.WorkloadStatus, frozen=True):
    admission: _Admission | None = None


class _Workload(kueue.Workload, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    status: _Status = _Status()


_workload = tolerant(msgspec.json.Decoder(_Workload).decode)
_template = tolerant(msgspec.json.Decoder(Template).decode)


def workload_row(raw: bytes | msgspec.Raw) -> rows.WorkloadRow:
    """A Workload; `problem` of a PodSet says what in its admission cannot be decoded."""
    workload = _workload(raw)
    meta, spec, status = workload.metadata, workload.spec, workload.status
    owner, group = meta.controller, ""
    if owner is None and meta.annotations.get(names.GROUP_WORKLOAD_ANNOTATION) == "true":
        group = meta.labels.get(names.JOB_UID_LABEL, "")
    true = {
        c.type: seconds(c.last_transition_time) for c in status.conditions if c.status == "True"
    }
    moments = [meta.creation_timestamp, meta.deletion_timestamp]
    moments += [condition.last_transition_time for condition in status.conditions]
    admission = status.admission
    podset_assignment = (
        {one.name: one for one in admission.pod_set_assignments} if admission else {}
    )
    done = {one.name: one.count for one in status.reclaimable_pods}
    kind = names.WorkloadCondition
    reasons = {c.type: intern(c.reason) for c in status.conditions if c.status == "True"}
    messages = {c.type: c.message for c in status.conditions if c.status == "True"}
    preemptor = _PREEMPTOR.search(messages.get(kind.PREEMPTED, ""))
    evictions = status.scheduling_stats.evictions if status.scheduling_stats else ()
    requeue = status.requeue_state or kueue.RequeueState()
    return rows.WorkloadRow(
        namespace=intern(meta.namespace),
        done_pods=names.GANG_DONE_PODS_ANNOTATION in meta.annotations,
        name=intern(meta.name),
        uid=meta.uid,
        version=meta.resource_version,
        owner=intern(owner.uid) if owner else group,
        owner_kind=intern(owner.kind) if owner else POD_GROUP if group else "",
        owner_name=intern(owner.name) if owner else "",
        job_uid=intern(meta.labels.get(names.JOB_UID_LABEL, "")),
        ours=written_at(meta, WORKLOAD_CREATORS, "") > 0,
        queue=intern(f"{meta.namespace}/{spec.queue_name}") if spec.queue_name else "",
        active=spec.active,
        deleting=meta.deletion_timestamp is not None,
        finished=kind.FINISHED in true,
        evicted=kind.EVICTED in true,
        reserved=admission is not None and kind.QUOTA_RESERVED in true,
        admitted=kind.ADMITTED in true,
        cluster_queue=intern(admission.cluster_queue) if admission else "",
        reserved_at=true.get(kind.QUOTA_RESERVED, 0.0),
        admitted_at=true.get(kind.ADMITTED, 0.0),
        evicted_at=true.get(kind.EVICTED, 0.0),
        evicted_reason=reasons.get(kind.EVICTED, ""),
        preempted_reason=reasons.get(kind.PREEMPTED, ""),
        preemptor=preemptor[1] if preemptor else "",
        preemptions=sum(
            one.count for one in evictions if one.reason == names.EvictionReason.PREEMPTED
        ),
        requeue_at=seconds(requeue.requeue_at),
        timeouts=requeue.count,
        placed_at=written_at(meta, ADMISSION_MANAGERS, "status"),
        changed_at=max(map(seconds, moments)),
        podsets=tuple(
            _podset(podset, podset_assignment.get(podset.name), done.get(podset.name, 0))
            for podset in spec.pod_sets
        ),
        unhealthy_hosts=frozenset(node.name for node in status.unhealthy_nodes),
        elastic=workload.elastic,
        merged_slices=tuple((one.uid, one.pod_set) for one in status.folded_slices),
        resized_at=written_at(meta, SLICE_MANAGERS, "status"),
        run=_run(workload),
    )


def _run(workload: _Workload) -> str:
    admitted = next((c for c in workload.status.conditions if c.type == "Admitted"), None)
    if admitted is None or admitted.status != "True":
        return ""
    return run_id(workload.metadata.uid, admitted.last_transition_time or "")


def _podset(
    podset: kueue.PodSet, podset_assignment: _PodSetAssignment | None, done: int
) -> rows.PodSetRow:
    request = podset.topology_request or kueue.PodSetTopologyRequest()
    label = request.pod_index_label
    template = _template(podset.template)
    usage, assignment, problem = _admitted(podset_assignment)
    return rows.PodSetRow(
        name=intern(podset.name),
        requested_count=podset.count,
        topology=bool(
            request.required or request.preferred or request.unconstrained or _layers(request)
        ),
        requests=amounts_of(template.spec),
        required=request.required or "",
        slice_layers=_layers(request),
        group=request.pod_set_group_name or "",
        indexed=label == names.COMPLETION_INDEX_LABEL
        or (podset.topology_request is None and label is None),
        subgroups=(request.sub_group_count or 0) if request.sub_group_index_label else 0,
        node_constraints=node_constraints_of(template),
        admitted_count=podset_assignment.count if podset_assignment else 0,
        flavors=podset_assignment.flavors if podset_assignment else {},
        usage=usage,
        assignment=assignment,
        reclaimable=done,
        delayed=bool(podset_assignment and podset_assignment.delayed_topology_request),
        problem=problem,
    )


def _admitted(
    podset_assignment: _PodSetAssignment | None,
) -> tuple[dict[str, int], TopologyAssignment | None, str]:
    if podset_assignment is None:
        return {}, None, ""
    usage: dict[str, int] = {}
    try:
        usage = {
            key: quota_amount(key, value) for key, value in podset_assignment.resource_usage.items()
        }
        raw = podset_assignment.topology_assignment
        return usage, None if raw is None else decode(raw), ""
    except (AssignmentError, QuantityError) as error:
        return usage, None, str(error)


def _layers(request: kueue.PodSetTopologyRequest) -> tuple[rows.SliceLayer, ...]:
    listed = request.podset_slice_required_topology_constraints
    if listed:
        return tuple(rows.SliceLayer(one.topology, one.size) for one in listed)
    if request.pod_set_slice_required_topology and request.pod_set_slice_size:
        return (
            rows.SliceLayer(request.pod_set_slice_required_topology, request.pod_set_slice_size),
        )
    return ()

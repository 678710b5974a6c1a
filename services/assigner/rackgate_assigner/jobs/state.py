"""The facts about a job and its Workload that `plan` decides by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from rackgate.api import names
from rackgate.api.names import workload_name
from rackgate.features import DEFAULTS, Features
from rackgate.gang.runs.done_pods import DonePods
from rackgate.jobframework.generic_job import (
    GenericJob,
    JobLike,
    JobOutcome,
    Manifest,
    StaleChildJob,
    TemplateEdits,
)
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StartConflict,
    StopAction,
    StopPhase,
    has_podset_info,
    has_template_lost_flavor,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.managed import is_child_of_job
from rackgate.jobframework.podsets import (
    check_keys,
    counts_of,
    original_templates,
    topology_by_podset,
    without_empty,
)
from rackgate.jobframework.registry import NAMED_AS_WORKLOAD, kind_of
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_LABELS,
    Template,
    annotations_of,
    gates_of,
    labels_of,
    section,
)
from rackgate.jobframework.topology_request import RANK_FIELDS
from rackgate.wire.batch import Job
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import (
    RequeueState,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from rackgate_assigner.gangs.reactions import GangCheck, GangEviction
from rackgate_assigner.gangs.run_spec import NO_GANG, JobGang
from rackgate_assigner.workload.execution_time import ExecutionTime
from rackgate_assigner.workload.pods_ready_timeout import TimedOut

RESERVED: Final = frozenset((*RESERVED_LABELS, *RESERVED_ANNOTATIONS))
# Of a job: its start writes them, and its stop removes them.
_START_ANNOTATIONS: Final = (names.WORKLOAD_ANNOTATION, names.GANG_RUN_SPEC_ANNOTATION)


@dataclass(frozen=True, slots=True)
class Priority:
    """The priority of a job and where it comes from.

    Attributes:
        ref: `priorityClassRef` as in the API, None if no class applies.
        missing: the class that does not exist, as `kind/name`; no Workload is created before it.
    """

    value: int = 0
    ref: Mapping[str, str] | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class GangTimedOut:
    """An eviction because of gangs.

    Attributes:
        requeue: the value of `status.requeueState` after it; None: the Workload was evicted too
            often, so it is deactivated.
    """

    eviction: GangEviction
    requeue: RequeueState | None


@dataclass(frozen=True, slots=True)
class JobState:
    """Input of `plan_job`: one job of any kind, and its Workload.

    Attributes:
        kind: the kind of the job, for messages.
        podsets: what the job requests now, as a Workload stores it.
        pod_count: pods of all of them.
        priority: resolved from the job's labels and first template.
        suspended: `spec.suspend`.
        finished: how the job ended, None while it has not.
        started: the start patch was applied and not yet undone, see `is_started`.
        stop: the next step if the job must stop.
        stale_child_jobs: children of the stopped job that still have injected fields of an earlier
            admission.
        elastic: a difference in counts is a resize; the job is not queued again. The
            Workload of such a job has the annotation `names.ELASTIC_ANNOTATION`.
        change: why the running job must be queued again, None if it need not be.
        injection_lost: templates of the running job lost what its start injected.
        ready: all pods of the running job that are due are ready or have succeeded.
        execution: the execution time of its admitted Workload, if that has a maximum.
        retention_over: its Workload, or the job of a deactivated one, was kept long enough.
        timed_out: what follows from its pods not being ready in time; None before the timeout.
        requeue_in_s: seconds until its evicted Workload is queued again, None without such a
            delay.
        reconcile_after_s: seconds after which the operator of the running job, whose pods are not
            all ready, is to be triggered to reconcile; None if that is not needed, or was done
            since the last change.
        reclaimable_pods: pods that are done and not created again, by PodSet.
        done_pods: pods that child Jobs have done and do not create again, whether or not
            `reclaimable_pods` counts them. Only of PodSets whose pods are in gangs.
        live_pods: pods whose quota is kept until they are gone, including terminating ones.
        pods_gone: the job is suspended and has no pods, and its status did not say so in time.
        beyond_admission: pods that run beyond those admitted, in PodSets where no gate holds them.
        gang: the Workload of gangs of its pods.
        gang_check: why the pods of its gangs are to be read now; None if they need not be.
        gang_eviction: why its gangs require an eviction, as the pods that were read show.
        workload_ops: operations on its Workload that do not concern its spec.
        runs_again: pods of another run wait since its Workload has finished.
    """

    kind: str = "Job"
    podsets: Sequence[Mapping[str, Any]] = ()
    pod_count: int = 0
    priority: Priority = field(default_factory=Priority)
    suspended: bool = True
    finished: JobOutcome | None = None
    started: bool = False
    stop: StopAction = field(default_factory=lambda: StopAction(StopPhase.DONE, []))
    stale_child_jobs: Sequence[StaleChildJob] = ()
    elastic: bool = False
    change: str | None = None
    injection_lost: bool = False
    ready: bool = False
    execution: ExecutionTime | None = None
    timed_out: TimedOut | None = None
    retention_over: bool = False
    requeue_in_s: float | None = None
    reconcile_after_s: float | None = None
    reclaimable_pods: Mapping[str, int] = field(default_factory=dict)
    done_pods: DonePods = field(default_factory=dict)
    live_pods: int = 0
    pods_gone: bool = False
    beyond_admission: int = 0
    gang: JobGang = NO_GANG
    gang_check: GangCheck | None = None
    gang_eviction: GangTimedOut | None = None
    workload_ops: tuple[JsonPatchOp, ...] = ()
    runs_again: bool = False

    @property
    def inactive(self) -> bool:
        """Whether the job is suspended and has no running pods: its templates may be written."""
        return self.stop.phase in (StopPhase.RESTORE, StopPhase.DONE)

    @property
    def holds_quota(self) -> bool:
        """Whether its Workload keeps its quota, if the job must stop."""
        return not (self.stopped or self.pods_gone)

    @property
    def stopped(self) -> bool:
        """Whether the job is inactive, its pods are gone, and all its templates are the user's."""
        return (
            self.stop.phase is StopPhase.DONE and not self.stale_child_jobs and not self.live_pods
        )


def read_job_state(
    job: JobLike,
    workload: Workload | None,
    priority: Priority,
    *,
    children: Sequence[Job] = (),
    features: Features = DEFAULTS,
    flavors: Mapping[str, ResourceFlavor] | None = None,
    live_pods: int = 0,
    beyond_admission: int = 0,
    gang: JobGang = NO_GANG,
) -> JobState:
    """Everything about one job and the Workload that keeps its templates.

    Args:
        job: as stored, of any kind.
        workload: its Workload, if there is one.
        priority: as resolved.
        children: its child Jobs, for kinds that have any.
        features: feature gates.
        flavors: by name, to find out what the start added to templates; None: unknown.
        live_pods: bound pods that have not ended; 0 if no quota is kept for them.
        beyond_admission: see `JobState`.
        gang: the Workload of gangs of its pods.
    """
    kind = kind_of(job)
    manifest = kind.manifest(job)
    templates, podsets = kind.templates(manifest), podsets_of(kind, manifest, gang, workload)
    originals = original_templates(workload)
    podset_infos = _known_podset_infos(kind, workload, flavors, templates)
    applied = _applied_podset_infos(workload, templates, podset_infos)
    started = is_started(job, templates) or (
        not kind.is_suspended(job) and _runs_under_slice(templates, workload)
    )
    stop = _skip_needless_restore(
        kind.next_stop_action(job, templates, originals, children, applied),
        job,
        workload,
        started=started,
    )
    inactive = stop.phase in (StopPhase.RESTORE, StopPhase.DONE)
    elastic = kind.elastic_enabled(features) and kind.is_elastic(manifest)
    suspended, change, ready, injection_lost = kind.is_suspended(job), None, False, False
    if workload is not None and not suspended:
        resizable = elastic and workload.elastic
        change = kind.find_change(podsets, workload, elastic=resizable)
        ready = kind.pods_ready(job, counts_of(workload))
        injection_lost = (
            started
            and kind.template_edits is TemplateEdits.ANY_TIME
            and (
                _has_lost_flavor(templates, originals, podset_infos)
                or _has_lost_injection(templates, workload, gang.links)
            )
        )
    return JobState(
        kind=kind.name,
        podsets=podsets,
        pod_count=sum(podset["count"] for podset in podsets),
        priority=priority,
        suspended=suspended,
        finished=kind.finished(job),
        started=started,
        stop=stop,
        stale_child_jobs=kind.stale_child_jobs(job, children, applied) if inactive else (),
        elastic=elastic,
        change=change,
        injection_lost=injection_lost,
        ready=ready,
        reconcile_after_s=None
        if suspended or ready or _is_reconcile_requested(job)
        else kind.reconcile_after_s,
        reclaimable_pods=kind.reclaimable_pods(
            job,
            {podset["name"]: podset["count"] for podset in podsets}
            if workload is None or workload.status.admission is None
            else counts_of(workload),
        ),
        done_pods=_done_pods_of_gangs(kind, children, gang),
        live_pods=live_pods,
        beyond_admission=beyond_admission,
        gang=gang,
    )


def _done_pods_of_gangs(kind: GenericJob[Any], children: Sequence[Job], gang: JobGang) -> DonePods:
    if not gang.links or not children:
        return {}
    return {name: done for name, done in kind.done_pods(children).items() if name in gang.links}


def podsets_of(
    kind: GenericJob[Any], manifest: Manifest, gang: JobGang, workload: Workload | None
) -> list[dict[str, Any]]:
    """The PodSets of a job, with the topology requests of its Workload of gangs.

    A started job keeps those that its Workload has.
    """
    podsets = kind.podsets(manifest)
    if gang.started and workload is not None:
        kept = {one.name: one.topology_request for one in workload.spec.pod_sets}
        for podset in podsets:
            found = kept.get(podset["name"]) if podset["name"] in gang.links else None
            if found is not None:
                own = podset.get("topologyRequest", {})
                places = {key: value for key, value in own.items() if key not in RANK_FIELDS}
                present = without_empty(msgspec.to_builtins(found))
                podset["topologyRequest"] = {**present, **places}
    if not gang.topology:
        return podsets
    ranks = kind.rank_fields(manifest)
    for podset in podsets:
        asked = gang.topology.get(podset["name"])
        if asked is not None:
            own = ranks.get(podset["name"], {})
            # Another label has the ranks of all pods, so there are no subgroups.
            same = asked.get("podIndexLabel") in (None, own.get("podIndexLabel"))
            podset["topologyRequest"] = {**(own if same else {}), **asked}
    return podsets


def nesting_differs(workload: Workload, gang: JobGang) -> bool:
    """Whether a Workload says other shared domains than the Workload of gangs of its job.

    That of a started job keeps those that it has.
    """
    present = workload.metadata.annotations.get(names.GANG_NESTING_ANNOTATION, "")
    return not gang.started and present != gang.nesting


def workload_name_of(job: JobLike) -> str:
    """The name of a job's Workload; there is only one."""
    resource = kind_of(job).resource
    if resource in [kind.resource for kind in NAMED_AS_WORKLOAD]:
        return job.metadata.name
    return workload_name(resource.kind, resource.group, job.metadata.name, job.metadata.uid)


def own_workload(job: JobLike, workloads: Sequence[Workload]) -> Workload | None:
    """The Workload of a job among those that it controls.

    One with quota comes first: the job runs under it. Else it is the one with the name that follows
    from the job. If there is none, it is one of another name: Kueue names those of elastic jobs
    otherwise, and a prebuilt one has any name. The job runs, or waits, under it as before. One that
    is labeled for another job was written by hand, and is never used.

    Args:
        job: as stored.
        workloads: whose controller is this job.
    """
    expected = workload_name_of(job)
    ended = kind_of(job).finished(job) is not None
    others = [
        found
        for found in workloads
        if not has_foreign_owner(found)
        and (
            found.metadata.name == expected
            or (
                found.metadata.deletion_timestamp is None
                and (ended or not found.is_true(names.WorkloadCondition.FINISHED))
            )
        )
    ]
    return min(
        others,
        key=lambda found: (
            # Slices that Kueue replaced are Finished.
            found.is_true(names.WorkloadCondition.FINISHED) or found.status.admission is None,
            found.metadata.name != expected,
            found.metadata.creation_timestamp,
            found.metadata.name,
        ),
        default=None,
    )


def unmanaged_namespaces(system: str) -> frozenset[str]:
    """Namespaces in which nothing is managed, with the services installed in `system`."""
    return frozenset(names.UNMANAGED_NAMESPACES) - {names.SYSTEM_NAMESPACE} | {system}


def is_managed(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """Whether Rackgate acts on this job.

    It does if the job has the queue label, is run by its kind's own controller, and is not a
    child of another job. Jobs of `unmanaged` namespaces are ignored, with or without the label.
    """
    return not is_child_of_job(job.metadata) and is_eligible(job, unmanaged)


def is_eligible(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """As `is_managed`, whatever controller the job claims to have."""
    if job.metadata.namespace in unmanaged:
        return False
    return bool(job.metadata.labels.get(names.QUEUE_LABEL)) and job.spec.managed_by in (
        None,
        kind_of(job).controller,
    )


def has_foreign_owner(workload: Workload, parent: Workload | None = None) -> bool:
    """Whether the controller of a Workload was replaced by another one.

    The label identifies the job it was made for; slices have the label of their parent.

    Args:
        workload: any Workload.
        parent: of a slice, the Workload that it names as its controller.
    """
    owner = workload.metadata.controller
    if owner is None:
        return False
    if owner.uid == workload.metadata.uid:
        return True
    job_uid = workload.metadata.labels.get(names.JOB_UID_LABEL)
    if job_uid is None:
        return False
    if workload.parent is None:
        return job_uid != owner.uid
    return parent is not None and parent.metadata.labels.get(names.JOB_UID_LABEL) != job_uid


def is_owned_by(workload: Workload, uid: str) -> bool:
    """Whether the Workload's controller is the object with this uid."""
    return workload.owner_uid == uid


def is_started(job: JobLike, templates: Sequence[PodTemplate]) -> bool:
    """Whether the start patch was applied and not yet undone.

    The start patch writes the name of the Workload to an annotation of the job, and the restoring
    patch removes it, each in the same write as its template edits. So the annotation distinguishes
    a job that its owner suspended from one that was never started, even after a crash. If a tool of
    the user removes the annotation, the templates of a topology job still have it.
    """
    key = names.WORKLOAD_ANNOTATION
    return key in job.metadata.annotations or any(
        key in annotations_of(pod_template.template) for pod_template in templates
    )


def _runs_under_slice(templates: Sequence[PodTemplate], workload: Workload | None) -> bool:
    """Whether Kueue started this elastic job with its gate TopologyAwareScheduling off.

    Then the templates name only the first Workload slice. A user can write this annotation to a
    template, so it counts only if the Workload has it too.
    """
    key = names.KUEUE_SLICE_CHAIN_ANNOTATION
    chain = workload.metadata.annotations.get(key) if workload is not None else None
    return bool(chain) and any(annotations_of(one.template).get(key) == chain for one in templates)


def _skip_needless_restore(
    action: StopAction, job: JobLike, workload: Workload | None, *, started: bool
) -> StopAction:
    """The next step of a stop, given the step that its kind would take.

    RESTORE only for a job that was started: a template that was never changed by us keeps the
    edits that its user makes while it is pending.
    """
    if action.phase not in (StopPhase.RESTORE, StopPhase.DONE):
        return action
    if not started:
        return StopAction(StopPhase.DONE, [])
    operations = list(action.operations)
    if workload is not None:
        operations += kind_of(job).restore_count_ops(job, workload)
    operations += [
        {"op": "remove", "path": "/metadata/annotations" + pointer(key)}
        for key in _START_ANNOTATIONS
        if key in job.metadata.annotations
    ]
    return StopAction(StopPhase.RESTORE if operations else StopPhase.DONE, operations)


def _is_reconcile_requested(job: JobLike) -> bool:
    """Whether the job's operator was triggered to reconcile since its spec was last written."""
    requested_at = job.metadata.annotations.get(names.RECONCILE_REQUESTED_ANNOTATION)
    return requested_at == str(job.metadata.generation)


# The result of an admission, and how templates show it.


class FlavorMissingError(Exception):
    """An assigned flavor does not exist (yet).

    Attributes:
        name: of the flavor.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"ResourceFlavor {name} does not exist")
        self.name = name


def podset_infos_of(
    workload: Workload,
    flavors: Mapping[str, ResourceFlavor],
    templates: Sequence[PodTemplate],
    gang: JobGang = NO_GANG,
) -> dict[str, PodSetInfo] | StartConflict:
    """The result of an admission for each PodSet, or what conflicts in a template.

    That is what the assigned flavors and the admission checks add (KEP-993).

    Args:
        workload: with its admission.
        flavors: by name.
        templates: of the job.
        gang: the Workload of gangs of its pods.

    Raises:
        FlavorMissingError: an assigned flavor does not exist.
    """
    admission = workload.status.admission
    paths = {pod_template.podset: pod_template.path for pod_template in templates}
    podset_infos: dict[str, PodSetInfo] = {}
    for assignment in admission.pod_set_assignments if admission is not None else ():
        assigned = [
            _get_flavor(name, flavors) for name in dict.fromkeys(assignment.flavors.values())
        ]
        labels = merge_node_labels(assigned, paths.get(assignment.name, "spec.template"))
        if isinstance(labels, StartConflict):
            return labels
        tolerations = [item for flavor in assigned for item in flavor.spec.tolerations]
        tas = assignment.topology_assignment is not None
        podset_infos[assignment.name] = PodSetInfo(
            assignment.name,
            tas,
            labels,
            tolerations,
            gang=gang.links.get(assignment.name, ""),
            pod_group=gang.pod_groups.get(assignment.name, {}),
        )
    return _with_check_updates(workload, podset_infos, paths)


def _with_check_updates(
    workload: Workload, podset_infos: dict[str, PodSetInfo], paths: Mapping[str, str]
) -> dict[str, PodSetInfo] | StartConflict:
    """The same, with the `podSetUpdates` of the Workload's admission checks."""
    updates = [
        (state.name, update)
        for state in workload.status.admission_checks
        for update in state.pod_set_updates
        if update.name in podset_infos
    ]
    originals = original_templates(workload) if updates else {}
    for check, update in updates:
        info = podset_infos[update.name]
        path = paths.get(update.name, "spec.template")
        template = originals.get(update.name, {})
        labels, annotations = {**info.labels}, {**info.annotations}
        node_labels = {**info.node_labels}
        for part, entries, added, users in (
            ("metadata.labels", update.labels, labels, labels_of(template)),
            ("metadata.annotations", update.annotations, annotations, annotations_of(template)),
            ("spec.nodeSelector", update.node_selector, node_labels, {}),
        ):
            for key, value in entries.items():
                have = (
                    "reserved for Rackgate" if key in RESERVED else added.get(key, users.get(key))
                )
                if have is not None and have != value:
                    return StartConflict(f"{path}.{part}", key, str(have), value, check)
                added[key] = value
        podset_infos[update.name] = replace(
            info,
            labels=labels,
            annotations=annotations,
            node_labels=node_labels,
            tolerations=[*info.tolerations, *update.tolerations],
        )
    return podset_infos


def _get_flavor(name: str, flavors: Mapping[str, ResourceFlavor]) -> ResourceFlavor:
    flavor = flavors.get(name)
    if flavor is None:
        raise FlavorMissingError(name)
    return flavor


def merge_node_labels(
    flavors: Sequence[ResourceFlavor], path: str = "spec.template"
) -> dict[str, str] | StartConflict:
    """The merged node labels of these flavors, or the key on which they disagree."""
    labels: dict[str, str] = {}
    for flavor in flavors:
        for key, wanted_value in flavor.spec.node_labels.items():
            known_value = labels.setdefault(key, wanted_value)
            if known_value != wanted_value:
                return StartConflict(f"{path}.spec.nodeSelector", key, known_value, wanted_value)
    return labels


def _known_podset_infos(
    kind: GenericJob[Any],
    workload: Workload | None,
    flavors: Mapping[str, ResourceFlavor] | None,
    templates: Sequence[PodTemplate],
) -> dict[str, PodSetInfo]:
    """As `podset_infos_of`; empty if that is unknown, or the templates are not changed."""
    if workload is None or flavors is None or kind.template_edits is TemplateEdits.AT_REST:
        return {}
    try:
        podset_infos = podset_infos_of(workload, flavors, templates)
    except FlavorMissingError:
        return {}
    return {} if isinstance(podset_infos, StartConflict) else podset_infos


def _applied_podset_infos(
    workload: Workload | None,
    templates: Sequence[PodTemplate],
    podset_infos: Mapping[str, PodSetInfo],
) -> dict[str, PodSetInfo]:
    """What the start added to a job's templates, by PodSet, where that is certain.

    Flavors are edited, too. The rest of a template is known to be its user's only while the
    template shows everything that the flavors add now. The keys of labels and annotations that
    admission checks added are always known.
    """
    of_checks = check_keys(workload) if workload is not None else {}
    known = {
        podset: PodSetInfo(
            podset, tas=False, labels=labels, annotations=annotations, complete=False
        )
        for podset, (labels, annotations) in of_checks.items()
    }
    return known | {
        pod_template.podset: podset_infos[pod_template.podset]
        for pod_template in templates
        if pod_template.podset in podset_infos
        and has_podset_info(pod_template.template, podset_infos[pod_template.podset])
    }


def _has_lost_flavor(
    templates: Sequence[PodTemplate],
    originals: Mapping[str, Template],
    podset_infos: Mapping[str, PodSetInfo],
) -> bool:
    """Whether templates of a running job lost what its flavors added.

    Applying a manifest again removes that together with the lists it is in. New pods would go
    to nodes of other flavors, or to none.
    """
    return any(
        pod_template.podset in podset_infos
        and pod_template.podset in originals
        and has_template_lost_flavor(
            pod_template.template, originals[pod_template.podset], podset_infos[pod_template.podset]
        )
        for pod_template in templates
    )


def _has_lost_injection(
    templates: Sequence[PodTemplate], workload: Workload, links: Mapping[str, str]
) -> bool:
    """Whether a template lost a label, annotation or gate of its start.

    Applying a manifest again replaces the worker groups of a RayCluster as a whole. Pods
    made from such a template would have no gate.
    """
    with_topology = topology_by_podset(workload)
    for pod_template in templates:
        gates = [names.TOPOLOGY_GATE] if with_topology.get(pod_template.podset) else []
        if workload.elastic and pod_template.podset in with_topology:
            gates.append(names.ELASTIC_GATE)
        link = links.get(pod_template.podset)
        if link is not None:
            gates.append(names.GANG_GATE)
        if not gates:
            continue
        have, annotations = gates_of(pod_template.template), annotations_of(pod_template.template)
        injected = annotations.get(names.WORKLOAD_ANNOTATION) == workload.metadata.name
        injected &= link in (None, annotations.get(names.GANG_LINK_ANNOTATION))
        if not injected or any(gate not in have for gate in gates):
            return True
    return False


# Priority.


def resolve_priority(
    job: JobLike,
    workload_classes: Mapping[str, WorkloadPriorityClass],
    classes: Mapping[str, PriorityClass],
) -> Priority:
    """A job's priority: its WorkloadPriorityClass label, else its first template's PriorityClass.

    Without either, the PriorityClass that is the global default; else 0.
    """
    named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
    if named:
        found = workload_classes.get(named)
        if found is None:
            return Priority(missing=f"WorkloadPriorityClass/{named}")
        ref = {"group": names.GROUP, "kind": "WorkloadPriorityClass", "name": named}
        return Priority(found.value, ref)
    name = _priority_class(job)
    chosen = classes.get(name) if name else _global_default(classes)
    if chosen is None:
        return Priority(missing=f"PriorityClass/{name}") if name else Priority()
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": chosen.metadata.name}
    return Priority(chosen.value, ref)


def _priority_class(job: JobLike) -> str:
    kind = kind_of(job)
    templates = kind.templates(kind.manifest(job))
    spec = section(templates[0].template, "spec") if templates else {}
    return str(spec.get("priorityClassName") or "")


def _global_default(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """The default class; if there are several, the one with the lowest value, as in Kubernetes."""
    defaults = [item for item in classes.values() if item.global_default]
    return min(defaults, key=lambda item: (item.value, item.metadata.name), default=None)

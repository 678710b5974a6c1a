"""The write that starts a job: what its admission brings into its templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StartConflict,
    has_podset_info,
    start_ops,
)
from rackgate.jobframework.job.podsets import UNSUSPEND
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.reinjection import has_template_lost_flavor
from rackgate.wire.kueue import ResourceFlavor, Workload
from rackgate_assigner.jobs.kinds import JobLike, kind_of
from rackgate_assigner.jobs.kinds.podsets import original_templates, pods_without_gate
from rackgate_assigner.jobs.state import workload_annotation_ops


class FlavorMissingError(Exception):
    """A flavor that was assigned is not there (yet).

    Attributes:
        name: of the flavor.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"ResourceFlavor {name} does not exist")
        self.name = name


def start_patch(
    job: JobLike, workload: Workload, flavors: Mapping[str, ResourceFlavor]
) -> list[JsonPatchOp] | StartConflict:
    """The one write that starts a suspended job under its Workload's admission.

    Returns:
        Operations, `suspend: false` first; or the key that stands in the way.

    Raises:
        FlavorMissingError: nothing can be said yet.
    """
    ops = started_template_ops(job, workload, flavors)
    if isinstance(ops, StartConflict):
        return ops
    # What replaces a pod that terminates is bound at once: both would live on the quota of one.
    has_ungated_pods = not workload.elastic and pods_without_gate(workload) > 0
    wait_ops = kind_of(job).wait_for_termination_ops(job) if has_ungated_pods else []
    return [dict(UNSUSPEND), *ops, *wait_ops, *workload_annotation_ops(job, workload.metadata.name)]


def started_template_ops(
    job: JobLike, workload: Workload, flavors: Mapping[str, ResourceFlavor]
) -> list[JsonPatchOp] | StartConflict:
    """Operations that bring a job's templates to their started form; none when they are.

    Raises:
        FlavorMissingError: nothing can be said yet.
    """
    templates = kind_of(job).templates(job, elastic=workload.elastic)
    podset_infos = _podset_infos_from_admission(workload, flavors, templates)
    if isinstance(podset_infos, StartConflict):
        return podset_infos
    return start_ops(templates, podset_infos, workload=workload.metadata.name)


def find_applied_podset_infos(
    job: JobLike, workload: Workload | None, flavors: Mapping[str, ResourceFlavor]
) -> dict[str, PodSetInfo]:
    """What the start brought into a job's templates, by PodSet, where that is certain.

    Flavors are edited, too: only while a template shows all that they bring now, the rest of it
    is its user's. Nothing for kinds whose templates nobody writes before they have stopped.
    """
    kind = kind_of(job)
    if workload is None or not kind.mutable_while_running:
        return {}
    templates = kind.templates(job)
    try:
        podset_infos = _podset_infos_from_admission(workload, flavors, templates)
    except FlavorMissingError:
        return {}
    if isinstance(podset_infos, StartConflict):
        return {}
    return {
        pod_template.podset: podset_infos[pod_template.podset]
        for pod_template in templates
        if pod_template.podset in podset_infos
        and has_podset_info(pod_template.template, podset_infos[pod_template.podset])
    }


def has_lost_flavor(
    job: JobLike, workload: Workload | None, flavors: Mapping[str, ResourceFlavor]
) -> bool:
    """Whether templates of a running job lost what its flavors injected.

    A manifest that is applied anew takes that away with the lists it is in. New pods would go
    to nodes of other flavors, or to none.
    """
    kind = kind_of(job)
    if workload is None or not kind.needs_reinjection or kind.is_suspended(job):
        return False
    templates, originals = kind.templates(job), original_templates(workload)
    try:
        podset_infos = _podset_infos_from_admission(workload, flavors, templates)
    except FlavorMissingError:
        return False
    return not isinstance(podset_infos, StartConflict) and any(
        pod_template.podset in podset_infos
        and pod_template.podset in originals
        and has_template_lost_flavor(
            pod_template.template, originals[pod_template.podset], podset_infos[pod_template.podset]
        )
        for pod_template in templates
    )


def _podset_infos_from_admission(
    workload: Workload, flavors: Mapping[str, ResourceFlavor], templates: Sequence[PodTemplate]
) -> dict[str, PodSetInfo] | StartConflict:
    """What each PodSet was given, or the flavors that no template can be given together."""
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
        podset_infos[assignment.name] = PodSetInfo(assignment.name, tas, labels, tolerations)
    return podset_infos


def _get_flavor(name: str, flavors: Mapping[str, ResourceFlavor]) -> ResourceFlavor:
    flavor = flavors.get(name)
    if flavor is None:
        raise FlavorMissingError(name)
    return flavor


def merge_node_labels(
    flavors: Sequence[ResourceFlavor], path: str = "spec.template"
) -> dict[str, str] | StartConflict:
    """The node labels that all these flavors ask for, or the key on which they disagree."""
    labels: dict[str, str] = {}
    for flavor in flavors:
        for key, wanted_value in flavor.spec.node_labels.items():
            known_value = labels.setdefault(key, wanted_value)
            if known_value != wanted_value:
                return StartConflict(f"{path}.spec.nodeSelector", key, known_value, wanted_value)
    return labels

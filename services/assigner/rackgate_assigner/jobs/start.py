"""The write that starts a job: what its admission brings into its templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackgate.jobframework.injection import Given, PodTemplate, StartConflict, shows, start_ops
from rackgate.jobframework.job.podsets import UNSUSPEND
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.reinjection import lost_flavor
from rackgate.wire.kueue import ResourceFlavor, Workload
from rackgate_assigner.jobs.facts import mark_ops
from rackgate_assigner.jobs.kinds import JobLike, kind_of
from rackgate_assigner.jobs.kinds.podsets import originals_of, pods_ungated


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
    ops = template_ops(job, workload, flavors)
    if isinstance(ops, StartConflict):
        return ops
    # What replaces a pod that terminates is bound at once: both would live on the quota of one.
    ungated = not workload.elastic and pods_ungated(workload) > 0
    waits = kind_of(job).waits_for_ends(job) if ungated else []
    return [dict(UNSUSPEND), *ops, *waits, *mark_ops(job, workload.metadata.name)]


def template_ops(
    job: JobLike, workload: Workload, flavors: Mapping[str, ResourceFlavor]
) -> list[JsonPatchOp] | StartConflict:
    """Operations that bring a job's templates to their started form; none when they are.

    Raises:
        FlavorMissingError: nothing can be said yet.
    """
    templates = kind_of(job).templates(job, elastic=workload.elastic)
    given = _given(workload, flavors, templates)
    if isinstance(given, StartConflict):
        return given
    return start_ops(templates, given, workload=workload.metadata.name)


def brought(
    job: JobLike, workload: Workload | None, flavors: Mapping[str, ResourceFlavor]
) -> dict[str, Given]:
    """What the start brought into a job's templates, by PodSet, where that is certain.

    Flavors are edited, too: only while a template shows all that they bring now, the rest of it
    is its user's. Nothing for kinds whose templates nobody writes before they have stopped.
    """
    kind = kind_of(job)
    if workload is None or not kind.edited:
        return {}
    templates = kind.templates(job)
    try:
        given = _given(workload, flavors, templates)
    except FlavorMissingError:
        return {}
    if isinstance(given, StartConflict):
        return {}
    return {
        part.podset: given[part.podset]
        for part in templates
        if part.podset in given and shows(part.template, given[part.podset])
    }


def is_bare(job: JobLike, workload: Workload | None, flavors: Mapping[str, ResourceFlavor]) -> bool:
    """Whether templates of a running job lost what its flavors brought, see `lost_flavor`.

    A manifest that is applied anew takes that away with the lists it is in. New pods would go
    to nodes of other flavors, or to none.
    """
    kind = kind_of(job)
    if workload is None or not kind.remarks or kind.suspended(job):
        return False
    templates, originals = kind.templates(job), originals_of(workload)
    try:
        given = _given(workload, flavors, templates)
    except FlavorMissingError:
        return False
    return not isinstance(given, StartConflict) and any(
        part.podset in given
        and part.podset in originals
        and lost_flavor(part.template, originals[part.podset], given[part.podset])
        for part in templates
    )


def _given(
    workload: Workload, flavors: Mapping[str, ResourceFlavor], templates: Sequence[PodTemplate]
) -> dict[str, Given] | StartConflict:
    """What each PodSet was given, or the flavors that no template can be given together."""
    admission = workload.status.admission
    paths = {part.podset: part.path for part in templates}
    given: dict[str, Given] = {}
    for found in admission.pod_set_assignments if admission is not None else ():
        assigned = [_flavor(name, flavors) for name in dict.fromkeys(found.flavors.values())]
        labels = labels_of(assigned, paths.get(found.name, "spec.template"))
        if isinstance(labels, StartConflict):
            return labels
        tolerations = [item for flavor in assigned for item in flavor.spec.tolerations]
        tas = found.topology_assignment is not None
        given[found.name] = Given(found.name, tas, labels, tolerations)
    return given


def _flavor(name: str, flavors: Mapping[str, ResourceFlavor]) -> ResourceFlavor:
    flavor = flavors.get(name)
    if flavor is None:
        raise FlavorMissingError(name)
    return flavor


def labels_of(
    flavors: Sequence[ResourceFlavor], path: str = "spec.template"
) -> dict[str, str] | StartConflict:
    """The node labels that all these flavors ask for, or the key on which they disagree."""
    labels: dict[str, str] = {}
    for flavor in flavors:
        for key, want in flavor.spec.node_labels.items():
            have = labels.setdefault(key, want)
            if have != want:
                return StartConflict(f"{path}.spec.nodeSelector", key, have, want)
    return labels

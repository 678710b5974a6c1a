"""jobset.x-k8s.io JobSet: one PodSet for each replicatedJob, one rack request for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackgate.api.names import COMPLETION_INDEX_LABEL, JOB_INDEX_LABEL
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import PodTemplate, creation_ops, release_ops
from rackgate.jobframework.job.podsets import SUSPEND, is_suspended, pods_at_once, whole
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import is_governed
from rackgate.jobframework.podset_groups import MAX_PODSETS, group_errors, name_errors
from rackgate.jobframework.templates import Template, items, section, strip_reserved, well_formed
from rackgate.jobframework.topology_request import topology_request

JobSet = Mapping[str, Any]


def replicated_jobs(jobset: JobSet) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Index, name and object of each replicatedJob."""
    jobs = items(section(jobset, "spec"), "replicatedJobs", "spec")
    for index, replicated in enumerate(jobs):
        yield index, str(replicated.get("name", "")), replicated


def templates_of(jobset: JobSet) -> list[PodTemplate]:
    """The pod templates of a JobSet; the PodSets are named like the replicatedJobs."""
    return [
        PodTemplate(
            podset=name.lower(),
            path=f"spec.replicatedJobs[{index}].template.spec.template",
            pointer=f"/spec/replicatedJobs/{index}/template/spec/template",
            template=_template(replicated, index),
        )
        for index, name, replicated in replicated_jobs(jobset)
    ]


def _template(replicated: Mapping[str, Any], index: int) -> Template:
    path = f"spec.replicatedJobs[{index}].template.spec"
    return well_formed(section(job_spec(replicated, index), "template", path), f"{path}.template")


def job_spec(replicated: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """The JobSpec within a replicatedJob."""
    path = f"spec.replicatedJobs[{index}]"
    return section(section(replicated, "template", path), "spec", f"{path}.template")


def job_templates_of(jobset: JobSet) -> list[tuple[str, Mapping[str, Any]]]:
    """Path and object of each Job template; its metadata become those of the child Jobs."""
    return [
        (f"{path}.template", section(replicated, "template", path))
        for index, _, replicated in replicated_jobs(jobset)
        for path in (f"spec.replicatedJobs[{index}]",)
    ]


def replicas_of(replicated: Mapping[str, Any]) -> int:
    """Jobs that one replicatedJob makes; never negative."""
    return max(0, whole(replicated.get("replicas"), default=1))


def counts_of(jobset: JobSet) -> dict[str, int]:
    """Pods of each PodSet: replicas x pods that one Job runs at once."""
    return {
        name.lower(): replicas_of(replicated) * pods_at_once(job_spec(replicated, index))
        for index, name, replicated in replicated_jobs(jobset)
    }


def podsets_of(jobset: JobSet) -> list[dict[str, Any]]:
    """The PodSets of a JobSet, as a Workload stores them.

    Returns:
        For each replicatedJob: name, count (replicas x pods of one Job), template without our
        reserved keys, and topologyRequest when the template asks for topology. Ranks run over
        (job index, completion index): each Job of the replicas is one subgroup.
    """
    podsets = []
    for part, (index, _, replicated) in zip(
        templates_of(jobset), replicated_jobs(jobset), strict=True
    ):
        replicas, spec = replicas_of(replicated), job_spec(replicated, index)
        template = strip_reserved(part.template)
        podset: dict[str, Any] = {
            "name": part.podset,
            "count": replicas * pods_at_once(spec),
            "template": template,
        }
        # Indexed is JobSet's own default.
        indexed = (spec.get("completionMode") or "Indexed") == "Indexed"
        request = topology_request(
            template, index_label=COMPLETION_INDEX_LABEL if indexed else None
        )
        if request is not None:
            if indexed:
                request["subGroupIndexLabel"] = JOB_INDEX_LABEL
                request["subGroupCount"] = replicas
            podset["topologyRequest"] = request
        podsets.append(podset)
    return podsets


def govern_jobset(jobset: JobSet) -> list[JsonPatchOp]:
    """What a JobSet is given at creation, or when it gets its queue label while suspended.

    As `govern_job`, for the template of each replicatedJob.
    """
    if not is_governed(jobset):
        return []
    operations = [] if is_suspended(jobset) else [dict(SUSPEND)]
    return operations + creation_ops(templates_of(jobset))


def release_jobset(jobset: JobSet) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended JobSet that lost its queue label."""
    return release_ops(templates_of(jobset))


def podset_errors(jobset: JobSet) -> list[FieldError]:
    """Refuse what a Workload cannot carry: no or too many PodSets, bad names, broken groups."""
    parts = list(replicated_jobs(jobset))
    errors: list[FieldError] = []
    if not 1 <= len(parts) <= MAX_PODSETS:
        problem = f"{len(parts)} replicatedJobs, a Workload carries 1 to {MAX_PODSETS} podsets"
        errors.append(FieldError("spec.replicatedJobs", problem, "join those of equal template"))
    names = ((f"spec.replicatedJobs[{index}].name", name) for index, name, _ in parts)
    return errors + name_errors(names) + group_errors(templates_of(jobset), counts_of(jobset))

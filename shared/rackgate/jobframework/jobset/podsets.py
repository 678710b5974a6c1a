"""jobset.x-k8s.io JobSet: one PodSet for each replicatedJob, one rack request for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackgate.api.names import COMPLETION_INDEX_LABEL, JOB_INDEX_LABEL
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import PodTemplate, injection_ops, remove_injection_ops
from rackgate.jobframework.job.podsets import (
    SUSPEND,
    int_or_default,
    is_suspended,
    max_running_pods,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import is_managed
from rackgate.jobframework.podset_groups import MAX_PODSETS, group_errors, name_errors
from rackgate.jobframework.templates import (
    Template,
    items,
    section,
    strip_reserved,
    validated_template,
)
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
            template=_pod_template(replicated, index),
        )
        for index, name, replicated in replicated_jobs(jobset)
    ]


def _pod_template(replicated: Mapping[str, Any], index: int) -> Template:
    path = f"spec.replicatedJobs[{index}].template.spec"
    return validated_template(
        section(job_spec(replicated, index), "template", path), f"{path}.template"
    )


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
    return max(0, int_or_default(replicated.get("replicas"), default=1))


def counts_of(jobset: JobSet) -> dict[str, int]:
    """Pods of each PodSet: replicas x pods that one Job runs at once."""
    return {
        name.lower(): replicas_of(replicated) * max_running_pods(job_spec(replicated, index))
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
    for pod_template, (index, _, replicated) in zip(
        templates_of(jobset), replicated_jobs(jobset), strict=True
    ):
        replicas, spec = replicas_of(replicated), job_spec(replicated, index)
        template = strip_reserved(pod_template.template)
        podset: dict[str, Any] = {
            "name": pod_template.podset,
            "count": replicas * max_running_pods(spec),
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


def inject_jobset(jobset: JobSet) -> list[JsonPatchOp]:
    """What a JobSet is given at creation, or when it gets its queue label while suspended.

    As `inject_job`, for the template of each replicatedJob.
    """
    if not is_managed(jobset):
        return []
    operations = [] if is_suspended(jobset) else [dict(SUSPEND)]
    return operations + injection_ops(templates_of(jobset))


def remove_jobset_injection(jobset: JobSet) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended JobSet that lost its queue label."""
    return remove_injection_ops(templates_of(jobset))


def podset_errors(jobset: JobSet) -> list[FieldError]:
    """Refuse what a Workload cannot carry: no or too many PodSets, bad names, broken groups."""
    jobs = list(replicated_jobs(jobset))
    errors: list[FieldError] = []
    if not 1 <= len(jobs) <= MAX_PODSETS:
        problem = f"{len(jobs)} replicatedJobs, a Workload carries 1 to {MAX_PODSETS} podsets"
        errors.append(FieldError("spec.replicatedJobs", problem, "join those of equal template"))
    names = ((f"spec.replicatedJobs[{index}].name", name) for index, name, _ in jobs)
    return errors + name_errors(names) + group_errors(templates_of(jobset), counts_of(jobset))

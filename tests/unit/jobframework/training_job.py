"""A kind of job that only tests know: what a contributor writes to add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from rackgate.api.names import COMPLETION_INDEX_LABEL
from rackgate.api.resources import Resource
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.generic_job import GenericJob, JobOutcome, Manifest, TemplateEdits
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.podsets import group_errors, name_errors, podset_json
from rackgate.jobframework.templates import (
    int_or_default,
    items,
    section,
    strip_reserved,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta, View


class TrainingJobSpec(View, frozen=True):
    suspend: bool = False
    managed_by: str | None = None
    roles: msgspec.Raw = msgspec.Raw(b"[]")


class TrainingJobStatus(View, frozen=True):
    ready: int = 0
    active: int = 0
    phase: str = ""


class TrainingJob(View, frozen=True):
    metadata: Meta = Meta()
    spec: TrainingJobSpec = TrainingJobSpec()
    status: TrainingJobStatus = TrainingJobStatus()


class TrainingJobKind(GenericJob[TrainingJob]):
    """One PodSet for each role; its operator makes the pods itself."""

    resource: ClassVar[Resource] = Resource(
        "training.example.com", "v1", "trainingjobs", True, "TrainingJob"
    )
    object_type: ClassVar[type] = TrainingJob
    controller: ClassVar[str] = "training.example.com/operator"
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.SUSPENDED
    templates_path: ClassVar[str] = "spec.roles[*].template"
    elastic_advice: ClassVar[str] = "a TrainingJob keeps its size"

    def manifest(self, job: TrainingJob) -> Manifest:
        return {"spec": {"roles": msgspec.json.decode(job.spec.roles)}}

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        return [
            PodTemplate(
                str(role["name"]).lower(),
                f"spec.roles[{index}].template",
                f"/spec/roles/{index}/template",
                validated_template(section(role, "template"), f"spec.roles[{index}].template"),
                elastic,
            )
            for index, role in enumerate(_roles(manifest))
        ]

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        counts, podsets = self.counts(manifest), []
        for one in self.templates(manifest):
            template = strip_reserved(one.template)
            request = topology_request(template, index_label=COMPLETION_INDEX_LABEL)
            podsets.append(podset_json(one.podset, counts[one.podset], template, request))
        return podsets

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        roles = _roles(manifest)
        return {str(role["name"]).lower(): int_or_default(role.get("pods"), 1) for role in roles}

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        named = (
            (f"spec.roles[{index}].name", str(role["name"]))
            for index, role in enumerate(_roles(manifest))
        )
        groups = group_errors(self.templates(manifest), self.counts(manifest))
        return [*name_errors(named), *groups]

    def is_inactive(self, job: TrainingJob, children: Sequence[Job]) -> bool:
        return job.status.active == 0

    def pods_ready(self, job: TrainingJob, admitted: Mapping[str, int]) -> bool:
        return job.status.ready >= sum(admitted.values())

    def finished(self, job: TrainingJob) -> JobOutcome | None:
        phase = job.status.phase
        return JobOutcome(phase == "Failed", phase) if phase in ("Succeeded", "Failed") else None


def _roles(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    return items(section(manifest, "spec"), "roles", "spec")

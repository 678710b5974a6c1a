"""The explanation of a job or Workload without a Workload in the cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.jobframework.generic_job import GenericJob
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.explanation import Explanation, FieldProblem, Remedy, When
from rackgate_assigner.workload.info import workload_info
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import WORKLOAD, SubmissionPreview


def explain_preview(
    manifest: SubmissionPreview,
    found: ClusterReading,
    *,
    excluded: tuple[str, ...] = (),
    top: int = 3,
    fair_sharing: tuple[str, ...] | None = None,
) -> Explanation:
    """What happens to a job or Workload when it is submitted; see `WorkloadExplainer`."""
    warnings = (*manifest.warnings, *found.warnings)
    if manifest.unmanaged_reason:
        explanation = not_managed(manifest.name, manifest.unmanaged_reason)
        return msgspec.structs.replace(explanation, warnings=warnings)
    if manifest.workload is None and manifest.no_workload is not None:
        explanation = Explanation(workload=manifest.name, state="notSubmitted", summary="")
        return _without_workload(explanation, manifest, warnings)
    if manifest.workload is None:
        return Explanation(
            workload=manifest.name,
            state="invalid",
            summary="The API server would reject it.",
            errors=tuple(
                FieldProblem(path=error.path, problem=error.problem, help=error.help)
                for error in manifest.errors
            ),
            warnings=warnings,
        )
    warnings = (*warnings, *found.without_effect(manifest.workload))
    row = found.cache.pod_defaults.with_pod_defaults(
        workload_info(manifest.workload, None, excluded)
    )
    explanation = workload_explanation.explain_row(
        found.cache,
        row,
        "notSubmitted",
        found.cache.features,
        top,
        fair_sharing=fair_sharing,
    )
    if manifest.no_workload is not None:
        return _without_workload(explanation, manifest, warnings)
    job = manifest.name if manifest.kind != WORKLOAD else ""
    job_kind = manifest.kind if job else ""
    return msgspec.structs.replace(explanation, job=job, job_kind=job_kind, warnings=warnings)


def not_managed(key: str, why: str) -> Explanation:
    """A job that Rackgate does not manage; `why` as text without a full stop."""
    return Explanation(
        workload=key, state="ungoverned", summary=f"Rackgate does not manage it: {why}."
    )


def finished_job(key: str, kind: GenericJob[Any]) -> Explanation:
    """A finished job without a Workload; retention may have deleted that."""
    return Explanation(
        workload=key,
        job=key,
        job_kind=kind.name,
        state="finished",
        summary=f"The {kind.name} has finished. It has no Workload and uses no quota.",
    )


def _without_workload(
    explanation: Explanation, manifest: SubmissionPreview, warnings: tuple[str, ...]
) -> Explanation:
    """A managed job for which no Workload is created: that is the answer, whatever would fit."""
    why = manifest.no_workload
    if why is None:
        return explanation
    when: When = "now" if explanation.fits and not explanation.in_turn else "perhaps"
    change = Remedy(kind=why.kind, value=why.value, when=when, text=why.text)
    return msgspec.structs.replace(
        explanation,
        job=manifest.name,
        job_kind=manifest.kind,
        summary=why.summary,
        fits=False,
        changes=(change, *explanation.changes),
        warnings=warnings,
    )

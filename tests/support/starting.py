"""The start of a Job as the assigner writes it, from its template alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackgate.jobframework.generic_job import UNSUSPEND
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StartConflict,
    TolerationLike,
    start_ops,
)
from rackgate.jobframework.job.batch_job import TEMPLATE_PATH, TEMPLATE_POINTER
from rackgate.jobframework.jsonpatch import JsonPatchOp


def start_patch(
    template: Mapping[str, Any],
    podset: str,
    *,
    workload: str,
    tas: bool,
    node_labels: Mapping[str, str],
    tolerations: Sequence[TolerationLike],
) -> list[JsonPatchOp] | StartConflict:
    """Operations, `suspend: false` first; or the key that stands in the way."""
    part = PodTemplate(podset, TEMPLATE_PATH, TEMPLATE_POINTER, template)
    given = PodSetInfo(podset, tas, node_labels, tolerations)
    operations = start_ops([part], {podset: given}, workload=workload)
    if isinstance(operations, StartConflict):
        return operations
    return [dict(UNSUSPEND), *operations]

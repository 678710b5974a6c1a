"""The rank of a pod in its PodSet, from its labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rackgate.api.names import (
    COMPLETION_INDEX_LABEL,
    JOB_INDEX_LABEL,
    JOB_REPLICAS_LABEL,
    RAY_REPLICA_INDEX_LABEL,
)
from rackgate.wire.core import Meta
from rackgate.wire.kueue import PodSet

_MAX_DIGITS: Final = 9


def rank_of(meta: Meta, podset: PodSet | None) -> int | None:
    """The rank that labels or annotations of a pod say; None if they say none.

    Pods of a JobSet are numbered over all child Jobs of their PodSet.

    Args:
        meta: of the pod.
        podset: as its Workload has it; None if unknown.
    """
    found = {**meta.annotations, **meta.labels}
    request = podset.topology_request if podset is not None else None
    custom = request.pod_index_label if request is not None else None
    index = _number(found, custom or COMPLETION_INDEX_LABEL)
    if index is None:
        index = _number(found, COMPLETION_INDEX_LABEL)
    if index is None:
        return _number(found, RAY_REPLICA_INDEX_LABEL)
    job, replicas = _number(found, JOB_INDEX_LABEL), _number(found, JOB_REPLICAS_LABEL)
    if job is None or not replicas or podset is None:
        return index
    return job * (podset.count // replicas) + index


def _number(found: Mapping[str, str], key: str) -> int | None:
    text = found.get(key, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None

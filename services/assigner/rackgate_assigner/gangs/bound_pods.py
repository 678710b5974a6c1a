"""Bound pods of a job with gangs, as the watch shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rackgate.api.names import GANG_RUN_ANNOTATION
from rackgate.gang.link import link_of
from rackgate.wire.core import Pod
from rackgate_assigner.gangs.status.phases import PodPhase


class BoundPods(NamedTuple):
    """Bound pods of a job that have not ended.

    Attributes:
        counts: by PodSet.
        not_held: names of those that Rackgate did not release.
        phases: by PodSet and phase.
    """

    counts: Mapping[str, int]
    not_held: Sequence[str] = ()
    phases: Mapping[tuple[str, PodPhase], int] = MappingProxyType({})


def is_not_held(pod: Pod) -> bool:
    """Whether a bound pod names a Workload of gangs, and was not released by the ungater.

    It was created while the admission policy was not installed, or its gate was taken off by hand.
    """
    annotations = pod.metadata.annotations
    return bool(link_of(annotations)) and not annotations.get(GANG_RUN_ANNOTATION)

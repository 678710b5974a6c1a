"""How users write kinds: job, jobs, job.batch, jobs.batch, and short names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rackgate.api import resources
from rackgate.jobframework.registry import KINDS

CLUSTER_QUEUE: Final = "ClusterQueue"
LOCAL_QUEUE: Final = "LocalQueue"
WORKLOAD: Final = "Workload"
TOPOLOGY: Final = "Topology"


def _spellings() -> dict[str, str]:
    listed = [
        (WORKLOAD, resources.WORKLOADS, ("wl", "kwl")),
        (CLUSTER_QUEUE, resources.CLUSTER_QUEUES, ("cq",)),
        (LOCAL_QUEUE, resources.LOCAL_QUEUES, ("lq",)),
        (TOPOLOGY, resources.TOPOLOGIES, ()),
        *((kind.name, kind.resource, ()) for kind in KINDS.values()),
    ]
    found: dict[str, str] = {}
    for kind, resource, short in listed:
        singular = kind.lower()
        words = (singular, resource.plural, f"{singular}.{resource.group}", resource.full_name)
        found |= dict.fromkeys((*words, *short), kind)
    return found


SPELLINGS: Final[Mapping[str, str]] = _spellings()
"""Lower-case word to the kind as in the API."""

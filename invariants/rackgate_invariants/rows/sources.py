"""Which collections are read, and into which rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api import resources as kinds
from rackgate_invariants.rows.jobs import job_row, jobset_row, raycluster_row
from rackgate_invariants.rows.projections import Decode, node_row, pod_row
from rackgate_invariants.rows.queues import (
    cluster_queue_row,
    flavor_row,
    local_queue_row,
    topology_row,
)
from rackgate_invariants.rows.workloads import workload_row

# Pods that have ended hold nothing, and in many clusters they are most of all pods.
NOT_ENDED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


@dataclass(frozen=True, slots=True)
class Source:
    """One collection.

    Attributes:
        attribute: of `Cluster` that takes the rows.
        optional: a cluster that does not serve it has none of them.
    """

    attribute: str
    resource: kinds.Resource
    decode: Decode[Any]
    params: dict[str, str] = field(default_factory=dict)
    optional: bool = False

    def path(self, namespace: str | None) -> str:
        """The URL path of the collection, of one namespace where it has any."""
        return self.resource.path(namespace if self.resource.namespaced else None)

    def row(self, raw: bytes | msgspec.Raw) -> Any:
        """The row of one object; None for one that no service can read either."""
        try:
            return self.decode(raw)
        except msgspec.MsgspecError:
            return None


# In the order of reading. Workloads come after pods: a pod may only be ungated under an admission
# that was there before, so this order invents no pod without one.
SOURCES: Final = (
    Source("nodes", kinds.NODES, node_row),
    Source("topologies", kinds.TOPOLOGIES, topology_row),
    Source("flavors", kinds.FLAVORS, flavor_row),
    Source("pods", kinds.PODS, pod_row, NOT_ENDED),
    Source("workloads", kinds.WORKLOADS, workload_row),
    Source("jobs", kinds.JOBS, job_row),
    Source("jobsets", kinds.JOBSETS, jobset_row, optional=True),
    Source("rayclusters", kinds.RAY_CLUSTERS, raycluster_row, optional=True),
    Source("local_queues", kinds.LOCAL_QUEUES, local_queue_row),
    Source("cluster_queues", kinds.CLUSTER_QUEUES, cluster_queue_row),
)
# Attributes that take jobs.
JOBS: Final = ("jobs", "jobsets", "rayclusters")
ESSENTIAL: Final = (kinds.PODS, kinds.WORKLOADS, kinds.JOBS)

"""The collections to read, their rows, and one reading of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, GoneError, KubeError, NotFoundError, TransportError
from rackgate.runtime import clock
from rackgate.wire.lists import page_items
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.rows.gangs import gang_workload_row
from rackgate_invariants.rows.jobs import (
    job_row,
    jobset_row,
    mark_unmanaged,
    raycluster_row,
    rayjob_row,
)
from rackgate_invariants.rows.projections import Decode, node_row, pod_row
from rackgate_invariants.rows.queues import (
    cluster_queue_row,
    cohort_row,
    flavor_row,
    local_queue_row,
    topology_row,
)
from rackgate_invariants.rows.workloads import workload_row

TRIES = 3


async def read_cluster(
    client: Client,
    namespace: str | None = None,
    *,
    unmanaged: frozenset[str] = frozenset(),
    on_page: Callable[[str, int], None] = lambda _kind, _count: None,
) -> Cluster:
    """One reading of everything that the rules need.

    The lists are read one after another. `unread` names what cannot be listed or is not served.

    Args:
        client: only lists.
        namespace: the only namespace to read; all by default.
        unmanaged: namespaces whose jobs are not managed.
        on_page: called with the plural and the number of objects of each page.

    Raises:
        KubeError: the API server does not answer, or answers with another error.
    """
    found: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for source in SOURCES:
        try:
            found[source.attribute] = await _rows(client, source, namespace, on_page)
        except (ForbiddenError, NotFoundError) as error:
            if not await is_absent(client, source, error):
                unread[source.resource.plural] = unreadable_reason(source, error)
    for attribute in JOBS if unmanaged else ():
        found[attribute] = [mark_unmanaged(job, unmanaged) for job in found.get(attribute, ())]
    moment = clock.now().timestamp()
    return Cluster(**found, read_at=moment, unread=unread, whole=namespace is None)


async def is_absent(client: Client, source: Source, error: KubeError) -> bool:
    """Whether a collection was rejected because the cluster does not serve the kind.

    The API server checks authorization first, even for kinds that it does not serve. So the API
    group is discovered instead, which needs no authorization.
    """
    if not source.optional or not isinstance(error, ForbiddenError | NotFoundError):
        return False
    if isinstance(error, NotFoundError):
        return True
    try:
        await client.get(f"/apis/{source.resource.api_version}")
    except NotFoundError:
        return True
    except KubeError as other:
        if not other.status:
            raise
    return False


def unreadable_reason(source: Source, error: KubeError) -> str:
    """Why a collection could not be read."""
    if isinstance(error, NotFoundError):
        return f"the cluster has no {source.resource.full_name}"
    return f"{source.resource.plural} cannot be listed"


def _items(source: Source, page: bytes) -> list[msgspec.Raw]:
    try:
        return page_items(page)
    except msgspec.DecodeError as error:
        path = source.resource.path()
        raise TransportError("GET", path, reason="Garbage", message=str(error)) from error


async def _rows(
    client: Client, source: Source, namespace: str | None, on_page: Callable[[str, int], None]
) -> list[Any]:
    """The rows of a collection; starts again if the list expired."""
    for attempt in range(TRIES):
        rows: list[Any] = []
        try:
            async for page in client.list_pages(source.path(namespace), source.params):
                items = _items(source, page)
                rows += [row for row in map(source.row, items) if row is not None]
                on_page(source.resource.plural, len(items))
        except GoneError:
            if attempt == TRIES - 1:
                raise
        else:
            return rows
    return []


# Pods that have ended use nothing, and in many clusters most pods have ended.
NOT_ENDED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


@dataclass(frozen=True, slots=True)
class Source:
    """One collection.

    Attributes:
        attribute: of `Cluster` that gets the rows.
        optional: a cluster that does not serve the kind has no objects of it.
    """

    attribute: str
    resource: kinds.Resource
    decode: Decode[Any]
    params: dict[str, str] = field(default_factory=dict)
    optional: bool = False

    def path(self, namespace: str | None) -> str:
        """The URL path of the collection."""
        return self.resource.path(namespace if self.resource.namespaced else None)

    def row(self, raw: bytes | msgspec.Raw) -> Any:
        """The row of one object; None for one that the services cannot decode either."""
        try:
            return self.decode(raw)
        except msgspec.MsgspecError:
            return None


# In the order of reading. Workloads are read after pods: an admission comes before the pods that
# it ungates, so this order shows no pod without its admission.
SOURCES: Final = (
    Source("nodes", kinds.NODES, node_row),
    Source("topologies", kinds.TOPOLOGIES, topology_row),
    Source("flavors", kinds.FLAVORS, flavor_row),
    Source("pods", kinds.PODS, pod_row, NOT_ENDED),
    Source("workloads", kinds.WORKLOADS, workload_row),
    Source("gang_workloads", kinds.GANG_WORKLOADS, gang_workload_row, optional=True),
    Source("jobs", kinds.JOBS, job_row),
    Source("jobsets", kinds.JOBSETS, jobset_row, optional=True),
    Source("rayclusters", kinds.RAY_CLUSTERS, raycluster_row, optional=True),
    Source("rayjobs", kinds.RAY_JOBS, rayjob_row, optional=True),
    Source("local_queues", kinds.LOCAL_QUEUES, local_queue_row),
    Source("cohorts", kinds.COHORTS, cohort_row, optional=True),
    Source("cluster_queues", kinds.CLUSTER_QUEUES, cluster_queue_row),
)
# Attributes that hold jobs.
JOBS: Final = ("jobs", "jobsets", "rayclusters", "rayjobs")
ESSENTIAL: Final = (kinds.PODS, kinds.WORKLOADS, kinds.JOBS)

"""The watches of the assigner: partial decoding of objects, and listeners for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from sys import intern
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from rackgate.api import names, resources
from rackgate.api.resources import Resource
from rackgate.jobframework.generic_job import GenericJob
from rackgate.jobframework.linked_kind import LinkedKind
from rackgate.jobframework.pod_group.membership import MANAGED
from rackgate.jobframework.pod_group.pods import decode_group_pod
from rackgate.jobframework.registry import JOB, KINDS, LINKED_KINDS
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import spawn
from rackgate.wire import core, kueue, osmo
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.gangs.gang_workload import decode_gang_workload
from rackgate_assigner.gangs.linked import LinkedObject, linked_decoder

MANAGED_JOBS: Final = {"labelSelector": names.QUEUE_LABEL}
CHILD_JOBS: Final = {"labelSelector": names.JOBSET_NAME_LABEL}
SUBMITTERS: Final = {"labelSelector": f"{names.RAY_ORIGIN_KIND_LABEL}={names.RAY_JOB_KIND}"}
BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}

# Seconds between two checks whether a kind is served: not served, and unknown.
SERVED_POLL_S: Final = 30.0
UNKNOWN_POLL_S: Final = 1.0

# Every managed plain pod, bound or not, ended or not.
GROUP_PODS: Final = {"labelSelector": f"{names.MANAGED_LABEL}={MANAGED}"}
_POD_LABELS: Final = (names.PODSET_LABEL, names.MANAGED_LABEL, names.POD_GROUP_LABEL)
_GANG_POD_LABELS: Final = (*_POD_LABELS, names.GANG_ID_LABEL)
_POD_ANNOTATIONS: Final = (
    names.WORKLOAD_ANNOTATION,
    names.KUEUE_SLICE_CHAIN_ANNOTATION,
    names.GANG_LINK_ANNOTATION,
    names.GANG_RUN_ANNOTATION,
)

log = structlog.get_logger()


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> core.Meta:
        """Its metadata."""


T = TypeVar("T")
V = TypeVar("V", bound=Object)

_encode = msgspec.msgpack.Encoder().encode
_decode_workload = msgspec.json.Decoder(kueue.Workload).decode


def decoder(kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Decodes the whole view of a kind."""
    return msgspec.json.Decoder(kind).decode


def decode_workload(raw: bytes | msgspec.Raw) -> kueue.Workload:
    """A Workload; its templates are copied, so the watch event is freed."""
    workload = _decode_workload(raw)
    podsets = tuple(
        msgspec.structs.replace(podset, template=msgspec.Raw(bytes(podset.template)))
        for podset in workload.spec.pod_sets
    )
    spec = msgspec.structs.replace(workload.spec, pod_sets=podsets)
    return msgspec.structs.replace(workload, spec=spec)


class _PodSpecView(core.View, frozen=True):
    node_name: str | None = None
    containers: tuple[core.Container, ...] = ()
    init_containers: tuple[core.Container, ...] = ()
    overhead: dict[str, str | int | float] = {}  # noqa: RUF012 - msgspec copies empty defaults
    resources: core.Resources = core.Resources()


class _PodStatusView(core.View, frozen=True):
    phase: str = ""
    container_statuses: tuple[core.ContainerStatus, ...] = ()
    init_container_statuses: tuple[core.ContainerStatus, ...] = ()


class _PodView(core.View, frozen=True):
    """The part of a pod that is kept; nothing else is decoded."""

    metadata: core.Meta = core.Meta()
    spec: _PodSpecView = _PodSpecView()
    status: _PodStatusView = _PodStatusView()


_decode_pod = msgspec.json.Decoder(_PodView).decode


def decode_pod(raw: bytes | msgspec.Raw, *, gangs: bool = False) -> core.Pod:
    """A bound pod: its node, requests and owner.

    Pods of one job are similar: equal parts are stored once for all of them.

    Args:
        raw: the object.
        gangs: with the id of its gang. Only a policy of `deploy/gangs` makes sure that no user
            writes it.
    """
    view = _decode_pod(raw)
    found, spec = view.metadata, view.spec
    meta = core.Meta(
        name=found.name,
        namespace=intern(found.namespace),
        uid=found.uid,
        resource_version=found.resource_version,
        deletion_timestamp=found.deletion_timestamp,
        deletion_grace_period_seconds=found.deletion_grace_period_seconds,
        labels=_interned(_select_keys(found.labels, _GANG_POD_LABELS if gangs else _POD_LABELS)),
        annotations=_interned(_select_keys(found.annotations, _POD_ANNOTATIONS)),
        owner_references=_interned(found.owner_references),
    )
    spec_kept = core.PodSpec(
        node_name=intern(spec.node_name) if spec.node_name else None,
        containers=_interned(spec.containers),
        init_containers=_interned(spec.init_containers),
        overhead=_interned(spec.overhead),
        resources=_interned(spec.resources),
    )
    status = core.PodStatus(
        phase=view.status.phase,
        container_statuses=view.status.container_statuses,
        init_container_statuses=view.status.init_container_statuses,
    )
    return core.Pod(metadata=meta, spec=spec_kept, status=_interned(status))


_SHARED_LIMIT: Final = 4096
_interned_parts: dict[tuple[type, bytes], Any] = {}


def _interned(part: T) -> T:
    """An equal part decoded before, if it is still in use; it must not be changed."""
    key = (type(part), _encode(part))
    known: T | None = _interned_parts.get(key)
    if known is not None:
        return known
    if len(_interned_parts) >= _SHARED_LIMIT:
        _interned_parts.clear()  # parts in use stay in use; only new pods get their own parts
    _interned_parts[key] = part
    return part


def _select_keys(found: dict[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: found[key] for key in keys if key in found}


class Watch(Generic[V]):
    """One watched collection and its listeners.

    If a listener fails, the error is logged: one odd object must not stop the stream.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[bytes | msgspec.Raw], V],
        params: Mapping[str, str] | None = None,
        *,
        on_synced: Callable[[], None] | None = None,
    ) -> None:
        self.resource = resource
        self._on_upsert: list[Callable[..., Any]] = []
        self._on_delete: list[Callable[..., Any]] = []
        self.informer: Informer[V] = Informer(
            client,
            resource,
            decode,
            on_upsert=lambda old, new: self._call(self._on_upsert, old, new, item=new),
            on_delete=lambda old: self._call(self._on_delete, old, item=old),
            params=params,
            on_synced=on_synced,
        )

    def missing(self) -> list[str]:
        """Reasons why this watch is not complete: lines for /readyz."""
        return self.informer.missing()

    async def synced(self) -> None:
        """Wait until the whole collection was listed once."""
        await self.informer.synced.wait()

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        await self.informer.run()

    @property
    def store(self) -> Mapping[str, V]:
        """The objects by `namespace/name`, or by name; a live view."""
        return self.informer.store

    def add_listener(
        self,
        upsert: Callable[[V | None, V], Any] | None = None,
        delete: Callable[[V], Any] | None = None,
    ) -> None:
        """Add listeners; they are called in the order in which they were added."""
        if upsert is not None:
            self._on_upsert.append(upsert)
        if delete is not None:
            self._on_delete.append(delete)

    def _call(self, listeners: list[Callable[..., Any]], *objects: V | None, item: V) -> None:
        for listener in listeners:
            try:
                listener(*objects)
            except Exception:  # the other listeners must go on
                name, key = self.resource.full_name, item.metadata.key
                log.exception("object_not_cached", resource=name, key=key)


class OptionalWatch(Watch[V]):
    """Watches a collection of a kind that may not be installed, without blocking readiness.

    While the kind is not served its watch is complete and empty. Every `SERVED_POLL_S` seconds,
    without a log line, it checks again, and watches the kind once it is served. If the kind is
    removed later, its objects are deleted.

    Attributes:
        served: whether the API server serves the kind, according to the last check.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[bytes | msgspec.Raw], V],
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.served = False
        self._on_served: list[Callable[[], Any]] = []
        self._resolved = asyncio.Event()
        super().__init__(client, resource, decode, params, on_synced=self._listed)
        self._client, self._problem = client, "not checked yet"

    def missing(self) -> list[str]:
        """Empty once it is listed, or known not to be served."""
        if self._resolved.is_set():
            return []
        if not self._problem:
            return self.informer.missing()
        return [f"{self.resource.full_name}: {self._problem}"]

    async def synced(self) -> None:
        """Wait until it was listed once, or is known not to be served."""
        await self._resolved.wait()

    def add_served_listener(self, listener: Callable[[], Any]) -> None:
        """Add a listener that is called when the kind is served, or no longer served."""
        self._on_served.append(listener)

    async def run(self) -> None:
        """Follow the collection whenever it is served, until cancelled."""
        while True:
            served = await self._served()
            if served:
                log.info("kind_served", resource=self.resource.full_name)
                self._set_served(True)
                await self._follow()
            if served is not None:
                self._resolved.set()
            await asyncio.sleep(UNKNOWN_POLL_S if served is None else SERVED_POLL_S)

    async def _follow(self) -> None:
        """Watch it until it is not served any more."""
        async with asyncio.TaskGroup() as group:
            name = f"watch {self.resource.full_name}"
            following = spawn(group, self.informer.run(), name)
            not_served_count = 0
            # A single failure may be an API server that is about to serve it again.
            while not_served_count < 2:
                await asyncio.sleep(UNKNOWN_POLL_S)
                not_served_count = not_served_count + 1 if await self._gone() else 0
            following.cancel()
        log.info("kind_not_served", resource=self.resource.full_name)
        self._set_served(False)
        self.informer.clear()

    async def _gone(self) -> bool:
        """Whether its watch fails because the kind is not served; checked once per failure."""
        problem = self.informer.problem
        served = await self._served() if problem else None
        if served and self._resolved.is_set() and self.informer.problem == problem:
            self.informer.problem = ""  # a watch that fails again is reported again
        return served is False

    def _set_served(self, served: bool) -> None:
        self.served = served
        for listener in self._on_served:
            listener()

    def _listed(self) -> None:
        self.informer.problem = ""  # a new failure is a problem with a kind that was served
        self._resolved.set()

    async def _served(self) -> bool | None:
        """Whether the API server serves the kind; None if it does not respond now."""
        try:
            await self._client.get(self.resource.path(), {"limit": "1"})
        except NotFoundError:
            self._problem = ""
            return False
        except KubeError as error:
            if self._problem != str(error):
                log.warning(
                    "kind_availability_unknown", resource=self.resource.full_name, error=str(error)
                )
            self._problem = str(error)
            return None
        self._problem = ""
        return True


class PoolWatches:
    """The watches for OSMO's pools; either kind may be installed and removed.

    Attributes:
        pools: Pools.
        topologies: Topologies of KAI, of all owners: a name may be in use.
    """

    def __init__(self, client: Client) -> None:
        self.pools = OptionalWatch(client, resources.OSMO_POOLS, decoder(osmo.Pool))
        self.topologies = OptionalWatch(client, resources.KAI_TOPOLOGIES, decoder(osmo.KaiTopology))

    def served(self) -> tuple[bool, bool]:
        """Whether the API server serves Pools, and KAI's Topologies."""
        return self.pools.served, self.topologies.served

    async def synced(self) -> None:
        """Wait until both are listed, or known not to be served."""
        await self.pools.synced()
        await self.topologies.synced()


class Watches:
    """All watches of the assigner.

    Attributes:
        kinds: managed jobs, by kind.
        child_jobs: child Jobs of JobSets, managed or not.
        submitters: child Jobs of RayJobs, managed or not.
        osmo: pools, only with the gate.
        gangs: Workloads of gangs, only with the gate.
        linked: objects whose pods are linked to them, by kind, only with the gate.
        group_pods: plain pods, and pods of gangs that no managed job owns; only with a gate.
    """

    def __init__(
        self, client: Client, *, osmo: bool = False, gangs: bool = False, pod_groups: bool = False
    ) -> None:
        self.nodes = Watch(client, resources.NODES, decoder(core.Node))
        self.pods = Watch(client, resources.PODS, partial(decode_pod, gangs=gangs), BOUND)
        self.namespaces = Watch(client, resources.NAMESPACES, decoder(core.Namespace))
        self.limit_ranges = Watch(client, resources.LIMIT_RANGES, decoder(core.LimitRange))
        self.runtime_classes = Watch(client, resources.RUNTIME_CLASSES, decoder(core.RuntimeClass))
        self.classes = Watch(client, resources.PRIORITY_CLASSES, decoder(core.PriorityClass))
        self.workload_classes = Watch(
            client, resources.WORKLOAD_PRIORITY_CLASSES, decoder(kueue.WorkloadPriorityClass)
        )
        self.checks = Watch(client, resources.ADMISSION_CHECKS, decoder(kueue.AdmissionCheck))
        self.topologies = Watch(client, resources.TOPOLOGIES, decoder(kueue.Topology))
        self.flavors = Watch(client, resources.FLAVORS, decoder(kueue.ResourceFlavor))
        self.cohorts = Watch(client, resources.COHORTS, decoder(kueue.Cohort))
        self.cluster_queues = Watch(client, resources.CLUSTER_QUEUES, decoder(kueue.ClusterQueue))
        self.local_queues = Watch(client, resources.LOCAL_QUEUES, decoder(kueue.LocalQueue))
        self.workloads = Watch(client, resources.WORKLOADS, decode_workload)
        # First of the watches of Jobs, so that its lag metric is that of the managed Jobs.
        self.child_jobs = Watch(client, resources.JOBS, JOB.decode, CHILD_JOBS)
        self.submitters = Watch(client, resources.JOBS, JOB.decode, SUBMITTERS)
        self.kinds = {kind.name: _managed_job_watch(client, kind) for kind in KINDS.values()}
        self.osmo = PoolWatches(client) if osmo else None
        self.gangs = (
            OptionalWatch(client, resources.GANG_WORKLOADS, decode_gang_workload) if gangs else None
        )
        self.linked: dict[str, Watch[LinkedObject]] = (
            {kind.name: _linked_watch(client, kind) for kind in LINKED_KINDS.values()}
            if gangs
            else {}
        )
        self.group_pods = (
            Watch(client, resources.PODS, decode_group_pod, GROUP_PODS)
            if pod_groups or gangs
            else None
        )

    async def wait_confirmed(self) -> None:
        """Wait until all watches are known to show the API server's current store."""
        while not all(watch.informer.is_confirmed for watch in self.all()):
            for watch in self.all():
                await watch.informer.wait_confirmed()

    def all(self) -> list[Watch[Any]]:
        """All watches."""
        osmo_watches = (self.osmo.pools, self.osmo.topologies) if self.osmo is not None else ()
        return [*self.needed(), *osmo_watches]

    def needed(self) -> list[Watch[Any]]:
        """Watches that decisions about jobs require; kinds of other projects are not included."""
        return [
            self.nodes,
            self.pods,
            self.namespaces,
            self.limit_ranges,
            self.runtime_classes,
            self.classes,
            self.workload_classes,
            self.checks,
            self.topologies,
            self.flavors,
            self.cohorts,
            self.cluster_queues,
            self.local_queues,
            self.workloads,
            self.child_jobs,
            self.submitters,
            *self.kinds.values(),
            *((self.gangs,) if self.gangs is not None else ()),
            *self.linked.values(),
            *(() if self.group_pods is None else (self.group_pods,)),
        ]


def _linked_watch(client: Client, kind: LinkedKind) -> Watch[LinkedObject]:
    follow = Watch if kind.built_in else OptionalWatch
    return follow(client, kind.resource, linked_decoder(kind), MANAGED_JOBS)


def _managed_job_watch(client: Client, kind: GenericJob[Any]) -> Watch[Any]:
    follow = Watch if kind.built_in else OptionalWatch
    return follow(client, kind.resource, kind.decode, MANAGED_JOBS)


def cache_updates(
    watches: Watches, cache: Cache
) -> list[tuple[Watch[Any], Callable[[Any], Any], Callable[[str], Any]]]:
    """The watches that fill a cache, in the order in which they connect.

    Returns:
        Each watch, what sets one of its objects in the cache, and what drops one by its key.
    """
    return [
        (watches.nodes, cache.set_node, cache.drop_node),
        (watches.pods, cache.set_pod, cache.drop_pod),
        (watches.namespaces, cache.set_namespace, cache.drop_namespace),
        (watches.limit_ranges, cache.set_limit_range, cache.drop_limit_range),
        (watches.runtime_classes, cache.set_runtime_class, cache.drop_runtime_class),
        (
            watches.workload_classes,
            cache.set_workload_priority_class,
            cache.drop_workload_priority_class,
        ),
        (watches.checks, cache.set_admission_check, cache.drop_admission_check),
        (watches.topologies, cache.set_topology, cache.drop_topology),
        (watches.flavors, cache.set_flavor, cache.drop_flavor),
        (watches.cluster_queues, cache.set_cluster_queue, cache.drop_cluster_queue),
        (watches.cohorts, cache.set_cohort, cache.drop_cohort),
        (watches.local_queues, cache.set_local_queue, cache.drop_local_queue),
        (watches.workloads, cache.set_workload, cache.drop_workload),
    ]

"""The watches of the assigner: projections at the edge, and who hears of what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from rackgate.api import names
from rackgate.kube import resources
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.kube.resources import Resource
from rackgate.wire import batch, core, kueue

GOVERNED: Final = {"labelSelector": names.QUEUE_LABEL}
BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}

_POD_LABELS: Final = (names.PODSET_LABEL,)
_POD_ANNOTATIONS: Final = (names.WORKLOAD_ANNOTATION,)

log = structlog.get_logger()


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> core.Meta:
        """Its metadata."""


T = TypeVar("T")
V = TypeVar("V", bound=Object)

_decode_job = msgspec.json.Decoder(batch.Job).decode
_decode_pod = msgspec.json.Decoder(core.Pod).decode
_decode_workload = msgspec.json.Decoder(kueue.Workload).decode


def decoder(kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Decodes the whole view of a kind."""
    return msgspec.json.Decoder(kind).decode


def decode_job(raw: bytes | msgspec.Raw) -> batch.Job:
    """A Job; its template holds memory of its own, not the whole event."""
    job = _decode_job(raw)
    spec = msgspec.structs.replace(job.spec, template=_copied(job.spec.template))
    return msgspec.structs.replace(job, spec=spec)


def decode_workload(raw: bytes | msgspec.Raw) -> kueue.Workload:
    """A Workload; its templates hold memory of their own, not the whole event."""
    workload = _decode_workload(raw)
    podsets = tuple(
        msgspec.structs.replace(podset, template=_copied(podset.template))
        for podset in workload.spec.pod_sets
    )
    spec = msgspec.structs.replace(workload.spec, pod_sets=podsets)
    return msgspec.structs.replace(workload, spec=spec)


def decode_pod(raw: bytes | msgspec.Raw) -> core.Pod:
    """A bound pod: where it is, what it asks for and whose it is."""
    pod = _decode_pod(raw)
    meta = msgspec.structs.replace(
        pod.metadata,
        labels=_only(pod.metadata.labels, _POD_LABELS),
        annotations=_only(pod.metadata.annotations, _POD_ANNOTATIONS),
        finalizers=(),
    )
    spec = core.PodSpec(
        node_name=pod.spec.node_name,
        containers=pod.spec.containers,
        init_containers=pod.spec.init_containers,
        overhead=pod.spec.overhead,
        resources=pod.spec.resources,
    )
    return core.Pod(metadata=meta, spec=spec, status=core.PodStatus(phase=pod.status.phase))


def _copied(raw: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(bytes(raw))


def _only(found: dict[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: found[key] for key in keys if key in found}


class Watch(Generic[V]):
    """One followed collection and its listeners.

    A listener that fails is logged and passed over: one odd object must not stop the stream.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[bytes | msgspec.Raw], V],
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.resource = resource
        self._on_upsert: list[Callable[[V | None, V], Any]] = []
        self._on_delete: list[Callable[[V], Any]] = []
        self.informer: Informer[V] = Informer(
            client,
            resource,
            decode,
            on_upsert=self._upserted,
            on_delete=self._deleted,
            params=params,
        )

    @property
    def store(self) -> Mapping[str, V]:
        """The objects by `namespace/name`, or by name; a live view."""
        return self.informer.store

    def tell(
        self,
        upsert: Callable[[V | None, V], Any] | None = None,
        delete: Callable[[V], Any] | None = None,
    ) -> None:
        """Add listeners; they are called in the order in which they were added."""
        if upsert is not None:
            self._on_upsert.append(upsert)
        if delete is not None:
            self._on_delete.append(delete)

    def _upserted(self, before: V | None, item: V) -> None:
        for listener in self._on_upsert:
            try:
                listener(before, item)
            except Exception:  # noqa: BLE001 - logged with its trace in `_failed`
                self._failed(item)

    def _deleted(self, item: V) -> None:
        for listener in self._on_delete:
            try:
                listener(item)
            except Exception:  # noqa: BLE001 - logged with its trace in `_failed`
                self._failed(item)

    def _failed(self, item: V) -> None:
        log.exception("object_not_folded", resource=self.resource.full_name, key=item.metadata.key)


class Watches:
    """Everything the assigner follows."""

    def __init__(self, client: Client) -> None:
        self.nodes = Watch(client, resources.NODES, decoder(core.Node))
        self.pods = Watch(client, resources.PODS, decode_pod, BOUND)
        self.namespaces = Watch(client, resources.NAMESPACES, decoder(core.Namespace))
        self.classes = Watch(client, resources.PRIORITY_CLASSES, decoder(core.PriorityClass))
        self.workload_classes = Watch(
            client, resources.WORKLOAD_PRIORITY_CLASSES, decoder(kueue.WorkloadPriorityClass)
        )
        self.checks = Watch(client, resources.ADMISSION_CHECKS, decoder(kueue.AdmissionCheck))
        self.topologies = Watch(client, resources.TOPOLOGIES, decoder(kueue.Topology))
        self.flavors = Watch(client, resources.FLAVORS, decoder(kueue.ResourceFlavor))
        self.cluster_queues = Watch(client, resources.CLUSTER_QUEUES, decoder(kueue.ClusterQueue))
        self.local_queues = Watch(client, resources.LOCAL_QUEUES, decoder(kueue.LocalQueue))
        self.workloads = Watch(client, resources.WORKLOADS, decode_workload)
        self.jobs = Watch(client, resources.JOBS, decode_job, GOVERNED)

    def informers(self) -> list[Informer[Any]]:
        """All informers."""
        watches: list[Watch[Any]] = [
            self.nodes,
            self.pods,
            self.namespaces,
            self.classes,
            self.workload_classes,
            self.checks,
            self.topologies,
            self.flavors,
            self.cluster_queues,
            self.local_queues,
            self.workloads,
            self.jobs,
        ]
        return [watch.informer for watch in watches]

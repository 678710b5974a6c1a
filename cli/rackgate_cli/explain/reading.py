"""Reads a cluster as the assigner does: the same objects in the same cache."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError, NotFoundError
from rackgate.runtime.tasks import spawn
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.watches import BOUND, decode_pod, decode_workload, decoder
from rackgate_cli.cluster.lists import Decode, Progress, list_decoded
from rackgate_cli.cluster.managed import selectors
from rackgate_cli.cluster.roles import BATCH_USER, VIEWER, ask_for
from rackgate_cli.errors import CommandError, first_error
from rackgate_cli.explain.cluster_reading import ClusterReading

# A user who may not list these still gets an explanation.
OPTIONAL: Final = (
    kinds.WORKLOAD_PRIORITY_CLASSES,
    kinds.PRIORITY_CLASSES,
    kinds.ADMISSION_CHECKS,
    kinds.NAMESPACES,
    kinds.LIMIT_RANGES,
    kinds.RUNTIME_CLASSES,
)


class MissingRightsError(CommandError):
    """The user may not list everything that an explanation needs.

    Attributes:
        plurals: what may not be listed in the whole cluster, in the order of reading.
        rights: the same as a sentence, with the role that has the rights.
    """

    def __init__(self, plurals: Sequence[str]) -> None:
        self.plurals = tuple(plurals)
        self.rights = f"you may not list {_enumeration(plurals)} of the whole cluster; " + ask_for(
            VIEWER, "with a ClusterRoleBinding"
        )
        super().__init__(f"an explanation needs more rights: {self.rights}")


async def read(client: Client, cache: Cache, namespace: str) -> ClusterReading:
    """List everything that an explanation needs, and fill a cache with it.

    Workloads are read after pods: an admission comes before the pods that it ungates, so this
    order shows no pod without its admission.

    Args:
        client: only lists.
        cache: an empty cache.
        namespace: of the Workload. It and its LimitRanges are read alone if those of the whole
            cluster cannot be listed.

    Raises:
        MissingRightsError: the user may not list all that is necessary.
        CommandError: Rackgate is not installed.
    """
    reader = _Reader(client, ClusterReading(cache), namespace)
    try:
        await reader.read()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors
    finally:
        reader.progress.done()
    return reader.found


_CacheSetter = tuple[Decode, Callable[[Any], None], Mapping[str, str] | None]


def _cache_setters(found: ClusterReading) -> dict[kinds.Resource, _CacheSetter]:
    """What is listed, its decoder, its setter and its parameters, in the order of setting."""
    cache = found.cache

    def workload(item: kueue.Workload) -> None:
        found.workloads[item.metadata.key] = item
        cache.set_workload(item)

    def cluster_queue(item: kueue.ClusterQueue) -> None:
        found.cluster_queues[item.metadata.name] = item
        cache.set_cluster_queue(item)

    def workload_class(item: kueue.WorkloadPriorityClass) -> None:
        found.workload_classes[item.metadata.name] = item
        cache.set_workload_priority_class(item)

    def priority_class(item: core.PriorityClass) -> None:
        found.classes[item.metadata.name] = item

    return {
        kinds.TOPOLOGIES: (decoder(kueue.Topology), cache.set_topology, None),
        kinds.FLAVORS: (decoder(kueue.ResourceFlavor), cache.set_flavor, None),
        kinds.NODES: (decoder(core.Node), cache.set_node, None),
        kinds.NAMESPACES: (decoder(core.Namespace), cache.set_namespace, None),
        kinds.LIMIT_RANGES: (decoder(core.LimitRange), cache.set_limit_range, None),
        kinds.RUNTIME_CLASSES: (decoder(core.RuntimeClass), cache.set_runtime_class, None),
        kinds.WORKLOAD_PRIORITY_CLASSES: (
            decoder(kueue.WorkloadPriorityClass),
            workload_class,
            None,
        ),
        kinds.PRIORITY_CLASSES: (decoder(core.PriorityClass), priority_class, None),
        kinds.ADMISSION_CHECKS: (decoder(kueue.AdmissionCheck), cache.set_admission_check, None),
        kinds.CLUSTER_QUEUES: (decoder(kueue.ClusterQueue), cluster_queue, None),
        kinds.LOCAL_QUEUES: (decoder(kueue.LocalQueue), cache.set_local_queue, None),
        kinds.PODS: (decode_pod, cache.set_pod, BOUND),
        kinds.WORKLOADS: (decode_workload, workload, None),
    }


class _Reader:
    """One reading of a cluster."""

    def __init__(self, client: Client, found: ClusterReading, namespace: str) -> None:
        self.client, self.found, self.namespace = client, found, namespace
        self.progress = Progress()
        self._cache_setters = _cache_setters(found)
        self._lists: dict[kinds.Resource, list[Any]] = {}
        self._forbidden: set[kinds.Resource] = set()

    async def read(self) -> None:
        """List all kinds, Workloads last, then fill the cache."""
        async with asyncio.TaskGroup() as group:
            for kind in self._cache_setters:
                if kind is not kinds.WORKLOADS:
                    spawn(group, self._fetch(kind), f"list {kind.plural}")
            selecting = spawn(group, selectors(self.client), "list webhook configurations")
        self.found.selectors = selecting.result()
        await self._fetch(kinds.WORKLOADS)
        if self._forbidden:
            missing = [kind.plural for kind in self._cache_setters if kind in self._forbidden]
            raise MissingRightsError(missing)
        for kind, (_, add, _params) in self._cache_setters.items():
            for item in self._lists[kind]:
                add(item)

    async def _fetch(self, kind: kinds.Resource) -> None:
        decode, _, params = self._cache_setters[kind]
        try:
            found = await list_decoded(
                self.client, kind, decode, params=params, progress=self.progress
            )
        except (ForbiddenError, NotFoundError) as error:
            if kind not in OPTIONAL:
                if isinstance(error, NotFoundError):
                    raise CommandError(
                        f"the cluster has no {kind.full_name}: check that Rackgate is installed"
                    ) from error
                self._forbidden.add(kind)
                return
            found = await self._fallback(kind, decode)
        self._lists[kind] = found

    async def _fallback(self, kind: kinds.Resource, decode: Decode) -> list[Any]:
        """The objects of a kind that may be read although the kind cannot be listed."""
        self.found.unlisted.add(kind.kind)
        if kind is kinds.NAMESPACES:
            with contextlib.suppress(KubeError):
                return [decode(await self.client.get(kind.path(None, self.namespace)))]
        if kind is kinds.LIMIT_RANGES:
            with contextlib.suppress(KubeError):
                return await list_decoded(self.client, kind, decode, namespace=self.namespace)
        self.found.warnings.append(f"{kind.plural} cannot be listed and are ignored")
        return []


async def podset_pods(client: Client, namespace: str) -> list[core.Pod]:
    """Pods of a namespace with the podset label, gated ones too."""
    params = {"labelSelector": names.PODSET_LABEL}
    return await list_decoded(
        client, kinds.PODS, decoder(core.Pod), namespace=namespace, params=params
    )


async def read_namespace(client: Client, cache: Cache, namespace: str) -> ClusterReading:
    """List the Workloads of a namespace and its bound pods, and fill a cache with them.

    Raises:
        CommandError: the user may not list them.
    """
    found = ClusterReading(cache, one_namespace=True)
    setters = _cache_setters(found)
    forbidden = []
    for kind in (kinds.PODS, kinds.WORKLOADS):
        decode, add, params = setters[kind]
        try:
            listed = await list_decoded(client, kind, decode, namespace=namespace, params=params)
        except ForbiddenError:
            forbidden.append(kind.plural)
        else:
            for item in listed:
                add(item)
    if forbidden:
        raise CommandError(
            f'you may not list {_enumeration(forbidden)} of namespace "{namespace}"; '
            + ask_for(BATCH_USER, f'there, or "{VIEWER}" in the whole cluster')
        )
    return found


def _enumeration(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

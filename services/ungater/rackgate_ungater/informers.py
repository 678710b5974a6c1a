"""The watches of every replica (pods, Workloads, children, nodes), and live lists of pods.

`PodRelister` lists pods on request. Each list starts after it is requested, so it includes all
earlier writes and shows which pods are gone. A watch that lags would show the pods of an earlier
run together with their successors. Requests made during a list share the next one, so there is only
one list at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import (
    GANG_WORKLOADS,
    JOBS,
    NODES,
    PODS,
    RAY_CLUSTERS,
    WORKLOADS,
    Resource,
)
from rackgate.jobframework.registry import CLEANUP_LABELS
from rackgate.kube.client import WATCH_IDLE_S, Client
from rackgate.kube.errors import KubeError
from rackgate.kube.informer import Informer
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import spawn
from rackgate.wire.lists import decode_page
from rackgate_ungater.state_machine.child_jobs import (
    CHILD_JOB_SELECTOR,
    RAY_JOB_CHILD_SELECTOR,
    ChildJob,
    decode_job,
)
from rackgate_ungater.state_machine.events import (
    Event,
    JobGone,
    JobSeen,
    PodGone,
    PodSeen,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gang_workloads import GangWorkload, decode_gang_workload
from rackgate_ungater.state_machine.gated_objects import (
    GatedPod,
    GatedWorkload,
    PodUid,
    decode_pod,
    decode_workload,
)
from rackgate_ungater.state_machine.node_names import NodesByHostname, decode_node

# The value is not trusted; the label only keeps other pods out of the watch. Clean-up pods of a job
# are created from its templates with the injection, but the ungater does not release them.
_NOT_CLEANUP = ",".join(f"{label}!={value}" for label, value in CLEANUP_LABELS.items())
SELECTOR = {"labelSelector": f"{names.PODSET_LABEL},{_NOT_CLEANUP}"}

# A healthy watch is never silent for this long.
NODES_STALE_AFTER_S: Final = 2 * WATCH_IDLE_S
# Shards that are acquired together arrive within a few milliseconds.
GATHER_S: Final = 0.05

log = structlog.get_logger()


class Informers:
    """The watches of one replica.

    Attributes:
        decode_pod: decodes one of them.
        nodes: as last watched; empty if they are not watched.
    """

    def __init__(
        self,
        client: Client,
        on_event: Callable[[Event], None],
        on_workload_deleted: Callable[[GatedWorkload], None],
        *,
        elastic: bool,
        on_gang_workload: Callable[[str, GangWorkload | None], None] | None = None,
        watch_nodes: bool = False,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: for lists and watches.
            on_event: called for every object seen or deleted.
            on_workload_deleted: called instead for deleted Workloads.
            elastic: elastic jobs are served.
            on_gang_workload: if gangs are served: called for every Workload of gangs by its key,
                with None once it is deleted.
            watch_nodes: nodes are watched, too.
        """
        gangs = on_gang_workload is not None
        self._on_event = on_event
        self.decode_pod = partial(decode_pod, gangs=gangs)
        self.pods = Informer(
            client,
            PODS,
            self.decode_pod,
            on_upsert=lambda _, obj: on_event(PodSeen(obj)),
            on_delete=lambda obj: on_event(PodGone(obj.uid)),
            params=SELECTOR,
            key_of=lambda obj: obj.key,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
        self.workloads = Informer(
            client,
            WORKLOADS,
            partial(decode_workload, elastic=elastic),
            on_upsert=lambda _, obj: self._workload_seen(obj),
            on_delete=on_workload_deleted,
            key_of=lambda obj: obj.key,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
        children = client.metadata_only()
        self.jobs = _child_informer(children, JOBS, CHILD_JOB_SELECTOR, on_event)
        # From the first Workload of a RayJob on, because KubeRay may not be installed. The pods of
        # RayJobs stay gated until both are listed.
        self._has_ray_jobs = asyncio.Event()
        self._ray_job_children = [
            _child_informer(children, resource, RAY_JOB_CHILD_SELECTOR, on_event)
            for resource in (RAY_CLUSTERS, JOBS)
        ]
        self.nodes = NodesByHostname()
        self._node_informer = Informer(
            client.metadata_only(),
            NODES,
            decode_node,
            on_upsert=self.nodes.upsert,
            on_delete=self.nodes.delete,
            key_of=lambda obj: obj.name,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
        self._watch_nodes = watch_nodes
        self.gangs = (
            Informer(
                client,
                GANG_WORKLOADS,
                decode_gang_workload,
                on_upsert=lambda _, obj: on_gang_workload(obj.key, obj),
                on_delete=lambda obj: on_gang_workload(obj.key, None),
                key_of=lambda obj: obj.key,
                version_of=lambda obj: obj.resource_version,
                uid_of=lambda obj: obj.uid,
            )
            if on_gang_workload is not None
            else None
        )

    def _workload_seen(self, workload: GatedWorkload) -> None:
        if workload.owned_by_ray_job:
            self._has_ray_jobs.set()
        self._on_event(WorkloadSeen(workload))

    async def _follow_ray_jobs(self) -> None:
        await self._has_ray_jobs.wait()
        async with asyncio.TaskGroup() as group:
            for informer in self._ray_job_children:
                spawn(group, informer.run(), f"{informer.resource.plural} of RayJobs")

    def known_nodes(self) -> NodesByHostname:
        """The nodes, or none of them if they are not up to date (not listed yet, or watch lost)."""
        known = (
            self._node_informer.synced.is_set()
            and self._node_informer.silence_s() < NODES_STALE_AFTER_S
        )
        return self.nodes if known else NodesByHostname()

    def missing(self) -> list[str]:
        """Why this replica is not ready.

        Nodes are not required. Workloads of gangs are neither: pods that wait for one stay gated.
        """
        return self.pods.missing() + self.workloads.missing() + self.jobs.missing()

    async def synced(self) -> None:
        """Return when all collections have been listed once."""
        for informer in (self.workloads, self.jobs, self.pods):
            await informer.synced.wait()

    @property
    def is_confirmed(self) -> bool:
        """Whether all caches are from the store that the API server uses now."""
        return all(informer.is_confirmed for informer in (self.workloads, self.jobs, self.pods))

    async def wait_confirmed(self) -> None:
        """Return when `is_confirmed` is true."""
        while not self.is_confirmed:
            for informer in (self.workloads, self.jobs, self.pods):
                await informer.wait_confirmed()

    async def run(self) -> None:
        """Run all watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self.workloads.run(), "workloads")
            spawn(group, self.jobs.run(), "jobs")
            spawn(group, self._follow_ray_jobs(), "children of RayJobs")
            spawn(group, self.pods.run(), "pods")
            if self._watch_nodes:
                spawn(group, self._node_informer.run(), "nodes")
            if self.gangs is not None:
                spawn(group, self.gangs.run(), "gang Workloads")


def _child_informer(
    client: Client, resource: Resource, selector: dict[str, str], on_event: Callable[[Event], None]
) -> Informer[ChildJob]:
    return Informer(
        client,
        resource,
        decode_job,
        on_upsert=lambda _, obj: on_event(JobSeen(obj.uid, obj.owner_uid, obj.attempt)),
        on_delete=lambda obj: on_event(JobGone(obj.uid)),
        params=selector,
        key_of=lambda obj: obj.key,
        version_of=lambda obj: obj.resource_version,
        uid_of=lambda obj: obj.uid,
    )


class PodRelister:
    """Lists pods on request.

    Args:
        client: for the lists.
        params: label selector.
        on_pod: called with every pod.
        known: UIDs of the known pods of a namespace, None for all.
        on_deleted: called for every pod that was known when a list began and is not in it, with the
            version of the list.
        decode: decodes one pod.
    """

    def __init__(
        self,
        client: Client,
        params: dict[str, str],
        on_pod: Callable[[GatedPod], object],
        *,
        known: Callable[[str | None], Collection[PodUid]],
        on_deleted: Callable[[PodUid, int], object],
        decode: Callable[[msgspec.Raw], GatedPod] = decode_pod,
    ) -> None:
        self._client, self._params, self._decode = client, params, decode
        self._on_pod, self._known, self._on_deleted = on_pod, known, on_deleted
        self._waiters: list[tuple[str | None, asyncio.Future[None]]] = []
        self._requested = asyncio.Event()

    async def relist(self, namespace: str | None = None) -> None:
        """Return when a list of pods that starts after this call is complete.

        Args:
            namespace: None for all.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiters.append((namespace, done))
        self._requested.set()
        await done

    async def run(self) -> None:
        """Serve requests until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            await self._requested.wait()
            await asyncio.sleep(GATHER_S)
            self._requested.clear()
            waiting, self._waiters = self._waiters, []
            waiting = [asked for asked in waiting if not asked[1].done()]
            if not waiting:
                continue
            namespaces = {namespace for namespace, _ in waiting}
            if await self._list(namespaces.pop() if len(namespaces) == 1 else None):
                backoff.reset()
                for _, done in waiting:
                    if not done.done():
                        done.set_result(None)
            else:
                self._waiters += waiting
                self._requested.set()
                await asyncio.sleep(backoff.next())

    async def _list(self, namespace: str | None) -> bool:
        """List the pods of a namespace, None for all; False when that failed."""
        known = set(self._known(namespace))
        version = ""
        whole = True
        try:
            async for body in self._client.list_pages(PODS.path(namespace), self._params):
                page = decode_page(body)
                version = version or page.metadata.resource_version
                for number, raw in enumerate(page.items or ()):
                    uid = self._handle_pod(raw)
                    whole &= uid is not None
                    known.discard(uid or PodUid(""))
                    if number % 200 == 199:
                        await asyncio.sleep(0)  # let renewals run during a long list
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("list_failed", resource="pods", error=str(error)[:300])
            return False
        # A malformed pod may be any of those that seem to be missing.
        for uid in known if whole else ():
            self._on_deleted(uid, int(version) if version.isdecimal() else 0)
        return True

    def _handle_pod(self, raw: msgspec.Raw) -> PodUid | None:
        """Pass on one pod; None if it cannot be decoded."""
        try:
            pod = self._decode(raw)
        except msgspec.MsgspecError as error:
            log.warning("object_not_decoded", resource="pods", error=str(error)[:300])
            return None
        self._on_pod(pod)
        return pod.uid

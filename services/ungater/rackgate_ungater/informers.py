"""What every replica follows: pods, Workloads, child Jobs of JobSets, and names of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from rackgate.api import names
from rackgate.api.resources import JOBS, NODES, PODS, WORKLOADS
from rackgate.jobframework.registry import CLEANUP_LABELS
from rackgate.kube.client import WATCH_IDLE_S, Client
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import spawn
from rackgate_ungater.state_machine.child_jobs import CHILD_JOB_SELECTOR, decode_job
from rackgate_ungater.state_machine.events import (
    Event,
    JobGone,
    JobSeen,
    PodGone,
    PodSeen,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import GatedWorkload, decode_pod, decode_workload
from rackgate_ungater.state_machine.node_names import NodesByHostname, decode_node

# Value not trusted, its presence only keeps other pods off the wire. Pods that clean up behind a
# job come from its templates, with all that is injected there, but are not the ungater's.
_NOT_CLEANUP = ",".join(f"{label}!={value}" for label, value in CLEANUP_LABELS.items())
SELECTOR = {"labelSelector": f"{names.TAS_LABEL},{_NOT_CLEANUP}"}
# Pods of elastic jobs may have no topology, and then not that label.
ELASTIC_SELECTOR = {"labelSelector": f"{names.PODSET_LABEL},{_NOT_CLEANUP}"}

# Longer than a healthy watch is ever silent.
NODES_STALE_AFTER_S: Final = 2 * WATCH_IDLE_S


class Informers:
    """The watches of one replica.

    Attributes:
        selector: of the pods that are followed.
        nodes: as the watch told last; nothing if they are not followed.
    """

    def __init__(
        self,
        client: Client,
        on_event: Callable[[Event], None],
        on_workload_deleted: Callable[[GatedWorkload], None],
        *,
        elastic: bool,
        watch_nodes: bool = False,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: for lists and watches.
            on_event: told of all that is seen, and of what is gone.
            on_workload_deleted: told in its place of Workloads that are gone.
            elastic: elastic jobs are served.
            watch_nodes: nodes are followed, too.
        """
        self.selector = ELASTIC_SELECTOR if elastic else SELECTOR
        self.pods = Informer(
            client,
            PODS,
            decode_pod,
            on_upsert=lambda _, obj: on_event(PodSeen(obj)),
            on_delete=lambda obj: on_event(PodGone(obj.uid)),
            params=self.selector,
            key_of=lambda obj: obj.key,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
        self.workloads = Informer(
            client,
            WORKLOADS,
            partial(decode_workload, elastic=elastic),
            on_upsert=lambda _, obj: on_event(WorkloadSeen(obj)),
            on_delete=on_workload_deleted,
            key_of=lambda obj: obj.key,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
        self.jobs = Informer(
            client.metadata_only(),
            JOBS,
            decode_job,
            on_upsert=lambda _, obj: on_event(JobSeen(obj.uid, obj.owner_uid)),
            on_delete=lambda obj: on_event(JobGone(obj.uid)),
            params=CHILD_JOB_SELECTOR,
            key_of=lambda obj: obj.key,
            version_of=lambda obj: obj.resource_version,
            uid_of=lambda obj: obj.uid,
        )
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

    def known_nodes(self) -> NodesByHostname:
        """The nodes if they are known as they are; none of them before, or if the watch is lost."""
        known = (
            self._node_informer.synced.is_set()
            and self._node_informer.silence_s() < NODES_STALE_AFTER_S
        )
        return self.nodes if known else NodesByHostname()

    def missing(self) -> list[str]:
        """What keeps this replica from being ready; without nodes pods can be released as well."""
        return self.pods.missing() + self.workloads.missing() + self.jobs.missing()

    async def synced(self) -> None:
        """Return when all of it has been listed once."""
        for informer in (self.workloads, self.jobs, self.pods):
            await informer.synced.wait()

    @property
    def is_confirmed(self) -> bool:
        """Whether all of it is known to be of the store that the API server has now."""
        return all(informer.is_confirmed for informer in (self.workloads, self.jobs, self.pods))

    async def wait_confirmed(self) -> None:
        """Return when it is."""
        while not self.is_confirmed:
            for informer in (self.workloads, self.jobs, self.pods):
                await informer.wait_confirmed()

    async def run(self) -> None:
        """Follow all of it until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self.workloads.run(), "workloads")
            spawn(group, self.jobs.run(), "jobs")
            spawn(group, self.pods.run(), "pods")
            if self._watch_nodes:
                spawn(group, self._node_informer.run(), "nodes")

"""Events about Workloads, jobs and queues, with Kueue's reasons."""

from __future__ import annotations

from typing import Final

from rackgate.api.resources import GANG_WORKLOADS, OSMO_POOLS, PODS, WORKLOADS, Resource
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.pod_group import PodGroup
from rackgate.jobframework.registry import kind_of
from rackgate.kube.events import EventRecorder, EventType, Regarding
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload

_ADMISSION: Final = "Admission"
_RECONCILE: Final = "Reconcile"


class Reporter:
    """Records decisions as Events. No method blocks or raises."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def workload(
        self, workload: Workload, reason: str, note: str, *, warning: bool = False
    ) -> None:
        """An Event on a Workload."""
        self._record(WORKLOADS, workload.metadata, reason, _ADMISSION, note, warning=warning)

    def job(self, job: JobLike, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event on a job of any kind; of a group of pods on its oldest pod.

        A gang that has no pods has its Workload of gangs.
        """
        if isinstance(job, PodGroup) and job.pods:
            meta = job.pods[0].metadata
            self._record(PODS, meta, reason, _RECONCILE, note, warning=warning)
            return
        if isinstance(job, GangGroup):
            found = job.instance
            own = Meta(
                name=found.workload, namespace=job.metadata.namespace, uid=found.workload_uid
            )
            self.gang(own, reason, note, warning=warning)
            return
        resource = kind_of(job).resource
        self._record(resource, job.metadata, reason, _RECONCILE, note, warning=warning)

    def pod(self, meta: Meta, reason: str, note: str) -> None:
        """An Event on a pod."""
        self._record(PODS, meta, reason, _ADMISSION, note, warning=False)

    def gang(self, meta: Meta, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event on a Workload of gangs."""
        self._record(GANG_WORKLOADS, meta, reason, _RECONCILE, note, warning=warning)

    def linked(self, resource: Resource, meta: Meta, reason: str, note: str) -> None:
        """A Warning on an object whose pods are linked to a Workload of gangs."""
        self._record(resource, meta, reason, _RECONCILE, note, warning=True)

    def pool(self, meta: Meta, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event on a Pool of OSMO."""
        self._record(OSMO_POOLS, meta, reason, _RECONCILE, note, warning=warning)

    def configuration(self, resource: Resource, meta: Meta, reason: str, note: str) -> None:
        """A Warning on an object of an administrator."""
        self._record(resource, meta, reason, _RECONCILE, note, warning=True)

    def _record(
        self, resource: Resource, meta: Meta, reason: str, action: str, note: str, *, warning: bool
    ) -> None:
        type_ = EventType.WARNING if warning else EventType.NORMAL
        self._recorder.record(Regarding.of(resource, meta), type_, str(reason), action, note)

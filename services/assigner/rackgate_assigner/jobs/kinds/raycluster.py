"""ray.io RayCluster. Its templates and replicas may be written at any time, also by Ray itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api.resources import RAY_CLUSTERS, Resource
from rackgate.features import Features
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.raycluster.podsets import (
    HEAD,
    hosts_per_replica,
    pod_count,
    podsets_of,
    templates_of,
    worker_groups,
)
from rackgate.jobframework.templates import section
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate.wire.ray import RayCluster
from rackgate_assigner.jobs.kinds.generic_job import GenericJob, copy_raw
from rackgate_assigner.jobs.kinds.podsets import counts_of, describe_running_change
from rackgate_assigner.workload_slices.model import RequestedCount

_SUSPENDING: Final = "RayClusterSuspending"
_SUSPENDED: Final = "RayClusterSuspended"
_HEAD_READY: Final = "HeadPodReady"
# KubeRay makes no pods in a group while it expects to see one that it has made there, for 30 s at
# most, and looks again only at an event or after five minutes. A pod with a gate goes the moment it
# is deleted, so one that is suspended right after it was made is never seen.
_EXPECTS_S: Final = 31.0
_INACTIVE_STATES: Final = ("", "suspended")

_decode = msgspec.json.Decoder(RayCluster).decode


def decode_raycluster(raw: bytes | msgspec.Raw) -> RayCluster:
    """A RayCluster; its templates hold memory of their own, not the whole event."""
    found = _decode(raw)
    spec = msgspec.structs.replace(
        found.spec,
        autoscaler_options=copy_raw(found.spec.autoscaler_options),
        head_group_spec=copy_raw(found.spec.head_group_spec),
        worker_group_specs=copy_raw(found.spec.worker_group_specs),
    )
    return msgspec.structs.replace(found, spec=spec)


class RayClusterJob(GenericJob[RayCluster]):
    """A RayCluster: PodSet `head`, and one for each worker group. It ends by being deleted."""

    resource: ClassVar[Resource] = RAY_CLUSTERS
    controller: ClassVar[str] = "ray.io/kuberay-operator"
    object_type: ClassVar[type] = RayCluster
    needs_reinjection: ClassVar[bool] = True
    mutable_while_running: ClassVar[bool] = True
    reconcile_after_s: ClassVar[float | None] = _EXPECTS_S

    def decode(self, raw: bytes | msgspec.Raw) -> RayCluster:
        """See `decode_raycluster`."""
        return decode_raycluster(raw)

    def managed_by(self, job: RayCluster) -> str | None:
        """`spec.managedBy`."""
        return job.spec.managed_by

    def is_suspended(self, job: RayCluster) -> bool:
        """Whether `spec.suspend` is true."""
        return job.spec.suspend is True

    def templates(self, job: RayCluster, *, elastic: bool = False) -> list[PodTemplate]:
        """The template of the head, then those of the worker groups."""
        return templates_of(_manifest(job), elastic=elastic)

    def podsets(self, job: RayCluster) -> list[dict[str, Any]]:
        """PodSet `head`, then one for each worker group."""
        return podsets_of(_manifest(job))

    def requested_counts(self, job: RayCluster) -> dict[str, RequestedCount]:
        """The head, then the worker groups at the size that they are to have now."""
        groups = {
            name.lower(): RequestedCount(pod_count(group), hosts_per_replica(group))
            for _, name, group in worker_groups(_manifest(job))
        }
        return {HEAD: RequestedCount(1), **groups}

    def pods_to_delete(self, job: RayCluster) -> frozenset[str]:
        """Workers that the autoscaler names."""
        named: set[str] = set()
        for index, _, group in worker_groups(_manifest(job)):
            path = f"spec.workerGroupSpecs[{index}]"
            listed = section(group, "scaleStrategy", path).get("workersToDelete")
            named.update(str(name) for name in (listed if isinstance(listed, list) else ()))
        return frozenset(named)

    def is_inactive(self, job: RayCluster, children: Sequence[Job]) -> bool:
        """No pod is left of it, or it never had one.

        Its conditions tell: they leave Suspended before the first pod is made, and come back to
        it after the last is gone. Without them (a switch of the operator's) the state has to do.
        `observedGeneration` says nothing here: it is only written along with something else, so
        it stays behind when a suspended cluster is edited.
        """
        del children
        suspended, suspending = job.condition(_SUSPENDED), job.condition(_SUSPENDING)
        if suspended is not None or suspending is not None:
            return suspended is not None and suspended.status == "True"
        return job.status.state in _INACTIVE_STATES

    def pods_ready(self, job: RayCluster, admitted: Mapping[str, int]) -> bool:
        """The head is ready, and as many workers as were admitted and are wanted."""
        head = job.condition(_HEAD_READY)
        if head is None:
            return job.status.state == "ready"
        wanted = sum(
            min(asked.pods, admitted.get(name, 0))
            for name, asked in self.requested_counts(job).items()
            if name != HEAD
        )
        return head.status == "True" and job.status.ready_worker_replicas >= wanted

    def is_elastic(self, job: RayCluster, features: Features) -> bool:
        """Ray's autoscaler resizes it, behind the gate of elastic jobs."""
        return features.elastic_jobs and job.spec.enable_in_tree_autoscaling is True

    def find_change(
        self,
        job: RayCluster,
        workload: Workload,
        podsets: Sequence[Mapping[str, Any]],
        *,
        elastic: bool,
    ) -> str | None:
        """Another template or worker group in any case; another size unless it is elastic."""
        change = describe_running_change(workload, podsets)
        if change is not None:
            return f"the running RayCluster was changed: {change}"
        if elastic:
            return None
        admitted = counts_of(workload)
        for podset in podsets:
            name, asked = podset["name"], podset["count"]
            if asked != admitted.get(name, 0):
                return (
                    f'podset "{name}" asks for {asked} pods, {admitted.get(name, 0)} were admitted'
                )
        return None


def _manifest(job: RayCluster) -> dict[str, Any]:
    """The part of a RayCluster that `inject_raycluster` reads, as plain JSON."""
    spec = job.spec
    return {
        "spec": {
            "enableInTreeAutoscaling": spec.enable_in_tree_autoscaling,
            "autoscalerOptions": msgspec.json.decode(spec.autoscaler_options),
            "headGroupSpec": msgspec.json.decode(spec.head_group_spec),
            "workerGroupSpecs": msgspec.json.decode(spec.worker_group_specs),
        }
    }

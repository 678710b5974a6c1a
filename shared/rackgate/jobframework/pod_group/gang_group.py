"""Pods of one gang that no managed job owns, as a kind of job.

As a group of plain pods, with three differences: its Workload of gangs says how many pods it needs
and what they request of the topology; more pods than that are not surplus; and it exists without
pods while its Workload is queued again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from rackgate.api.names import GANG_GATE, GANG_ID_LABEL
from rackgate.api.resources import Resource
from rackgate.jobframework.generic_job import Manifest
from rackgate.jobframework.pod_group.pod_group import PodGroup, PodGroupJob
from rackgate.jobframework.pod_group.pods import GroupPod
from rackgate.wire.core import View

# Controllers that create another pod for one that is deleted, and count no failure: API group and
# kind. Others may give up, as a Job does after some deletions.
_REPLACES_PODS: Final[Collection[tuple[str, str]]] = frozenset(
    {
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("", "ReplicationController"),
        ("kubeflow.org", "MPIJob"),
    }
)


class GangInstance(View, frozen=True):
    """Which gang it is.

    Attributes:
        workload: name of the Workload of gangs.
        gang: name of the gang group.
        replica: value of the replica key, "" without replicas.
        pod: UID of its pod, for a pod that starts by itself; "" for all others.
        workload_uid: of the Workload of gangs, "" while that does not exist.
    """

    workload: str
    gang: str
    replica: str = ""
    pod: str = ""
    workload_uid: str = ""


class GangGroup(PodGroup, frozen=True, kw_only=True):
    """The pods of one gang. Its labels are those of its oldest pod, with the queue that it uses.

    Attributes:
        instance: which gang it is.
        hold: why it is not admitted now, "" if it may be.
        hold_reason: the same as a reason of a condition.
        not_enforced: paths of topology requests without an effect.
        run_spec: the annotation of its Workload of Kueue's API, if it started now.
        topology: by PodSet, fields of `topologyRequest` that its Workload of gangs asks for.
        nesting: domains that its PodSets share, see `JobGang`.
        least: pods that start together; 0 for a pod that starts by itself.
        most: pods that may be members; None: any number.
        past: pods that ended under an earlier Workload.
    """

    instance: GangInstance
    hold: str = ""
    hold_reason: str = ""
    not_enforced: tuple[str, ...] = ()
    run_spec: str = ""
    topology: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - msgspec copies empty defaults
    nesting: str = ""
    least: int = 0
    most: int | None = None
    past: tuple[GroupPod, ...] = ()

    @property
    def members(self) -> list[GroupPod]:
        """Pods that were started with it, or wait for that: those first that succeeded, or run.

        A pod that somebody else released is none.
        """
        return [pod for pod in super().members if pod.started or is_held(pod)]

    @property
    def waiting(self) -> list[GroupPod]:
        """Those that wait."""
        return [pod for pod in self.pods if pod.active and not pod.started and is_held(pod)]

    @property
    def total(self) -> int:
        """Its members, without those that are too many."""
        count = len(self.members)
        return count if self.most is None else min(count, self.most)

    @property
    def complete(self) -> bool:
        """Whether it may be admitted."""
        return not self.hold and self.total > 0

    @property
    def has_started(self) -> bool:
        """Whether a pod that it was started with lives."""
        return any(pod.started and pod.active for pod in self.pods)

    @property
    def is_evictable(self) -> bool:
        """Whether its pods may be deleted because it does not run as a whole.

        Pods without a controller are not created again; those of a Job would count as failures.
        """
        return all(replaces_pods(pod) for pod in self.pods if pod.started)


def is_held(pod: GroupPod) -> bool:
    """Whether the gate of gangs keeps it from running."""
    return GANG_GATE in pod.gates


def replaces_pods(pod: GroupPod) -> bool:
    """Whether the deletion of a pod is no failure of its controller, if it has one."""
    owner = pod.metadata.controller
    if owner is None:
        return True
    group = owner.api_version.rpartition("/")[0]
    return (group, owner.kind) in _REPLACES_PODS


class GangGroupJob(PodGroupJob):
    """The pods of a gang."""

    resource: ClassVar[Resource] = Resource("", "v1", "pods", True, "Gang")
    object_type: ClassVar[type] = GangGroup

    def manifest(self, job: PodGroup) -> Manifest:
        """As of a group of plain pods, with the requests of its Workload of gangs."""
        found = super().manifest(job)
        asked: Mapping[str, Mapping[str, Any]] = job.topology if isinstance(job, GangGroup) else {}
        podsets = [
            {**podset, "topologyRequest": {**podset.get("topologyRequest", {}), **request}}
            if (request := asked.get(podset["name"])) is not None
            else podset
            for podset in found["spec"]["podSets"]
        ]
        return {"spec": {**found["spec"], "podSets": podsets}}

    def pods_ready(self, job: PodGroup, admitted: Mapping[str, int]) -> bool:
        """Whether as many pods as were admitted are ready or have succeeded."""
        started = (pod for pod in job.pods if pod.started)
        done = sum(pod.succeeded or (pod.active and pod.ready) for pod in started)
        return 0 < sum(admitted.values()) <= done

    def pod_selector(self, job: PodGroup) -> str:
        """The label of pods that were started with it."""
        return f"{GANG_ID_LABEL}={job.metadata.uid}"

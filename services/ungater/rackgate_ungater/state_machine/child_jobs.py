"""Maps pods to Workloads: from a pod's controller up to the owner of the Workload. Pure.

Pods of a Job or a RayCluster are controlled by the object that owns the Workload. Pods of a JobSet
are controlled by its child Jobs, those of a RayJob by its RayCluster and by the Job of its
submitter. Only the metadata of children is watched. A pod may be seen before its controller or long
after it. While that is unknown, a gated pod stays gated, and an ungated pod keeps its domain.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import Final

import msgspec

from rackgate.api import names
from rackgate.jobframework.managed import is_tas_pod
from rackgate_ungater.state_machine.gated_objects import (
    GatedPod,
    GatedWorkload,
    decode_metadata,
    indices_of,
)

# JobSet sets the first label on its Jobs, and KubeRay the second one on what it creates for a
# RayJob. Other objects are not watched.
CHILD_JOB_SELECTOR: Final = {"labelSelector": names.JOBSET_NAME_LABEL}
RAY_JOB_CHILD_SELECTOR: Final = {
    "labelSelector": f"{names.RAY_ORIGIN_KIND_LABEL}={names.RAY_JOB_KIND}"
}


class ChildJob(msgspec.Struct, frozen=True, gc=False):
    """The owner of one child: a Job, or the RayCluster of a RayJob.

    Attributes:
        owner_uid: UID of the controlling owner, empty when there is none.
        attempt: the restart of its JobSet that created it; 0 before the first one.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str
    attempt: int = 0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def decode_job(data: bytes | msgspec.Raw) -> ChildJob:
    """Decode the JSON of a child, or its metadata alone.

    Raises:
        msgspec.MsgspecError: the JSON is no object.
    """
    meta = decode_metadata(data)
    owner = meta.controller
    return ChildJob(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=intern(meta.uid),
        resource_version=meta.resource_version,
        owner_uid=intern(owner.uid) if owner else "",
        attempt=indices_of(meta.labels).get(names.RESTART_ATTEMPT_LABEL, 0),
    )


class ChildJobOwners:
    """The existing children and their owners."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._attempts: dict[str, int] = {}  # without those before the first restart

    def __len__(self) -> int:
        return len(self._jobs)

    def update(self, job: str, owner: str, attempt: int = 0) -> bool:
        """Record a child Job; returns whether its owner changed."""
        if attempt:
            self._attempts[job] = attempt
        else:
            self._attempts.pop(job, None)
        if self._jobs.get(job) == owner:
            return False
        self._jobs[job] = owner
        return True

    def delete(self, job: str) -> None:
        """Remove a child Job. Its remaining pods keep their domains."""
        self._jobs.pop(job, None)
        self._attempts.pop(job, None)

    def of(self, owner: str, jobs: Iterable[str], attempt: int) -> frozenset[str]:
        """Those of these child Jobs that exist and have that owner, by UID.

        Args:
            owner: UID.
            jobs: UIDs.
            attempt: without those that an earlier restart created.
        """
        return frozenset(
            job
            for job in jobs
            if self._jobs.get(job) == owner and self._attempts.get(job, 0) >= attempt
        )

    def pods_of(
        self, workload: GatedWorkload, pods: Iterable[GatedPod], *, assignment: object
    ) -> list[GatedPod]:
        """The pods that belong to the owner of a Workload.

        Args:
            workload: that all pods name.
            pods: the pods that name the PodSet.
            assignment: of the PodSet that they name.

        Returns:
            The pods whose owner matches. If the child Job of a pod is unknown, the pod is included
            only if it is ungated, because it may belong to the Workload.
        """
        owner = workload.owner_uid
        if workload.of_plain_pods:
            return [pod for pod in pods if is_tas_pod(pod.group_uid, owner, assignment=assignment)]
        if not workload.has_children:
            return [pod for pod in pods if is_tas_pod(pod.owner_uid, owner, assignment=assignment)]
        found = []
        for pod in pods:
            root = self._jobs.get(pod.owner_uid)
            if root is None:
                of_child = workload.owned_by_ray_job or names.JOB_INDEX_LABEL in pod.indices
                if not pod.gated and pod.owner_uid and of_child:
                    found.append(pod)
            elif is_tas_pod(root, owner, assignment=assignment):
                found.append(pod)
        return _mark_earlier_attempts_terminating(found)


def _mark_earlier_attempts_terminating(pods: list[GatedPod]) -> list[GatedPod]:
    """Treat pods of earlier attempts of their Job as terminating.

    A JobSet that restarts creates its Jobs again. Remaining pods of earlier attempts keep their
    domain, have no rank, and are never released. Attempts are compared within one job index,
    because a single Job may be created again.
    """
    attempts = [pod.indices.get(names.RESTART_ATTEMPT_LABEL, 0) for pod in pods]
    if len(set(attempts)) <= 1:
        return pods
    last: dict[int, int] = {}
    for pod, attempt in zip(pods, attempts, strict=True):
        job = pod.indices.get(names.JOB_INDEX_LABEL, -1)
        last[job] = max(attempt, last.get(job, 0))
    return [
        pod
        if pod.terminating or attempt == last[pod.indices.get(names.JOB_INDEX_LABEL, -1)]
        else msgspec.structs.replace(pod, terminating=True)
        for pod, attempt in zip(pods, attempts, strict=True)
    ]

"""Whose pods are whose: from a pod's controller up to the owner of a Workload. Pure.

Pods of a Job or a RayCluster are controlled by the object that owns the Workload. Pods of a JobSet
are controlled by its child Jobs. Those are followed by their metadata: one entry for each that
exists. A pod may be seen before its child Job, or long after it: until then nobody knows whose it
is. It stays gated, and if it is ungated, it keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import Final

import msgspec

from rackgate.api import names
from rackgate.jobframework.managed import is_tas_pod
from rackgate.wire.core import Meta, View
from rackgate.wire.depth import tolerant
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedWorkload

# What every JobSet labels its Jobs with: all others stay off the wire.
CHILD_JOB_SELECTOR: Final = {"labelSelector": names.JOBSET_NAME_LABEL}


class ChildJob(msgspec.Struct, frozen=True, gc=False):
    """One child Job of a JobSet: who owns it, nothing else.

    Attributes:
        owner_uid: UID of the controlling owner, empty when there is none.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class _JobView(View, frozen=True):
    metadata: Meta = Meta()


_decode_job = tolerant(msgspec.json.Decoder(_JobView).decode)


def decode_job(data: bytes | msgspec.Raw) -> ChildJob:
    """Decode a Job's JSON, or its metadata alone.

    Raises:
        msgspec.MsgspecError: the JSON is no object.
    """
    meta = _decode_job(data).metadata
    owner = meta.controller
    return ChildJob(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=intern(meta.uid),
        resource_version=meta.resource_version,
        owner_uid=intern(owner.uid) if owner else "",
    )


class ChildJobOwners:
    """The child Jobs there are, and who owns each."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def update(self, job: str, owner: str) -> bool:
        """Take note of a child Job; returns whether that was news."""
        if self._jobs.get(job) == owner:
            return False
        self._jobs[job] = owner
        return True

    def delete(self, job: str) -> None:
        """Forget a child Job; pods of it that are still there hold their places."""
        self._jobs.pop(job, None)

    def pods_of(
        self, workload: GatedWorkload, pods: Iterable[GatedPod], *, assignment: object
    ) -> list[GatedPod]:
        """The pods that belong to the owner of a Workload.

        Args:
            workload: which all of them name.
            pods: as they claim.
            assignment: of the PodSet that they name.

        Returns:
            Without those of others. Of those whose child Job is not known only the released
            ones: they may be ours.
        """
        owner = workload.owner_uid
        if not workload.owned_by_jobset:
            return [pod for pod in pods if is_tas_pod(pod.owner_uid, owner, assignment=assignment)]
        found = []
        for pod in pods:
            root = self._jobs.get(pod.owner_uid)
            if root is None:
                if not pod.gated and pod.owner_uid and names.JOB_INDEX_LABEL in pod.indices:
                    found.append(pod)
            elif is_tas_pod(root, owner, assignment=assignment):
                found.append(pod)
        return _mark_earlier_attempts_terminating(found)


def _mark_earlier_attempts_terminating(pods: list[GatedPod]) -> list[GatedPod]:
    """Pods of earlier attempts of their Job are as good as being deleted.

    A JobSet that restarts makes its Jobs anew. What is left of the earlier ones holds its place,
    has no rank, and is never released. Attempts are compared within one job index: a Job may be
    made anew alone.
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

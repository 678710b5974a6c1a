"""Events: the only input of the state machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rackgate_ungater.state_machine.gated_objects import (
    GatedPod,
    GatedWorkload,
    PodUid,
    WorkloadKey,
)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod as seen by a watch, a list or a read. Older versions are ignored.

    Attributes:
        live: read or listed live, not from the watch.
        listed: from a list, which may have started long before: it does not prove that a request
            was never applied.
    """

    pod: GatedPod
    live: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod is deleted, as seen by the watch, a list or a 404.

    Attributes:
        version: of the list that no longer had it; versions up to that one are old.
    """

    uid: PodUid
    version: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A Workload as seen by a watch or a read. Older versions are ignored.

    Attributes:
        live: read live, not from the watch.
    """

    workload: GatedWorkload
    live: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    """A Workload is deleted."""

    key: WorkloadKey
    uid: str


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A child Job of a JobSet.

    Attributes:
        uid: of the Job.
        owner: UID of its controlling owner, empty without one.
        attempt: the restart of its JobSet that created it; 0 before the first one.
    """

    uid: str
    owner: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class JobGone:
    """A child Job is deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class UngateAccepted:
    """A request was applied; the watch will show it.

    Attributes:
        resource_version: the version that the request was bound to.
        now: monotonic seconds.
    """

    uid: PodUid
    resource_version: str
    now: float


class Failure(Enum):
    """What is known about a request that did not succeed."""

    UNSENT = "unsent"  # never sent, or not processed: safe to retry
    REJECTED = "refused"  # the API server rejected this pod: it is retried later, others go on
    CONFLICT = "conflict"  # nothing was written, the pod has changed: read it before the next write
    UNKNOWN_OUTCOME = "lost"  # no response: it may have been written, or may still be


@dataclass(frozen=True, slots=True)
class UngateFailed:
    """A request did not succeed.

    Attributes:
        resource_version: the version that the request was bound to.
        now: monotonic seconds.
    """

    uid: PodUid
    resource_version: str
    failure: Failure
    now: float


Event: TypeAlias = (
    PodSeen
    | PodGone
    | WorkloadSeen
    | WorkloadGone
    | JobSeen
    | JobGone
    | UngateAccepted
    | UngateFailed
)

"""One PodGroup as Rackgate sees it, in any generation of the API, and how it is named.

Rackgate makes one PodGroup for each gang, owned by the Workload of Kueue's API that has its quota.
The run is a label: a PodGroup of an earlier run still says that its pods were scheduled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate.api.names import (
    GANG_RUN_ANNOTATION,
    MAX_NAME,
    NATIVE_GROUP_ANNOTATION,
    NATIVE_REPLICA_ANNOTATION,
)

# The run of a PodGroup of Rackgate; others have no such label.
RUN_LABEL: Final = GANG_RUN_ANNOTATION
# Said by kube-scheduler; the second name since Kubernetes 1.37. True is final.
SCHEDULED_CONDITIONS: Final = ("PodGroupScheduled", "PodGroupInitiallyScheduled")

_HASH_DIGITS: Final = 5
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Owner:
    """The Workload of Kueue's API that a PodGroup belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup to make.

    Attributes:
        min_count: pods that kube-scheduler binds together; 0 if it binds them one by one.
        disrupt_all: if it preempts one of them, it preempts all.
        priority_class: of its pods; "" if they have none, or several.
    """

    namespace: str
    name: str
    owner: Owner
    run: str
    min_count: int
    disrupt_all: bool = False
    priority_class: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ObservedPodGroup:
    """A PodGroup as the API server has it.

    Attributes:
        owner_uid: of its controller; "" if it has none.
        owner_name: of the same.
        run: of its label; "" if Rackgate did not make it.
        min_count: as in `PodGroup`.
        terminating: deleted; it works until its last pod is gone.
        scheduled: what kube-scheduler says about it; None if it has said nothing.
        message: of the same.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    owner_uid: str = ""
    owner_name: str = ""
    run: str = ""
    min_count: int = 0
    terminating: bool = False
    scheduled: bool | None = None
    message: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def is_of(self, owner_uid: str, run: str) -> bool:
        """Whether it was made for that run of that Workload."""
        return bool(run) and (self.owner_uid, self.run) == (owner_uid, run)


def pod_group_name(workload: str, group: str, replica: str = "") -> str:
    """Name of the PodGroup of a gang.

    Args:
        workload: name of the Workload of gangs.
        group: name of the gang group.
        replica: value of the label that tells replicas apart; "" if the gang has no replicas.

    Returns:
        `<workload>-<group>`, and the replica. "" if a label of a replica makes no name: the pods
        then get none either.
    """
    name = f"{workload}-{group}"
    if len(name) > MAX_NAME:
        digest = hashlib.sha1(f"{workload}\n{group}".encode(), usedforsecurity=False).hexdigest()
        prefix = name[: MAX_NAME - 1 - _HASH_DIGITS].rstrip(".-")
        name = f"{prefix}-{digest[:_HASH_DIGITS]}"
    if not replica:
        return name
    name = f"{name}-{replica}"
    return name if len(name) <= MAX_NAME and _NAME.fullmatch(name) else ""


def pod_group_annotations(workload: str, group: str, replica_key: str = "") -> dict[str, str]:
    """What a pod template says, so that its pods are created with the name of their PodGroup.

    Args:
        workload: name of the Workload of gangs.
        group: name of the gang group.
        replica_key: pod label that tells replicas apart; "" if there are none.
    """
    found = {NATIVE_GROUP_ANNOTATION: pod_group_name(workload, group)}
    return {**found, NATIVE_REPLICA_ANNOTATION: replica_key} if replica_key else found


@dataclass(frozen=True, slots=True)
class GangMember:
    """A pod of a gang.

    Attributes:
        pod_group: the PodGroup that it names; "" if it names none.
        priority_class: of the pod.
        succeeded: it has ended, and kube-scheduler does not count it.
    """

    pod_group: str
    priority_class: str = ""
    succeeded: bool = False


def pod_group_of(expected: PodGroup, members: Sequence[GangMember]) -> PodGroup | None:
    """The PodGroup that the pods of a gang need; None if they need none of Rackgate.

    A group that counts only a part of its gang would never start, so it binds its pods one by one
    if some of the gang were created without its name. Pods that name another group keep it.

    Args:
        expected: the PodGroup of the gang, with the number of pods that start together.
        members: all pods of the gang that count.
    """
    live = [member for member in members if not member.succeeded]
    named = [member for member in live if member.pod_group == expected.name]
    if not expected.name or not named:
        return None
    over = len(members) - len(live)
    least = max(0, expected.min_count - over) if len(named) == len(live) else 0
    classes = {member.priority_class for member in live}
    return PodGroup(
        expected.namespace,
        expected.name,
        expected.owner,
        expected.run,
        least,
        expected.disrupt_all and least > 0,
        classes.pop() if len(classes) == 1 else "",
    )


def foreign_groups(expected: str, members: Collection[GangMember]) -> list[str]:
    """Names of the groups that the pods of a gang were put into by another controller."""
    return sorted({member.pod_group for member in members} - {"", expected})


def condition_of(conditions: Mapping[str, tuple[str, str]]) -> tuple[bool | None, str]:
    """What kube-scheduler says, and its message.

    Args:
        conditions: by type, status and message.
    """
    for name in SCHEDULED_CONDITIONS:
        if name in conditions:
            status, message = conditions[name]
            return {"True": True, "False": False}.get(status), message
    return None, ""

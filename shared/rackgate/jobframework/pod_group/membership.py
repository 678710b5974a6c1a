"""Which plain pods are managed, and which group each belongs to.

Webhook, assigner and ungater share these functions. A pod without a group label is a group of its
own. A pod that names a Workload of gangs, and that no managed job owns, belongs to its gang from
its start on: the assigner writes the label that says so, and no one else may.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from rackgate.api.names import GANG_ID_LABEL, MANAGED_LABEL, POD_GROUP_LABEL

MANAGED: Final = "true"
# Of gangs: no group, pod or job has such an id.
_GANG: Final = "gang-"


def group_uid(uid: str, namespace: str, labels: Mapping[str, str]) -> str:
    """What identifies the group of a plain pod, as the uid of a job identifies its pods.

    Pods that a managed kind controls belong to their job: the caller looks at their controller
    first. The label is reserved: an admission policy lets no one add it to a pod that exists.

    Returns:
        The uid of a pod without a group label; for a group a value that depends on its namespace
        and name alone, because pods of a group come and go; the id of a gang for a pod that was
        started with it. "" for pods that are not managed.
    """
    if labels.get(MANAGED_LABEL) != MANAGED:
        return ""
    gang = labels.get(GANG_ID_LABEL, "")
    if is_gang_id(gang):
        return gang
    name = labels.get(POD_GROUP_LABEL)
    return uid_of_group(namespace, name) if name else uid


def uid_of_group(namespace: str, name: str) -> str:
    """What identifies a group: 40 hexadecimal digits, a valid label value."""
    return hashlib.sha1(f"{namespace}/{name}".encode(), usedforsecurity=False).hexdigest()


def uid_of_gang(namespace: str, workload: str, gang: str, replica: str = "", pod: str = "") -> str:
    """What identifies a gang of pods: a valid label value.

    It does not depend on the UID of the Workload of gangs, which may be created again.

    Args:
        namespace: of the pods.
        workload: name of the Workload of gangs.
        gang: name of the gang group.
        replica: value of the replica key, "" without replicas.
        pod: UID of the pod, for a pod that starts by itself.
    """
    text = "/".join((namespace, workload, gang, replica, pod))
    return _GANG + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def is_gang_id(uid: str) -> bool:
    """Whether it identifies a gang of pods."""
    return uid.startswith(_GANG)

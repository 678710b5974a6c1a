"""Which plain pods are managed, and which group each belongs to.

Webhook, assigner and ungater share these functions. A pod without a group label is a group of its
own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from rackgate.api.names import MANAGED_LABEL, POD_GROUP_LABEL

MANAGED: Final = "true"


def group_uid(uid: str, namespace: str, labels: Mapping[str, str]) -> str:
    """What identifies the group of a plain pod, as the uid of a job identifies its pods.

    Pods that a managed kind controls belong to their job: the caller looks at their controller
    first. The label is reserved: an admission policy lets no one add it to a pod that exists.

    Returns:
        The uid of a pod without a group label; for a group a value that depends on its namespace
        and name alone, because pods of a group come and go. "" for pods that are not managed.
    """
    if labels.get(MANAGED_LABEL) != MANAGED:
        return ""
    name = labels.get(POD_GROUP_LABEL)
    return uid_of_group(namespace, name) if name else uid


def uid_of_group(namespace: str, name: str) -> str:
    """What identifies a group: 40 hexadecimal digits, a valid label value."""
    return hashlib.sha1(f"{namespace}/{name}".encode(), usedforsecurity=False).hexdigest()

"""How a pod names its Workload of gangs, in one place: an annotation (CH-16).

Controllers copy annotations of templates to their pods, so any kind can carry the link. A pod field
could replace it here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from rackgate.api.names import GANG_LINK_ANNOTATION


def link_of(annotations: Mapping[str, str]) -> str:
    """Name of the Workload of gangs, in the namespace of the pod; "" if the pod names none."""
    return annotations.get(GANG_LINK_ANNOTATION, "")


def run_id(workload_uid: str, admitted_at: str) -> str:
    """The run that one admission of a Workload of Kueue starts, as its pods are annotated.

    Args:
        workload_uid: UID of the Workload that has the quota.
        admitted_at: time of its condition Admitted, as the API server stores it.
    """
    found = hashlib.sha1(f"{workload_uid}/{admitted_at}".encode(), usedforsecurity=False)
    return found.hexdigest()[:10]

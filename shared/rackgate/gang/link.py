"""How a pod names its Workload of gangs, in one place: an annotation (CH-16).

Controllers copy annotations of templates to their pods, so any kind can carry the link. A pod field
could replace it here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rackgate.api.names import GANG_LINK_ANNOTATION

# What a pod template says if each child Job has a Workload of gangs of its own. It is no name of an
# object. The admission policy that adds the gate replaces it in each pod, by `child_job_link`.
PER_JOB: Final = "job-*"
_UID_DIGITS: Final = 8


def link_of(annotations: Mapping[str, str]) -> str:
    """Name of the Workload of gangs, in the namespace of the pod; "" if the pod names none."""
    return annotations.get(GANG_LINK_ANNOTATION, "")


def child_job_link(job: str, uid: str) -> str:
    """Name of the Workload of gangs of a child Job, which is not that of an earlier one.

    Args:
        job: name of the child Job.
        uid: of it.
    """
    return f"job-{job}-{uid[:_UID_DIGITS]}"


def is_link_of_child_job(link: str, uid: str) -> bool:
    """Whether a Workload of gangs is that of a child Job alone, by the UID of that Job."""
    return link.startswith("job-") and link.endswith(f"-{uid[:_UID_DIGITS]}")


@lru_cache(maxsize=1024)
def run_id(workload_uid: str, admitted_at: str) -> str:
    """The run that one admission of a Workload of Kueue starts, as its pods are annotated.

    Args:
        workload_uid: UID of the Workload that has the quota.
        admitted_at: time of its condition Admitted, as the API server stores it.
    """
    found = hashlib.sha1(f"{workload_uid}/{admitted_at}".encode(), usedforsecurity=False)
    return found.hexdigest()[:10]

"""Pods of gangs that child Jobs have completed, and do not create again.

A child Job that is resumed, or replaces a pod, goes on with the indexes that are left. Its gang
must not wait for pods of the others. `status.reclaimablePods` does not tell of them: it counts
whole child Jobs, and none of a JobSet that may restart. So the assigner writes them on the Workload
before it starts the job, and while pods are missing. They are written by the UID of the child Job:
a JobSet that restarts creates other child Jobs, which run all indexes again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from rackgate.api.names import GANG_DONE_PODS_ANNOTATION

# By PodSet, then by the UID of the child Job; see `GenericJob.done_pods`.
DonePods: TypeAlias = Mapping[str, Mapping[str, int]]

# All annotations of an object may have 256 KiB. The gang waits for pods of more child Jobs.
MAX_CHILD_JOBS: Final = 2_000

_decode = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


def encode_done_pods(done: DonePods) -> str:
    """The value of the annotation, of `MAX_CHILD_JOBS` at most; "" if there are none."""
    found: dict[str, dict[str, int]] = {}
    children = ((podset, uid) for podset in sorted(done) for uid in sorted(done[podset]))
    for podset, uid in islice(children, MAX_CHILD_JOBS):
        found.setdefault(podset, {})[uid] = done[podset][uid]
    return msgspec.json.encode(found).decode() if found else ""


def decode_done_pods(annotations: Mapping[str, str]) -> DonePods:
    """What the annotation says; nothing if it is not there, or not readable."""
    text = annotations.get(GANG_DONE_PODS_ANNOTATION, "")
    if not text:
        return {}
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}


def of_children(done: DonePods, children: Collection[str]) -> DonePods:
    """What is said of these child Jobs, by their UIDs."""
    return {
        podset: {uid: max(0, count) for uid, count in by_child.items() if uid in children}
        for podset, by_child in done.items()
    }


def sum_of_done_pods(done: DonePods, reclaimable: Mapping[str, int]) -> dict[str, int]:
    """By PodSet, pods that are done and not created again.

    Args:
        done: of child Jobs that exist.
        reclaimable: by PodSet, pods that are done according to the Workload.
    """
    found = dict(reclaimable)
    for podset, by_child in done.items():
        found[podset] = max(found.get(podset, 0), sum(by_child.values()))
    return {podset: count for podset, count in found.items() if count > 0}

"""The demo's story and its checks: pure, so that the promises can be tested without a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rackgate.api import names

BLOCK = "cloud.provider.com/topology-block"
RACK = "cloud.provider.com/topology-rack"
GPU = "nvidia.com/gpu"
GPUS_PER_NODE = 8
RUN_SECONDS_ANNOTATION = "rackgate.dev/run-seconds"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One Job of the story.

    Attributes:
        letter: how the picture shows its pods.
        count: pods; each takes a whole node.
        annotation: the one topology annotation and its level.
        run_seconds: how long its pods run; None for ever.
    """

    name: str
    letter: str
    count: int
    annotation: str
    level: str
    promise: str
    run_seconds: int | None = None


FIRST = DemoJob("train-a", "A", 8, names.REQUIRED_TOPOLOGY, RACK, "all 8 pods in one rack", 15)
SECOND = DemoJob(
    "train-b", "B", 28, names.PREFERRED_TOPOLOGY, RACK, "no rack is large enough: one block"
)
THIRD = DemoJob(
    "train-c", "C", 28, names.REQUIRED_TOPOLOGY, BLOCK, "waits for a whole block, then starts"
)
DEMO_JOBS = (FIRST, SECOND, THIRD)


def manifest(act: DemoJob) -> dict[str, Any]:
    """The Job as an ML engineer would write it: a queue label and one annotation."""
    annotations = {act.annotation: act.level}
    if act.run_seconds is not None:
        annotations[RUN_SECONDS_ANNOTATION] = str(act.run_seconds)
    limits = {GPU: str(GPUS_PER_NODE)}
    container = {
        "name": "trainer",
        "image": "registry.example/trainer:1",
        "resources": {"requests": {"cpu": "1", **limits}, "limits": limits},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": act.name, "labels": {names.QUEUE_LABEL: "default"}},
        "spec": {
            "parallelism": act.count,
            "completions": act.count,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


@dataclass(frozen=True, slots=True)
class BoundPod:
    """Where one pod sits."""

    rank: int
    block: str
    rack: str
    host: str


def completion_index(pod: dict[str, Any]) -> int:
    """Rank of a pod within its Job, -1 for none."""
    return int(pod["metadata"]["labels"].get(names.COMPLETION_INDEX_LABEL, -1))


def bound_pods_of(
    pods: Iterable[Mapping[str, Any]],
    nodes: Mapping[str, Mapping[str, str]],
    rank_of: Callable[[dict[str, Any]], int] | None = completion_index,
) -> list[BoundPod]:
    """Seats of the bound pods of one job, by rank.

    Args:
        pods: Pod objects as the API server gives them.
        nodes: labels by node name.
        rank_of: rank of a pod; None numbers them in their order.
    """
    found = []
    for place, pod in enumerate(pods):
        host = pod["spec"].get("nodeName")
        if not host or host not in nodes:
            continue
        rank = place if rank_of is None else rank_of(dict(pod))
        found.append(BoundPod(rank, nodes[host][BLOCK], nodes[host][RACK], host))
    return sorted(found, key=lambda seat: seat.rank)


def failed_checks(act: DemoJob, taken: Sequence[BoundPod]) -> list[str]:
    """What the story promised of a Job and the objects do not show."""
    broken = []
    if len(taken) != act.count:
        broken.append(f"{act.name}: {len(taken)} of {act.count} pods are bound")
    if [seat.rank for seat in taken] != list(range(act.count)):
        broken.append(f"{act.name}: ranks are {[seat.rank for seat in taken]}")
    racks = [(seat.block, seat.rack) for seat in taken]
    blocks = {seat.block for seat in taken}
    if act is FIRST and len(set(racks)) != 1:
        broken.append(f"{act.name}: required one rack, sits in {sorted(set(racks))}")
    if act is not FIRST and len(blocks) != 1:
        broken.append(f"{act.name}: should share one block, sits in {sorted(blocks)}")
    changes = sum(1 for here, there in itertools.pairwise(racks) if here != there)
    if changes != len(set(racks)) - 1:
        broken.append(f"{act.name}: ranks of a rack are not consecutive: {racks}")
    if len({seat.host for seat in taken}) != len(taken):
        broken.append(f"{act.name}: two pods share a host")
    return broken

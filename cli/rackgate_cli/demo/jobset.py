"""`rackgate demo --kind jobset`: leaders, workers and ranks of JobSets, every promise checked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_cli.demo.scene import JOBSET_NAMES, DemoScene, PodGroupView
from rackgate_cli.demo.story import (
    BLOCK,
    GPU,
    GPUS_PER_NODE,
    RACK,
    RUN_SECONDS_ANNOTATION,
    BoundPod,
)

PODS_PER_JOB: Final = 8
RUN_SECONDS: Final = 20
TRAIN, EVAL, NEXT = JOBSET_NAMES
# Jobs of each JobSet, one rack for each of them; only `train` has a leader.
JOBS: Final = {TRAIN: 3, EVAL: 2, NEXT: 3}

Object = dict[str, Any]


def rank_of(pod: Mapping[str, Any]) -> int:
    """Rank over (job index, completion index)."""
    labels = pod["metadata"]["labels"]
    job = int(labels[names.JOB_INDEX_LABEL])
    return job * PODS_PER_JOB + int(labels[names.COMPLETION_INDEX_LABEL])


def _part(name: str, part: str, letter: str) -> PodGroupView:
    labels = {names.JOBSET_NAME_LABEL: name, names.REPLICATED_JOB_LABEL: part}
    return PodGroupView(f"{name}/{part}", letter, labels, rank_of)


POD_GROUPS: Final = (
    _part(TRAIN, "workers", "A"),
    _part(EVAL, "workers", "B"),
    _part(NEXT, "workers", "C"),
    # Last: it may share a host with a worker, and is the one to see there.
    _part(TRAIN, "leader", "L"),
)


def manifest(name: str) -> Object:
    """A JobSet as an ML engineer would write it: workers by the rack, all within one block."""
    marks = {names.REQUIRED_TOPOLOGY: BLOCK}
    if name == TRAIN:
        marks |= {names.PODSET_GROUP: "all", RUN_SECONDS_ANNOTATION: str(RUN_SECONDS)}
    by_rack = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: str(PODS_PER_JOB)}
    gpus = {GPU: str(GPUS_PER_NODE)}
    parts = [_replicated("workers", JOBS[name], PODS_PER_JOB, marks | by_rack, gpus)]
    if name == TRAIN:
        parts.insert(0, _replicated("leader", 1, 1, marks, {}))
    return {
        "apiVersion": kinds.JOBSETS.api_version,
        "kind": kinds.JOBSETS.kind,
        "metadata": {"name": name, "labels": {names.QUEUE_LABEL: "default"}},
        "spec": {"replicatedJobs": parts},
    }


def _replicated(
    name: str, replicas: int, pods: int, annotations: Mapping[str, str], limits: Mapping[str, str]
) -> Object:
    container = {
        "name": "trainer",
        "image": "registry.example/trainer:1",
        "resources": {"requests": {"cpu": "1", **limits}, "limits": dict(limits)},
    }
    template = {
        "metadata": {"annotations": dict(annotations)},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    job = {"parallelism": pods, "completions": pods, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def failed_checks(
    name: str, workers: Sequence[BoundPod], leader: Sequence[BoundPod] = ()
) -> list[str]:
    """What the story promised of a JobSet and the objects do not show.

    Args:
        name: of the JobSet.
        workers: seats of its workers, by rank.
        leader: seats of its leader.
    """
    failures = []
    if [seat.rank for seat in workers] != list(range(JOBS[name] * PODS_PER_JOB)):
        failures.append(f"{name}: ranks of the workers are {[seat.rank for seat in workers]}")
    for job, group in itertools.groupby(workers, lambda seat: seat.rank // PODS_PER_JOB):
        racks = {(seat.block, seat.rack) for seat in group}
        if len(racks) != 1:
            failures.append(f"{name}: the pods of job {job} sit in {sorted(racks)}")
    blocks = {seat.block for seat in (*workers, *leader)}
    if len(blocks) > 1:
        failures.append(f"{name}: required one block, sits in {sorted(blocks)}")
    if name == TRAIN and len(leader) != 1:
        failures.append(f"{name}: {len(leader)} leaders are bound")
    return failures


async def run_story(scene: DemoScene) -> list[str]:
    """Tell the story; returns the promises that were not kept."""
    failures: list[str] = []
    scene.say(f"submit [bold]{TRAIN}[/bold]: a leader and 3 jobs of 8 pods, each job in one rack")
    await scene.create(kinds.JOBSETS, manifest(TRAIN))
    await _bound(scene, TRAIN)
    scene.say(f"[bold]{TRAIN}[/bold] runs: 25 pods, leader and workers in one block")
    failures += failed_checks(TRAIN, *_seats(scene, TRAIN))

    scene.say(f"submit [bold]{EVAL}[/bold]: 2 jobs of 8 pods")
    await scene.create(kinds.JOBSETS, manifest(EVAL))
    await _bound(scene, EVAL)
    scene.say(f"[bold]{EVAL}[/bold] runs: 16 pods")
    failures += failed_checks(EVAL, *_seats(scene, EVAL))
    scene.show()

    scene.say(f"submit [bold]{NEXT}[/bold]: 3 jobs of 8 pods; no block has 3 free racks")
    await scene.create(kinds.JOBSETS, manifest(NEXT))
    await _waits(scene, NEXT)
    if scene.bound(f"{NEXT}/workers"):
        failures.append(f"{NEXT}: pods are bound though it has to wait")
    await _bound(scene, NEXT)
    scene.say(f"[bold]{NEXT}[/bold] runs: {TRAIN} has ended")
    return failures + failed_checks(NEXT, *_seats(scene, NEXT))


def _seats(scene: DemoScene, name: str) -> tuple[list[BoundPod], list[BoundPod]]:
    taken = scene.taken
    return taken[f"{name}/workers"], taken.get(f"{name}/leader", [])


async def _bound(scene: DemoScene, name: str) -> None:
    async def all_bound() -> bool:
        workers, leader = _seats(scene, name)
        return len(workers) == JOBS[name] * PODS_PER_JOB and len(leader) == (name == TRAIN)

    await scene.until(f"all pods of {name} are bound", all_bound)


async def _waits(scene: DemoScene, name: str) -> None:
    async def refused() -> bool:
        quota = await scene.condition(name, "QuotaReserved")
        if quota.get("reason") != "TopologyPlacementFailed":
            return False
        scene.say(f"[bold]{name}[/bold] waits: {quota['message']}")
        return True

    await scene.until(f"{name} waits with a reason", refused)

"""`rackgate demo --kind jobset`: leaders, workers and ranks of JobSets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_cli.demo.story import (
    BLOCK,
    GPUS_PER_NODE,
    JOBSET_NAMES,
    RACK,
    RUN_SECONDS_ANNOTATION,
    BoundPod,
    Object,
    PodGroupView,
    Story,
    completion_index,
    manifest_of,
    pod_template,
)

PODS_PER_JOB: Final = 8
RUN_SECONDS: Final = 20
TRAIN, EVAL, NEXT = JOBSET_NAMES
# Jobs of each JobSet, one rack for each Job; only `train` has a leader.
JOBS: Final = {TRAIN: 3, EVAL: 2, NEXT: 3}


def rank_of(pod: Object) -> int:
    """Rank over (job index, completion index)."""
    job = int(pod["metadata"]["labels"][names.JOB_INDEX_LABEL])
    return job * PODS_PER_JOB + completion_index(pod)


def _group(name: str, replicated_job: str, letter: str) -> PodGroupView:
    labels = {names.JOBSET_NAME_LABEL: name, names.REPLICATED_JOB_LABEL: replicated_job}
    return PodGroupView(f"{name}/{replicated_job}", letter, labels, rank_of)


def manifest(name: str) -> Object:
    """A JobSet as an ML engineer would write it: each job in a rack, all within one block."""
    annotations = {names.REQUIRED_TOPOLOGY: BLOCK}
    if name == TRAIN:
        annotations |= {names.PODSET_GROUP: "all", RUN_SECONDS_ANNOTATION: str(RUN_SECONDS)}
    by_rack = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: str(PODS_PER_JOB)}
    jobs = [_replicated("workers", JOBS[name], PODS_PER_JOB, annotations | by_rack, GPUS_PER_NODE)]
    if name == TRAIN:
        jobs.insert(0, _replicated("leader", 1, 1, annotations, 0))
    return manifest_of(kinds.JOBSETS, name, {"replicatedJobs": jobs})


def _replicated(
    name: str, replicas: int, pods: int, annotations: Mapping[str, str], gpus: int
) -> Object:
    template = pod_template(annotations, gpus, restartPolicy="Never")
    job = {"parallelism": pods, "completions": pods, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def failed_checks(
    name: str, workers: Sequence[BoundPod], leader: Sequence[BoundPod] = ()
) -> list[str]:
    """Checks of a JobSet that fail on its objects.

    Args:
        name: of the JobSet.
        workers: its bound workers, by rank.
        leader: its bound leader.
    """
    failures = []
    if [pod.rank for pod in workers] != list(range(JOBS[name] * PODS_PER_JOB)):
        failures.append(f"{name}: ranks of the workers are {[pod.rank for pod in workers]}")
    for job, group in itertools.groupby(workers, lambda pod: pod.rank // PODS_PER_JOB):
        racks = {(pod.block, pod.rack) for pod in group}
        if len(racks) != 1:
            failures.append(f"{name}: the pods of job {job} run in {sorted(racks)}")
    blocks = {pod.block for pod in (*workers, *leader)}
    if len(blocks) > 1:
        failures.append(f"{name}: required one block, runs in {sorted(blocks)}")
    if name == TRAIN and len(leader) != 1:
        failures.append(f"{name}: {len(leader)} leaders are bound")
    return failures


class JobSetStory(Story):
    """Two JobSets start; the third is pending until the first one ends."""

    operators: ClassVar = ("jobset",)
    groups: ClassVar = (
        _group(TRAIN, "workers", "A"),
        _group(EVAL, "workers", "B"),
        _group(NEXT, "workers", "C"),
        # Last: it may share a host with a worker, and its color wins there.
        _group(TRAIN, "leader", "L"),
    )

    async def run(self) -> None:
        """Submit all three, one after the other."""
        await self._submit(TRAIN, "a leader and 3 jobs of 8 pods, each job in one rack")
        await self._check_bound(TRAIN, "25 pods, leader and workers in one block")
        await self._submit(EVAL, "2 jobs of 8 pods")
        await self._check_bound(EVAL, "16 pods")
        self.console.print(self.picture())
        await self._submit(NEXT, "3 jobs of 8 pods; no block has 3 free racks")
        message = await self.until_pending(NEXT)
        self.say(f"[bold]{NEXT}[/bold] is pending: {message}")
        if self.bound[f"{NEXT}/workers"]:
            self.failures.append(f"{NEXT}: pods are bound although it is pending")
        await self._check_bound(NEXT, f"{TRAIN} has ended")

    async def _submit(self, name: str, what: str) -> None:
        self.say(f"submit [bold]{name}[/bold]: {what}")
        await self.create(kinds.JOBSETS, manifest(name))

    async def _check_bound(self, name: str, what: str) -> None:
        counts = {f"{name}/workers": JOBS[name] * PODS_PER_JOB}
        if name == TRAIN:
            counts[f"{name}/leader"] = 1
        await self.until_bound(f"all pods of {name} are bound", counts)
        self.say(f"[bold]{name}[/bold] runs: {what}")
        bound = self.bound
        leader = bound.get(f"{name}/leader", ())
        self.failures += failed_checks(name, bound[f"{name}/workers"], leader)

"""`rackgate demo`: one Job requires a rack, one prefers a rack, and one is pending."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_cli.demo.story import (
    BLOCK,
    GPUS_PER_NODE,
    JOB_NAMES,
    RACK,
    RUN_SECONDS_ANNOTATION,
    STYLES,
    BoundPod,
    Object,
    PodGroupView,
    Story,
    completion_index,
    conditions_of,
    manifest_of,
    pod_template,
)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One Job of the story.

    Attributes:
        letter: stands for its pods in the picture.
        count: pods; each uses a whole node.
        annotation: the one topology annotation and its level.
        run_seconds: how long its pods run; None for no end.
    """

    name: str
    letter: str
    count: int
    annotation: str
    level: str
    promise: str
    run_seconds: int | None = None

    @property
    def request(self) -> str:
        """Its topology request, as text."""
        kind = "required" if "required" in self.annotation else "preferred"
        return f"{kind} {self.level.rsplit('-', 1)[-1]}"


_A, _B, _C = JOB_NAMES
FIRST: Final = DemoJob(_A, "A", 8, names.REQUIRED_TOPOLOGY, RACK, "all 8 pods in one rack", 15)
SECOND: Final = DemoJob(
    _B, "B", 28, names.PREFERRED_TOPOLOGY, RACK, "no rack is large enough: one block"
)
THIRD: Final = DemoJob(
    _C, "C", 28, names.REQUIRED_TOPOLOGY, BLOCK, "pending until a block is free, then starts"
)
DEMO_JOBS: Final = (FIRST, SECOND, THIRD)


def manifest(job: DemoJob) -> Object:
    """The Job as an ML engineer would write it: a queue label and one annotation."""
    annotations = {job.annotation: job.level}
    if job.run_seconds is not None:
        annotations[RUN_SECONDS_ANNOTATION] = str(job.run_seconds)
    spec = {
        "parallelism": job.count,
        "completions": job.count,
        "completionMode": "Indexed",
        "template": pod_template(annotations, GPUS_PER_NODE, restartPolicy="Never"),
    }
    return manifest_of(kinds.JOBS, job.name, spec)


def failed_checks(job: DemoJob, bound: Sequence[BoundPod]) -> list[str]:
    """Checks of a Job that fail on its objects."""
    failures = []
    if len(bound) != job.count:
        failures.append(f"{job.name}: {len(bound)} of {job.count} pods are bound")
    if [pod.rank for pod in bound] != list(range(job.count)):
        failures.append(f"{job.name}: ranks are {[pod.rank for pod in bound]}")
    racks = [(pod.block, pod.rack) for pod in bound]
    blocks = {pod.block for pod in bound}
    if job is FIRST and len(set(racks)) != 1:
        failures.append(f"{job.name}: required one rack, runs in {sorted(set(racks))}")
    if job is not FIRST and len(blocks) != 1:
        failures.append(f"{job.name}: should share one block, runs in {sorted(blocks)}")
    changes = sum(1 for here, there in itertools.pairwise(racks) if here != there)
    if changes != len(set(racks)) - 1:
        failures.append(f"{job.name}: ranks of a rack are not consecutive: {racks}")
    if len({pod.host for pod in bound}) != len(bound):
        failures.append(f"{job.name}: two pods share a host")
    return failures


class JobStory(Story):
    """The story of Jobs; also prints the state of each Job.

    Attributes:
        states: of each Job, as text.
    """

    groups: ClassVar = tuple(
        PodGroupView(
            job.name, job.letter, {"batch.kubernetes.io/job-name": job.name}, completion_index
        )
        for job in DEMO_JOBS
    )
    legend: ClassVar = tuple(f"{job.letter}  {job.name}: {job.promise}" for job in DEMO_JOBS)
    states: Mapping[str, str] = MappingProxyType({})

    async def run(self) -> None:
        """The first two Jobs start; the third is pending until the first one ends."""
        for job in (FIRST, SECOND):
            await self._submit(job)
            await self._check_bound(job)
        await self._submit(THIRD)
        await self.until_pending(THIRD.name)
        if self.bound[THIRD.name]:
            self.failures.append(f"{THIRD.name}: pods are bound although it is pending")
        await self._check_bound(THIRD)

    async def _submit(self, job: DemoJob) -> None:
        self.say(f"submit [bold]{job.name}[/bold]: {job.count} pods, {job.request}")
        await self.create(kinds.JOBS, manifest(job))

    async def _check_bound(self, job: DemoJob) -> None:
        await self.until_bound(f"all pods of {job.name} are bound", {job.name: job.count})
        self.failures += failed_checks(job, self.bound[job.name])

    async def refresh(self) -> None:
        """Read everything again; print state changes."""
        await super().refresh()
        jobs = {obj["metadata"]["name"]: obj for obj in await self.listed(kinds.JOBS)}
        before = self.states
        self.states = {
            job.name: await self._state(job, jobs[job.name])
            for job in DEMO_JOBS
            if job.name in jobs and "deletionTimestamp" not in jobs[job.name]["metadata"]
        }
        for name, state in self.states.items():
            if before.get(name) != state:
                self.say(f"[bold]{name}[/bold] {state}")

    async def _state(self, job: DemoJob, obj: Object) -> str:
        """Finished, running, starting, or pending and why."""
        for entry in obj.get("status", {}).get("conditions", []):
            if entry["type"] in ("Complete", "Failed") and entry["status"] == "True":
                return "finished" if entry["type"] == "Complete" else f"failed: {entry['message']}"
        conditions = conditions_of(await self.workload_of(job.name))
        quota = conditions.get("QuotaReserved", {})
        if quota.get("status") == "False":
            return f"pending ({quota['reason']}): {quota['message']}"
        if conditions.get("Admitted", {}).get("status") == "True":
            if job.name in self.ended or obj.get("status", {}).get("succeeded"):
                return "ending"
            running = len(self.bound[job.name]) == job.count
            return "running" if running else "admitted, its pods are being ungated"
        return "submitted"

    def seen(self) -> str:
        """The states."""
        return "; ".join(f"{name}: {state}" for name, state in self.states.items())

    def live_view(self) -> RenderableType:
        """The picture, and a line per Job with its state."""
        table = Table(pad_edge=False)
        for heading in ("job", "requests", "pods", "state"):
            table.add_column(heading)
        bound = self.bound
        for job in DEMO_JOBS:
            if job.name in self.states:
                name = Text(f" {job.letter} {job.name} ", style=STYLES[job.letter])
                pods = f"{len(bound[job.name])}/{job.count}"
                table.add_row(name, job.request, pods, self.states[job.name])
        return Group(self.picture(), table)

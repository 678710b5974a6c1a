"""Reads what an explanation of gangs needs. Only reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rackgate.api.names import WORKLOAD_ANNOTATION, WorkloadCondition
from rackgate.api.resources import GANG_WORKLOADS, JOBS, PODS, WORKLOADS
from rackgate.api.timestamps import parse_rfc3339
from rackgate.gang.link import child_job_link, link_of
from rackgate.gang.runs.done_pods import DonePods, decode_done_pods, of_children, sum_of_done_pods
from rackgate.gang.runs.run_spec import RunSpec, decode_run_spec
from rackgate.jobframework.registry import JOB, owner_of
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.explain.explanation import GangView
from rackgate_assigner.explain.gangs import gang_views
from rackgate_assigner.gangs.child_jobs import is_over, started_at
from rackgate_assigner.gangs.gang_workload import GangWorkload, decode_gang_workload
from rackgate_assigner.gangs.reactions import admission_run
from rackgate_assigner.watches import decoder
from rackgate_cli.cluster.lists import list_decoded
from rackgate_cli.explain.view import gang_blocks
from rackgate_cli.tables import Block, Grid, Heading, Line

_decode_workload = decoder(Workload)


class GangReader:
    """Reads gangs of one cluster.

    Args:
        client: only reads.
        top: how many names to list each time.
    """

    def __init__(self, client: Client, top: int) -> None:
        self._client, self._top = client, top

    async def of_workload(self, workload: Workload, pods: Sequence[Pod]) -> list[GangView]:
        """The gangs of an admitted Workload, with the numbers that its run was started with.

        Args:
            workload: of Kueue's API.
            pods: those that name it.
        """
        run = admission_run(workload)
        started = await self._run_spec(workload)
        if started is not None and started.children:
            return await self._of_children(workload, started, pods, run=run)
        links = {link_of(pod.metadata.annotations) for pod in pods} - {""}
        if started is not None:
            links.add(started.workload)
        if not links or not run:
            return []
        since_s = _since_s(_admitted_at(workload))
        # With several Workloads of gangs it is not known to which one a pod belonged.
        done: dict[str, int] = {}
        if len(links) == 1:
            reclaimable = {one.name: one.count for one in workload.status.reclaimable_pods}
            done = sum_of_done_pods(await self._done_pods(workload), reclaimable)
        views = []
        for link in sorted(links):
            spec = started.spec if started is not None and started.workload == link else None
            try:
                found = await self.read(workload.metadata.namespace, link)
            except ForbiddenError:
                if spec is None:
                    continue
            else:
                # Without it, pods that are still gated stay gated; the others have their run.
                spec = None if found is None else spec or found.canonical
            views += gang_views(
                link, spec, pods, run=run, since_s=since_s, top=self._top, done=done
            )
        return views

    async def _of_children(
        self, workload: Workload, started: RunSpec, pods: Sequence[Pod], *, run: str
    ) -> list[GangView]:
        """The gangs of child Jobs, each of which has a Workload of gangs of its own."""
        owner = owner_of(workload)
        if owner is None or not run:
            return []
        kind, namespace = owner[0], workload.metadata.namespace
        jobs = await self._child_jobs(workload)
        since_admission = _since_s(_admitted_at(workload))
        views = []
        for job in jobs:
            spec = started.children.get(kind.podset_of_child(job))
            if spec is None or is_over(job):
                continue
            meta, since_s, absent = job.metadata, _since_s(started_at(job)), ""
            if since_s is None:
                absent = f"the {kind.name} has not started the Job {meta.name}"
            elif since_admission is not None:
                since_s = min(since_s, since_admission)
            link = child_job_link(meta.name, meta.uid)
            with contextlib.suppress(ForbiddenError):
                spec = spec if await self.read(namespace, link) is not None else None
            views += gang_views(
                link, spec, pods, run=run, since_s=since_s, top=self._top, absent=absent
            )
        return views

    async def _done_pods(self, workload: Workload) -> DonePods:
        """What the Workload says about child Jobs that exist."""
        done = decode_done_pods(workload.metadata.annotations)
        if not done:
            return {}
        uids = {job.metadata.uid for job in await self._child_jobs(workload)}
        return of_children(done, uids)

    async def _child_jobs(self, workload: Workload) -> list[Job]:
        """The child Jobs of its owner, by their names; none if they may not be read."""
        owner = owner_of(workload)
        if owner is None:
            return []
        kind, (namespace, _, name) = owner[0], owner[1].partition("/")
        try:
            jobs = await list_decoded(
                self._client,
                JOBS,
                JOB.decode,
                namespace=namespace,
                params={"labelSelector": f"{kind.child_job_label}={name}"},
            )
        except ForbiddenError:
            return []
        own = [
            job
            for job in jobs
            if job.metadata.controller is not None
            and job.metadata.controller.uid == workload.owner_uid
        ]
        return sorted(own, key=lambda one: one.metadata.name)

    async def read(self, namespace: str, name: str) -> GangWorkload | None:
        """A Workload of gangs; None if there is none."""
        try:
            return decode_gang_workload(
                await self._client.get(GANG_WORKLOADS.path(namespace, name))
            )
        except NotFoundError:
            return None

    async def now(self, gang: GangWorkload) -> list[GangView]:
        """The gangs of a Workload of gangs, as the pods that name it are now."""
        meta = gang.metadata
        everything = await list_decoded(self._client, PODS, decoder(Pod), namespace=meta.namespace)
        pods = [pod for pod in everything if link_of(pod.metadata.annotations) == meta.name]
        views = []
        for name in sorted({pod.metadata.annotations.get(WORKLOAD_ANNOTATION, "") for pod in pods}):
            workload = await self._workload(meta.namespace, name) if name else None
            own = [
                pod for pod in pods if pod.metadata.annotations.get(WORKLOAD_ANNOTATION, "") == name
            ]
            if workload is not None:
                found = await self.of_workload(workload, own)
                views += [view for view in found if view.workload == meta.name]
            else:
                views += gang_views(
                    meta.name, gang.canonical, own, run="", since_s=None, top=self._top
                )
        return views

    async def _workload(self, namespace: str, name: str) -> Workload | None:
        try:
            raw = await self._client.get(WORKLOADS.path(namespace, name))
        except NotFoundError:
            return None
        found: Workload = _decode_workload(raw)
        return found

    async def _run_spec(self, workload: Workload) -> RunSpec | None:
        owner = owner_of(workload)
        if owner is None:
            return None
        kind, key = owner
        namespace, _, name = key.partition("/")
        try:
            job = kind.decode(await self._client.get(kind.resource.path(namespace, name)))
        except (ForbiddenError, NotFoundError):
            return None
        return decode_run_spec(job.metadata.annotations)


def _admitted_at(workload: Workload) -> str:
    admitted = workload.condition(WorkloadCondition.ADMITTED)
    return (admitted and admitted.last_transition_time) or ""


def _since_s(timestamp: str) -> float | None:
    try:
        at = parse_rfc3339(timestamp)
    except ValueError:
        return None
    return max(0.0, (clock.now() - at).total_seconds())


def status_blocks(gang: GangWorkload, found: Sequence[GangView]) -> Iterator[Block]:
    """What the status of a Workload of gangs says, and its gangs as their pods are now."""
    yield Heading("CONDITIONS")
    rows = [(one.type, one.status, one.reason, one.message) for one in gang.conditions]
    yield Grid(("TYPE", "STATUS", "REASON", "MESSAGE"), rows)
    if not found:
        yield Line("No pod names it now.")
    for view in found:
        yield from gang_blocks(view)

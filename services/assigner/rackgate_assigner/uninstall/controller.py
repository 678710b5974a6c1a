"""The cleanup of an installation: it is deleted, or `rackgate uninstall` runs.

Templates of suspended jobs are restored to their users' form. Then our finalizer is removed from
Workloads, ClusterQueues, flavors and Topologies. The Workloads themselves stay, with their owners
and admissions: they are deleted with their jobs, and a later installation reads from them what
runs.

Every object is read again before it is written, no state is kept, and every write only
removes: the cleanup may stop after any line and be run again, also by several processes at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import CLUSTER_QUEUES, FLAVORS, JOBS, TOPOLOGIES, WORKLOADS, Resource
from rackgate.installation.uninstall import Failures, remove_finalizer_patch, run_concurrently
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.jsonpatch import JsonPatchOp, with_preconditions
from rackgate.jobframework.managed import is_child_of_job
from rackgate.jobframework.registry import JOB, KINDS, kind_of
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, KubeError, NotFoundError
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta, MetadataOnly
from rackgate.wire.kueue import ResourceFlavor, Workload
from rackgate.wire.lists import page_items
from rackgate_assigner.jobs.state import (
    Priority,
    is_eligible,
    own_workload,
    read_job_state,
    unmanaged_namespaces,
)
from rackgate_assigner.uninstall.plan import (
    LeaveRunning,
    PatchChildJobs,
    PatchJob,
    RestoreAction,
    RunningJobsPolicy,
    WaitForStop,
    is_untouched,
    plan_restore,
)
from rackgate_assigner.watches import CHILD_JOBS, MANAGED_JOBS, decode_workload, decoder

T = TypeVar("T")

# Wait time for jobs that are stopping: half of the time that a deleted installation has.
STOP_TIMEOUT_S: Final = 25.0
FINALIZED_RESOURCES: Final = (WORKLOADS, CLUSTER_QUEUES, FLAVORS, TOPOLOGIES)
_POLL_S: Final = 0.3
_PASSES: Final = 30
_SHOWN: Final = 50

log = structlog.get_logger()


_decode_metadata = msgspec.json.Decoder(MetadataOnly).decode


@dataclass
class UninstallReport:
    """The result of the cleanup.

    Attributes:
        restored: suspended jobs whose templates were restored.
        running: jobs that keep running, each `Kind namespace/name`.
        gated: those of them whose later pods will have a gate that no one removes.
        stopping: jobs whose pods were not gone in time; their templates are not restored.
        failed: jobs and objects whose write the API server rejected, with its message:
            templates of jobs, and finalizers.
        released: objects whose finalizer was removed, by kind.
    """

    restored: set[str] = field(default_factory=set)
    running: list[str] = field(default_factory=list)
    gated: list[str] = field(default_factory=list)
    stopping: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def log_report(report: UninstallReport) -> None:
    """Log the result: as many names as fit in a line, and all counts."""
    log.warning(
        "uninstall_finished",
        released=dict(report.released),
        restored=len(report.restored),
        running=len(report.running),
        later_pods_stay_gated=sorted(report.gated)[:_SHOWN],
        still_stopping=sorted(report.stopping)[:_SHOWN],
        failed=dict(sorted(report.failed.items())[:_SHOWN]),
    )


@dataclass(frozen=True)
class _ClusterState:
    """The stored objects that concern jobs."""

    jobs: list[JobLike]
    workloads: Mapping[str, Sequence[Workload]]
    children: dict[str, list[Job]]
    flavors: dict[str, ResourceFlavor]


async def uninstall_all(
    client: Client,
    *,
    system_namespace: str,
    jobs: RunningJobsPolicy = RunningJobsPolicy.LEAVE,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> UninstallReport:
    """Restore and release everything except gated pods.

    Args:
        client: with the rights of the assigner, or more.
        system_namespace: of the installation; nothing is managed there.
        jobs: what to do with jobs that run.
        stop_timeout_s: wait time for jobs that are stopping.

    Raises:
        KubeError: the API server rejects reads, or the removal of finalizers.
    """
    report = UninstallReport()
    await _restore_jobs(
        client, unmanaged_namespaces(system_namespace), jobs, stop_timeout_s, report
    )
    for resource in FINALIZED_RESOURCES:
        await remove_finalizers(client, resource, report)
    return report


async def _restore_jobs(
    client: Client,
    unmanaged: Iterable[str],
    jobs: RunningJobsPolicy,
    stop_timeout_s: float,
    report: UninstallReport,
) -> None:
    left_alone, clock = frozenset(unmanaged), asyncio.get_running_loop().time
    deadline, failures = clock() + stop_timeout_s, Failures()
    while True:
        found = await _read(client)
        plans = {
            label: (job, plan)
            for job in found.jobs
            if not failures.is_given_up(label := _label(job))
            and (plan := _plan(job, found, left_alone, jobs)) is not None
        }
        writes = {
            label: (job, plan)
            for label, (job, plan) in plans.items()
            if isinstance(plan, PatchJob | PatchChildJobs)
        }
        stopping = [label for label, (_, plan) in plans.items() if isinstance(plan, WaitForStop)]
        timed_out = clock() > deadline
        if timed_out or not (writes or stopping):
            report.running = [k for k, (_, plan) in plans.items() if isinstance(plan, LeaveRunning)]
            report.gated = [
                k for k, (_, plan) in plans.items() if isinstance(plan, LeaveRunning) and plan.gated
            ]
            report.stopping = [*stopping, *writes]
            return
        before = failures.count
        await _write(client, writes, report, failures)
        report.failed |= {k: failures.message(k) for k in writes if failures.is_given_up(k)}
        if stopping or failures.count > before:
            await asyncio.sleep(_POLL_S)


def _label(job: JobLike) -> str:
    return f"{kind_of(job).name} {job.metadata.key}"


def _plan(
    job: JobLike, found: _ClusterState, unmanaged: frozenset[str], jobs: RunningJobsPolicy
) -> RestoreAction | None:
    """The next action for a job; None if it is not managed, or nothing of Rackgate is left."""
    workload = own_workload(job, found.workloads.get(job.metadata.uid, ()))
    if not is_eligible(job, unmanaged) or (workload is None and is_child_of_job(job.metadata)):
        return None
    job_state = read_job_state(
        job,
        workload,
        Priority(),
        children=found.children.get(job.metadata.uid, ()),
        flavors=found.flavors,
    )
    if is_untouched(job, job_state, queued=workload is not None):
        return None
    return plan_restore(job, job_state, jobs)


async def _read(client: Client) -> _ClusterState:
    jobs: list[JobLike] = []
    for kind in KINDS.values():
        jobs += await _list(client, kind.resource, kind.decode, MANAGED_JOBS)
    workloads: dict[str, list[Workload]] = defaultdict(list)
    for workload in await _list(client, WORKLOADS, decode_workload):
        owner = workload.metadata.controller
        if owner is not None:
            workloads[owner.uid].append(workload)
    children: dict[str, list[Job]] = defaultdict(list)
    for child in await _list(client, JOBS, JOB.decode, CHILD_JOBS):
        controller = child.metadata.controller
        if controller is not None:
            children[controller.uid].append(child)
    flavors = await _list(client, FLAVORS, decoder(ResourceFlavor))
    return _ClusterState(jobs, workloads, children, {one.metadata.name: one for one in flavors})


async def _list(
    client: Client,
    resource: Resource,
    decode: Callable[[bytes | msgspec.Raw], T],
    params: Mapping[str, str] | None = None,
) -> list[T]:
    """All objects of a kind; none if it is not served. Unreadable objects are omitted."""
    found: list[T] = []
    try:
        async for page in client.list_pages(resource.path(), params):
            for raw in page_items(page):
                try:
                    found.append(decode(raw))
                except msgspec.MsgspecError as error:
                    log.warning("object_not_read", kind=resource.kind, error=str(error)[:300])
    except NotFoundError:
        return []
    return found


async def _write(
    client: Client,
    writes: Mapping[str, tuple[JobLike, RestoreAction]],
    report: UninstallReport,
    failures: Failures,
) -> None:
    """Execute the next write of each job."""

    async def one(item: tuple[str, tuple[JobLike, RestoreAction]]) -> None:
        label, (job, plan) = item
        try:
            if isinstance(plan, PatchChildJobs):
                for child in plan.children:
                    await _patch(client, JOBS, child.job.metadata, child.operations)
            elif isinstance(plan, PatchJob):
                await _patch(client, kind_of(job).resource, job.metadata, plan.operations)
            report.restored.add(label)
        except (NotFoundError, ConflictError):
            return
        except KubeError as error:
            failures.add(label, error)

    await run_concurrently(one, writes.items())


async def _patch(client: Client, kind: Resource, meta: Meta, ops: list[JsonPatchOp]) -> None:
    body = with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
    path = kind.path(meta.namespace, meta.name)
    await client.patch(path, msgspec.json.encode(body), PatchType.JSON)


async def remove_finalizers(client: Client, resource: Resource, report: UninstallReport) -> None:
    """Remove our finalizer from every object of a kind that we can write.

    Raises:
        KubeError: it is not allowed, or the API server does not respond.
    """
    failures = Failures()

    async def remove_finalizer(meta: Meta) -> None:
        patch = remove_finalizer_patch(meta, names.IN_USE_FINALIZER)
        if patch is None:
            return
        namespace = meta.namespace if resource.namespaced else None
        try:
            await client.patch(resource.path(namespace, meta.name), patch, PatchType.JSON)
            report.released[resource.kind] += 1
        except (NotFoundError, ConflictError):
            return  # deleted, or changed by another client: it is read again
        except KubeError as error:
            failures.add(meta.uid, error)

    for _ in range(_PASSES):
        held = [
            found.metadata
            for found in await _list(client, resource, _decode_metadata)
            if names.IN_USE_FINALIZER in found.metadata.finalizers
        ]
        remaining = [meta for meta in held if not failures.is_given_up(meta.uid)]
        if not remaining:
            report.failed |= {f"{resource.kind} {m.key}": failures.message(m.uid) for m in held}
            return
        before = failures.count
        await run_concurrently(remove_finalizer, remaining)
        if failures.count > before:
            await asyncio.sleep(_POLL_S)
    raise KubeError(
        "PATCH", resource.path(), message="finalizers of Rackgate are added again and again"
    )

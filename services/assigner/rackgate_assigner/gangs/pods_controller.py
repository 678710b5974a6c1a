"""Looks at the pods of gangs when their time is over, or one of them is gone.

Remembered, and harmless to lose: which gangs of a run were found to be bound, and which pods went
since the last look. After a restart each run is looked at once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from rackgate.api.names import WORKLOAD_ANNOTATION, WorkloadCondition
from rackgate.api.resources import PODS
from rackgate.gang.runs.done_pods import DonePods, sum_of_done_pods
from rackgate.gang.runs.run_spec import RunSpec, decode_run_text
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.managed import owner_uid_of_pod
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.podsets import total_pods
from rackgate.jobframework.registry import kind_of
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.core import Pod
from rackgate.wire.depth import tolerant
from rackgate.wire.kueue import Workload
from rackgate.wire.lists import page_items
from rackgate_assigner.gangs.reactions import (
    GangCheck,
    GangEviction,
    admission_run,
    clock_skew_s,
    decide,
    is_skewed,
    next_timeout,
    next_timeout_of,
    pods_of,
    since_admission_s,
    terminates_all,
    was_ready,
    was_ready_since,
)
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.workload.elapsed import Elapsed, ElapsedTimes

if TYPE_CHECKING:
    from rackgate_assigner.gangs.child_jobs import ChildGang

log = structlog.get_logger()

_decode_pod = tolerant(msgspec.json.Decoder(Pod).decode)


@dataclass(slots=True)
class _ChildRun:
    """What is remembered of one start of a child Job.

    Attributes:
        seen_at: monotonic seconds of the first look.
        checked_s: gangs with at most this time were bound.
        looked: its pods were read at least once, for lost ones.
    """

    seen_at: float
    checked_s: float = 0.0
    looked: bool = False


@dataclass(slots=True)
class _Run:
    """What is remembered of one run.

    Attributes:
        seen_at: monotonic seconds of the first look.
        own_clock: the time runs from there, because wall clocks differ too much.
        checked_s: gangs with at most this time were bound.
        looked: its pods were read at least once, for lost ones.
        gone: pods that the watch shows no more, or that are being deleted: by UID, the name and
            `owner_uid_of_pod`.
        children: child Jobs that have Workloads of gangs, by UID and time of the start.
    """

    run: str
    seen_at: float
    own_clock: bool = False
    checked_s: float = 0.0
    looked: bool = False
    gone: dict[str, tuple[str, str]] = field(default_factory=dict)
    children: dict[tuple[str, str], _ChildRun] = field(default_factory=dict)


class GangPods:
    """The pods of gangs of admitted jobs."""

    def __init__(
        self,
        client: Client,
        workloads: Mapping[str, Workload],
        children: Callable[[str], Sequence[ChildGang]] = lambda _uid: (),
    ) -> None:
        """Prepare.

        Args:
            client: lists pods.
            workloads: of Kueue's API, by `namespace/name`.
            children: by the UID of a job, its child Jobs that have Workloads of gangs.
        """
        self._client, self._workloads, self._children = client, workloads, children
        self._runs: dict[str, _Run] = {}
        self._started = ElapsedTimes()

    def forget(self, key: str) -> None:
        """A Workload is deleted, or is not admitted any more."""
        known = self._runs.pop(key, None)
        for uid, _ in known.children if known is not None else ():
            self._started.forget(uid)

    def on_pod_gone(self, pod: Pod) -> Workload | None:
        """A bound pod has ended or is being deleted; the Workload to look at, if there is one."""
        meta = pod.metadata
        key = f"{meta.namespace}/{meta.annotations.get(WORKLOAD_ANNOTATION, '')}"
        known, workload = self._runs.get(key), self._workloads.get(key)
        owner = owner_uid_of_pod(meta)
        if known is None or workload is None or not owner:
            return None
        known.gone[meta.uid] = meta.name, owner
        return workload

    def check(
        self,
        job: JobLike,
        workload: Workload,
        gang: JobGang,
        elapsed: Elapsed,
        *,
        live: int,
        done_pods: DonePods,
    ) -> tuple[GangCheck | None, float]:
        """What is to be looked at now, and the seconds until there may be something; 0 for never.

        Args:
            job: of the Workload.
            workload: as stored.
            gang: of the job.
            elapsed: the times of the Workload.
            live: its pods that are bound and neither have ended nor are being deleted.
            done_pods: of its child Jobs.
        """
        key, run = workload.metadata.key, admission_run(workload)
        found = decode_run_text(gang.run_spec) if run else None
        if found is None or workload.is_true(WorkloadCondition.EVICTED):
            self.forget(key)
            return None, 0.0
        known = self._runs.get(key)
        if known is None or known.run != run:
            known = self._runs[key] = _Run(run, elapsed.now.monotonic)
        due_s, later_s = next_timeout(
            found.spec,
            workload,
            elapsed,
            checked_s=known.checked_s,
            since_s=elapsed.now.monotonic - known.seen_at if known.own_clock else None,
        )
        if found.children:
            return self._check_children(job, workload, known, found, elapsed, done_pods=done_pods)
        if due_s and live >= total_pods(workload):
            known.checked_s, due_s = due_s, 0.0
        suspects = self._suspects(job, known, found)
        look = suspects is not None and (bool(suspects) or not known.looked)
        if not due_s and not look:
            return None, later_s
        reclaimable = {one.name: one.count for one in workload.status.reclaimable_pods}
        done = sum_of_done_pods(done_pods, reclaimable)
        done = {name: count for name, count in done.items() if name in found.podsets}
        check = GangCheck(run, found.spec, found.workload, due_s, suspects or {}, done=done)
        return check, later_s

    def _check_children(
        self,
        job: JobLike,
        workload: Workload,
        known: _Run,
        found: RunSpec,
        elapsed: Elapsed,
        *,
        done_pods: DonePods,
    ) -> tuple[GangCheck | None, float]:
        """As `check`: the time of the gangs of a child Job begins with the start of that Job."""
        checks, later, seen = [], [], {}
        since_admission = since_admission_s(workload, elapsed)
        for one in self._children(job.metadata.uid):
            spec, started_at = found.children.get(one.podset), one.started_at
            since_s = self._started.at(one.uid, elapsed.now).since(started_at)
            if spec is None or since_s is None or since_admission is None:
                continue
            start = (one.uid, started_at)
            child = seen[start] = known.children.get(start) or _ChildRun(elapsed.now.monotonic)
            since_s = min(since_s, since_admission)
            if known.own_clock:
                since_s = elapsed.now.monotonic - child.seen_at
            if one.is_ready or was_ready_since(workload, started_at):
                child.checked_s = math.inf
            due_s, later_s = next_timeout_of(spec, since_s, checked_s=child.checked_s)
            suspects: dict[str, str] = {}
            if terminates_all(spec):
                owned = ((uid, pod) for uid, pod in known.gone.items() if pod[1] == one.uid)
                suspects = {uid: name for uid, (name, _) in owned}
            if due_s or suspects or (terminates_all(spec) and not child.looked):
                since = f"the start of Job {one.job.metadata.name}"
                done = {one.podset: done_pods.get(one.podset, {}).get(one.uid, 0)}
                checks.append(
                    GangCheck(known.run, spec, one.name, due_s, suspects, since, one.uid, done=done)
                )
            if later_s:
                later.append(later_s)
        known.children = seen
        if not any(terminates_all(spec) for spec in found.children.values()):
            known.gone.clear()
        due_s = max((one.due_s for one in checks), default=0.0)
        check = GangCheck(known.run, found.spec, found.workload, due_s, children=tuple(checks))
        return (check if checks else None), min(later, default=0.0)

    def _suspects(self, job: JobLike, known: _Run, found: RunSpec) -> dict[str, str] | None:
        """Pods that may be lost; None if none of them would matter."""
        is_started = (
            job.has_started
            if isinstance(job, GangGroup)
            else WORKLOAD_ANNOTATION in job.metadata.annotations
        )
        if not terminates_all(found.spec) or not is_started:
            known.gone.clear()
            return None
        return {uid: name for uid, (name, _) in known.gone.items()}

    async def decide(
        self, job: JobLike, workload: Workload, check: GangCheck, controllers: Collection[str]
    ) -> GangEviction | None:
        """Read the pods of a job now, and decide whether it is evicted.

        Args:
            job: as stored.
            workload: its admitted Workload.
            check: what to look at.
            controllers: UIDs of the job and of its child Jobs; for a gang of pods its id.
        """
        key = workload.metadata.key
        known = self._runs.get(key)
        owned = {
            uid: name
            for uid, name in check.suspects.items()
            if known is not None and known.gone.get(uid, ("", ""))[1] in controllers
        }
        pods = await self._read(job)
        early = known is not None and self._is_early(key, known, check)
        due_s = 0.0 if early else check.due_s
        checked = replace(check, due_s=due_s, suspects=owned)
        found = self._decide(workload, checked, pods, controllers, ready_before=was_ready(workload))
        for child in check.children:
            state = self._child_run(known, child)
            if found is None:
                own = replace(child, due_s=0.0) if early else child
                before = state is not None and state.checked_s > 0
                found = self._decide(workload, own, pods, {child.child}, ready_before=before)
                if found is None and state is not None:
                    state.checked_s, state.looked = max(state.checked_s, own.due_s), True
        log.info(
            "gangs_checked",
            workload=key,
            run=check.run,
            pods=len(pods),
            result="bound" if found is None else str(found.reason),
        )
        if found is None and known is not None and known.run == check.run:
            known.checked_s, known.looked = max(known.checked_s, due_s), True
            for one in (check, *check.children):
                for uid in one.suspects:
                    known.gone.pop(uid, None)
        return found

    @staticmethod
    def _decide(
        workload: Workload,
        check: GangCheck,
        pods: Iterable[Pod],
        controllers: Collection[str],
        *,
        ready_before: bool,
    ) -> GangEviction | None:
        own = pods_of(
            pods,
            controllers=controllers,
            workload=workload.metadata.name,
            gang=check.workload,
        )
        return decide(check, own, ready_before=ready_before)

    @staticmethod
    def _child_run(known: _Run | None, child: GangCheck) -> _ChildRun | None:
        """What is remembered of the child Job that is checked."""
        found = known.children.items() if known is not None and known.run == child.run else ()
        return next((state for (uid, _), state in found if uid == child.child), None)

    def _is_early(self, key: str, known: _Run, check: GangCheck) -> bool:
        """Whether the time is only over by a wall clock that is wrong; it starts again then."""
        if not check.due_s or known.own_clock:
            return False
        skew_s = clock_skew_s(self._client.server_date, clock.now())
        known.own_clock = is_skewed(skew_s, check.due_s)
        if known.own_clock:
            log.warning(
                "clock_differs_from_server",
                workload=key,
                skew_s=round(skew_s),
                timeout_s=check.due_s,
                remedy="synchronize the clocks of the machines; the timeout starts with the first "
                "look at this admission",
            )
        return known.own_clock

    async def _read(self, job: JobLike) -> list[Pod]:
        selector = kind_of(job).pod_selector(job)
        params = {"labelSelector": selector} if selector else {}
        found: list[Pod] = []
        async for page in self._client.list_pages(PODS.path(job.metadata.namespace), params):
            found += map(_decode_pod, page_items(page))
        return found


def is_leaving(before: Pod | None, pod: Pod) -> bool:
    """Whether a pod is being deleted, since this event."""
    was = before is not None and before.metadata.deletion_timestamp is not None
    return pod.metadata.deletion_timestamp is not None and not was

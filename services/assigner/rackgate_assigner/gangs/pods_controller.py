"""Looks at the pods of gangs when their time is over, or one of them is gone.

Remembered, and harmless to lose: which gangs of a run were found to be bound, and which pods went
since the last look. After a restart each run is looked at once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from rackgate.api.names import WORKLOAD_ANNOTATION, WorkloadCondition
from rackgate.api.resources import PODS
from rackgate.gang.run_spec import RunSpec, decode_run_text
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
    GangPod,
    admission_run,
    clock_skew_s,
    decide,
    is_skewed,
    next_timeout,
    pods_of,
    terminates_all,
    was_ready,
)
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.workload.elapsed import Elapsed

log = structlog.get_logger()

_decode_pod = tolerant(msgspec.json.Decoder(Pod).decode)


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
    """

    run: str
    seen_at: float
    own_clock: bool = False
    checked_s: float = 0.0
    looked: bool = False
    gone: dict[str, tuple[str, str]] = field(default_factory=dict)


class GangPods:
    """The pods of gangs of admitted jobs."""

    def __init__(self, client: Client, workloads: Mapping[str, Workload]) -> None:
        """Prepare.

        Args:
            client: lists pods.
            workloads: of Kueue's API, by `namespace/name`.
        """
        self._client, self._workloads = client, workloads
        self._runs: dict[str, _Run] = {}

    def forget(self, key: str) -> None:
        """A Workload is deleted, or is not admitted any more."""
        self._runs.pop(key, None)

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
        self, job: JobLike, workload: Workload, gang: JobGang, elapsed: Elapsed, *, live: int
    ) -> tuple[GangCheck | None, float]:
        """What is to be looked at now, and the seconds until there may be something; 0 for never.

        Args:
            job: of the Workload.
            workload: as stored.
            gang: of the job.
            elapsed: the times of the Workload.
            live: its pods that are bound and neither have ended nor are being deleted.
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
        if due_s and live >= total_pods(workload):
            known.checked_s, due_s = due_s, 0.0
        suspects = self._suspects(job, known, found)
        look = suspects is not None and (bool(suspects) or not known.looked)
        if not due_s and not look:
            return None, later_s
        return GangCheck(run, found.spec, found.workload, due_s, suspects or {}), later_s

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
        pods = await self._read(job, workload, check, controllers)
        due_s = 0.0 if known is not None and self._is_early(key, known, check) else check.due_s
        checked = GangCheck(check.run, check.spec, check.workload, due_s, owned)
        found = decide(checked, pods, ready_before=was_ready(workload))
        log.info(
            "gangs_checked",
            workload=key,
            run=check.run,
            pods=len(pods),
            result="bound" if found is None else str(found.reason),
        )
        if found is None and known is not None and known.run == check.run:
            known.checked_s, known.looked = max(known.checked_s, due_s), True
            for uid in check.suspects:
                known.gone.pop(uid, None)
        return found

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

    async def _read(
        self, job: JobLike, workload: Workload, check: GangCheck, controllers: Collection[str]
    ) -> list[GangPod]:
        selector = kind_of(job).pod_selector(job)
        params = {"labelSelector": selector} if selector else {}
        found: list[GangPod] = []
        async for page in self._client.list_pages(PODS.path(job.metadata.namespace), params):
            found += pods_of(
                map(_decode_pod, page_items(page)),
                controllers=controllers,
                workload=workload.metadata.name,
                gang=check.workload,
            )
        return found


def is_leaving(before: Pod | None, pod: Pod) -> bool:
    """Whether a pod is being deleted, since this event."""
    was = before is not None and before.metadata.deletion_timestamp is not None
    return pod.metadata.deletion_timestamp is not None and not was

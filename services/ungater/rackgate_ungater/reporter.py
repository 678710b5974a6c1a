"""Events for users: each fact about a Workload's admission is told once."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from rackgate.api.resources import PODS, WORKLOADS, Resource
from rackgate.kube.events import EventRecorder, EventType, Regarding
from rackgate_ungater.machine.plan import Report
from rackgate_ungater.machine.rows import PodRow, WorkloadKey, WorkloadRow

log = structlog.get_logger()

ACTION = "Ungate"


class Reporter:
    """Remembers what was told of which admission.

    Args:
        recorder: writes the Events.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._told: dict[WorkloadKey, tuple[tuple[str, str | None], set[tuple[str, str]]]] = {}
        self._orphaned: set[WorkloadKey] = set()

    def tell(self, row: WorkloadRow, reports: Sequence[Report]) -> None:
        """Record what has not been told since the Workload was last admitted."""
        if not reports:
            return
        admission = (row.uid, row.admitted_at)
        known, told = self._told.get(row.key, (admission, set()))
        if known != admission:
            told = set()
        self._told[row.key] = (admission, told)
        for report in reports:
            if (report.podset, report.reason) in told:
                continue
            told.add((report.podset, report.reason))
            log.info(
                "pods_kept_gated", workload=row.key, podset=report.podset, reason=report.reason
            )
            about = [_regarding(WORKLOADS, row)]
            if report.pod is not None:
                about.append(_regarding(PODS, report.pod))
            for regarding in about:
                self._warn(regarding, report.reason, report.message)

    def tell_orphans(self, pods: Sequence[PodRow]) -> None:
        """Record gated pods that name no Workload there is: one Event per missing Workload."""
        keys = {pod.workload_key for pod in pods}
        for pod in pods:
            if pod.workload_key in self._orphaned:
                continue
            self._orphaned.add(pod.workload_key)
            log.warning("gated_pod_without_workload", pod=pod.key, workload=pod.workload_key)
            self._warn(
                _regarding(PODS, pod),
                "WorkloadMissing",
                f'pod stays gated: its Workload "{pod.workload}" does not exist',
            )
        self._orphaned &= keys

    def forget(self, key: WorkloadKey) -> None:
        """The Workload is gone."""
        self._told.pop(key, None)

    def _warn(self, regarding: Regarding, reason: str, message: str) -> None:
        self._recorder.record(regarding, EventType.WARNING, reason, ACTION, message)


def _regarding(resource: Resource, row: WorkloadRow | PodRow) -> Regarding:
    return Regarding(
        resource.api_version,
        resource.kind,
        row.name,
        row.namespace,
        row.uid,
        row.resource_version,
    )

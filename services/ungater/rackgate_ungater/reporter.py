"""Events for users: each fact about a Workload's admission is reported once."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from rackgate.api.resources import GANG_WORKLOADS, PODS, WORKLOADS, Resource
from rackgate.gang.membership import Mismatch
from rackgate.kube.events import EventRecorder, EventType, Regarding
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gangs import GangStart, HeldPods
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedWorkload, WorkloadKey
from rackgate_ungater.state_machine.ungating_plan import Report

log = structlog.get_logger()

ACTION = "Ungate"


class Reporter:
    """Records each Event once per admission.

    Args:
        recorder: writes the Events.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._reported: dict[WorkloadKey, tuple[tuple[str, str | None], set[tuple[str, str]]]] = {}
        self._reported_orphans: set[WorkloadKey] = set()

    def report(self, workload: GatedWorkload, reports: Sequence[Report]) -> None:
        """Record each report once per admission of the Workload."""
        if not reports:
            return
        admission = (workload.uid, workload.admitted_at)
        known, reported = self._reported.get(workload.key, (admission, set()))
        if known != admission:
            reported = set()
        self._reported[workload.key] = (admission, reported)
        for report in reports:
            if (report.podset, report.reason) in reported:
                continue
            reported.add((report.podset, report.reason))
            log.info(
                "pods_kept_gated", workload=workload.key, podset=report.podset, reason=report.reason
            )
            about = [_regarding(WORKLOADS, workload)]
            if report.pod is not None:
                about.append(_regarding(PODS, report.pod))
            for regarding in about:
                self._warn(regarding, report.reason, report.message)

    def report_held(self, workload: GatedWorkload, held: Sequence[HeldPods]) -> None:
        """Record why pods of gangs wait, each time that `GangWaits` finds it due."""
        for found in held:
            log.info(
                "pods_wait_for_gang",
                workload=workload.key,
                gang=found.subject,
                reason=found.reason,
                pods=len(found.pods),
            )
            if found.workload is None:
                self._warn(_regarding(PODS, found.pods[0]), found.reason, found.message)
                continue
            message = f"{found.reason}: {found.message}"
            gangs = _regarding(GANG_WORKLOADS, found.workload)
            if found.reason in list(Mismatch):
                self._warn(gangs, "PodNotMatched", message)
            else:
                self._warn(gangs, "GangWaiting", message)
                self._warn(_regarding(WORKLOADS, workload), "GangWaiting", message)

    def report_start(self, workload: GatedWorkload, start: GangStart, released: int) -> None:
        """Record that a gang started."""
        log.info("gang_started", workload=workload.key, gang=str(start.gang), pods=released)
        self._recorder.record(
            _regarding(GANG_WORKLOADS, start.workload),
            EventType.NORMAL,
            "GangReleased",
            ACTION,
            f'{released} pods of gang {start.gang} of Workload "{workload.name}" are released '
            f"(run {start.run})",
        )

    def report_orphans(self, pods: Sequence[GatedPod]) -> None:
        """Record gated pods whose Workload does not exist: one Event per missing Workload."""
        keys = {pod.workload_key for pod in pods}
        for pod in pods:
            if pod.workload_key in self._reported_orphans:
                continue
            self._reported_orphans.add(pod.workload_key)
            log.warning("gated_pod_without_workload", pod=pod.key, workload=pod.workload_key)
            self._warn(
                _regarding(PODS, pod),
                "WorkloadMissing",
                f'pod stays gated: its Workload "{pod.workload}" does not exist',
            )
        self._reported_orphans &= keys

    def forget(self, key: WorkloadKey) -> None:
        """The Workload is gone."""
        self._reported.pop(key, None)

    def _warn(self, regarding: Regarding, reason: str, message: str) -> None:
        self._recorder.record(regarding, EventType.WARNING, reason, ACTION, message)


def _regarding(resource: Resource, obj: GatedWorkload | GatedPod | GangWorkload) -> Regarding:
    return Regarding(
        resource.api_version, resource.kind, obj.name, obj.namespace, obj.uid, obj.resource_version
    )

"""Decisions about Workloads as writes: status by server-side apply, bound to one version.

Every apply has `metadata.resourceVersion`, so a decision is never written to an object that has
changed, and every apply is complete for its field manager (see `conditions`). Fields that an apply
omits and another manager owns, too, are removed by a second write.

A user can change a Workload faster than it can be read and written: then an eviction would never
be written. So after a conflict all but admissions are written again, bound to what they depend on
instead of a version: a status to the status that was decided on (ADR 75).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.names import (
    EvictionReason,
    FieldManager,
    FinishedReason,
    UnderlyingCause,
    WorkloadCondition,
)
from rackgate.api.resources import WORKLOADS
from rackgate.api.timestamps import parse_rfc3339, rfc3339
from rackgate.installation.uninstall import remove_finalizer_patch
from rackgate.jobframework.jsonpatch import (
    JsonPatchOp,
    value_test,
    with_preconditions,
    with_tests,
)
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, KubeError, NotFoundError, UnprocessableError
from rackgate.runtime import clock
from rackgate.wire.core import Meta, View
from rackgate.wire.kueue import (
    Admission,
    AdmissionCheckState,
    RequeueState,
    SchedulingStats,
    Workload,
)
from rackgate_assigner import metrics
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.workload import admission_checks, conditions
from rackgate_assigner.workload.conditions import ADMISSION_TYPES, JOB_TYPES, Change
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.newer_version import status_ops, unchanged_tests
from rackgate_assigner.workload.status import (
    NO_REQUEUE,
    admission_of,
    admission_with_topology,
    conditions_body,
    count_eviction,
    current_admission,
    decode_workload,
    leftover_ops,
    path_of,
    reclaimable_body,
    status_body,
)
from rackgate_assigner.workload.writer import apply_status, listed_conditions

log = structlog.get_logger()

MERGE_DEACTIVATION: Final = (WorkloadCondition.DEACTIVATION_TARGET,)


class _MetadataOnly(View, frozen=True):
    """The response to a deletion: the object, or a Status."""

    metadata: Meta = Meta()


_decode_metadata = msgspec.json.Decoder(_MetadataOnly).decode


class WorkloadWriter:
    """Writes Workloads. All methods raise `KubeError` when the API server rejects a write."""

    def __init__(
        self,
        admission: Client,
        pending: Client,
        jobs: Client,
        reporter: Reporter,
        *,
        without_effect: Callable[[Workload], str] = lambda _workload: "",
    ) -> None:
        """Use one client per purpose: admissions, pending reasons, and writes for jobs.

        Args:
            admission: for admissions and evictions.
            pending: for pending reasons.
            jobs: for what follows from jobs.
            reporter: records Events.
            without_effect: what a Workload or its job sets that has no effect; "" for nothing.
        """
        self._admission, self._pending, self._jobs = admission, pending, jobs
        self._report, self._without_effect = reporter, without_effect

    async def admit(
        self,
        workload: Workload,
        assignment: Assignment,
        ahead_of: str = "",
        *,
        maybe_sent: bool = False,
    ) -> str:
        """Reserve quota, assign topology and admit, in one write.

        With admission checks the write only reserves quota and lists their states.

        After an error without a known outcome, the caller repeats it with `maybe_sent`: the same
        version can be written only once, so a write that is not known to have failed stays assumed.

        Args:
            workload: as decided on; the write applies to this version or not at all.
            assignment: its new assignment.
            ahead_of: uid of the head of its queue, if it is admitted ahead of it.
            maybe_sent: the same write may have been sent before.

        Returns:
            The resourceVersion from which on the Workload shows its admission.

        Raises:
            ConflictError: the Workload has changed; nothing was written.
            ServerError, TransportError: the outcome is not known.
        """
        queue, names_of_checks = assignment.cluster_queue, assignment.checks
        changes = conditions.reserved_conditions(
            workload, queue, ahead_of, has_checks=bool(names_of_checks)
        )
        known = workload.status.admission_checks
        states = admission_checks.seeded(known, names_of_checks, rfc3339(clock.now()))
        desired_admission = admission_of(assignment)
        body = status_body(
            workload,
            self._listed(workload, changes, drop=MERGE_DEACTIVATION),
            desired_admission,
            checks=states,
        )
        started = clock.monotonic()
        wanted = msgspec.convert(desired_admission, Admission)

        def is_our_write(live: Workload) -> bool:
            return live.status.admission == wanted

        answer = await apply_status(
            self._admission, workload, body, is_our_write, outcome_unknown=maybe_sent
        )
        metrics.ADMISSION_WRITES.labels(result="success").observe(clock.monotonic() - started)
        wait_s = _pending_s(workload)
        metrics.QUOTA_RESERVED.labels(cluster_queue=queue).inc()
        metrics.QUOTA_RESERVED_WAIT.labels(cluster_queue=queue).observe(wait_s)
        if names_of_checks:
            log.info("quota_reserved", workload=workload.metadata.key, cluster_queue=queue)
            note = (
                f"quota reserved in ClusterQueue {queue}, wait time {wait_s:.0f}s; waiting for "
                f"admission checks {', '.join(names_of_checks)}"
            )
            self._report.workload(workload, "QuotaReserved", note)
        else:
            flavors = _flavors_of(desired_admission)
            self._count_admission(workload, queue, flavors, wait_s, ahead_of)
        return answer.metadata.resource_version

    async def admit_after_checks(
        self,
        workload: Workload,
        states: Sequence[AdmissionCheckState],
        assignment: Assignment | None = None,
        *,
        maybe_sent: bool = False,
    ) -> str:
        """Admit a Workload with quota that has passed its admission checks.

        Args:
            workload: as decided on; the write applies to this version or not at all.
            states: of its checks.
            assignment: with the domains of its PodSets, if they were to be placed after the checks.
            maybe_sent: the same write may have been sent before.

        Returns:
            The resourceVersion from which on the Workload is admitted.
        """
        admission = current_admission(workload)
        if assignment is not None:
            admission = admission_with_topology(workload, assignment)
        wanted = msgspec.convert(admission, Admission)
        queue = wanted.cluster_queue
        listed = self._listed(
            workload, [conditions.admitted_condition(queue)], drop=MERGE_DEACTIVATION
        )

        def is_our_write(live: Workload) -> bool:
            admitted = live.is_true(WorkloadCondition.ADMITTED)
            return admitted and live.status.admission == wanted

        answer = await apply_status(
            self._admission,
            workload,
            status_body(workload, listed, admission, checks=states),
            is_our_write,
            outcome_unknown=maybe_sent,
        )
        reserved = workload.condition(WorkloadCondition.QUOTA_RESERVED)
        since = reserved.last_transition_time if reserved is not None else None
        metrics.CHECKS_WAIT.labels(cluster_queue=queue).observe(seconds_since(since))
        self._count_admission(workload, queue, _flavors_of(admission), _queued_s(workload))
        return answer.metadata.resource_version

    def _count_admission(
        self, workload: Workload, queue: str, flavors: str, wait_s: float, ahead_of: str = ""
    ) -> None:
        metrics.ADMITTED.labels(cluster_queue=queue).inc()
        if ahead_of:
            metrics.BACKFILLED.labels(cluster_queue=queue).inc()
        metrics.ADMISSION_WAIT.labels(cluster_queue=queue).observe(wait_s)
        log.info(
            "workload_admitted",
            workload=workload.metadata.key,
            cluster_queue=queue,
            flavor=flavors,
            wait_s=round(wait_s, 3),
        )
        if workload.parent is not None:
            return  # it is merged soon: Events on its parent show the resize
        note = f"admitted by ClusterQueue {queue}, wait time {wait_s:.0f}s"
        note += conditions.ahead_of_text(ahead_of)
        self._report.workload(workload, "Admitted", note)

    async def write_checks(
        self, workload: Workload, states: Sequence[AdmissionCheckState], changes: Iterable[Change]
    ) -> Workload:
        """Write the states of admission checks, and conditions that follow from them."""
        listed = self._listed(workload, changes)
        unhealthy = [node.name for node in workload.status.unhealthy_nodes]
        admission = current_admission(workload)
        return await self._apply(
            self._admission, workload, listed, admission, unhealthy=unhealthy, checks=states
        )

    async def reject(self, workload: Workload, message: str) -> None:
        """Deactivate a Workload with quota that an admission check has rejected."""
        # Before the writes: once the first is seen, the job controller may complete the second.
        note = f"Deactivated due to {message}"
        self._report.workload(workload, "AdmissionCheckRejected", note, warning=True)
        await self.deactivate_admitted(workload, UnderlyingCause.ADMISSION_CHECK, message)

    async def write_pending(self, workload: Workload, reason: str, message: str) -> bool:
        """Write why the Workload is pending; whether a write was needed."""
        changes = conditions.pending_conditions(workload, reason, message)
        if workload.status.admission is not None:
            return False
        changes, drop = self._with_unsupported(
            workload, changes, MERGE_DEACTIVATION if workload.spec.active else ()
        )
        stale = any(workload.condition(type_) is not None for type_ in drop)
        if not stale and not conditions.differs(workload.status.conditions, changes):
            return False
        listed = listed_conditions(workload, ADMISSION_TYPES, changes, drop=drop)
        await self._apply(self._pending, workload, listed, None)
        log.info(
            "workload_pending", workload=workload.metadata.key, reason=reason, message=message[:200]
        )
        self._report.workload(workload, reason, message, warning=True)
        return True

    async def deactivate(self, workload: Workload, reason: str, message: str) -> None:
        """Set `spec.active` to false, after the reason was written.

        The status comes first: no further decision is made on an inactive Workload, so a reason
        that was not written by then would never be written.
        """
        changes = conditions.deactivated_conditions(reason, message)
        answer = workload
        if conditions.differs(workload.status.conditions, changes):
            listed = self._listed(workload, changes)
            answer = await self._apply(self._admission, workload, listed, None)
        await self._set_inactive(answer)
        log.info("workload_deactivated", workload=workload.metadata.key, reason=reason)
        self._report.workload(workload, f"EvictedDueTo{changes[2].reason}", message, warning=True)

    async def deactivate_admitted(self, workload: Workload, cause: str, message: str) -> Workload:
        """Set `spec.active` of a Workload with quota to false, after the cause was written.

        The scheduling cycle then evicts it for this cause.

        Returns:
            The resulting Workload.
        """
        changes = conditions.deactivation_target_conditions(cause, message)
        answer = workload
        if conditions.differs(workload.status.conditions, changes):
            listed = self._listed(workload, changes)
            admission = current_admission(workload)
            answer = await self._apply(self._admission, workload, listed, admission)
        answer = await self._set_inactive(answer)
        log.info("workload_deactivated", workload=workload.metadata.key, reason=cause)
        return answer

    async def _set_inactive(self, workload: Workload) -> Workload:
        """Set `spec.active` to false, if the cause is still in the status."""
        tests = [
            value_test(f"/status/conditions/{index}/{field}", value)
            for index, found in enumerate(workload.status.conditions)
            if found.type == WorkloadCondition.DEACTIVATION_TARGET
            for field, value in (("type", found.type), ("status", found.status))
        ]
        ops: list[JsonPatchOp] = [{"op": "add", "path": "/spec/active", "value": False}]
        body = with_tests(ops, uid=workload.metadata.uid, tests=tests)
        encoded = msgspec.json.encode(body)
        return decode_workload(
            await self._admission.patch(path_of(workload), encoded, PatchType.JSON)
        )

    def report_rejected(self, workload: Workload, error: KubeError) -> None:
        """Report why the API server, or a policy, rejected a write; it is repeated."""
        self._report.workload(workload, "WorkloadUpdateRefused", error.message, warning=True)

    async def evict(
        self,
        workload: Workload,
        reason: str,
        message: str,
        cause: str = "",
        *,
        requeue: RequeueState | None = None,
        underlying_cause: str = "",
    ) -> bool:
        """Announce an eviction; its quota is released after the job has stopped.

        Args:
            workload: as decided on.
            reason: of the eviction.
            message: for the user.
            cause: reason of the condition Preempted, if another Workload is the reason.
            requeue: time of the requeue, if it is not as soon as its job has stopped; after an
                admission check has asked for a retry, the check says when.
            underlying_cause: why, if the reason is more general.

        Returns:
            False if the Workload is under eviction already, or has no reservation.
        """
        admission = current_admission(workload)
        if admission is None or workload.is_true(WorkloadCondition.EVICTED):
            return False
        changes = conditions.evicted_conditions(workload, reason, message, cause)
        drop: tuple[WorkloadCondition, ...] = ()
        now, states = clock.now(), workload.status.admission_checks
        if not workload.spec.active:
            requeue, drop = NO_REQUEUE, MERGE_DEACTIVATION  # it starts over when it is active again
        elif reason == EvictionReason.ADMISSION_CHECK:
            count = (workload.status.requeue_state or NO_REQUEUE).count
            requeue = RequeueState(count, rfc3339(admission_checks.requeue_time(states, now)))
        listed = self._listed(workload, changes, drop=drop)
        general = conditions.general_reason(reason)
        stats, first = count_eviction(workload, general, underlying_cause)
        await self._apply(
            self._admission,
            workload,
            listed,
            admission,
            requeue=requeue,
            stats=stats,
            checks=admission_checks.reset(states, rfc3339(now)),
        )
        queue = admission["clusterQueue"]
        labels = {
            "cluster_queue": queue,
            "reason": general,
            "underlying_cause": underlying_cause,
        }
        metrics.EVICTED.labels(**labels).inc()
        ready = workload.condition(WorkloadCondition.PODS_READY)
        if ready is not None and ready.status == conditions.TRUE:
            ready_s = seconds_since(ready.last_transition_time)
            metrics.READY_TO_EVICTED.labels(**labels).observe(ready_s)
        if first:
            metrics.EVICTED_ONCE.labels(**labels).inc()
        log.info("workload_evicted", workload=workload.metadata.key, reason=reason)
        if cause:
            metrics.PREEMPTED.labels(preempting_cluster_queue=queue, reason=cause).inc()
            self._report.workload(workload, "Preempted", message)
        self._report.workload(workload, f"EvictedDueTo{reason}", message, warning=True)
        return True

    async def release(self, workload: Workload, past_execution_s: int | None = None) -> Workload:
        """Clear the admission of an evicted Workload whose job has stopped; returns the result.

        Args:
            workload: as decided on.
            past_execution_s: its execution time until now; None does not change it.
        """
        changes = conditions.released_conditions(workload)
        listed = self._listed(workload, changes)
        answer = await self._apply(
            self._admission,
            workload,
            listed,
            None,
            past_execution_s=past_execution_s,
            checks=admission_checks.released(workload.status.admission_checks),
        )
        evicted = workload.condition(WorkloadCondition.EVICTED)
        reason = evicted.reason if evicted is not None else ""
        admission = workload.status.admission
        queue = admission.cluster_queue if admission is not None else ""
        since = evicted.last_transition_time if evicted is not None else None
        latency = metrics.EVICTION_LATENCY.labels(cluster_queue=queue, reason=reason)
        latency.observe(seconds_since(since))
        log.info("workload_requeued", workload=workload.metadata.key, reason=reason)
        return answer

    async def requeue_after_backoff(self, workload: Workload) -> Workload:
        """End the backoff after an eviction; returns the resulting Workload.

        If it was deactivated meanwhile, it starts over when it is active again.
        """
        changes = conditions.backoff_finished_conditions() if workload.spec.active else ()
        before = workload.status.requeue_state or NO_REQUEUE
        state = RequeueState(before.count) if workload.spec.active else NO_REQUEUE
        listed = self._listed(workload, changes)
        return await self._apply(self._jobs, workload, listed, None, requeue=state)

    async def finish(self, workload: Workload, reason: FinishedReason, message: str) -> Workload:
        """Write condition Finished; returns the resulting Workload."""
        changes = conditions.finished_conditions(workload, reason, message)
        drop = conditions.outdated_when_finished(workload, reason)
        listed = listed_conditions(workload, JOB_TYPES, changes, drop=drop)
        answer = await self._apply(self._jobs, workload, listed, None, FieldManager.JOB)
        admission = workload.status.admission
        queue = admission.cluster_queue if admission is not None else ""
        metrics.FINISHED.labels(cluster_queue=queue, reason=reason).inc()
        admitted = workload.condition(WorkloadCondition.ADMITTED)
        if admitted is not None and admitted.status == conditions.TRUE:
            past_s = workload.status.accumulated_past_execution_time_seconds or 0
            executed_s = past_s + seconds_since(admitted.last_transition_time)
            metrics.EXECUTION_TIME.labels(cluster_queue=queue).observe(executed_s)
        log.info("workload_finished", workload=workload.metadata.key, reason=reason)
        return answer

    async def set_pods_ready(self, workload: Workload, *, ready: bool) -> Workload:
        """Write condition PodsReady; returns the resulting Workload."""
        changes = conditions.pods_ready_conditions(workload, ready=ready)
        listed = listed_conditions(workload, JOB_TYPES, changes)
        answer = await self._apply(self._jobs, workload, listed, None, FieldManager.JOB)
        admission = workload.status.admission
        admitted = workload.condition(WorkloadCondition.ADMITTED)
        is_first = changes[0].reason == "Started"
        if is_first and admission is not None and admitted is not None:
            queue = admission.cluster_queue
            metrics.READY_WAIT.labels(cluster_queue=queue).observe(_queued_s(workload))
            waited_s = seconds_since(admitted.last_transition_time)
            metrics.ADMITTED_UNTIL_READY_WAIT.labels(cluster_queue=queue).observe(waited_s)
        return answer

    async def update_reclaimable_pods(
        self, workload: Workload, done: Mapping[str, int]
    ) -> Workload:
        """Write `status.reclaimablePods`; returns the resulting Workload.

        Entries that another manager has applied, too, survive an apply without them.
        """
        body = reclaimable_body(workload, done)
        path = path_of(workload, "status")
        answer = decode_workload(await self._jobs.apply(path, body, FieldManager.RECLAIMABLE))
        log.info("pods_reclaimable", workload=workload.metadata.key, pods=dict(done))
        ops: list[JsonPatchOp] = [
            {"op": "remove", "path": f"/status/reclaimablePods/{index}"}
            for index, found in reversed(list(enumerate(answer.status.reclaimable_pods)))
            if found.name not in done
        ]
        return await self._remove_foreign_fields(self._jobs, answer, ops) if ops else answer

    async def remove_pods_ready(self, workload: Workload) -> Workload:
        """Remove condition PodsReady: the job does not run any more."""
        drop = (WorkloadCondition.PODS_READY,)
        listed = listed_conditions(workload, JOB_TYPES, (), drop=drop)
        return await self._apply(self._jobs, workload, listed, None, FieldManager.JOB)

    async def update_unsupported(self, workload: Workload) -> bool:
        """Update the condition UnsupportedFields alone; whether a write was needed.

        Nothing else of the status is written: this decides nothing.
        """
        type_ = WorkloadCondition.UNSUPPORTED_FIELDS
        changes, drop = self._with_unsupported(workload, (), ())
        present = workload.condition(type_)
        if not conditions.differs(workload.status.conditions, changes) and (
            changes or present is None
        ):
            return False
        listed = listed_conditions(workload, (type_,), changes, drop=drop)
        if present is None:
            ops: list[JsonPatchOp] = [
                {"op": "add", "path": "/status/conditions/-", "value": listed[0]}
            ]
        else:
            path = f"/status/conditions/{workload.status.conditions.index(present)}"
            ops = (
                [{"op": "replace", "path": path, "value": listed[0]}]
                if listed
                else [{"op": "remove", "path": path}]
            )
        meta = workload.metadata
        body = with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
        path = path_of(workload, "status")
        await self._pending.patch(path, msgspec.json.encode(body), PatchType.JSON)
        return True

    async def patch(
        self, workload: Workload, ops: Sequence[JsonPatchOp], *, client: Client | None = None
    ) -> Workload:
        """JSON patch on the Workload itself, bound to uid and version; returns the result.

        To a newer version it is bound by what it may depend on, see `_read_again`.
        """
        meta, path = workload.metadata, path_of(workload)
        body = with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
        sender = client or self._jobs
        try:
            answer = await sender.patch(path, msgspec.json.encode(body), PatchType.JSON)
        except UnprocessableError as error:
            newer = await self._read_again(sender, workload, error)
            tests = unchanged_tests(workload, newer, ops)
            if not tests:
                raise
            body = with_tests(ops, uid=meta.uid, tests=tests)
            answer = await sender.patch(path, msgspec.json.encode(body), PatchType.JSON)
        return decode_workload(answer)

    async def create(self, body: dict[str, Any]) -> None:
        """Create a Workload."""
        path = WORKLOADS.path(body["metadata"]["namespace"])
        await self._jobs.create(path, msgspec.json.encode(body))

    async def delete(self, workload: Workload) -> Meta:
        """Delete this Workload; it may already be deleted.

        Returns:
            Its metadata afterwards, with a later version if a finalizer keeps it.
        """
        options = {"preconditions": {"uid": workload.metadata.uid}}
        try:
            answer = await self._jobs.delete(path_of(workload), msgspec.json.encode(options))
        except NotFoundError:
            return workload.metadata
        kept = _decode_metadata(answer).metadata
        # Without a finalizer it is gone: the response is its last state, or a Status.
        return kept if kept.uid == workload.metadata.uid else workload.metadata

    async def release_finalizer(self, workload: Workload) -> None:
        """Remove our finalizer in any version; the Workload may already be deleted."""
        body = remove_finalizer_patch(workload.metadata, names.IN_USE_FINALIZER)
        if body is None:
            return
        try:
            await self._jobs.patch(path_of(workload), body, PatchType.JSON)
        except NotFoundError:
            return

    async def read(self, namespace: str, name: str) -> Workload | None:
        """The Workload as stored now, None if it does not exist."""
        try:
            return decode_workload(await self._jobs.get(WORKLOADS.path(namespace, name)))
        except NotFoundError:
            return None

    def _listed(
        self,
        workload: Workload,
        changes: Iterable[Change],
        *,
        drop: tuple[WorkloadCondition, ...] = (),
    ) -> list[dict[str, Any]]:
        """All conditions of admission after `changes`, and what has no effect now."""
        changes, drop = self._with_unsupported(workload, changes, drop)
        return listed_conditions(workload, ADMISSION_TYPES, changes, drop=drop)

    def _with_unsupported(
        self, workload: Workload, changes: Iterable[Change], drop: tuple[WorkloadCondition, ...]
    ) -> tuple[list[Change], tuple[WorkloadCondition, ...]]:
        """It travels with the other conditions, so that it needs no write of its own."""
        without_effect = self._without_effect(workload)
        if without_effect:
            return [*changes, conditions.unsupported_condition(without_effect)], drop
        return list(changes), (*drop, WorkloadCondition.UNSUPPORTED_FIELDS)

    async def _apply(
        self,
        client: Client,
        workload: Workload,
        listed: list[dict[str, Any]],
        admission: dict[str, Any] | None,
        manager: FieldManager = FieldManager.ADMISSION,
        *,
        requeue: RequeueState | None = None,
        stats: SchedulingStats | None = None,
        past_execution_s: int | None = None,
        checks: Sequence[AdmissionCheckState] | None = None,
        unhealthy: Sequence[str] = (),
    ) -> Workload:
        """Apply, and remove omitted fields that are still there: another manager owns them, too.

        A crash between the two writes does not affect the decision: both are repeated.
        """
        admits = manager is FieldManager.ADMISSION
        types = ADMISSION_TYPES if admits else JOB_TYPES
        stays = admission is not None or not admits

        def body_with(
            conditions_listed: list[dict[str, Any]], desired: dict[str, Any] | None
        ) -> bytes:
            if not admits:  # the other manager owns only conditions
                return conditions_body(workload, conditions_listed)
            return status_body(
                workload,
                conditions_listed,
                desired,
                unhealthy,
                requeue=requeue,
                stats=stats,
                past_execution_s=past_execution_s,
                checks=checks,
            )

        def leftovers(stored: Workload) -> list[JsonPatchOp]:
            return leftover_ops(
                stored,
                types,
                listed,
                admission=stays,
                requeue=requeue,
                past_execution_s=past_execution_s,
                checks=checks,
            )

        body = body_with(listed, admission)
        path = path_of(workload, "status")
        try:
            answer = decode_workload(await client.apply(path, body, manager))
        except ConflictError as error:
            return await self._write_to_newer_version(client, workload, body, manager, error)
        except UnprocessableError:
            # If another manager has applied a condition with another status, the apply would leave
            # only its type. So a condition that is to be removed is applied again, then removed.
            if not leftovers(workload):
                raise
            listed_types = {condition["type"] for condition in listed}
            rest = listed_conditions(
                workload, [one for one in types if one not in listed_types], ()
            )
            kept = current_admission(workload) if admission is None else admission
            body = body_with([*listed, *rest], kept)
            answer = decode_workload(await client.apply(path, body, manager))
        ops = leftovers(answer)
        return await self._remove_foreign_fields(client, answer, ops) if ops else answer

    async def _write_to_newer_version(
        self,
        client: Client,
        workload: Workload,
        body: bytes,
        manager: FieldManager,
        conflict: ConflictError,
    ) -> Workload:
        """Write a status to a newer version, if that has the status that was decided on.

        A status and the rest of an object are independent: what its users have changed is as if
        they had changed it afterwards. The write is bound to the status alone, because they may
        go on faster than a version can be read and written.

        Args:
            client: sends it.
            workload: as decided on.
            body: the apply that met another version.
            manager: of the apply.
            conflict: raised if the status is another one.
        """
        raw = await self._read_again(client, workload, conflict)
        ops = status_ops(workload, raw, body, manager)
        if not ops:
            raise conflict
        patch = with_tests(ops, uid=workload.metadata.uid)
        path, params = path_of(workload, "status"), {"fieldManager": str(manager)}
        try:
            answer = await client.patch(path, msgspec.json.encode(patch), PatchType.JSON, params)
        except UnprocessableError:
            raise conflict from None
        return decode_workload(answer)

    async def _read_again(self, client: Client, workload: Workload, rejection: KubeError) -> bytes:
        """A Workload as stored now, as JSON; without one, the rejection of the write is raised."""
        try:
            return await client.get(path_of(workload))
        except NotFoundError:
            raise rejection from None

    async def _remove_foreign_fields(
        self, client: Client, stored: Workload, ops: Sequence[JsonPatchOp]
    ) -> Workload:
        """Remove fields of a status that an apply of ours has left to another manager."""
        meta = stored.metadata
        body = with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
        log.info("foreign_fields_removed", workload=meta.key, paths=[op["path"] for op in ops])
        path = path_of(stored, "status")
        return decode_workload(await client.patch(path, msgspec.json.encode(body), PatchType.JSON))


def _pending_s(workload: Workload) -> float:
    """Seconds since the Workload is pending: since its creation, or since it was requeued."""
    since = workload.metadata.creation_timestamp
    reserved = workload.condition(WorkloadCondition.QUOTA_RESERVED)
    if workload.condition(WorkloadCondition.EVICTED) is not None and reserved is not None:
        since = reserved.last_transition_time
    return seconds_since(since)


def _queued_s(workload: Workload) -> float:
    """As `_pending_s`, for a Workload that has quota already."""
    since = workload.metadata.creation_timestamp
    requeued = workload.condition(WorkloadCondition.REQUEUED)
    if requeued is not None and requeued.status == conditions.TRUE:
        since = requeued.last_transition_time
    return seconds_since(since)


def _flavors_of(admission: Mapping[str, Any] | None) -> str:
    """Names of the flavors in `status.admission`, for logs."""
    parts = admission["podSetAssignments"] if admission is not None else ()
    return ",".join(sorted({name for part in parts for name in part["flavors"].values()}))


def seconds_since(moment: str | None) -> float:
    """Seconds since a timestamp; 0 for any other text: users with rights to a status write it."""
    try:
        return max(0.0, (clock.now() - parse_rfc3339(moment or "")).total_seconds())
    except ValueError:
        return 0.0

"""Runs a scheduling cycle when the cache has changed, and writes its decisions.

An admission is assumed in the cache before its write is sent, and forgotten when the write is
rejected, so the next cycle need not wait for writes. Every decision is bound to the version of the
Workload that it was made on; if the API server rejects it, a new decision is made.

Pending Workloads are kept from cycle to cycle in their queues: a cycle looks at those that
changed, and at those that what changed may let in (`planner`). A decision that is not written
now, or whose write failed, is made again when what held it up is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from rackgate.api.names import EvictionReason, PendingReason
from rackgate.features import Features
from rackgate.kube.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    PayloadTooLargeError,
    ServerError,
    TransportError,
    UnprocessableError,
)
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import spawn
from rackgate.wire.kueue import Workload
from rackgate_assigner import metrics
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.cache.verification_controller import verify
from rackgate_assigner.node_replacement.writer import NodeWriter
from rackgate_assigner.rate_limits import (
    LONGEST_PAUSE_S,
    MessageRateLimiter,
    pause_after_cycle_s,
)
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.planner import Planner
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.decisions import (
    Admit,
    AssignTopology,
    ClearUnhealthyNodes,
    Deactivate,
    Evict,
    Preempt,
    ReplacementFailed,
    ReplaceNode,
    Requeue,
    SecondPassDecision,
)
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workqueue import Turns, WorkQueue

WrittenDecision: TypeAlias = (
    Admit | AssignTopology | Deactivate | Evict | Preempt | ReplaceNode | ClearUnhealthyNodes
)

REQUEUE_WORKERS: Final = 8
# Seconds between two pending reasons while admissions and evictions are written. Many of those who
# wait for their reason are admitted meanwhile, and need none.
GAP_DURING_ADMISSIONS_S: Final = 1 / 20
# Such writes go on until none has ended for so many seconds: between two of them there is often
# none open, and the API server is busy with what they caused.
QUIET_AFTER_S: Final = 0.5
# Seconds until an answer is written again that a Workload does not show: if what changed also
# changes the answer, the next cycle makes another one meanwhile.
REPEAT_AFTER_S: Final = 1.0
# Seconds until a decision about a Workload that has changed, or is gone, is made again although no
# event of the watch shows that: on the version that was decided on it would be rejected again.
OUTDATED_S: Final = 2.0
# After so many rejected writes a Workload no longer reserves capacity while it backs off.
FAILURES_BEFORE_SKIP: Final = 3
# A repeated write gets the same responses.
_REJECTIONS: Final = (BadRequestError, ForbiddenError, PayloadTooLargeError, UnprocessableError)

# What these change is assumed in the cache, until it is known that it was not written.
_ASSUMED: Final = (Admit, AssignTopology, ReplaceNode)

log = structlog.get_logger()


@dataclass(slots=True)
class _PendingWrite:
    """A decision whose write has not finished.

    Attributes:
        workload: as decided on.
        maybe_sent: the write may have been sent before, without a known outcome.
        superseded: another decision was made meanwhile: run another cycle afterwards.
    """

    workload: Workload
    decision: WrittenDecision
    maybe_sent: bool = False
    superseded: bool = False

    def differs(self, workload: Workload, decision: WrittenDecision) -> bool:
        """Whether this is another decision, or about another object."""
        same = self.workload.metadata.uid == workload.metadata.uid
        return not same or self.decision != decision


class Scheduler:
    """Turns changes of the cache into decisions, and decisions into writes."""

    def __init__(
        self,
        cache: Cache,
        workloads: Mapping[str, Workload],
        writer: WorkloadWriter,
        *,
        features: Features,
        nodes: NodeWriter,
        second_pass: Callable[[Snapshot], Sequence[SecondPassDecision]] = lambda _snapshot: (),
        is_in_sync: Callable[[Workload], bool] = lambda _workload: True,
        min_interval_s: float = 0.02,
        message_interval_s: float = 0.0,
        workers: int = 32,
        check_usage: bool = False,
        fair_sharing: tuple[str, ...] | None = None,
        before_cycle: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: state of the cluster.
            workloads: as the watch shows them, by key.
            writer: writes decisions.
            features: state of feature gates.
            nodes: writes node replacements.
            second_pass: node replacement; it charges new assignments to the snapshot.
            is_in_sync: whether a Workload still matches its job. A Workload that does not will
                change, so it is not admitted.
            min_interval_s: minimum time between the starts of two cycles.
            message_interval_s: time between two messages about one pending Workload with one
                reason.
            workers: admissions, evictions and deactivations written at the same time.
            check_usage: compare usage with a rebuild after every cycle.
            fair_sharing: strategies of preemption in their order; None: fair sharing is off.
            before_cycle: called before each Snapshot.
        """
        self._cache, self._workloads, self._writer = cache, workloads, writer
        self._features = features
        self._nodes, self._second_pass = nodes, second_pass
        self._failed_replacements: dict[str, str] = {}
        self._is_in_sync = is_in_sync
        self._min_interval_s = min_interval_s
        self._check_usage, self._fair_sharing = check_usage, fair_sharing
        self._before_cycle = before_cycle
        self._changed = asyncio.Event()
        self._planned_epoch = -1
        self._planner = Planner(cache)
        self._pending_writes: dict[str, _PendingWrite] = {}
        self._requeues: dict[str, Requeue] = {}
        self._message_limiter = MessageRateLimiter(message_interval_s)
        self._written_at = -QUIET_AFTER_S
        self._turns = Turns(self._writes_decisions, GAP_DURING_ADMISSIONS_S)
        self._backoff = Backoff(base_s=0.1, cap_s=15.0)
        self._backing_off: dict[str, asyncio.TimerHandle] = {}
        # When the backoff ends, on the clock of the loop, of Workloads that wait for their event.
        self._outdated: dict[str, float] = {}
        self._workers = workers
        self._write_queue = WorkQueue[str]("writes", self._write_decision, workers=workers)
        self._requeue_queue = WorkQueue[str](
            "requeues", self._write_requeue, workers=REQUEUE_WORKERS
        )
        self._unknown_outcomes = Backoff(base_s=0.1, cap_s=5.0)
        self._failures = Backoff(base_s=0.5, cap_s=30.0)
        self.cycles = 0

    def request_cycle_if_changed(self) -> None:
        """Run a cycle if the cache has changed. Cheap."""
        if self._cache.epoch != self._planned_epoch:
            self._changed.set()

    def request_cycle(self) -> None:
        """Run a cycle whether or not the cache has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Run cycles and write until cancelled. Only the holder of the Lease may call this."""
        self._planner.reset()
        self.request_cycle()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self._write_queue.run(list(self._pending_writes)), "writes")
                spawn(group, self._requeue_queue.run(), "requeues")
                spawn(group, self._run_cycles(), "cycle")
        finally:
            self._requeues.clear()
            for timer in self._backing_off.values():
                timer.cancel()
            self._backing_off.clear()
            self._outdated.clear()

    async def _run_cycles(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            started = clock.monotonic()
            try:
                self._run_cycle()
            except Exception:
                log.exception("scheduling_cycle_failed", cycle=self.cycles)
                self._planner.reset()
                self._changed.set()
                await asyncio.sleep(self._failures.next())
                continue
            self._failures.reset()
            spent_s = clock.monotonic() - started
            await self._pause(spent_s)

    async def _pause(self, spent_s: float) -> None:
        """Leave time for watches and writes.

        While decisions wait for a worker, more of them would only wait, too. They are made later,
        of a newer state, and more at once.
        """
        pause_s = pause_after_cycle_s(spent_s, self._min_interval_s)
        await asyncio.sleep(pause_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_PAUSE_S - pause_s):
                await self._write_queue.wait_until_few_wait(self._workers)

    def _run_cycle(self) -> None:
        started = clock.monotonic()
        self._before_cycle()
        snapshot, queues = self._planner.prepare(self._is_skipped)
        metrics.SNAPSHOT_DURATION.observe(clock.monotonic() - started)
        for key in self._planner.not_pending:
            self._requeue_if_deactivated(key)
        snapshot.being_evicted = frozenset(self._evictions_in_flight())
        self._run_second_pass(snapshot)
        decisions = plan(
            snapshot,
            self._features,
            metrics.time_placement,
            self._fair_sharing,
            queues,
            now=clock.now().timestamp(),
        )
        admitted = 0
        for decision in decisions:
            if isinstance(decision, Requeue):
                self._requeue(decision, queues.info(decision.workload))
            elif self._decide(decision):
                admitted += isinstance(decision, Admit)
            elif isinstance(decision, Admit):
                # It stays ahead of the others. They are looked at again, as it may go meanwhile.
                self._planner.decide_again(decision.workload)
                self._planner.wake(decision.assignment.cluster_queue)
                if self._is_skipped(decision.workload):
                    self.request_cycle()
        # The assumed admissions changed only what was just planned.
        self._planned_epoch = self._cache.epoch
        self.cycles += 1
        spent_s = clock.monotonic() - started
        if decisions:
            result = "success" if admitted else "inadmissible"
            metrics.ATTEMPTS.labels(result=result).inc()
            metrics.ATTEMPT_DURATION.labels(result=result).observe(spent_s)
        log.debug(
            "scheduling_cycle_done",
            cycle=self.cycles,
            decisions=len(decisions),
            admitted=admitted,
            duration_s=round(spent_s, 4),
        )
        if self._check_usage and verify(self._cache):
            self.request_cycle_if_changed()
        # A replaced node frees another one: no event of the watch says so.
        if self._planner.is_due or self._cache.changes:
            self.request_cycle()

    def _run_second_pass(self, snapshot: Snapshot) -> None:
        """Node replacement comes before pending Workloads."""
        with_unhealthy_nodes = {row.key for row in snapshot.with_unhealthy_nodes}
        self._failed_replacements = {
            key: text
            for key, text in self._failed_replacements.items()
            if key in with_unhealthy_nodes
        }
        snapshot.with_unhealthy_nodes = [
            row
            for row in snapshot.with_unhealthy_nodes
            if row.key not in self._pending_writes and row.key not in self._backing_off
        ]
        for decision in self._second_pass(snapshot):
            if not isinstance(decision, ReplacementFailed):
                self._decide(decision)
            elif self._failed_replacements.get(decision.workload) != decision.message:
                self._failed_replacements[decision.workload] = decision.message
                if (workload := self._workloads.get(decision.workload)) is not None:
                    self._nodes.report_replacement_failed(workload, decision.message)

    def _decide(self, decision: WrittenDecision) -> bool:
        """Queue the write of a decision; False if it is not written now."""
        key = decision.workload
        workload = self._workloads.get(key)
        if workload is None or key in self._backing_off:
            return False
        if (pending_write := self._pending_writes.get(key)) is not None:
            pending_write.superseded |= pending_write.differs(workload, decision)
            return False
        if isinstance(decision, Admit):
            if not self._is_in_sync(workload):
                self._back_off(key)
                return False
            self._cache.assume(key, decision.assignment)
        elif isinstance(decision, ReplaceNode | AssignTopology):
            self._cache.assume(key, decision.assignment, replace_existing=True)
        elif isinstance(decision, Preempt) and not self._may_preempt(decision.by):
            return False
        self._requeues.pop(key, None)
        self._pending_writes[key] = _PendingWrite(workload, decision)
        self._write_queue.add(key)
        return True

    def _evictions_in_flight(self) -> Iterator[str]:
        """Workloads whose eviction is being written."""
        for key, pending_write in self._pending_writes.items():
            if isinstance(pending_write.decision, Evict | Preempt | Deactivate):
                yield key

    def _may_preempt(self, key: str) -> bool:
        """Whether a Workload may be admitted at all; otherwise no Workload is preempted for it."""
        workload = self._workloads.get(key)
        if workload is None or key in self._backing_off:
            return False
        if not self._is_in_sync(workload):
            self._back_off(key)
            return False
        return True

    def _count_decision_error(self, requeue: Requeue) -> None:
        """Count each requeue by an internal error, and log it if it is new."""
        if not requeue.error:
            return
        metrics.DECISION_ERRORS.inc()
        if self._requeues.get(requeue.workload) != requeue:
            log.error("decision_failed", workload=requeue.workload, error=requeue.error)

    def _requeue(self, requeue: Requeue, row: WorkloadInfo | None) -> None:
        """Queue the write of a requeue, if it is another one; only the newest is written."""
        key = requeue.workload
        self._count_decision_error(requeue)
        previous = self._requeues.get(key)
        self._requeues[key] = requeue
        if previous != requeue and (row is None or not _shows(row, requeue)):
            self._queue_requeue(requeue, is_first=previous is None)

    def _requeue_if_deactivated(self, key: str) -> None:
        """A user deactivated it while it was pending: no plan decides about it any more."""
        workload = self._workloads.get(key)
        if workload is not None and conditions.is_deactivated_while_pending(workload):
            message = "The workload is deactivated"
            self._requeue(Requeue(key, PendingReason.SUSPENDED, message), None)

    def _queue_requeue(self, requeue: Requeue, *, is_first: bool) -> None:
        key, now = requeue.workload, clock.monotonic()
        wait_s = 0.0 if is_first else self._message_limiter.wait_s(key, requeue.reason, now)
        if wait_s > 0:
            self._requeue_queue.add_later(key, wait_s)
        else:
            self._requeue_queue.add(key)

    def on_workload_upsert(self, workload: Workload) -> None:
        """Its condition must show the last answer; no cycle follows such a change.

        Somebody else may have written it. Or our own write is seen only now, when the answer is
        again the one that it replaced, which the watch showed until now.
        """
        key = workload.metadata.key
        self._on_version(key)
        requeue, row = self._requeues.get(key), self._cache.pending_workload(key)
        if requeue is None or row is None or _shows(row, requeue):
            return
        wait_s = self._message_limiter.wait_s(key, requeue.reason, clock.monotonic())
        self._requeue_queue.add_later(key, max(wait_s, REPEAT_AFTER_S))

    async def _write_decision(self, key: str) -> None:
        pending_write = self._pending_writes.get(key)
        if pending_write is None:
            return
        try:
            await self._write(key, pending_write)
        except asyncio.CancelledError:
            pending_write.maybe_sent = True
            raise
        except KubeError as error:
            unknown = isinstance(error, ServerError | TransportError)
            if unknown and isinstance(pending_write.decision, _ASSUMED):
                self._repeat_write(key, pending_write, error)
            else:
                self._failed(key, pending_write, error)
        except Exception:
            self._failed(key, pending_write, None)
            raise
        else:
            del self._pending_writes[key]
            self._written_at = clock.monotonic()
            self._backoff.reset(key)
            self._unknown_outcomes.reset(key)
            if pending_write.superseded:
                self._planner.decide_again(key)
                self.request_cycle()

    async def _write(self, key: str, pending_write: _PendingWrite) -> None:
        workload = pending_write.workload
        match pending_write.decision:
            case Admit(_, assignment, ahead_of):
                version = await self._writer.admit(
                    workload, assignment, ahead_of, maybe_sent=pending_write.maybe_sent
                )
                self._cache.confirm(key, version)
            case AssignTopology(_, assignment):
                version = await self._writer.admit_after_checks(
                    workload,
                    workload.status.admission_checks,
                    assignment,
                    maybe_sent=pending_write.maybe_sent,
                )
                self._cache.confirm(key, version)
            case ReplaceNode(_, assignment, replaced):
                maybe_sent = pending_write.maybe_sent
                version = await self._nodes.replace_nodes(
                    workload, assignment, replaced, maybe_sent=maybe_sent
                )
                self._cache.confirm(key, version)
            case ClearUnhealthyNodes(_, names, message):
                self._nodes.report_replacement_failed(workload, message)
                await self._nodes.clear_unhealthy_nodes(workload, names)
            case Deactivate(_, reason, message):
                await self._writer.deactivate(workload, reason, message)
            case Evict(_, reason, message, underlying_cause):
                await self._writer.evict(
                    workload, reason, message, underlying_cause=underlying_cause
                )
            case Preempt(_, _, cause, message):
                await self._writer.evict(workload, EvictionReason.PREEMPTED, message, cause)

    def _repeat_write(self, key: str, pending_write: _PendingWrite, error: KubeError) -> None:
        """Write again later, what was assumed stays; the worker is free for others meanwhile."""
        pending_write.maybe_sent = True
        log.warning("admission_outcome_unknown", workload=key, error=str(error)[:500])
        if isinstance(error, ServerError):  # maybe a webhook, which fails as long as it is there
            self._writer.report_rejected(pending_write.workload, error)
        self._write_queue.add_later(key, self._unknown_outcomes.next(key))

    def _failed(self, key: str, pending_write: _PendingWrite, error: KubeError | None) -> None:
        """Release what was assumed, and decide on this Workload again after a backoff."""
        del self._pending_writes[key]
        self._unknown_outcomes.reset(key)
        if isinstance(pending_write.decision, _ASSUMED):
            self._cache.forget(key)
        self._planner.decide_again(key)
        if error is not None:
            level = log.debug if error.status in (404, 409) else log.warning
            level("decision_write_rejected", workload=key, error=str(error)[:500])
            # A deactivation is a patch, and 422 may only mean that the Workload has changed.
            rejected = isinstance(error, _REJECTIONS)
            if rejected and not isinstance(
                pending_write.decision, Deactivate | ClearUnhealthyNodes
            ):
                self._writer.report_rejected(pending_write.workload, error)
        known, decided_on = self._workloads.get(key), pending_write.workload
        is_newest = known is not None and known.metadata == decided_on.metadata
        changed = isinstance(error, ConflictError | NotFoundError)
        self._back_off(key, outdated=changed and is_newest)
        self.request_cycle()

    def _back_off(self, key: str, *, outdated: bool = False) -> None:
        """Back off from a Workload; longer each time.

        Args:
            key: of the Workload.
            outdated: the API server has a version of it that the watch does not show yet: wait
                for that.
        """
        if key not in self._workloads:
            self._backoff.reset(key)
            return
        loop = asyncio.get_running_loop()
        wait_s = self._backoff.next(key)
        if outdated:
            self._outdated[key] = loop.time() + wait_s
            wait_s = max(wait_s, OUTDATED_S)
        self._backing_off[key] = loop.call_later(wait_s, self._on_backoff_finished, key)

    def _on_version(self, key: str) -> None:
        """The watch shows another version of a Workload: its backoff is the usual one again."""
        ends = self._outdated.pop(key, None)
        if ends is None:
            return
        self._backing_off[key].cancel()
        loop = asyncio.get_running_loop()
        self._backing_off[key] = loop.call_at(ends, self._on_backoff_finished, key)

    def _is_skipped(self, key: str) -> bool:
        """Whether a Workload is skipped because its writes were rejected repeatedly."""
        return key in self._backing_off and self._backoff.failures(key) > FAILURES_BEFORE_SKIP

    def reset_backoff(self, key: str) -> None:
        """The spec of a Workload changed: earlier rejections no longer count."""
        if self._end_backoff(key):
            self._backoff.reset(key)
            self._planner.decide_again(key)
            self.request_cycle()

    def _end_backoff(self, key: str) -> bool:
        """End the backoff of a Workload; whether there was one."""
        self._outdated.pop(key, None)
        timer = self._backing_off.pop(key, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _on_backoff_finished(self, key: str) -> None:
        self._end_backoff(key)
        self._planner.decide_again(key)
        self.request_cycle()

    def _writes_decisions(self) -> bool:
        """Whether admissions and evictions are written now, or were a moment ago."""
        recently = clock.monotonic() - self._written_at < QUIET_AFTER_S
        return recently or bool(self._pending_writes)

    async def _write_requeue(self, key: str) -> None:
        await self._turns.wait()
        requeue, workload = self._requeues.get(key), self._workloads.get(key)
        if requeue is None or workload is None or key in self._pending_writes:
            return
        written = await self._writer.write_pending(workload, requeue.reason, requeue.message)
        if written and key in self._workloads:  # it may be deleted meanwhile
            self._message_limiter.record_written(key, requeue.reason, clock.monotonic())

    def forget(self, key: str) -> None:
        """A Workload is deleted: remove all state about it."""
        self._requeues.pop(key, None)
        self._message_limiter.forget(key)
        self._failed_replacements.pop(key, None)
        self._end_backoff(key)
        self._backoff.reset(key)

    def counts(self) -> Mapping[str, int]:
        """Number of open writes."""
        return {"writes": len(self._pending_writes), "requeues": len(self._requeue_queue)}


def _shows(row: WorkloadInfo, requeue: Requeue) -> bool:
    """Whether the condition of a pending Workload shows this answer."""
    message = conditions.truncate(requeue.message)
    return (row.pending_reason, row.pending_message) == (requeue.reason, message)

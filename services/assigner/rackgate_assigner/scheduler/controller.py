"""The scheduling cycle: plan when something changed, write what was decided.

Grants are charged to the cache before their write is sent and taken back when it is refused, so
the next cycle need not wait for writes. Everything decided is a value bound to the version it was
judged by; what the API server refuses is decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import structlog

from rackgate.api.names import EvictionReason
from rackgate.features import Features
from rackgate.kube.errors import (
    BadRequestError,
    ForbiddenError,
    KubeError,
    PayloadTooLargeError,
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
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.message_rate import Pace
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workload.decisions import (
    Admit,
    Deactivate,
    Evict,
    Hold,
    Preempt,
    Reassign,
    Repair,
    Stuck,
    Unmark,
)
from rackgate_assigner.workqueue import WorkQueue

Verdict: TypeAlias = Admit | Deactivate | Evict | Preempt | Reassign | Unmark

HOLD_WORKERS: Final = 8
# So often may a Workload be refused before others stop waiting for the room it was meant to get.
PATIENCE: Final = 3
# Answers that repeating the same write will not change.
_REFUSALS: Final = (BadRequestError, ForbiddenError, PayloadTooLargeError, UnprocessableError)

log = structlog.get_logger()


@dataclass(slots=True)
class _Decided:
    """A decision whose write is not over.

    Attributes:
        workload: as judged.
        repeated: the write may have been sent before and cut off without an answer.
        overtaken: something else was decided meanwhile, and has to be once more afterwards.
    """

    workload: Workload
    verdict: Verdict
    repeated: bool = False
    overtaken: bool = False

    def differs(self, workload: Workload, verdict: Verdict) -> bool:
        """Whether this decision is about another object, or says something else."""
        same = self.workload.metadata.uid == workload.metadata.uid
        return not same or self.verdict != verdict


class SchedulingCycle:
    """Turns changes of the cache into decisions, and decisions into writes."""

    def __init__(
        self,
        cache: Cache,
        workloads: Mapping[str, Workload],
        writer: WorkloadWriter,
        *,
        features: Features,
        nodes: NodeWriter,
        repairs: Callable[[Snapshot], Sequence[Repair]] = lambda _snapshot: (),
        is_in_sync: Callable[[Workload], bool] = lambda _workload: True,
        min_interval_s: float = 0.1,
        message_interval_s: float = 0.0,
        workers: int = 32,
        check_usage: bool = False,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: what is planned on.
            workloads: as the watch shows them, by key.
            writer: carries decisions out.
            features: state of feature gates.
            nodes: carries out what is decided about broken nodes.
            repairs: the second pass; it charges what it gives to the snapshot.
            is_in_sync: whether a Workload asks for what its job asks for now. One that does not is
                about to be changed, and admitting it would only be taken back.
            min_interval_s: between the starts of two cycles at least.
            message_interval_s: between two writes of why one Workload waits, for one reason.
            workers: admissions, evictions and deactivations on their way at the same time.
            check_usage: compare usage with a rebuild after every cycle.
        """
        self._cache, self._workloads, self._writer = cache, workloads, writer
        self._features = features
        self._nodes, self._repairs = nodes, repairs
        self._stuck: dict[str, str] = {}
        self._is_in_sync = is_in_sync
        self._min_interval_s = min_interval_s
        self._check_usage = check_usage
        self._changed = asyncio.Event()
        self._planned_epoch = -1
        self._decided: dict[str, _Decided] = {}
        self._holds: dict[str, Hold] = {}
        self._pace = Pace(message_interval_s)
        self._backoff = Backoff(base_s=0.1, cap_s=15.0)
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._verdicts = WorkQueue[str]("verdicts", self._carry_out, workers=workers)
        self._waits = WorkQueue[str]("holds", self._hold, workers=HOLD_WORKERS)
        self._failures = Backoff(base_s=0.5, cap_s=30.0)
        self.cycles = 0

    def poke(self) -> None:
        """The cache may have changed: plan again if it has. Cheap."""
        if self._cache.epoch != self._planned_epoch:
            self._changed.set()

    def replan(self) -> None:
        """Plan again whether or not the cache has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Plan and write until cancelled. Only the holder of the Lease may call this."""
        self._holds.clear()
        self.replan()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self._verdicts.run(list(self._decided)), "verdicts")
                spawn(group, self._waits.run(), "holds")
                spawn(group, self._plan_for_ever(), "cycle")
        finally:
            for timer in self._resting.values():
                timer.cancel()
            self._resting.clear()

    async def _plan_for_ever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            started = clock.monotonic()
            try:
                self._plan_once()
            except Exception:
                log.exception("cycle_failed", cycle=self.cycles)
                self._changed.set()
                await asyncio.sleep(self._failures.next())
                continue
            self._failures.reset()
            # Also the pause in which the loop serves watches after a long plan.
            spent_s = clock.monotonic() - started
            await asyncio.sleep(max(self._min_interval_s - spent_s, 0.01))

    def _plan_once(self) -> None:
        started = clock.monotonic()
        snapshot = self._cache.freeze()
        metrics.SNAPSHOT_DURATION.observe(clock.monotonic() - started)
        snapshot.waiting = [row for row in snapshot.waiting if not self._gives_way(row.key)]
        snapshot.leaving = frozenset(self._leaving())
        self._mend(snapshot)
        decisions = plan(snapshot, self._features, metrics.time_placement)
        admitted = 0
        waiting: dict[str, Hold] = {}
        for decision in decisions:
            if isinstance(decision, Hold):
                waiting[decision.workload] = decision
                self._count_defect(decision)
            elif self._decide(decision):
                admitted += isinstance(decision, Admit)
        self._replace_holds(waiting)
        # What assuming the grants changed is what was just planned.
        self._planned_epoch = self._cache.epoch
        self.cycles += 1
        spent_s = clock.monotonic() - started
        if decisions:
            result = "success" if admitted else "inadmissible"
            metrics.ATTEMPTS.labels(result=result).inc()
            metrics.ATTEMPT_DURATION.labels(result=result).observe(spent_s)
        log.debug(
            "cycle_planned",
            cycle=self.cycles,
            decisions=len(decisions),
            admitted=admitted,
            duration_s=round(spent_s, 4),
        )
        if self._check_usage and verify(self._cache):
            self.poke()

    def _mend(self, snapshot: Snapshot) -> None:
        """What runs and lost nodes comes before what waits."""
        failing = {row.key for row in snapshot.failing}
        self._stuck = {key: text for key, text in self._stuck.items() if key in failing}
        snapshot.failing = [
            row
            for row in snapshot.failing
            if row.key not in self._decided and row.key not in self._resting
        ]
        for repair in self._repairs(snapshot):
            if not isinstance(repair, Stuck):
                self._decide(repair)
            elif self._stuck.get(repair.workload) != repair.message:
                self._stuck[repair.workload] = repair.message
                if (workload := self._workloads.get(repair.workload)) is not None:
                    self._nodes.tell_stuck(workload, repair.message)

    def _decide(self, verdict: Verdict) -> bool:
        """Queue a verdict's write; False when it has to wait."""
        key = verdict.workload
        workload = self._workloads.get(key)
        if workload is None or key in self._resting:
            return False
        if (decided := self._decided.get(key)) is not None:
            decided.overtaken |= decided.differs(workload, verdict)
            return False
        if isinstance(verdict, Admit):
            if not self._is_in_sync(workload):
                self._rest(key)
                return False
            self._cache.assume(key, verdict.grant)
        elif isinstance(verdict, Reassign):
            self._cache.assume(key, verdict.grant, instead=True)
        elif isinstance(verdict, Preempt) and not self._may_preempt(verdict.by):
            return False
        self._decided[key] = _Decided(workload, verdict)
        self._verdicts.add(key)
        return True

    def _leaving(self) -> Iterator[str]:
        """Workloads whose eviction is on its way to the API server."""
        for key, decided in self._decided.items():
            if isinstance(decided.verdict, Evict | Preempt | Deactivate):
                yield key

    def _may_preempt(self, key: str) -> bool:
        """Whether a Workload would be admitted if it had room: else nobody has to go for it."""
        workload = self._workloads.get(key)
        if workload is None or key in self._resting:
            return False
        if not self._is_in_sync(workload):
            self._rest(key)
            return False
        return True

    def _count_defect(self, hold: Hold) -> None:
        """A hold with a defect of ours behind it is counted each time, and logged when new."""
        if not hold.error:
            return
        metrics.DECISION_ERRORS.inc()
        if self._holds.get(hold.workload) != hold:
            log.error("decision_failed", workload=hold.workload, error=hold.error)

    def _replace_holds(self, waiting: dict[str, Hold]) -> None:
        """Only the newest word about each Workload is written."""
        before, self._holds = self._holds, waiting
        now = clock.monotonic()
        for key, hold in waiting.items():
            if (known := before.get(key)) == hold:
                continue
            wait_s = self._pace.wait_s(key, hold.reason, now) if known is not None else 0.0
            if wait_s > 0:
                self._waits.add_later(key, wait_s)
            else:
                self._waits.add(key)

    async def _carry_out(self, key: str) -> None:
        decided = self._decided.get(key)
        if decided is None:
            return
        try:
            await self._write(key, decided)
        except asyncio.CancelledError:
            decided.repeated = True
            raise
        except KubeError as error:
            self._failed(key, decided, error)
        except Exception:
            self._failed(key, decided, None)
            raise
        else:
            del self._decided[key]
            self._backoff.reset(key)
            if decided.overtaken:
                self.replan()

    async def _write(self, key: str, decided: _Decided) -> None:
        workload = decided.workload
        match decided.verdict:
            case Admit(_, grant):
                version = await self._writer.admit(workload, grant, repeated=decided.repeated)
                self._cache.confirm(key, version)
            case Reassign(_, grant, replaced):
                repeated = decided.repeated
                version = await self._nodes.reassign(workload, grant, replaced, repeated=repeated)
                self._cache.confirm(key, version)
            case Unmark(_, names, message):
                self._nodes.tell_stuck(workload, message)
                await self._nodes.unmark(workload, names)
            case Deactivate(_, reason, message):
                await self._writer.deactivate(workload, reason, message)
            case Evict(_, reason, message):
                await self._writer.evict(workload, reason, message)
            case Preempt(_, _, cause, message):
                await self._writer.evict(workload, EvictionReason.PREEMPTED, message, cause)

    def _failed(self, key: str, decided: _Decided, error: KubeError | None) -> None:
        """Take back what was assumed; judge this Workload again after a pause of its own."""
        del self._decided[key]
        if isinstance(decided.verdict, Admit | Reassign):
            self._cache.forget(key)
        if error is not None:
            level = log.debug if error.status in (404, 409) else log.warning
            level("verdict_refused", workload=key, error=str(error)[:500])
            # A deactivation is a patch, and 422 may only say that the Workload moved on.
            refused = isinstance(error, _REFUSALS)
            if refused and not isinstance(decided.verdict, Deactivate | Unmark):
                self._writer.tell_refused(decided.workload, error)
        self._rest(key)
        self.replan()

    def _rest(self, key: str) -> None:
        """Leave a Workload alone for a while; longer each time."""
        if key not in self._workloads:
            self._backoff.reset(key)
            return
        loop = asyncio.get_running_loop()
        self._resting[key] = loop.call_later(self._backoff.next(key), self._rested, key)

    def _gives_way(self, key: str) -> bool:
        """Whether a Workload rests that was refused time and again."""
        return key in self._resting and self._backoff.failures(key) > PATIENCE

    def changed(self, key: str) -> None:
        """A Workload asks for something else now: what was refused before counts no more."""
        timer = self._resting.pop(key, None)
        if timer is not None:
            timer.cancel()
            self._backoff.reset(key)
            self.replan()

    def _rested(self, key: str) -> None:
        self._resting.pop(key, None)
        self.replan()

    async def _hold(self, key: str) -> None:
        hold, workload = self._holds.get(key), self._workloads.get(key)
        if hold is None or workload is None or key in self._decided:
            return
        told = await self._writer.hold(workload, hold.reason, hold.message)
        if told and key in self._workloads:  # it may have gone meanwhile
            self._pace.told(key, hold.reason, clock.monotonic())

    def forget(self, key: str) -> None:
        """A Workload is gone: nothing about it has to be remembered."""
        self._holds.pop(key, None)
        self._pace.forget(key)
        self._stuck.pop(key, None)
        timer = self._resting.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._backoff.reset(key)

    def counts(self) -> Mapping[str, Any]:
        """What is under way: for logs and readiness."""
        return {"verdicts": len(self._decided), "holds": len(self._waits)}

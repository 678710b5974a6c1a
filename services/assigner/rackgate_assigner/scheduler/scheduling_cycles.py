"""The scheduling cycles of one plan, over the heads of all ClusterQueues.

Kueue takes one head of each ClusterQueue in a cycle. Here the cycles that would follow one another
without any change from outside are run at once, on one state:

1. The heads of all queues (`local_queue_order`: by the usage of their LocalQueues, where a
   ClusterQueue says so) are decided about together (`quota_cycle`). A slice of an elastic job is
   decided about alone: it gets the flavors and the domains of its parent, and preempts nothing.
2. What is admitted uses its quota and domains from then on; with admission checks it only reserves
   its quota. Targets of a preemption are being evicted from then on, and use their quota until they
   are gone.
3. A head without a fitting domain tries the next flavor of its queue in the next cycle.
4. A head that is inadmissible is put aside, with all others of its shape; the next one of its
   queue is the head. One that waits for its targets is decided about first in each cycle that
   follows, so those behind it cannot take its room. The head of a StrictFIFO queue stays, unless
   it can never fit.
5. This ends when a cycle admits nothing, preempts nothing, and puts nothing aside. Then Workloads
   behind the head of a StrictFIFO queue may be admitted ahead of it (`backfill`).

Inputs: eligible Workloads by ClusterQueue in their order. The quota tree is live: it is the same
when `plan` returns.
Complexity: one cycle for each admission or shape of the queue with the most of them, at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from rackgate.api.names import PendingReason, PreemptedReason
from rackgate.features import Features
from rackgate_assigner.cache.quota_usage import NEWEST, seconds
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.preemption.targets import Target
from rackgate_assigner.quota.admission_fair_sharing import amounts_of
from rackgate_assigner.quota.queues import Quota
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState, Timing, no_timing
from rackgate_assigner.scheduler.admission_phases import reservation
from rackgate_assigner.scheduler.backfill import (
    MAX_CANDIDATES,
    Backfill,
    Candidate,
    Denial,
    with_expected_start,
)
from rackgate_assigner.scheduler.eligibility import Eligible
from rackgate_assigner.scheduler.local_queue_order import STICKY, pending_ranks
from rackgate_assigner.scheduler.nomination.kept_nominations import KeptNominations
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nominate_slice import could_ever_fit, nominate_slice
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    PendingPodSet,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.scheduler.pending_queues import Line, PendingQueues
from rackgate_assigner.scheduler.quota_cycle import (
    NO_LONGER_FITS,
    HeadAdmission,
    HeadRequeue,
    HeadResult,
    RequeueReason,
    run_cycle,
)
from rackgate_assigner.scheduler.requeue import requeue, requeue_after_error
from rackgate_assigner.workload.admission_checks import required_checks
from rackgate_assigner.workload.conditions import truncate
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    Inadmissible,
    Preempt,
    Requeue,
    TopologyNotFound,
)
from rackgate_assigner.workload.info import (
    WorkloadInfo,
    priority_of,
    quota_usage,
    topology_charges,
)
from rackgate_assigner.workload.object_size import too_large
from rackgate_assigner.workload_slices.families import SliceFamily

# The words of Kueue's message, by reason.
_CAUSES: Final[Mapping[str, str]] = {
    PreemptedReason.IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
    PreemptedReason.IN_COHORT_RECLAMATION: "reclamation within the cohort",
    PreemptedReason.IN_COHORT_FAIR_SHARING: "Fair Sharing within the cohort",
    PreemptedReason.IN_COHORT_RECLAIM_WHILE_BORROWING: (
        "reclamation within the cohort while borrowing"
    ),
}
# A head of a StrictFIFO queue that does not fit even if nothing else is admitted (ADR 13).
_NEVER_FITS: Final = frozenset(
    {
        PendingReason.EXCEEDS_MAX_QUOTA,
        PendingReason.NO_MATCHING_FLAVOR,
        PendingReason.TOPOLOGY_PLACEMENT_FAILED,
    }
)


ADMISSION_BLOCKED: Final = Inadmissible(
    PendingReason.WAITING_FOR_PODS_READY,
    "waiting for all admitted workloads to be in PodsReady condition",
)


def quota_state(
    snapshot: Snapshot,
    features: Features,
    fair_sharing: tuple[str, ...] | None = None,
    timing: Timing = no_timing,
) -> QuotaState:
    """The state of a snapshot; its quota tree and its topologies are those of the snapshot."""
    usage = snapshot.quota_usage
    return QuotaState(
        usage.tree,
        snapshot.cluster_queues,
        snapshot.flavors,
        snapshot.flavor_topologies,
        usage.running,
        fair_sharing=fair_sharing,
        checks=snapshot.checks,
        features=features,
        local_queue_usage=snapshot.local_queue_usage,
        always_asks_empty=False,
        timing=timing,
    )


def pending_workload(
    info: WorkloadInfo, queue: str, priorities: Mapping[str, int]
) -> PendingWorkload:
    """A Workload as the head of its ClusterQueue."""
    return PendingWorkload(
        key=info.key,
        uid=info.uid,
        namespace=info.namespace,
        cluster_queue=queue,
        priority=priority_of(info, priorities),
        queue_timestamp=seconds(info.queue_timestamp),
        podsets=tuple(
            PendingPodSet(
                podset.request, podset.min_count, info.reclaimable.get(podset.request.name, 0)
            )
            for podset in info.podsets
        ),
        shape=info.shape,
    )


class SchedulingCycles:
    """The cycles of one plan."""

    def __init__(
        self,
        snapshot: Snapshot,
        state: QuotaState,
        *,
        being_evicted: Collection[str],
        now: float | None = None,
    ) -> None:
        """Prepare.

        Args:
            snapshot: not changed.
            state: of the snapshot; its topologies are charged with what is admitted.
            being_evicted: keys of Workloads whose eviction they do not show yet.
            now: seconds; None: nothing is admitted ahead of the head of a StrictFIFO queue.
        """
        self._snapshot, self._state, self._features = snapshot, state, state.features
        self._unready = None if snapshot.unready is None else set(snapshot.unready)
        self._now = now if self._features.backfill and snapshot.unready is None else None
        self._undo = ExitStack()
        self._had_errors = False
        self._being_evicted = being_evicted
        # Admitted in this plan; and slices among them, by the key of their parent.
        self._admitted: dict[str, Admit] = {}
        self._eligible: dict[str, Eligible] = {}
        # ClusterQueues in which this plan took back an admission: others may fit instead.
        self._given_back: set[str] = set()
        self._slices: dict[str, list[str]] = {}
        self._preempted: set[str] = set()
        self._requeues: dict[str, Requeue] = {}
        # Flavors without a fitting domain, by PodSet and flavor, of Workloads that try the next.
        self._rejected: dict[str, dict[tuple[str, str], TopologyNotFound]] = {}
        # Heads that no longer fitted after another head, by key, in the last cycle.
        self._failed: dict[str, Eligible] = {}
        # With backfill, by StrictFIFO queue: heads that do not fit; and keys that were denied.
        self._blocking: dict[str, Eligible] = {}
        self._denied: dict[str, list[str]] = {}
        self._decisions: list[Decision] = []
        self._heads: dict[str, PendingWorkload] = {}
        self._kept = KeptNominations()

    def plan(self, pending: PendingQueues, budget: int) -> list[Decision]:
        """Decide about the Workloads that are due.

        Args:
            pending: what is decided is taken out, or parked. If the budget does not suffice, it is
                due still.
            budget: number of heads to decide about, at least; a cycle is not cut.

        Returns:
            Preemptions and admissions in the order in which they were decided, then the requeues
            that are new.
        """
        self._pending_queues, self._budget = pending, budget
        snapshot = self._snapshot
        lines = pending.due(
            pending_ranks(
                snapshot.local_queues,
                snapshot.cluster_queues,
                snapshot.local_queue_usage,
                self._features,
            )
        )
        try:
            with ExitStack() as undo:
                self._undo = undo
                for key in self._being_evicted:
                    self._mark_evicted(key)
                while self._budget > 0 and (
                    self._run_cycle(lines) or self._put_failed_aside(lines)
                ):
                    pass
                if self._budget > 0:
                    for name, head in self._blocking.items():
                        self._backfill_or_report(head, lines[name])
        except Exception:
            self._snapshot.quota_usage.invalidate()
            raise
        if self._had_errors:
            self._snapshot.quota_usage.invalidate()
        if self._budget > 0:
            for name, line in lines.items():
                for eligible in line.left(self._denied.get(name, ())):
                    self._requeues.setdefault(eligible.info.key, _behind_head(eligible, name))
            pending.done(lines)
        for name in self._given_back:
            pending.wake_queue(name)
        return [*self._decisions, *self._admitted.values(), *self._requeues.values()]

    def _run_cycle(self, waiting: Mapping[str, Line]) -> bool:
        """Decide about the heads; whether another cycle may decide something else."""
        progress = False
        self._failed.clear()
        heads: dict[str, Eligible] = {}
        holders: set[str] = set()
        known: dict[str, HeadRequeue] = {}
        for line in waiting.values():
            holder = line.holder()
            if holder is not None:
                heads[holder.info.key] = holder
                holders.add(holder.info.key)
                if not self._passes_holder(holder):
                    continue
            head = line.head()
            if head is None:
                continue
            if head.info.parent:
                progress |= self._guarded(head, line, self._decide_slice)
                continue
            heads[head.info.key] = head
            if (found := line.known()) is not None:
                known[head.info.key] = found
        self._budget -= len(heads)
        pending = [self._pending(eligible) for eligible in heads.values()]
        first = self._preemptors_among(heads, holders)
        try:
            results = run_cycle(
                self._state, pending, self._snapshot.namespaces, first, known, kept=self._kept
            )
        except Exception:  # noqa: BLE001 - each head alone shows whose error it is
            results = []
            for eligible in heads.values():
                line = waiting[eligible.queue.name]
                progress |= self._guarded(eligible, line, self._decide_alone)
        for result in results:
            eligible = heads[result.head.key]
            progress |= self._apply(eligible, result, waiting[eligible.queue.name])
        return progress

    def _preemptors_among(
        self, heads: Mapping[str, Eligible], holders: Collection[str]
    ) -> set[str]:
        """Heads for which others were preempted: they get what was freed for them first.

        With fair sharing the victim would have the smaller share in the next cycle. It would take
        the place, the preemptor would preempt it again, and so on for ever.
        """
        if not self._features.sticky_preemptors:
            return set()
        # The condition of a holder may not show yet what it waits for.
        return {key for key, one in heads.items() if key in holders or self._is_preemptor(one)}

    def _is_preemptor(self, eligible: Eligible) -> bool:
        """Whether others were preempted for it: before this plan, or by its last answer in it."""
        info = eligible.info
        answer = self._requeues.get(info.key)
        return info.pending_reason in STICKY or (answer is not None and answer.reason in STICKY)

    def _guarded(
        self, eligible: Eligible, line: Line, decide: Callable[[Eligible, Line], bool]
    ) -> bool:
        """Decide about one head; an internal error puts aside this Workload alone."""
        try:
            return decide(eligible, line)
        except Exception as error:  # noqa: BLE001 - reported by the requeue, logged by the cycle
            self._had_errors = True
            self._put_aside(eligible, line, requeue_after_error(eligible.info, error))
            return True

    def _decide_alone(self, eligible: Eligible, line: Line) -> bool:
        head = self._pending(eligible)
        (result,) = run_cycle(self._state, [head], self._snapshot.namespaces)
        return self._apply(eligible, result, line)

    def _apply(self, eligible: Eligible, result: HeadResult, line: Line) -> bool:
        """Apply one result; whether it changes what the next cycle decides."""
        self._blocking.pop(eligible.queue.name, None)
        if isinstance(result, HeadAdmission):
            self._remove(eligible, line)
            self._admit(eligible, self._with_checks(eligible, result.assignment))
            return True
        info = eligible.info
        # Kueue's rules leave some without a reason; a condition must have one.
        if not result.reason:
            result = replace(result, reason=PendingReason.NO_MATCHING_FLAVOR)
        if self._tries_next_flavor(eligible, result):
            return True
        rejected = (*self._rejected.get(info.key, {}).values(), *result.rejected)
        if result.requeue is RequeueReason.PREEMPTION_NO_CANDIDATES and any(
            found.fits_when_empty is not False for found in rejected
        ):
            result = replace(result, reason=PendingReason.TOPOLOGY_PLACEMENT_FAILED)
        inadmissible = Requeue(info.key, result.reason, truncate(result.message), rejected)
        if result.requeue is RequeueReason.PENDING_PREEMPTION:
            return self._wait_for_targets(eligible, result, line, inadmissible)
        self._requeues[info.key] = inadmissible
        if result.after_others and not eligible.queue.is_strict:
            # The head that holds what it needs may be put aside in this cycle.
            self._failed[info.key] = eligible
            return False
        if self._is_put_aside(eligible, result):
            self._put_aside(
                eligible,
                line,
                inadmissible,
                same_shape=result.is_of_shape,
                by_quota=result.short_of_quota and not rejected,
                known=result if result.shortage else None,
            )
            return True
        if result.requeue is RequeueReason.FAILED_AFTER_NOMINATION:
            self._failed[info.key] = eligible
        elif self._now is not None and result.is_of_shape:
            self._blocking[eligible.queue.name] = eligible
        return False

    def _backfill_or_report(self, head: Eligible, line: Line) -> None:
        """As `_backfill`; an internal error affects the requeue of the head alone."""
        first = line.holder() or line.head()
        if self._now is None or first is not head:
            return
        try:
            self._backfill(head, line, self._now)
        except Exception as error:  # noqa: BLE001 - reported by the requeue, logged by the cycle
            self._had_errors = True
            self._requeues[head.info.key] = requeue_after_error(head.info, error)

    def _backfill(self, head: Eligible, line: Line, now: float) -> None:
        """Admit Workloads behind the head of a StrictFIFO queue that do not delay it."""
        backfill = Backfill(self._state, self._pending(head), now)
        before = self._requeues[head.info.key]
        message = with_expected_start(before.message, backfill.start, now)
        self._requeues[head.info.key] = replace(before, message=message)
        if line.is_near_holder():
            return
        denied = self._denied.setdefault(head.queue.name, [])
        for eligible in line.behind(MAX_CANDIDATES):
            info = eligible.info
            if backfill.is_over:
                break
            if info.parent:
                continue
            candidate = Candidate(
                self._pending(eligible), info.execution_time_s, info.grace_period_s
            )
            found = backfill.decide(candidate)
            if isinstance(found, Denial):
                self._requeues[info.key] = _behind_head(eligible, eligible.queue.name, found)
                denied.append(info.key)
                continue
            line.take(info.key)
            self._admit(eligible, found.assignment(eligible.queue.name))
            if (admitted := self._admitted.get(info.key)) is not None:
                self._admitted[info.key] = replace(admitted, ahead_of=head.info.uid)

    def _wait_for_targets(
        self, eligible: Eligible, result: HeadRequeue, line: Line, inadmissible: Requeue
    ) -> bool:
        """Preempt the targets of a head; whether that changes what the next cycle decides.

        In Kueue the whole ClusterQueue waits with its head. Here those behind it are decided about
        in the cycles that follow, after it, and may take what it does not need; but they preempt
        nothing, so the queue preempts for one Workload at a time.
        """
        info = eligible.info
        holder = line.holder()
        new = [found for found in result.targets if found.workload.key not in self._preempted]
        if holder is not None and holder is not eligible:
            if new:
                text = f"waiting for the preemptions of workload {holder.info.key} ahead"
                inadmissible = Requeue(info.key, PendingReason.PENDING_EVALUATION, text)
            self._put_aside(eligible, line, inadmissible)
            return True
        self._requeues[info.key] = inadmissible
        running = [self._preempt(info, target) for target in new]
        if holder is None and all(running):
            line.hold_room()
            return bool(new) or self._passes_holder(eligible)
        return bool(new)

    def _passes_holder(self, holder: Eligible) -> bool:
        """Whether those behind a head that waits for its targets are decided about."""
        return self._features.sticky_preemptors and not holder.queue.is_strict

    def _put_failed_aside(self, waiting: Mapping[str, Line]) -> bool:
        """When nothing else is left to do: heads that lost to another head hold up no queue."""
        failed, self._failed = self._failed, {}
        found = [one for one in failed.values() if not one.queue.is_strict]
        for one in found:
            line, requeue = waiting[one.queue.name], self._requeues[one.info.key]
            self._put_aside(one, line, requeue, after_others=True)
        return bool(found)

    def _remove(self, eligible: Eligible, line: Line) -> None:
        """Remove a head of a queue: the one that waits for its targets, or the first one."""
        if line.holder() is eligible:
            line.pop_holder()
        else:
            line.pop()

    def _tries_next_flavor(self, eligible: Eligible, result: HeadRequeue) -> bool:
        """Whether a head without a fitting domain is to try the other flavors of its queue.

        Kueue resumes with the next flavor in its next cycle.
        """
        if not result.rejected or result.targets or len(eligible.queue.flavors) == 1:
            return False
        key = eligible.info.key
        new = {(found.podset, found.flavor): found for found in result.rejected}
        self._rejected[key] = {**self._rejected.get(key, {}), **new}
        return True

    def _put_aside(
        self,
        head: Eligible,
        line: Line,
        inadmissible: Requeue,
        *,
        same_shape: bool = False,
        by_quota: bool = False,
        after_others: bool = False,
        known: HeadRequeue | None = None,
    ) -> None:
        """Remove a head of a queue, and with `same_shape` those that would get the same.

        With `by_quota` it waits for quota, whatever domains are free; `known` says for how long.
        With `after_others` it waits as long as the same heads of other queues stay.
        """
        if line.holder() is head:
            found = [line.park_holder(inadmissible)]
        else:
            found = line.park(
                inadmissible,
                same_shape=same_shape,
                by_quota=by_quota,
                after_others=after_others,
                known=known,
            )
        self._requeues.pop(head.info.key, None)
        for eligible in found:
            key = eligible.info.key
            self._requeues[key] = replace(inadmissible, workload=key)

    def _is_put_aside(self, eligible: Eligible, result: HeadRequeue) -> bool:
        if result.inadmissible:
            return True
        impossible = result.requeue is RequeueReason.NO_FIT and result.reason in _NEVER_FITS
        if eligible.queue.is_strict:
            skips = self._features.strict_fifo_skips_impossible
            return impossible and skips and not self._could_fit_with_fewest_pods(eligible)
        # Flavors that are left to try were tried in this cycle: the plan would be the same.
        return result.is_of_shape

    def _could_fit_with_fewest_pods(self, eligible: Eligible) -> bool:
        """Whether a head that never fits whole may fit one day with the pods that are enough."""
        head = self._pending(eligible)
        if all(podset.min_count is None for podset in head.podsets):
            return False
        fewest = tuple(
            replace(podset, request=replace(podset.request, count=podset.min_count))
            if podset.min_count is not None
            else podset
            for podset in head.podsets
        )
        found = nominate_head(self._state, replace(head, podsets=fewest))
        return found.mode is not FlavorAssignmentMode.NO_FIT

    def _pending(self, eligible: Eligible) -> PendingWorkload:
        info = eligible.info
        found = self._heads.get(info.key)
        if found is None:
            found = pending_workload(info, eligible.queue.name, self._snapshot.priorities)
            self._heads[info.key] = found
        rejected = self._rejected.get(info.key)
        return found if rejected is None else replace(found, rejected=rejected)

    def _with_checks(self, eligible: Eligible, assignment: Assignment) -> Assignment:
        """The assignment, as a reservation of quota if admission checks apply to it."""
        flavors = {name for part in assignment.podsets for name in part.flavors.values()}
        checks = required_checks(eligible.queue.checks, flavors)
        if not checks:
            return assignment
        podsets = [podset.request for podset in eligible.info.podsets]
        offer = Offer(eligible.queue, self._snapshot.flavors)
        return reservation(assignment, checks, podsets, offer)

    def _admit(self, eligible: Eligible, assignment: Assignment) -> None:
        info = eligible.info
        self._requeues.pop(info.key, None)
        text = _too_large(info, assignment)
        if text is not None:
            self._set_aside(eligible, Requeue(info.key, PendingReason.MISCONFIGURED, text))
            return
        running = RunningWorkload(
            key=info.key,
            uid=info.uid,
            cluster_queue=assignment.cluster_queue,
            priority=priority_of(info, self._snapshot.priorities),
            queue_timestamp=seconds(info.queue_timestamp),
            reserved_at=NEWEST,
            evicted=False,
            usage=quota_usage(assignment),
            charges=topology_charges(info, assignment),
            pods=sum(part.count for part in assignment.podsets),
            lasts_s=info.execution_time_s,
            local_queue=info.queue,
            was_preempted=info.was_preempted,
            across=info.across,
        )
        self._charge_entry_penalty(eligible, running.usage)
        self._state.add(running)
        self._undo.callback(self._remove_admitted, info.key)
        self._record(eligible, self._admission(info, assignment))

    def _charge_entry_penalty(self, eligible: Eligible, quota: Quota) -> None:
        """The next Workload of its LocalQueue comes later, already in this plan."""
        usage = self._snapshot.local_queue_usage
        if usage is not None and eligible.queue.usage_based:
            usage.admit(eligible.info.queue, amounts_of(quota))

    def _admission(self, info: WorkloadInfo, assignment: Assignment) -> Admit | Requeue:
        """Admit a Workload, unless it has to wait for pods of others (`blockAdmission`)."""
        if self._unready:
            # Its quota stays charged in this plan: it goes first when all pods are ready.
            return requeue(info, ADMISSION_BLOCKED)
        if self._unready is not None and not info.elastic:
            self._unready.add(info.key)
        return Admit(info.key, assignment)

    def _record(self, eligible: Eligible, decision: Admit | Requeue) -> None:
        if isinstance(decision, Requeue):
            self._set_aside(eligible, decision)
            return
        self._admitted[decision.workload] = decision
        self._eligible[decision.workload] = eligible

    def _set_aside(self, eligible: Eligible, inadmissible: Requeue) -> None:
        """One that was removed from its line is not admitted."""
        self._requeues[inadmissible.workload] = inadmissible
        self._pending_queues.set_aside(eligible, inadmissible)

    def _remove_admitted(self, key: str) -> None:
        """Release what was admitted in this plan, if it was not preempted in the same plan."""
        if key in self._state.running:
            self._state.remove(key)

    def _preempt(self, preemptor: WorkloadInfo, target: Target) -> bool:
        """Preempt a target; False if this plan had admitted it, so that nothing runs yet."""
        found = target.workload
        for key in (found.key, *self._slices.get(found.key, ())):
            if self._admitted.pop(key, None) is not None:
                reason = PendingReason.WAITING_FOR_QUOTA
                self._set_aside(self._eligible[key], Requeue(key, reason, NO_LONGER_FITS))
                self._given_back.add(self._eligible[key].queue.name)
        if found.key in self._requeues:
            # It was to be admitted by this plan: it waits instead of being evicted at once.
            self._preempted.add(found.key)
            self._remove_admitted(found.key)
            return False
        self._mark_evicted(found.key)
        if found.evicted:
            return True
        text = (
            "Preempted to accommodate a workload "
            f"(UID: {preemptor.uid}, JobUID: {preemptor.owner_uid}) due to {_CAUSES[target.reason]}"
        )
        self._decisions.append(Preempt(found.key, preemptor.key, target.reason, text))
        return True

    def _mark_evicted(self, key: str) -> None:
        """A Workload is being evicted: it still uses its quota, and is preempted first."""
        self._preempted.add(key)
        before = self._state.running.get(key)
        if before is not None:
            self._state.replace(replace(before, evicted=True))
            self._undo.callback(self._state.replace, before)

    def _decide_slice(self, eligible: Eligible, line: Line) -> bool:
        """Decide about the slice at the head of a queue; whether the next one is the head now."""
        info, family = eligible.info, eligible.family or SliceFamily()
        if info.parent in self._preempted:
            text = f"the slice is pending: its parent Workload {info.parent} is evicted"
            self._put_aside(eligible, line, Requeue(info.key, PendingReason.ON_HOLD, text))
            return True
        head = self._pending(eligible)
        tried = nominate_slice(self._state, head, eligible.queue, family)
        found: Inadmissible | Assignment
        if isinstance(tried, Inadmissible):
            found = tried
        else:
            found = tried.assignment(eligible.queue.name)
            problem = _too_large(info, found)
            if problem is not None:
                found = Inadmissible(PendingReason.MISCONFIGURED, problem)
        if isinstance(found, Inadmissible):
            if self._blocks(eligible, head, family, found):
                self._requeues[info.key] = requeue(info, found)
                return False
            self._put_aside(eligible, line, requeue(info, found))
            return True
        line.pop()
        self._admit_slice(eligible, family, found)
        return True

    def _blocks(
        self, eligible: Eligible, head: PendingWorkload, family: SliceFamily, tried: Inadmissible
    ) -> bool:
        """Whether a slice that does not fit blocks its StrictFIFO queue (ADR 13)."""
        if not eligible.queue.is_strict or tried.reason == PendingReason.MISCONFIGURED:
            return False
        return not self._features.strict_fifo_skips_impossible or could_ever_fit(
            self._state, head, eligible.queue, family
        )

    def _admit_slice(self, eligible: Eligible, family: SliceFamily, assignment: Assignment) -> None:
        info = eligible.info
        self._slices.setdefault(info.parent, []).append(info.key)
        self._requeues.pop(info.key, None)
        added = {
            pair: amount - family.take_over_excess(pair, amount)
            for pair, amount in quota_usage(assignment).items()
        }
        self._charge_entry_penalty(eligible, added)
        node = self._state.tree.queues[eligible.queue.name]
        node.add(added)
        self._undo.callback(node.remove, added)
        charges = topology_charges(info, assignment)
        self._state.charge(charges, 1)
        self._state.note_change(eligible.queue.name, domains=bool(charges))
        for part in assignment.podsets:
            if part.topology is not None:
                family.assignments.setdefault(part.name, []).append(part.topology)
        self._record(eligible, self._admission(info, assignment))


def _too_large(info: WorkloadInfo, assignment: Assignment) -> str | None:
    parts = assignment.podsets
    placed = {part.name: part.topology for part in parts if part.topology is not None}
    return too_large(placed, info.size)


def _behind_head(eligible: Eligible, queue: str, denial: Denial | None = None) -> Requeue:
    """The requeue of a Workload that no cycle has come to."""
    strict = "StrictFIFO " if eligible.queue.is_strict else ""
    text = f"waiting for the workloads ahead in {strict}ClusterQueue {queue}"
    if denial is not None:
        text += f"; not admitted ahead of them: {denial}"
    return Requeue(eligible.info.key, PendingReason.PENDING_EVALUATION, text)

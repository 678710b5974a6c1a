"""One scheduling cycle over the heads of all ClusterQueues.

1. Each head is nominated on the same state (`nominate_head`), unless it is still short of the quota
   that an earlier head of its shape was short of (`shortage`), or nothing has happened since its
   last nomination (`kept_nominations`).
2. Heads are processed one after another in the order of `head_order`, with the effects of those
   before: what they admit, what they preempt, and what they hold.
3. A head that fits is admitted; one with targets preempts them, and holds its quota and domains;
   the others are requeued, with a reason.

The usage of a target stays in the state until the Workload is gone: it is left out only when the
room of a head is computed.

Inputs: at most one head for each ClusterQueue, and the state. The state is the same when the cycle
ends: whoever writes the results adds the admitted Workloads to it.
Invariants: nothing is preempted unless the preemptor then fits; no target belongs to two heads.
Complexity: one nomination for each head, two if heads compete for targets or nodes.
Source: conformance/quota, sections 5, 13, 14 and 15; `scheduler.go` of Kueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Final

from rackgate.api.names import PendingReason
from rackgate_assigner.preemption.targets import Target
from rackgate_assigner.quota.queues import ANY, ClusterQueueInfo, FlavorResource, Quota, selects
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_assigner.scheduler.head_order import NominatedHead, in_order
from rackgate_assigner.scheduler.nomination.kept_nominations import KeptNominations
from rackgate_assigner.scheduler.nomination.nominate_head import assign_room, nominate_head
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    Nomination,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.shortage import Shortage, is_still_short, shortage_of
from rackgate_assigner.workload.decisions import Assignment, TopologyNotFound
from rackgate_assigner.workload.info import Charge

NAMESPACE_MISMATCH_TEXT: Final = "workload namespace doesn't match ClusterQueue selector"
OVERLAPPING: Final = "Workload has overlapping preemption targets with another workload"
DEFERRED: Final = f"{OVERLAPPING}, but will fit after these preemptions complete"
NO_LONGER_FITS: Final = "Workload no longer fits after processing another workload"


class RequeueReason(StrEnum):
    """Why a head goes back."""

    NO_FIT = "NoFit"
    PREEMPTION_NO_CANDIDATES = "PreemptionNoCandidates"
    PENDING_PREEMPTION = "PendingPreemption"
    FAILED_AFTER_NOMINATION = "FailedAfterNomination"
    NAMESPACE_MISMATCH = "NamespaceMismatch"


@dataclass(frozen=True, slots=True)
class HeadRequeue:
    """A head that is not admitted.

    Attributes:
        reason: of the condition QuotaReserved; "" if there is none.
        message: of the same condition.
        requeue: why it goes back.
        inadmissible: it waits until something changes, not only for the next cycle.
        targets: Workloads that are preempted for it.
        rejected: PodSets that fit no domain of the flavor that has the quota.
        short_of_quota: it waits for quota, whatever the domains.
        after_others: it was decided about without what heads before it took or hold.
        shortage: the answer holds while this does; None if it depends on more.
    """

    head: PendingWorkload
    reason: str
    message: str
    requeue: RequeueReason
    inadmissible: bool
    targets: tuple[Target, ...] = ()
    rejected: tuple[TopologyNotFound, ...] = ()
    short_of_quota: bool = False
    after_others: bool = False
    shortage: Shortage | None = None

    @property
    def is_of_shape(self) -> bool:
        """Whether it holds for all Workloads of the same shape."""
        return self.requeue in (RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES)


@dataclass(frozen=True, slots=True)
class HeadAdmission:
    """A head that is admitted."""

    head: PendingWorkload
    assignment: Assignment


HeadResult = HeadAdmission | HeadRequeue
_NONE: Final[Mapping[str, HeadRequeue]] = {}


def run_cycle(
    state: QuotaState,
    heads: Iterable[PendingWorkload],
    namespaces: Mapping[str, Mapping[str, str]],
    first: AbstractSet[str] = frozenset(),
    known: Mapping[str, HeadRequeue] = _NONE,
    *,
    kept: KeptNominations | None = None,
) -> list[HeadResult]:
    """Decide about the heads.

    Args:
        state: the same when the call returns.
        heads: at most one for each ClusterQueue.
        namespaces: name to labels.
        first: keys of heads that are processed before all others.
        known: by head, an earlier result of one of its shape, with a shortage.
        kept: nominations of earlier cycles on this state; those of this cycle are added.

    Returns:
        One result for each head, in the order in which they were processed.
    """
    results: list[HeadResult] = []
    nominated: list[NominatedHead] = []
    short: list[tuple[HeadRequeue, Shortage]] = []
    for head in heads:
        queue = state.queues[head.cluster_queue]
        before = known.get(head.key)
        if not selects(queue.selector, namespaces.get(head.namespace, {})):
            reason, requeue = PendingReason.MISCONFIGURED, RequeueReason.NAMESPACE_MISMATCH
            results.append(HeadRequeue(head, reason, NAMESPACE_MISMATCH_TEXT, requeue, True))
        elif before and before.shortage and is_still_short(state, head, before.shortage):
            short.append((replace(before, head=head), before.shortage))
        else:
            nominated.append(NominatedHead(head, _nominate(state, head, kept)))
    frees = any(found.nomination.targets for found in nominated)
    in_tournaments = state.fair_sharing is not None
    is_alone = not nominated
    for result, shortage in short:
        if is_alone or not (frees or in_tournaments or shortage.keeps_room):
            results.append(result)
        else:  # it keeps room from others, changes their order, or they free what it waits for
            nominated.append(NominatedHead(result.head, _nominate(state, result.head, kept)))
    cycle = _Cycle(state)
    try:
        results += [cycle.process(found) for found in in_order(state, nominated, first)]
    finally:
        cycle.undo()
    return results


def _nominate(state: QuotaState, head: PendingWorkload, kept: KeptNominations | None) -> Nomination:
    if kept is None:
        return nominate_head(state, head)
    found = kept.get(state, head)
    if found is None:
        found = nominate_head(state, head)
        kept.put(state, head, found)
    return found


class _Room(Enum):
    """Whether a head still fits, without the targets."""

    COMPLETE = auto()
    ONLY_DOMAINS_MISSING = auto()
    QUOTA_MISSING = auto()


class _Cycle:
    """The effects of the heads processed so far.

    The quota of targets stays in use. Their domains are free, as they are for the room of all
    heads that follow; `_with_domains_of` has them in use again.
    """

    def __init__(self, state: QuotaState) -> None:
        self._state = state
        self._preempted: dict[str, RunningWorkload] = {}
        # Quota of targets, by root and ClusterQueue.
        self._freed: dict[QuotaNode, dict[QuotaNode, dict[FlavorResource, int]]] = {}
        self._charges: list[tuple[Charge, ...]] = []
        # Of admitted heads: nominations of one cycle do not see which domain they have.
        self._across: set[str] = set()
        self._usage_before: dict[QuotaNode, dict[FlavorResource, int]] = {}

    def undo(self) -> None:
        """Leave the state as it was before the first head."""
        for node, usage in self._usage_before.items():
            node.usage = usage
        for charges in reversed(self._charges):
            self._state.charge(charges, -1)
        for workload in self._preempted.values():
            self._state.charge(workload.charges, 1)

    def process(self, found: NominatedHead) -> HeadResult:
        """Decide about one head, with the effects of those before."""
        head, nomination = found.head, found.nomination
        queue = self._state.queues[head.cluster_queue]
        if nomination.mode is FlavorAssignmentMode.NO_FIT:
            return self._no_fit(head, nomination, queue)
        if head.across in self._across:
            return self._failed(head, NO_LONGER_FITS)
        if nomination.waits and not self._has_changed_domains:
            return self._without_targets(head, nomination, queue)
        room = self._room(head, nomination)
        overlapping = self._overlaps(nomination)
        if overlapping or (room is _Room.ONLY_DOMAINS_MISSING and self._has_changed_domains):
            nomination = self._nominate_again(head, nomination, overlapping)
            nomination.after_others = True
            if nomination.mode is FlavorAssignmentMode.NO_FIT:
                return self._no_fit(head, nomination, queue)
            room = self._room(head, nomination)
        if nomination.waits:
            return self._without_targets(head, nomination, queue)
        if overlapping and nomination.mode is FlavorAssignmentMode.FIT:
            self._hold(queue, nomination.usage, nomination.charges)
            reason = PendingReason.WAITING_FOR_PREEMPTED
            return HeadRequeue(head, reason, DEFERRED, RequeueReason.PENDING_PREEMPTION, False)
        if self._overlaps(nomination):
            return self._failed(head, OVERLAPPING)
        if room is not _Room.COMPLETE:
            return self._failed(head, NO_LONGER_FITS)
        return self._admit_or_preempt(head, nomination, queue)

    @property
    def _has_changed_domains(self) -> bool:
        """Whether a head before took or freed domains, so that another nomination may differ."""
        return any(self._charges) or any(one.charges for one in self._preempted.values())

    def _overlaps(self, nomination: Nomination) -> bool:
        return any(target.workload.key in self._preempted for target in nomination.targets)

    def _room(self, head: PendingWorkload, nomination: Nomination) -> _Room:
        """Room without all targets so far, and those of the head.

        A head without targets gets its domains here, as nothing else reads them before.
        """
        node = self._state.tree.queues[head.cluster_queue]
        own = [target.workload for target in nomination.targets]
        new = [workload for workload in own if workload.key not in self._preempted]
        # Quota of other trees makes no difference.
        freed = self._freed.get(node.root, {})
        for at, usage in freed.items():
            at.remove(usage)
        with self._state.released(new):
            if not self._state.has_room(node, nomination.usage):
                room = _Room.QUOTA_MISSING
            else:
                if nomination.waits:
                    assign_room(self._state, head, nomination)
                has_domains = self._state.domains_have_room(nomination.charges)
                room = _Room.COMPLETE if has_domains else _Room.ONLY_DOMAINS_MISSING
        for at, usage in freed.items():
            at.add(usage)
        return room

    def _nominate_again(
        self, head: PendingWorkload, nomination: Nomination, overlapping: bool
    ) -> Nomination:
        """A nomination in the same flavors, as others took its targets or its nodes."""
        targets = list(self._preempted.values())
        if not overlapping:
            with self._with_domains_of(targets):
                return nominate_head(self._state, head, only=nomination)
        # Quota of other trees makes no difference, and the domains of all targets are free.
        root = self._state.tree.queues[head.cluster_queue].root
        own = [workload for workload in targets if self._state.node_of(workload).root is root]
        with self._with_domains_of(own), self._state.without(own):
            return nominate_head(self._state, head, only=nomination)

    @contextmanager
    def _with_domains_of(self, targets: Sequence[RunningWorkload]) -> Iterator[None]:
        for workload in targets:
            self._state.charge(workload.charges, 1)
        try:
            yield
        finally:
            for workload in targets:
                self._state.charge(workload.charges, -1)

    def _no_fit(
        self, head: PendingWorkload, nomination: Nomination, queue: ClusterQueueInfo
    ) -> HeadRequeue:
        reason = nomination.no_fit_reason(queue)
        return self._requeue(head, nomination, queue, reason, RequeueReason.NO_FIT)

    def _without_targets(
        self, head: PendingWorkload, nomination: Nomination, queue: ClusterQueueInfo
    ) -> HeadRequeue:
        """A head that preemption does not help; it may keep others from what it waits for."""
        if queue.reclaim_within_cohort != ANY:
            assign_room(self._state, head, nomination)
            self._hold(queue, self._held_quota(queue, nomination), nomination.charges)
        reason, requeue = PendingReason.WAITING_FOR_QUOTA, RequeueReason.PREEMPTION_NO_CANDIDATES
        return self._requeue(head, nomination, queue, reason, requeue)

    def _requeue(
        self,
        head: PendingWorkload,
        nomination: Nomination,
        queue: ClusterQueueInfo,
        reason: str,
        requeue: RequeueReason,
    ) -> HeadRequeue:
        inadmissible = queue.strategy != "StrictFIFO" and not nomination.has_flavors_to_try
        return HeadRequeue(
            head,
            reason,
            nomination.message,
            requeue,
            inadmissible,
            rejected=nomination.rejected,
            short_of_quota=nomination.short_of_quota,
            after_others=nomination.after_others,
            shortage=shortage_of(self._state, head, nomination),
        )

    def _failed(self, head: PendingWorkload, message: str) -> HeadRequeue:
        reason, requeue = PendingReason.WAITING_FOR_QUOTA, RequeueReason.FAILED_AFTER_NOMINATION
        return HeadRequeue(head, reason, message, requeue, False)

    def _admit_or_preempt(
        self, head: PendingWorkload, nomination: Nomination, queue: ClusterQueueInfo
    ) -> HeadResult:
        targets = nomination.targets
        for target in targets:
            self._preempt(target.workload)
        self._hold(queue, nomination.usage, nomination.charges)
        if nomination.mode is FlavorAssignmentMode.FIT:
            if head.across:
                self._across.add(head.across)
            return HeadAdmission(head, nomination.assignment(queue.name))
        message = f"{nomination.message}. Pending the preemption of {len(targets)} workload(s)"
        reason, requeue = PendingReason.WAITING_FOR_PREEMPTED, RequeueReason.PENDING_PREEMPTION
        return HeadRequeue(head, reason, message, requeue, False, targets)

    def _preempt(self, workload: RunningWorkload) -> None:
        self._preempted[workload.key] = workload
        self._state.charge(workload.charges, -1)
        node = self._state.node_of(workload)
        freed = self._freed.setdefault(node.root, {}).setdefault(node, {})
        for pair, amount in workload.usage.items():
            freed[pair] = freed.get(pair, 0) + amount

    def _held_quota(self, queue: ClusterQueueInfo, nomination: Nomination) -> Quota:
        """What a head without targets keeps from those that follow.

        Never less than nothing: in a ClusterQueue beyond its limit, Kueue holds a negative amount,
        after which those that preempt there find no room.
        """
        node = self._state.tree.queues[queue.name]
        held = {}
        for pair, amount in nomination.usage.items():
            nominal, used = node.nominal.get(pair, 0), node.usage.get(pair, 0)
            limit = node.borrowing_limit.get(pair)
            if nomination.borrow_level == 0:
                held[pair] = max(0, min(amount, nominal - used))
            elif limit is None:
                held[pair] = amount
            else:
                held[pair] = max(0, min(amount, nominal + limit - used))
        return held

    def _hold(self, queue: ClusterQueueInfo, usage: Quota, charges: tuple[Charge, ...]) -> None:
        """Add usage of quota and domains until the end of the cycle."""
        node = self._state.tree.queues[queue.name]
        for above in node.path:
            if above not in self._usage_before:
                self._usage_before[above] = dict(above.usage)
        node.add(usage)
        self._state.charge(charges, 1)
        self._charges.append(charges)

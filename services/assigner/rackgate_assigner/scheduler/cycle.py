"""One scheduling cycle: waiting Workloads in order, quota, then topology, then a decision each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rackgate.api.names import EvictionReason, PendingReason, PreemptedReason
from rackgate.features import Features
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.active import Activity, cluster_queue_activity
from rackgate_assigner.quota.queues import ClusterQueueRow, FlavorResource, without_topologies
from rackgate_assigner.quota.selectors import selects
from rackgate_assigner.scheduler.evictions import evictions
from rackgate_assigner.scheduler.flavor_assigner import FlavorPlan, Offer
from rackgate_assigner.scheduler.nominate import Granting, Timing, untimed
from rackgate_assigner.scheduler.order import cycle_order, priority_of
from rackgate_assigner.scheduler.preemption import Preemption, Waiting
from rackgate_assigner.scheduler.request_validation import (
    conflicting_requests,
    misordered_levels,
    missing_requests,
    unknown_levels,
)
from rackgate_assigner.workload.decisions import (
    Admit,
    Deactivate,
    Decision,
    Evict,
    Grant,
    Hold,
    Preempt,
)
from rackgate_assigner.workload.inadmissible import Refusal, backing_off
from rackgate_assigner.workload.info import WorkloadRow
from rackgate_assigner.workload_slices.admission import (
    Family,
    locked_queue,
    parent_refusal,
    told_locked,
)

MESSAGE_LIMIT: Final = 1024
OVERLAPPING: Final = (
    "Workload has overlapping preemption targets with another workload, but will fit after these "
    "preemptions complete"
)


def plan(snapshot: Snapshot, features: Features, timing: Timing = untimed) -> list[Decision]:
    """Decide about every Workload of the snapshot; the same snapshot gives the same decisions.

    Admissions are charged to the snapshot's own copies as they are made, so no two share room.

    Args:
        snapshot: used up by this call: its free amounts are changed.
        features: feature gates.
        timing: measures each placement; decisions do not depend on it.

    Returns:
        Evictions by key, then admissions, deactivations and holds in cycle order; who has to
        give way comes before the hold of the one that waits for it. A hold that the Workload's
        condition says already is left out, unless a defect of ours is behind it.
    """
    if not features.topology_aware_scheduling:
        snapshot.flavors = without_topologies(snapshot.flavors)
    leaving = evictions(snapshot.holding, snapshot.local_queues, snapshot.cluster_queues)
    decisions: list[Decision] = [*leaving]
    cycle = _Cycle(snapshot, features, timing, leaving)
    for row in cycle_order(snapshot.waiting, snapshot.priorities):
        decision = cycle.answer(row)
        decisions += cycle.preemptions_since()
        if not isinstance(decision, Hold) or _is_news(row, decision):
            decisions.append(decision)
    return decisions


def _is_news(row: WorkloadRow, hold: Hold) -> bool:
    told = (row.pending_reason, row.pending_message) == (hold.reason, hold.message)
    return not told or bool(hold.error)


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 3]}..."


def _hold(row: WorkloadRow, refusal: Refusal) -> Hold:
    return Hold(row.key, refusal.reason, _cut(refusal.message), refusal.refused)


def _defect(row: WorkloadRow, error: Exception) -> Hold:
    """The hold of a Workload that nothing could be decided about."""
    said = " ".join(str(error).split())[:200]
    message = (
        f"internal error while deciding about this workload: {type(error).__name__}: {said}; "
        "other workloads are not affected, the assigner's log has the details"
    )
    lines = "".join(traceback.format_exception(error))
    return Hold(row.key, PendingReason.INTERNAL_ERROR, message, error=lines)


def _problem(row: WorkloadRow, *, both_levels: bool) -> str:
    """What is wrong with the Workload whatever queue it is in; empty when nothing is."""
    problems = [podset.problem for podset in row.podsets if podset.problem]
    podsets = [podset.request for podset in row.podsets]
    return "; ".join(problems or conflicting_requests(podsets, both_levels=both_levels))


class _Cycle:
    """State of one cycle: what was refused already, and which StrictFIFO queues are blocked."""

    def __init__(
        self,
        snapshot: Snapshot,
        features: Features,
        timing: Timing,
        evicted: Sequence[Evict],
    ) -> None:
        self.snapshot, self.features = snapshot, features
        self.leaving = snapshot.leaving.union(evict.workload for evict in evicted)
        self.preemption = Preemption(
            snapshot.running, snapshot.priorities, snapshot.flavors, self.leaving
        )
        self._preempted: list[Preempt] = []
        self.granting = Granting(snapshot, features, timing)
        self.activities: dict[str, Activity] = {}
        # Where a LocalQueue (`namespace/name`) leads to.
        self.routes: dict[str, ClusterQueueRow | Refusal] = {}
        # Room and quota only shrink within a cycle: a shape refused once is refused again.
        self.refused: dict[tuple[str, Hashable], Refusal] = {}
        self.blocked: set[str] = set()
        # Refused heads of StrictFIFO queues, not yet asked whether they can ever be admitted:
        # that costs a placement, and without a Workload behind them nobody needs to know.
        self.heads: dict[str, Callable[[], bool]] = {}

    def preemptions_since(self) -> list[Preempt]:
        """Who has to give way, of those that were not told before."""
        told, self._preempted = self._preempted, []
        return told

    def answer(self, row: WorkloadRow) -> Decision:
        """As `decide`; a defect of ours holds this Workload and no other."""
        try:
            return self.decide(row)
        except Exception as error:  # noqa: BLE001 - told by the hold, logged by the cycle
            return _defect(row, error)

    def decide(self, row: WorkloadRow) -> Decision:
        """Admit, hold or deactivate one Workload."""
        if row.requeue_at:
            return _hold(row, backing_off(row.requeue_at))
        queue = self.routes.get(row.queue)
        if queue is None:
            queue = self.routes[row.queue] = self._queue_of(row)
        if isinstance(queue, Refusal):
            return _hold(row, queue)
        family = self.snapshot.families.get(row.parent, Family()) if row.parent else None
        orphaned = self._orphaned(row, family)
        if orphaned is not None:
            return _hold(row, orphaned)
        known = self.refused.get((queue.name, row.shape))
        if known is not None and not self._behind_head(queue.name):
            return _hold(row, known)
        both_levels = self.features.required_and_preferred
        problem = _problem(row, both_levels=both_levels)
        if problem:
            # What only its owner can mend must not hold up a whole queue.
            return _hold(row, Refusal(PendingReason.MISCONFIGURED, problem))
        offer = self._offer(row, queue, family)
        if isinstance(offer, Refusal):
            return _hold(row, offer)
        invalid = self._invalid(row, offer)
        if invalid is not None:
            # What a slice asks for is what its parent, which runs, was given.
            if self.features.deactivate_invalid_topology and not row.parent:
                reason = EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
                return Deactivate(row.key, reason, _cut(invalid.message))
            return _hold(row, invalid)
        if self._behind_head(queue.name):
            text = f"waiting for the workloads ahead in StrictFIFO ClusterQueue {queue.name}"
            return _hold(row, Refusal(PendingReason.PENDING_EVALUATION, text))
        podsets = [podset.request for podset in row.podsets]
        tried = self.granting.grant(offer, podsets, row.size, family)
        if isinstance(tried, Grant):
            return Admit(row.key, tried)
        tried = self._told(row, queue, offer, family, tried)
        if tried.short is None:
            self.refused[queue.name, row.shape] = tried
        # What only its owner can mend must not hold up a whole queue.
        if queue.strategy == "StrictFIFO" and tried.reason != PendingReason.MISCONFIGURED:
            self.heads[queue.name] = partial(self.granting.possible, offer, podsets, family)
        return _hold(row, tried)

    def _behind_head(self, queue: str) -> bool:
        """Whether a StrictFIFO queue waits for a Workload that was refused before.

        A head that does not fit even an empty queue and empty nodes would hold all others for
        ever, so it is passed over until the queue or the nodes change (ADR 13).
        """
        head = self.heads.pop(queue, None)
        if head is not None and (not self.features.strict_fifo_skips_impossible or head()):
            self.blocked.add(queue)
        return queue in self.blocked

    def _orphaned(self, row: WorkloadRow, family: Family | None) -> Refusal | None:
        """Why a slice is not looked at; None for any other Workload."""
        if family is None:
            return None
        enabled = self.features.elastic_jobs
        return parent_refusal(row, family, self.leaving | self.preemption.taken, enabled=enabled)

    def _offer(
        self, row: WorkloadRow, queue: ClusterQueueRow, family: Family | None
    ) -> Offer | Refusal:
        """What the queue offers to this Workload; to a slice, its parent's flavors alone."""
        offered: ClusterQueueRow | Refusal = queue
        if family is not None and family.parent is not None:
            offered = locked_queue(row, family.parent, queue)
        if isinstance(offered, Refusal):
            return offered
        used: Mapping[FlavorResource, int] = self.snapshot.used.setdefault(queue.name, {})
        if family is not None:
            used = family.used_by_others(used)
        yields = self.preemption.yields(queue, self._waiting(row))
        return Offer(offered, self.snapshot.flavors, used, yields)

    def _waiting(self, row: WorkloadRow) -> Waiting:
        return Waiting(row.key, row.parent, priority_of(row, self.snapshot.priorities), row.age)

    def _told(
        self,
        row: WorkloadRow,
        queue: ClusterQueueRow,
        offer: Offer,
        family: Family | None,
        tried: Refusal,
    ) -> Refusal:
        """A refusal in the words for this Workload, once it is known who gives way to it."""
        if tried.short is not None:
            tried = self._preempt(row, queue, offer, tried, tried.short)
        if family is not None and family.parent is not None and offer.queue != queue:
            podsets = [podset.request.name for podset in row.podsets]
            tried = replace(tried, message=told_locked(tried.message, family.parent, podsets))
        return tried

    def _preempt(
        self,
        row: WorkloadRow,
        queue: ClusterQueueRow,
        offer: Offer,
        tried: Refusal,
        short: FlavorPlan,
    ) -> Refusal:
        """Choose who gives way, and keep what they hold for this Workload alone."""
        used, nominal = self.snapshot.used[queue.name], queue.nominal
        room = {pair: nominal.get(pair, 0) - used.get(pair, 0) for pair in short.request}
        chosen = self.preemption.choose(queue, self._waiting(row), short.request, short.short, room)
        if chosen is None:
            return replace(tried, short=None)
        text = (
            "Preempted to accommodate a workload "
            f"(UID: {row.uid}, JobUID: {row.owner_uid}) due to prioritization in the ClusterQueue"
        )
        self._preempted += [
            Preempt(victim.row.key, row.key, PreemptedReason.IN_CLUSTER_QUEUE, text)
            for victim in chosen
            if not self.preemption.is_leaving(victim)
        ]
        for pair, amount in short.request.items():
            used[pair] = used.get(pair, 0) + amount
        message = f"{tried.message}. Pending the preemption of {len(chosen)} workload(s)"
        if not chosen:
            message = OVERLAPPING
        return replace(tried, reason=PendingReason.WAITING_FOR_PREEMPTED, message=message)

    def _queue_of(self, row: WorkloadRow) -> ClusterQueueRow | Refusal:
        """The active ClusterQueue the Workload leads to, or why it leads to none."""
        local = self.snapshot.local_queues.get(row.queue)
        if local is None:
            name = row.queue.partition("/")[2]
            text = f"LocalQueue {name} doesn't exist" if name else "no LocalQueue is named"
            return Refusal(PendingReason.MISCONFIGURED, text)
        if local.stop_policy != "None" or local.deleting:
            name = row.queue.partition("/")[2]
            return Refusal(PendingReason.SUSPENDED, f"LocalQueue {name} is inactive")
        queue = self.snapshot.cluster_queues.get(local.cluster_queue)
        if queue is None:
            text = f"ClusterQueue {local.cluster_queue} doesn't exist"
            return Refusal(PendingReason.MISCONFIGURED, text)
        activity = self._activity(queue)
        if not activity.active:
            stopped = activity.stopped_only
            reason = PendingReason.SUSPENDED if stopped else PendingReason.MISCONFIGURED
            return Refusal(reason, f"ClusterQueue {queue.name} is inactive")
        if not selects(queue.selector, self.snapshot.namespaces.get(row.namespace, {})):
            text = "workload namespace doesn't match ClusterQueue selector"
            return Refusal(PendingReason.MISCONFIGURED, text)
        return queue

    def _activity(self, queue: ClusterQueueRow) -> Activity:
        found = self.activities.get(queue.name)
        if found is None:
            snapshot = self.snapshot
            found = cluster_queue_activity(queue, snapshot.flavors, snapshot.checks, self.features)
            self.activities[queue.name] = found
        return found

    def _invalid(self, row: WorkloadRow, offer: Offer) -> Refusal | None:
        podsets = [podset.request for podset in row.podsets]
        errors = unknown_levels(offer, podsets) + misordered_levels(offer, podsets)
        if self.features.topology_on_all_podsets:
            errors += missing_requests(podsets)
        if not errors:
            return None
        return Refusal(PendingReason.NO_MATCHING_FLAVOR, "; ".join(errors))

"""One scheduling cycle: waiting Workloads in order, quota, then topology, then a decision each."""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Mapping
from typing import Final

from rackgate.api.names import EvictionReason, PendingReason
from rackgate_assigner.core.admission.activity import (
    GATE_TOPOLOGY,
    Activity,
    cluster_queue_activity,
)
from rackgate_assigner.core.admission.evictions import evictions
from rackgate_assigner.core.admission.flavors import Offer
from rackgate_assigner.core.admission.granting import Granting, Refusal, Timing, untimed
from rackgate_assigner.core.admission.invalid import (
    conflicting_requests,
    misordered_levels,
    missing_requests,
    unknown_levels,
)
from rackgate_assigner.core.admission.ordering import cycle_order
from rackgate_assigner.core.admission.queues import ClusterQueueRow, without_topologies
from rackgate_assigner.core.admission.selectors import selects
from rackgate_assigner.core.cycle import Snapshot
from rackgate_assigner.core.decisions import Admit, Deactivate, Decision, Grant, Hold
from rackgate_assigner.core.gates import GATE_BOTH_LEVELS
from rackgate_assigner.core.rows import WorkloadRow

GATE_DEACTIVATE: Final = "DeactivateInvalidTopology"
GATE_REQUIRE_ALL: Final = "RequireTopologyOnAllPodSets"
MESSAGE_LIMIT: Final = 1024


def plan(
    snapshot: Snapshot, features: Mapping[str, bool], timing: Timing = untimed
) -> list[Decision]:
    """Decide about every Workload of the snapshot; the same snapshot gives the same decisions.

    Admissions are charged to the snapshot's own copies as they are made, so no two share room.

    Args:
        snapshot: used up by this call: its free amounts are changed.
        features: state of feature gates; a missing gate has its default.
        timing: measures each placement; decisions do not depend on it.

    Returns:
        Evictions by key, then admissions, deactivations and holds in cycle order. A hold that
        the Workload's condition says already is left out, unless a defect of ours is behind it.
    """
    if not features.get(GATE_TOPOLOGY, True):
        snapshot.flavors = without_topologies(snapshot.flavors)
    decisions: list[Decision] = [
        *evictions(snapshot.holding, snapshot.local_queues, snapshot.cluster_queues)
    ]
    cycle = _Cycle(snapshot, features, timing)
    for row in cycle_order(snapshot.waiting, snapshot.priorities):
        decision = cycle.answer(row)
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

    def __init__(self, snapshot: Snapshot, features: Mapping[str, bool], timing: Timing) -> None:
        self.snapshot, self.features = snapshot, features
        self.granting = Granting(snapshot, features, timing)
        self.activities: dict[str, Activity] = {}
        # Where a LocalQueue (`namespace/name`) leads to.
        self.routes: dict[str, ClusterQueueRow | Refusal] = {}
        # Room and quota only shrink within a cycle: a shape refused once is refused again.
        self.refused: dict[tuple[str, Hashable], Refusal] = {}
        self.blocked: set[str] = set()

    def answer(self, row: WorkloadRow) -> Decision:
        """As `decide`; a defect of ours holds this Workload and no other."""
        try:
            return self.decide(row)
        except Exception as error:  # noqa: BLE001 - told by the hold, logged by the cycle
            return _defect(row, error)

    def decide(self, row: WorkloadRow) -> Decision:
        """Admit, hold or deactivate one Workload."""
        queue = self.routes.get(row.queue)
        if queue is None:
            queue = self.routes[row.queue] = self._queue_of(row)
        if isinstance(queue, Refusal):
            return _hold(row, queue)
        known = self.refused.get((queue.name, row.shape))
        if known is not None and queue.name not in self.blocked:
            return _hold(row, known)
        both_levels = self.features.get(GATE_BOTH_LEVELS, False)
        problem = _problem(row, both_levels=both_levels)
        if problem:
            # What only its owner can mend must not hold up a whole queue.
            return _hold(row, Refusal(PendingReason.MISCONFIGURED, problem))
        offer = Offer(queue, self.snapshot.flavors, self.snapshot.used.setdefault(queue.name, {}))
        invalid = self._invalid(row, offer)
        if invalid is not None:
            if self.features.get(GATE_DEACTIVATE, True):
                reason = EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
                return Deactivate(row.key, reason, _cut(invalid.message))
            return _hold(row, invalid)
        if queue.name in self.blocked:
            text = f"waiting for the workloads ahead in StrictFIFO ClusterQueue {queue.name}"
            return _hold(row, Refusal(PendingReason.PENDING_EVALUATION, text))
        tried = self.granting.grant(offer, [podset.request for podset in row.podsets], row.size)
        if isinstance(tried, Grant):
            return Admit(row.key, tried)
        self.refused[queue.name, row.shape] = tried
        # What only its owner can mend must not hold up a whole queue.
        if queue.strategy == "StrictFIFO" and tried.reason != PendingReason.MISCONFIGURED:
            self.blocked.add(queue.name)
        return _hold(row, tried)

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
        if self.features.get(GATE_REQUIRE_ALL, False):
            errors += missing_requests(podsets)
        if not errors:
            return None
        return Refusal(PendingReason.NO_MATCHING_FLAVOR, "; ".join(errors))

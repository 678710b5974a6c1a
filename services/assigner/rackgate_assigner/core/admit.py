"""One scheduling cycle: waiting Workloads in order, quota, then topology, then a decision each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeAlias

from rackgate.api.names import EvictionReason, PendingReason
from rackgate.domains import TopologyAssignment
from rackgate_assigner.core.activity import Activity, cluster_queue_activity
from rackgate_assigner.core.cycle import Snapshot
from rackgate_assigner.core.decisions import Admit, Deactivate, Decision, Grant, Hold, PodSetGrant
from rackgate_assigner.core.evictions import evictions
from rackgate_assigner.core.flavors import FlavorPlan, Offer, PodSetPlan, choose_flavors
from rackgate_assigner.core.gates import GATE_FIELDS
from rackgate_assigner.core.invalid import missing_requests, unknown_levels
from rackgate_assigner.core.ordering import cycle_order
from rackgate_assigner.core.placement import place
from rackgate_assigner.core.queues import ClusterQueueRow
from rackgate_assigner.core.quota import Mode
from rackgate_assigner.core.rows import Charge, WorkloadRow, quota_of
from rackgate_assigner.core.selectors import selects

GATE_DEACTIVATE: Final = "DeactivateInvalidTopology"
GATE_REQUIRE_ALL: Final = "RequireTopologyOnAllPodSets"
MESSAGE_LIMIT: Final = 1024

# Given a flavor's name, a context that lasts as long as one placement in it.
Timing: TypeAlias = Callable[[str], AbstractContextManager[object]]


def _untimed(_flavor: str) -> AbstractContextManager[object]:
    return nullcontext()


def plan(
    snapshot: Snapshot, features: Mapping[str, bool], timing: Timing = _untimed
) -> list[Decision]:
    """Decide about every Workload of the snapshot; the same snapshot gives the same decisions.

    Admissions are charged to the snapshot's own copies as they are made, so no two share room.

    Args:
        snapshot: used up by this call: its free amounts are changed.
        features: state of feature gates; a missing gate has its default.
        timing: measures each placement; decisions do not depend on it.

    Returns:
        Evictions by key, then admissions, deactivations and holds in cycle order. A hold that
        the Workload's condition says already is left out.
    """
    decisions: list[Decision] = [
        *evictions(snapshot.holding, snapshot.local_queues, snapshot.cluster_queues)
    ]
    cycle = _Cycle(snapshot, features, timing)
    for row in cycle_order(snapshot.waiting, snapshot.priorities):
        decision = cycle.decide(row)
        if not isinstance(decision, Hold) or _is_news(row, decision):
            decisions.append(decision)
    return decisions


def _is_news(row: WorkloadRow, hold: Hold) -> bool:
    return (row.pending_reason, row.pending_message) != (hold.reason, hold.message)


def _hold(row: WorkloadRow, refusal: Refusal) -> Hold:
    message = refusal.message
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[: MESSAGE_LIMIT - 3]}..."
    return Hold(row.key, refusal.reason, message)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a Workload waits."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Tried:
    """A grant that fits, or why none does."""

    grant: Grant | None
    refusal: Refusal = Refusal("", "")


class _Cycle:
    """State of one cycle: what was refused already, and which StrictFIFO queues are blocked."""

    def __init__(self, snapshot: Snapshot, features: Mapping[str, bool], timing: Timing) -> None:
        self.snapshot, self.features, self.timing = snapshot, features, timing
        self.placement_gates = {name: on for name, on in features.items() if name in GATE_FIELDS}
        self.activities: dict[str, Activity] = {}
        # Where a LocalQueue (`namespace/name`) leads to.
        self.routes: dict[str, ClusterQueueRow | Refusal] = {}
        # Room and quota only shrink within a cycle: a shape refused once is refused again.
        self.refused: dict[tuple[str, Hashable], Refusal] = {}
        self.blocked: set[str] = set()

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
        offer = Offer(queue, self.snapshot.flavors, self.snapshot.used.setdefault(queue.name, {}))
        invalid = self._invalid(row, offer)
        if invalid is not None:
            if self.features.get(GATE_DEACTIVATE, True):
                message = _hold(row, invalid).message
                return Deactivate(row.key, EvictionReason.DEACTIVATED_INVALID_TOPOLOGY, message)
            return _hold(row, invalid)
        if queue.name in self.blocked:
            text = f"waiting for the workloads ahead in StrictFIFO ClusterQueue {queue.name}"
            return _hold(row, Refusal(PendingReason.PENDING_EVALUATION, text))
        tried = self._evaluate(row, offer)
        if tried.grant is not None:
            return Admit(row.key, tried.grant)
        self.refused[queue.name, row.shape] = tried.refusal
        # What only its owner can mend must not hold up a whole queue.
        mendable = tried.refusal.reason == PendingReason.MISCONFIGURED
        if queue.strategy == "StrictFIFO" and not mendable:
            self.blocked.add(queue.name)
        return _hold(row, tried.refusal)

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
        errors = unknown_levels(offer, podsets)
        if self.features.get(GATE_REQUIRE_ALL, False):
            errors += missing_requests(podsets)
        if not errors:
            return None
        return Refusal(PendingReason.NO_MATCHING_FLAVOR, "; ".join(errors))

    def _evaluate(self, row: WorkloadRow, offer: Offer) -> _Tried:
        problem = next((podset.problem for podset in row.podsets if podset.problem), None)
        if problem is not None:
            return _Tried(None, Refusal(PendingReason.MISCONFIGURED, problem))
        chosen = choose_flavors(offer, [podset.request for podset in row.podsets])
        if chosen.mode is not Mode.FIT:
            return _Tried(None, Refusal(chosen.reason, chosen.message))
        placed = self._place(chosen, offer)
        if isinstance(placed, Refusal):
            return _Tried(None, placed)
        grant = Grant(offer.queue.name, tuple(_podset_grant(p, placed) for p in chosen.podsets))
        used = self.snapshot.used[offer.queue.name]
        for pair, amount in quota_of(grant).items():
            used[pair] = used.get(pair, 0) + amount
        return _Tried(grant)

    def _place(self, chosen: FlavorPlan, offer: Offer) -> dict[str, TopologyAssignment] | Refusal:
        """Assignments by PodSet name, charged; nothing stays charged after a refusal."""
        by_flavor = _by_topology_flavor(chosen.podsets, offer)
        if isinstance(by_flavor, Refusal):
            return by_flavor
        charged: list[Charge] = []
        assignments: dict[str, TopologyAssignment] = {}
        for flavor in sorted(by_flavor):
            placed = self._place_in(flavor, by_flavor[flavor])
            if isinstance(placed, Refusal):
                for charge in charged:
                    self.snapshot.forest.charge(charge, -1)
                return placed
            for podset in by_flavor[flavor]:
                charge = Charge(flavor, podset.request.requests, placed[podset.request.name])
                self.snapshot.forest.charge(charge, 1)
                charged.append(charge)
            assignments |= placed
        return assignments

    def _place_in(
        self, flavor: str, podsets: Sequence[PodSetPlan]
    ) -> dict[str, TopologyAssignment] | Refusal:
        grove = self.snapshot.forest.groves[flavor]
        with self.timing(flavor):
            placement = place(
                grove.tree,
                grove.capacity,
                [podset.request for podset in podsets],
                topology_name=grove.flavor.topology or "",
                flavor_tolerations=grove.flavor.tolerations,
                gates=self.placement_gates,
            )
        if placement.refused is not None:
            return _refusal(podsets, placement.refused.podset, placement.refused.message)
        return dict(placement.assignments)


def _refusal(podsets: Sequence[PodSetPlan], name: str, text: str) -> Refusal:
    """The field's sentence for a PodSet without a place; members of its group share the text."""
    group = next(item.request.group for item in podsets if item.request.name == name)
    members = [
        item.request.name
        for item in podsets
        if item.request.name == name or (group and item.request.group == group)
    ]
    message = "; ".join(
        f"couldn't assign flavors to pod set {member}: {text}" for member in members
    )
    return Refusal(PendingReason.TOPOLOGY_PLACEMENT_FAILED, message)


def _by_topology_flavor(
    podsets: Sequence[PodSetPlan], offer: Offer
) -> dict[str, list[PodSetPlan]] | Refusal:
    """PodSets to place, by their one flavor (CH-28). PodSets without pods need no place (C17)."""
    found: dict[str, list[PodSetPlan]] = {}
    for podset in podsets:
        request = podset.request
        placed = request.topology is not None or offer.implies_topology
        if not placed or request.count == 0:
            continue
        flavors = sorted({name for name in podset.flavors.values() if offer.has_topology(name)})
        if len(flavors) == 1:
            found.setdefault(flavors[0], []).append(podset)
            continue
        text = "no TAS flavor assigned"
        if flavors:
            text = f"more than one TAS flavor assigned: {', '.join(flavors)}"
        message = f"failed to assign flavors to pod set {request.name}: {text}"
        return Refusal(PendingReason.NO_MATCHING_FLAVOR, message)
    return found


def _podset_grant(podset: PodSetPlan, placed: Mapping[str, TopologyAssignment]) -> PodSetGrant:
    name = podset.request.name
    return PodSetGrant(
        name=name,
        flavors=podset.flavors,
        usage={resource: podset.amounts[resource] for resource in podset.flavors},
        count=podset.request.count,
        topology=placed.get(name),
    )

"""How a Workload fits in every flavor with a topology that its queue offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rackgate.features import Features
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import FlavorView, Overlap, Remedy
from rackgate_assigner.explain.flavor_nodes import Survey
from rackgate_assigner.explain.placement import ExplainContext, Occupant, explain_placement
from rackgate_assigner.explain.queue_position import problem_of
from rackgate_assigner.explain.remedies import Trial
from rackgate_assigner.scheduler.nomination.flavor_fungibility import assign_flavors
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.scheduler.scheduling_cycles import pending_workload, quota_state
from rackgate_assigner.topology.capacity import leaf_of_assigned_domain
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.decisions import Admit, Decision, Requeue
from rackgate_assigner.workload.info import Charge, PodInfo, WorkloadInfo

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache

# Number of Workloads, one of which may use all the missing capacity.
MAX_CANDIDATES: Final = 20


class FlavorExplainer:
    """Explains the topologies of one ClusterQueue's flavors; reads the cache only."""

    def __init__(self, cache: Cache, offer: Offer, features: Features, top: int) -> None:
        self._cache, self._offer, self._features, self._top = cache, offer, features, top
        # A copy, because simulations cache counts with a capacity.
        self._flavor_topologies = cache.flavor_topologies().copy()

    def views(self, row: WorkloadInfo, decision: Decision | None) -> tuple[FlavorView, ...]:
        """One view per flavor with a tree; `decision` is of a cycle for this Workload alone."""
        offer = self._offer
        requests = [podset.request for podset in row.podsets]
        placed = [
            request for request in requests if request.count > 0 and offer.needs_domains(request)
        ]
        if not placed:
            return ()
        tried = _tried_flavors(decision)
        state = quota_state(self._cache.snapshot(), self._features)
        head = pending_workload(row, offer.queue.name, self._cache.priorities)
        chosen = {
            podset.request.name: {choice.flavor for choice in podset.flavors.values()}
            for podset in assign_flavors(state, head, requests, queue=offer.queue).podsets
        }
        survey = Survey.of(offer.flavors.values())
        survey.add(self._cache.nodes.values())
        views = []
        for group in offer.queue.groups:
            for name in group.flavors:
                if not offer.has_topology(name) or name not in self._flavor_topologies.by_flavor:
                    continue
                own = [request for request in placed if name in chosen.get(request.name, ())]
                view = _with_survey(self._view(name, own or placed), survey)
                problem = problem_of(offer, name, placed, group)
                views.append(msgspec.structs.replace(view, chosen=name in tried, problem=problem))
        return tuple(views)

    def _view(self, name: str, podsets: Sequence[PodSetRequest]) -> FlavorView:
        flavor_topology = self._flavor_topologies.by_flavor[name]
        context = ExplainContext(
            nodes=self._cache.nodes.values(),
            occupants=_occupants(self._cache, flavor_topology),
            features=self._features,
            top=self._top,
        )
        view = explain_placement(flavor_topology, podsets, context)
        if view.fits or not view.fits_when_empty:
            return view
        wait_change = self._wait_change(view, podsets)
        return msgspec.structs.replace(view, changes=(wait_change, *view.changes))

    def _wait_change(self, view: FlavorView, podsets: Sequence[PodSetRequest]) -> Remedy:
        """Remedies that wait: for one Workload, if its end is enough, or for several."""
        for key in _candidate_workloads(view):
            flavor_topologies = self._flavor_topologies.copy()
            for charge in self._cache.usages[key].charges:
                flavor_topologies.charge(charge, -1)
            if Trial(flavor_topologies.by_flavor[view.flavor], podsets, self._features).fits():
                text = f"wait until Workload {key} ends"
                return Remedy(kind="wait", value=key, when="whenEmpty", text=text)
        text = "wait until other Workloads end: it fits without them"
        return Remedy(kind="wait", value="", when="whenEmpty", text=text)


def _tried_flavors(decision: Decision | None) -> set[str]:
    """Flavors of a decision."""
    if isinstance(decision, Requeue):
        return {rejection.flavor for rejection in decision.rejected_flavors}
    if isinstance(decision, Admit):
        return {
            name for assigned in decision.assignment.podsets for name in assigned.flavors.values()
        }
    return set()


def _with_survey(view: FlavorView, survey: Survey) -> FlavorView:
    """Add the flavors that share its nodes, and nodes that only lack a label."""
    shared = survey.overlaps_of(view.flavor)
    changes, lacking = view.changes, survey.missing_levels_text(view.flavor)
    if lacking and view.levels:
        text = f"label the nodes that lack a level ({lacking})"
        more = Remedy(kind="nodeLabels", value=view.flavor, when="perhaps", text=text)
        changes = (*changes, more)
    overlaps = tuple(Overlap(flavor=other, nodes=count) for other, count in shared.items())
    return msgspec.structs.replace(view, overlaps=overlaps, changes=changes)


def _candidate_workloads(view: FlavorView) -> list[str]:
    """Workloads in the best candidate domains, those of the requested level first."""
    levels = sorted(view.levels, key=lambda level: not level.asked)
    found = dict.fromkeys(
        holder.name
        for level in levels
        for domain in level.best
        for holder in domain.holders
        if holder.kind == "Workload"
    )
    return list(found)[:MAX_CANDIDATES]


def _occupants(cache: Cache, flavor_topology: FlavorTopology) -> dict[int, list[Occupant]]:
    """All charges of a flavor's tree, by leaf.

    Workloads with their assignments, and pods without an assignment by their own names.
    """
    found: dict[int, list[Occupant]] = {}
    for key, holding in cache.usages.items():
        for charge in holding.charges:
            if not _uses_flavor_nodes(cache, charge, flavor_topology.flavor.name):
                continue
            for values, count in charge.assignment.domains:
                leaf = leaf_of_assigned_domain(
                    flavor_topology.tree, charge.assignment.levels, values
                )
                if leaf is not None:
                    one = Occupant("Workload", key, count, charge.requests)
                    found.setdefault(leaf, []).append(one)
    for row in _pods_without_assignment(cache):
        leaf = flavor_topology.tree.leaf_of_node(row.node)
        if leaf is not None:
            found.setdefault(leaf, []).append(Occupant("Pod", row.key, 1, dict(row.requests)))
    return found


def _uses_flavor_nodes(cache: Cache, charge: Charge, flavor: str) -> bool:
    """Whether an assignment may be charged to a flavor's tree; see `FlavorTopologies.charge`."""
    if charge.by_host or charge.flavor == flavor:
        return True
    flavor_topologies = cache.flavor_topologies()
    return (
        charge.flavor not in flavor_topologies.by_flavor
        or flavor_topologies.shared_nodes(charge.flavor, flavor) > 0
    )


def _pods_without_assignment(cache: Cache) -> Iterator[PodInfo]:
    """Bound pods that are charged to their nodes.

    The cache counts them by node and shape; pods without a Workload are always included. Of
    several equal pods of one Workload, the last ones by name are included.
    """
    ordered = sorted(cache.pods.rows.values(), key=lambda row: (row.workload != "", row.key))
    left = {node: dict(shapes) for node, shapes in cache.pods.charged.items()}
    for row in ordered:
        counts = left.get(row.node)
        if counts and counts.get(row.requests, 0) > 0:
            counts[row.requests] -= 1
            yield row

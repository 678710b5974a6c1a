"""How a Workload fares in every flavor with a topology that its queue offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rackgate.features import Features
from rackgate_assigner.explain.explanation import FlavorView, Overlap, Remedy
from rackgate_assigner.explain.flavor_nodes import Survey
from rackgate_assigner.explain.holders import occupants
from rackgate_assigner.explain.placement import ExplainContext, explain_placement
from rackgate_assigner.explain.queue_position import problem_of
from rackgate_assigner.explain.what_if import Trial
from rackgate_assigner.scheduler.flavor_assigner import Offer, choose_flavors
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.decisions import Admit, Decision, Requeue
from rackgate_assigner.workload.info import WorkloadInfo

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache

# Among so many holders a Workload is looked for whose end alone would make room.
MAX_CANDIDATES: Final = 20


class FlavorExplainer:
    """Explains the topologies of one ClusterQueue's flavors; the cache is only read."""

    def __init__(self, cache: Cache, offer: Offer, features: Features, top: int) -> None:
        self._cache, self._offer, self._features, self._top = cache, offer, features, top
        # A copy: what-if questions leave nothing behind in the numbers of the real trees.
        self._flavor_topologies = cache.flavor_topologies().copy()

    def views(self, row: WorkloadInfo, decision: Decision | None) -> tuple[FlavorView, ...]:
        """One view per flavor that has a tree, in the queue's order.

        Args:
            row: the Workload.
            decision: what a cycle says if it comes first.
        """
        offer = self._offer
        requests = [podset.request for podset in row.podsets]
        placed = [
            request
            for request in requests
            if request.count > 0 and (request.topology is not None or offer.implies_topology)
        ]
        if not placed:
            return ()
        tried = _tried_flavors(decision)
        chosen = {
            assigned.request.name: set(assigned.flavors.values())
            for assigned in choose_flavors(offer, requests).podsets
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
            occupants=occupants(self._cache, flavor_topology),
            features=self._features,
            top=self._top,
        )
        view = explain_placement(flavor_topology, podsets, context)
        if view.fits or not view.fits_when_empty:
            return view
        wait_change = self._wait_change(view, podsets)
        return msgspec.structs.replace(view, changes=(wait_change, *view.changes))

    def _wait_change(self, view: FlavorView, podsets: Sequence[PodSetRequest]) -> Remedy:
        """That waiting helps, and which single Workload's end would be enough."""
        for key in _candidate_workloads(view):
            flavor_topologies = self._flavor_topologies.copy()
            for charge in self._cache.usages[key].charges:
                flavor_topologies.charge(charge, -1)
            if Trial(flavor_topologies.by_flavor[view.flavor], podsets, self._features).fits():
                text = f"wait until Workload {key} has ended"
                return Remedy(kind="wait", value=key, when="whenEmpty", text=text)
        text = "wait until other Workloads have ended: without them it would fit"
        return Remedy(kind="wait", value="", when="whenEmpty", text=text)


def _tried_flavors(decision: Decision | None) -> set[str]:
    """Flavors that a decision is about."""
    if isinstance(decision, Requeue):
        return {refusal.flavor for refusal in decision.rejected_flavors}
    if isinstance(decision, Admit):
        return {
            name for assigned in decision.assignment.podsets for name in assigned.flavors.values()
        }
    return set()


def _with_survey(view: FlavorView, survey: Survey) -> FlavorView:
    """With the flavors that share its nodes, and nodes that a label would bring in."""
    shared = survey.overlaps_of(view.flavor)
    changes, lacking = view.changes, survey.missing_levels_text(view.flavor)
    if lacking and view.levels:
        text = f"label the nodes that lack a level ({lacking})"
        more = Remedy(kind="nodeLabels", value=view.flavor, when="perhaps", text=text)
        changes = (*changes, more)
    overlaps = tuple(Overlap(flavor=other, nodes=count) for other, count in shared.items())
    return msgspec.structs.replace(view, overlaps=overlaps, changes=changes)


def _candidate_workloads(view: FlavorView) -> list[str]:
    """Workloads in the domains that come closest, those of the asked level first."""
    levels = sorted(view.levels, key=lambda level: not level.asked)
    found = dict.fromkeys(
        holder.name
        for level in levels
        for domain in level.best
        for holder in domain.holders
        if holder.kind == "Workload"
    )
    return list(found)[:MAX_CANDIDATES]

"""An explanation never says something else than the placement it explains."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import FlavorView
from rackgate_assigner.explain.placement import ExplainContext, explain_placement
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.model import Placement
from rackgate_assigner.topology.placement.place import place
from tests.support.placement_cases import Case, capacity_of, cases, dense_case

FEW = settings(max_examples=60, deadline=None)
CASES = cases() | st.integers(0, 2**32 - 1).map(dense_case)
FITTING = re.compile(r"allows to fit only (\d+) out of (\d+)|doesn't allow to fit any of (\d+)")
PART = re.compile(r'(taint "[^"]*"|resource "[^"]*"|[a-zA-Z]+): (\d+)')


def flavor_topology_of(case: Case) -> FlavorTopology:
    cluster = case.cluster
    capacity = capacity_of(cluster)
    flavor = FlavorInfo(
        name="tas",
        node_labels=cluster.node_labels,
        tolerations=tuple(cluster.tolerations),
        topology="default",
        levels=tuple(cluster.levels),
    )
    return FlavorTopology(flavor, capacity.tree, capacity)


def answered(case: Case, flavor_topology: FlavorTopology, *, empty: bool = False) -> Placement:
    return place(
        flavor_topology.tree,
        flavor_topology.capacity,
        case.podsets,
        topology_name="default",
        flavor_tolerations=flavor_topology.flavor.tolerations,
        simulate_empty=empty,
    )


def explained(case: Case, flavor_topology: FlavorTopology, top: int = 3) -> FlavorView:
    return explain_placement(
        flavor_topology, case.podsets, ExplainContext(nodes=case.cluster.nodes, top=top)
    )


@pytest.mark.requirement("TAS-20")
@FEW
@given(CASES)
def test_it_fits_in_the_explanation_exactly_where_it_is_placed(case: Case) -> None:
    flavor_topology = flavor_topology_of(case)
    view, placement = explained(case, flavor_topology), answered(case, flavor_topology)
    assert view.fits is (placement.failure is None)
    assert view.message == (placement.failure.message if placement.failure else "")
    assert view.fits_when_empty is (answered(case, flavor_topology, empty=True).failure is None)
    assert [part.podset for part in view.places] == list(placement.assignments)


@pytest.mark.requirement("TAS-20")
@FEW
@given(CASES)
def test_the_numbers_are_those_of_the_rejection(case: Case) -> None:
    view = explained(case, flavor_topology_of(case), top=100)
    found = FITTING.search(view.message)
    if found is None:
        return
    fitting, wanted, none_of = found.groups()
    assert view.fitting == int(fitting or 0)
    assert view.wanted == int(wanted or none_of)
    asked = next(level for level in view.levels if level.asked)
    if view.asked.startswith("required"):
        assert asked.best[0].slices == view.fitting
    elif not view.leader:
        assert sum(domain.slices for domain in view.levels[0].best) >= (view.fitting or 0)


@FEW
@given(CASES)
def test_every_excluded_node_is_named_under_the_rule_of_the_rejection(case: Case) -> None:
    view = explained(case, flavor_topology_of(case), top=100)
    if FITTING.search(view.message) is None:
        return
    told: Counter[str] = Counter()
    for part in view.excluded:
        assert len(part.names) == part.nodes
        if part.rule in ("taint", "resource"):
            told[f'{part.rule} "{part.detail}"'] += part.nodes
        elif part.rule in ("nodeSelector", "affinity"):
            told[part.rule] += part.nodes
    _, _, listed = view.message.partition("; excluded: ")
    assert told == Counter({name: int(count) for name, count in PART.findall(listed)})
    outside = sum(
        part.nodes
        for part in view.excluded
        if part.rule in ("flavorLabels", "missingLevel", "notReady", "unschedulable", "hostname")
    )
    assert outside + view.nodes == len(case.cluster.nodes)


@FEW
@given(CASES)
def test_a_domain_takes_no_more_than_its_tightest_resource_allows(case: Case) -> None:
    view = explained(case, flavor_topology_of(case))
    for level in view.levels:
        for domain in level.best:
            assert domain.pods <= min((part.pods for part in domain.resources), default=0)
            assert domain.usable_nodes <= domain.nodes
            assert not (domain.fragmented and any(r.missing != "0" for r in domain.resources))


@FEW
@given(CASES)
def test_fewer_pods_that_are_said_to_fit_now_do(case: Case) -> None:
    flavor_topology = flavor_topology_of(case)
    view = explained(case, flavor_topology)
    for change in view.changes:
        if change.kind != "fewerPods":
            continue
        refused = [podset for podset in case.podsets if podset.name in view.refused]
        workers = max(refused, key=lambda podset: podset.count)
        smaller = replace(workers, count=int(change.value))
        podsets = [smaller if podset is workers else podset for podset in case.podsets]
        empty = change.when == "whenEmpty"
        placement = answered(Case(case.cluster, podsets), flavor_topology, empty=empty)
        assert workers.name in placement.assignments


@FEW
@given(CASES)
def test_explaining_changes_nothing(case: Case) -> None:
    flavor_topology = flavor_topology_of(case)
    free, usage = flavor_topology.capacity.free.copy(), flavor_topology.capacity.usage.copy()
    assert explained(case, flavor_topology) == explained(case, flavor_topology)
    assert np.array_equal(free, flavor_topology.capacity.free)
    assert np.array_equal(usage, flavor_topology.capacity.usage)

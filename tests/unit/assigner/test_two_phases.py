"""Admission in two phases: quota first, then the admission checks, then the placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.features import Features
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    AssignTopology,
    Evict,
    Requeue,
)
from tests.unit.assigner.builders import (
    HOST,
    RACK,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    flavor,
    node,
    plan_cycle,
    podset,
    workload,
)
from tests.unit.assigner.test_activity import check

TO_PLACE = {"Admitted": ("False", "PendingDelayedTopologyRequests", "")}
WAITS = {"Admitted": ("False", "UnsatisfiedAdmissionChecks", "")}


def cache_of(
    *rules: Mapping[str, Any],
    nodes: Any = (),
    controller: str = "example.com/budget",
    **queue: Any,
) -> Cache:
    """One queue of a topology flavor whose checks are active."""
    strategy = {"admissionChecks": [dict(rule) for rule in rules]}
    cache = cache_with(
        list(nodes), queue=cluster_queue("cq", admissionChecksStrategy=strategy, **queue)
    )
    for rule in rules:
        cache.set_admission_check(check(rule["name"], controller, active=True))
    return cache


def admission(cache: Cache, key: str = "team/w", **gates: bool) -> Assignment:
    """What the next cycle reserves for a Workload."""
    found = [d for d in plan_cycle(cache, features=Features.of(gates)) if d.workload == key]
    assert isinstance(found[0], Admit), found
    return found[0].assignment


def reserved(
    held: Assignment,
    conditions: Mapping[str, tuple[str, str, str]] = TO_PLACE,
    *,
    name: str = "w",
    updates: Any = (),
    **options: Any,
) -> kueue.Workload:
    """The Workload with quota, as the watch shows it."""
    found = workload(
        name,
        [podset(topology={"required": RACK}, count=2)],
        assignment=held,
        conditions=conditions,
        **options,
    )
    state = {"name": "budget", "state": "Ready", "podSetUpdates": list(updates)}
    states = (msgspec.convert(state, kueue.AdmissionCheckState),)
    admission = found.status.admission
    assert admission is not None
    parts = tuple(
        msgspec.structs.replace(
            part,
            delayed_topology_request="Pending" if part.topology_assignment is None else None,
        )
        for part in admission.pod_set_assignments
    )
    admission = msgspec.structs.replace(admission, pod_set_assignments=parts)
    status = msgspec.structs.replace(found.status, admission_checks=states, admission=admission)
    return msgspec.structs.replace(found, status=status)


def test_a_check_applies_to_the_flavors_that_it_names_or_to_all() -> None:
    queue = {"a": {"cpu": "1"}, "b": {"cpu": "100"}}
    rules: list[dict[str, Any]] = [
        {"name": "of-a", "onFlavors": ["a"]},
        {"name": "of-b", "onFlavors": ["b", "c"]},
        {"name": "of-all"},
    ]
    strategy = {"admissionChecks": rules}
    cache = cache_with(queue=cluster_queue("cq", queue, admissionChecksStrategy=strategy))
    for name in queue:
        cache.set_flavor(flavor(name, None, {}))
    for rule in rules:
        cache.set_admission_check(check(str(rule["name"]), "example.com/budget", active=True))
    cache.set_workload(workload("small", [podset(count=1)]))
    cache.set_workload(workload("large", [podset(count=4)]))
    assert admission(cache, "team/small").checks == ("of-a", "of-all")
    assert admission(cache, "team/large").checks == ("of-b", "of-all")


def test_quota_is_reserved_without_a_placement_that_others_could_use() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    for name in ("v", "w"):
        cache.set_workload(workload(name, [podset(topology={"required": RACK}, count=2)]))
    decisions = plan_cycle(cache)
    assert [type(decision) for decision in decisions] == [Admit, Admit]
    held = admission(cache)
    assert held.checks == ("budget",)
    assert [(part.delayed, part.topology) for part in held.podsets] == [("Pending", None)]
    cache.assume("team/w", held)
    assert cache.usages["team/w"].charges == ()
    assert not cache.usages["team/w"].admitted
    counts = cluster_queue_status_of(cache, "cq")
    assert (counts["reservingWorkloads"], counts["admittedWorkloads"]) == (1, 0)


def test_a_workload_that_fits_no_domain_now_reserves_nothing() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="1")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    (found,) = plan_cycle(cache)
    assert isinstance(found, Requeue)
    assert found.reason == "TopologyPlacementFailed"


@pytest.mark.requirement("VAL-08")
def test_nodes_that_a_provisioning_request_provides_need_not_exist_before() -> None:
    cache = cache_of({"name": "budget"}, controller=names.PROVISIONING_CONTROLLER)
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    assert isinstance(plan_cycle(cache)[0], Requeue)
    held = admission(cache, TASWithProvisioningRequest=True)
    assert held.checks == ("budget",)
    cache.set_workload(reserved(held))
    lifted = Features.of({"TASWithProvisioningRequest": True})
    assert plan_cycle(cache, features=lifted) == [], "it keeps its quota until the nodes are ready"
    cache.set_node(node("n", cpu="2"))
    assert isinstance(plan_cycle(cache, features=lifted)[0], AssignTopology)


@pytest.mark.field_note("C20")
def test_a_workload_is_placed_after_its_checks_in_its_flavor_and_before_pending_ones() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    held = admission(cache)
    cache.set_workload(reserved(held, WAITS))
    assert plan_cycle(cache) == [], "its checks are not Ready"
    cache.set_workload(reserved(held, version="2"))
    cache.set_workload(workload("other", [podset(topology={"required": RACK})], priority=9))
    first, second = plan_cycle(cache)
    assert isinstance(first, AssignTopology)
    (part,) = first.assignment.podsets
    assert part.delayed == "Ready"
    assert part.topology is not None
    assert part.topology.domains == ((("n",), 2),)
    assert replace(first.assignment, podsets=()) == replace(held, podsets=(), checks=())
    assert isinstance(second, Requeue), "the placement is charged in the same cycle"
    cache.assume("team/w", first.assignment, replace_existing=True)
    assert all(d.workload != "team/w" for d in plan_cycle(cache)), "it is not placed twice"


def test_as_many_pods_as_were_reserved_are_placed_after_the_checks() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    fewer = [{**podset(topology={"required": RACK}, count=4), "minCount": 1}]
    cache.set_workload(workload("w", fewer))
    held = admission(cache)
    assert (held.checks, held.podsets[0].count) == (("budget",), 2)
    assert plan_cycle(cache) == plan_cycle(cache), "the search reserves nothing"
    shown = reserved(held)
    spec = workload("w", fewer).spec
    cache.set_workload(msgspec.structs.replace(shown, spec=spec))
    (found,) = plan_cycle(cache)
    assert isinstance(found, AssignTopology)
    topology = found.assignment.podsets[0].topology
    assert topology is not None
    assert topology.domains == ((("n",), 2),)


def test_an_update_that_cannot_be_read_affects_its_workload_alone() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="9")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    update = {"name": "main", "tolerations": [{"key": 1}]}
    cache.set_workload(reserved(admission(cache), updates=[update]))
    cache.set_workload(workload("other", [podset(topology={"required": RACK})]))
    first, second = plan_cycle(cache)
    assert isinstance(first, Requeue)
    assert first.reason == "InternalError"
    assert isinstance(second, Admit)


def test_without_a_domain_after_the_checks_the_workload_is_evicted() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    cache.set_workload(reserved(admission(cache)))
    cache.drop_node("n")
    (found,) = plan_cycle(cache)
    assert isinstance(found, Evict)
    assert found.reason == "AdmissionCheck"
    assert found.message.startswith("no placement after the admission checks: ")


@pytest.mark.field_note("N5")
def test_what_checks_add_to_pods_counts_for_the_placement() -> None:
    taint = {"key": "fresh", "value": "w", "effect": "NoSchedule"}
    nodes = [
        node("plain", "b1/r1", cpu="9"),
        node("fresh", "b1/r2", cpu="9", labels={"for": "w"}, taints=[taint]),
    ]
    cache = cache_of({"name": "budget"}, nodes=nodes)
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    update = {
        "name": "main",
        "nodeSelector": {"for": "w"},
        "tolerations": [{"key": "fresh", "operator": "Exists"}],
    }
    cache.set_workload(reserved(admission(cache), updates=[update, {**update, "name": "other"}]))
    (found,) = plan_cycle(cache)
    assert isinstance(found, AssignTopology)
    topology = found.assignment.podsets[0].topology
    assert topology is not None
    assert topology.levels == (HOST,)
    assert topology.domains == ((("fresh",), 2),)


def test_a_workload_that_leaves_or_is_inactive_is_not_placed() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    held = admission(cache)
    cache.set_workload(reserved(held, {**TO_PLACE, "Evicted": ("True", "Preempted", "")}))
    assert plan_cycle(cache) == []
    cache.set_workload(reserved(held, active=False))
    assert [type(decision) for decision in plan_cycle(cache)] == [Evict]


def test_the_eviction_of_a_deactivated_workload_has_the_cause_of_the_deactivation() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="2")])
    cache.set_workload(workload("w", [podset(topology={"required": RACK}, count=2)]))
    held = admission(cache)
    target = ("True", "AdmissionCheck", 'AdmissionCheck in Rejected state: "budget"')
    cache.set_workload(reserved(held, {**WAITS, "DeactivationTarget": target}, active=False))
    assert plan_cycle(cache) == [
        Evict(
            "team/w",
            "DeactivatedDueToAdmissionCheck",
            'The workload is deactivated due to AdmissionCheck in Rejected state: "budget"',
            "AdmissionCheck",
        )
    ]


def test_slices_are_not_admitted_where_checks_apply() -> None:
    cache = cache_of({"name": "budget"}, nodes=[node("n", cpu="9")])
    parent = [podset(topology={"required": RACK}, count=2)]
    cache.set_workload(workload("w", parent, elastic=True))
    held = admission(cache, ElasticJobsViaWorkloadSlices=True)
    held = replace(held, podsets=(replace(held.podsets[0], delayed=""),))
    cache.set_workload(workload("w", parent, elastic=True, assignment=held))
    cache.set_workload(workload("piece", parent, parent="w"))
    found = plan_cycle(cache, features=Features.of({"ElasticJobsViaWorkloadSlices": True}))
    assert isinstance(found[0], Requeue)
    assert found[0].reason == "Misconfigured"

"""Flavor choice and its texts; examples of `conformance/quota`, sections 6, 7 and 12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rackgate_assigner.scheduler.nomination.offer import resource_rank
from rackgate_assigner.workload.decisions import Admit, Decision, Requeue
from tests.unit.assigner.builders import (
    HOST,
    POOL,
    RACK,
    cache_with,
    cluster_queue,
    domains,
    flavor,
    fx_a,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)

PLAIN: Mapping[str, Mapping[str, str]] = {"plain": {"cpu": "4"}}


def decide(
    podsets: list[dict[str, Any]],
    quotas: Mapping[str, Mapping[str, str]] | None = None,
    *,
    flavors: list[Any] | None = None,
    **queue: Any,
) -> Decision:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", quotas, **queue))
    for found in flavors or [flavor("plain", None, {})]:
        cache.set_flavor(found)
    cache.set_workload(workload("w", podsets))
    (decision,) = plan_cycle(cache)
    return decision


def message(decision: Decision) -> str:
    assert isinstance(decision, Requeue), decision
    return decision.message


def test_resources_are_walked_in_the_order_of_their_hash() -> None:
    names = ["cpu", "example.com/gpu", "memory", "nvidia.com/gpu", "pods"]
    assert sorted(names, key=resource_rank) == [
        "memory",
        "nvidia.com/gpu",
        "pods",
        "example.com/gpu",
        "cpu",
    ]


def test_a_request_over_nominal_quota_can_never_fit_and_says_so() -> None:
    decision = decide([podset(count=5)], PLAIN)
    assert isinstance(decision, Requeue)
    assert decision.reason == "ExceedsMaxQuota"
    assert decision.message == (
        "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor plain, "
        "previously considered podsets requests (0) + current podset request (5) > maximum "
        "capacity (4)"
    )


def test_earlier_podsets_count_against_the_same_quota() -> None:
    decision = decide([podset("a", 3), podset("b", 2)], PLAIN)
    assert message(decision) == (
        "couldn't assign flavors to pod set b: insufficient quota for cpu in flavor plain, "
        "previously considered podsets requests (3) + current podset request (2) > maximum "
        "capacity (4)"
    )


def test_quota_that_others_hold_is_waited_for() -> None:
    cache = cache_with(queue=cluster_queue("cq", PLAIN))
    cache.set_flavor(flavor("plain", None, {}))
    cache.set_workload(workload("first", [podset(count=3)], created="2026-01-01T00:00:00Z"))
    cache.set_workload(workload("second", [podset(requests={"cpu": "1500m"})]))
    admit, hold = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert admit.workload == "team/first"
    assert isinstance(hold, Requeue)
    assert hold.reason == "WaitingForQuota"
    assert hold.message == (
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
        "plain, 500m more needed"
    )


def test_the_first_flavor_that_fits_is_taken() -> None:
    flavors = [flavor("small", None, {}), flavor("big", None, {})]
    decision = decide(
        [podset(count=2)], {"small": {"cpu": "1"}, "big": {"cpu": "4"}}, flavors=flavors
    )
    assert isinstance(decision, Admit)
    (part,) = decision.assignment.podsets
    assert part.flavors == {"cpu": "big"}
    assert part.usage == {"cpu": 2000}
    assert part.topology is None


def test_resource_groups_take_their_flavors_apart_from_each_other() -> None:
    flavors = [flavor("fast", None, {}), flavor("wide", None, {})]
    groups = [{"fast": {"cpu": "4"}}, {"wide": {"memory": "4Gi"}}]
    decision = decide(
        [podset(requests={"cpu": "1", "memory": "1Gi"})], groups=groups, flavors=flavors
    )
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].flavors == {"cpu": "fast", "memory": "wide"}


@pytest.mark.field_note("C8")
def test_pods_are_a_resource_where_the_queue_covers_them() -> None:
    quota = {"plain": {"cpu": "9", "pods": "2"}}
    assert "insufficient quota for pods" in message(decide([podset(count=3)], quota))
    decision = decide([podset(count=2)], quota)
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].usage == {"cpu": 2000, "pods": 2}


def test_a_resource_that_no_group_covers_is_named() -> None:
    decision = decide([podset(requests={"cpu": "1", "example.com/gpu": "1"})], PLAIN)
    assert isinstance(decision, Requeue)
    assert decision.reason == "NoMatchingFlavor"
    assert decision.message == (
        "couldn't assign flavors to pod set main: resource example.com/gpu unavailable in "
        "ClusterQueue"
    )


@pytest.mark.field_note("C16")
def test_a_request_of_zero_needs_no_quota() -> None:
    decision = decide([podset(requests={"cpu": "1", "example.com/gpu": "0"})], PLAIN)
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].flavors == {"cpu": "plain"}


def test_taints_of_a_flavor_need_a_toleration_of_pod_or_flavor() -> None:
    taint = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
    tolerations = [{"key": "spot", "operator": "Exists"}]
    tainted = [flavor("plain", None, {}, nodeTaints=[taint])]
    assert message(decide([podset()], PLAIN, flavors=tainted)) == (
        "couldn't assign flavors to pod set main: untolerated taint {spot yes NoSchedule <nil>} "
        "in flavor plain"
    )
    by_pod = decide([podset(tolerations=tolerations)], PLAIN, flavors=tainted)
    assert isinstance(by_pod, Admit)
    own = [flavor("plain", None, {}, nodeTaints=[taint], tolerations=tolerations)]
    assert isinstance(decide([podset()], PLAIN, flavors=own), Admit)


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions)}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"kind": "a"}}, True),
        ({"nodeSelector": {"kind": "b"}}, False),
        ({"nodeSelector": {"other": "b"}}, True),
        ({"affinity": affinity({"key": "kind", "operator": "In", "values": ["a"]})}, True),
        ({"affinity": affinity({"key": "kind", "operator": "NotIn", "values": ["a"]})}, False),
        ({"affinity": affinity({"key": "other", "operator": "In", "values": ["x"]})}, True),
    ],
)
def test_selectors_count_only_where_they_speak_of_the_flavors_labels(
    spec: dict[str, Any], fits: bool
) -> None:
    decision = decide([podset(**spec)], PLAIN, flavors=[flavor("plain", None, {"kind": "a"})])
    if fits:
        assert isinstance(decision, Admit)
    else:
        assert message(decision) == (
            "couldn't assign flavors to pod set main: flavor plain doesn't match node affinity"
        )


MIXED: Mapping[str, Mapping[str, str]] = {"plain": {"cpu": "99"}, "tas": {"cpu": "99"}}


def test_a_topology_request_skips_plain_flavors() -> None:
    decision = decide([podset(topology={"required": RACK})], MIXED)
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].flavors == {"cpu": "tas"}


def test_a_topology_request_in_a_plain_queue_waits() -> None:
    decision = decide([podset(topology={"required": RACK})], PLAIN)
    assert message(decision) == (
        'couldn\'t assign flavors to pod set main: Flavor "plain" does not support '
        "TopologyAwareScheduling"
    )


@pytest.mark.requirement("TAS-03")
def test_without_a_request_a_topology_flavor_of_a_mixed_queue_is_skipped() -> None:
    quota = {"tas": {"cpu": "99"}, "plain": {"cpu": "1"}}
    decision = decide([podset()], quota)
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].flavors == {"cpu": "plain"}
    assert decision.assignment.podsets[0].topology is None
    assert 'Flavor "tas" supports only TopologyAwareScheduling' in message(
        decide([podset(count=2)], quota)
    )


def test_without_a_request_all_topology_flavors_imply_a_placement() -> None:
    decision = decide([podset(count=2)])
    assert isinstance(decision, Admit)
    assert sum(domains(decision.assignment).values()) == 2


@pytest.mark.requirement("VAL-02", "VAL-03")
@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_a_flavor_without_the_level_is_skipped_for_one_that_has_it(kind: str) -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"flat": {"cpu": "9"}, **MIXED}))
    cache.set_flavor(flavor("plain", None, {}))
    cache.set_topology(topology("flat", (HOST,)))
    cache.set_flavor(flavor("flat", "flat"))
    cache.set_workload(workload("w", [podset(topology={kind: RACK})]))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Admit)
    assert decision.assignment.podsets[0].flavors == {"cpu": "tas"}


def test_a_podset_over_two_topology_flavors_is_not_admitted() -> None:
    cache = cache_with(
        fx_a(),
        queue=cluster_queue("cq", groups=[{"tas": {"cpu": "9"}}, {"tas2": {"memory": "9Gi"}}]),
    )
    cache.set_flavor(flavor("tas2"))
    cache.set_workload(workload("w", [podset(requests={"cpu": "1", "memory": "1Gi"})]))
    (decision,) = plan_cycle(cache)
    assert message(decision) == (
        "failed to assign flavors to pod set main: more than one TAS flavor assigned: tas, tas2"
    )


def test_podsets_of_a_group_take_one_flavor() -> None:
    grouped = {"required": RACK, "podSetGroupName": "g"}
    cache = cache_with(
        fx_a(), queue=cluster_queue("cq", {"small": {"cpu": "2"}, "tas": {"cpu": "9"}})
    )
    cache.set_flavor(flavor("small"))
    podsets = [podset("leader", 1, topology=grouped), podset("workers", 2, topology=grouped)]
    cache.set_workload(workload("w", podsets))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Admit)
    assert {part.flavors["cpu"] for part in decision.assignment.podsets} == {"tas"}


def test_nodes_of_another_flavor_are_never_used() -> None:
    cache = cache_with([node("a"), node("b", labels={"pool": "other"})])
    cache.set_workload(workload("w", [podset(count=5)]))
    (decision,) = plan_cycle(cache)
    assert "allows to fit only 4 out of 5 pod(s)" in message(decision)
    assert POOL == {"pool": "gpu"}

"""When a queue is active, and what it says when it is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.features import Features
from rackgate.wire import kueue
from rackgate_assigner.workload.decisions import Admit, Requeue
from tests.unit.assigner.builders import (
    RACK,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    cohort,
    flavor,
    local_queue,
    local_queue_status_of,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)


def active(cache: Any, **features: bool) -> tuple[str, str, str]:
    (condition,) = cluster_queue_status_of(cache, "cq", features=Features.of(features))[
        "conditions"
    ]
    return condition["status"], condition["reason"], condition["message"]


def check(name: str, controller: str, *, active: bool | None = None) -> kueue.AdmissionCheck:
    found: dict[str, Any] = {"metadata": {"name": name}, "spec": {"controllerName": controller}}
    if active is not None:
        found["status"] = {"conditions": [{"type": "Active", "status": str(active)}]}
    return msgspec.convert(found, kueue.AdmissionCheck)


def checks_of(*found: str) -> dict[str, Any]:
    return {"admissionChecks": [{"name": name} for name in found]}


def test_a_queue_with_all_it_needs_is_active() -> None:
    assert active(cache_with()) == ("True", "Ready", "Can admit new workloads")


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_a_stopped_queue_is_inactive(policy: str) -> None:
    cache = cache_with(queue=cluster_queue(stopPolicy=policy))
    assert active(cache) == ("False", "Stopped", "Can't admit new workloads: is stopped")


def test_a_missing_flavor_makes_a_queue_inactive_until_it_comes() -> None:
    cache = cache_with(queue=cluster_queue("cq", {"z": {"cpu": "1"}, "a": {"cpu": "1"}}))
    assert active(cache) == (
        "False",
        "FlavorNotFound",
        "Can't admit new workloads: references missing ResourceFlavor(s): [a, z]",
    )
    cache.set_flavor(flavor("a", None, {}))
    cache.set_flavor(flavor("z", None, {}))
    assert active(cache)[0] == "True"


@pytest.mark.requirement("VAL-10")
def test_a_missing_topology_makes_a_queue_inactive_until_it_comes() -> None:
    cache = cache_with([node("a")])
    cache.set_workload(workload("w"))
    cache.drop_topology("default")
    status, reason, message = active(cache)
    assert (status, reason) == ("False", "TopologyNotFound")
    assert message.endswith('there is no Topology "default" for TAS flavor "tas"')
    (hold,) = plan_cycle(cache)
    assert hold == Requeue("team/w", "Misconfigured", "ClusterQueue cq is inactive")
    cache.set_topology(topology())
    assert active(cache)[0] == "True"
    assert isinstance(plan_cycle(cache)[0], Admit)


def test_missing_and_inactive_checks_make_a_queue_inactive_until_they_are_active() -> None:
    queue = cluster_queue(admissionChecksStrategy=checks_of("gone", "there", "off"))
    cache = cache_with(queue=queue)
    cache.set_admission_check(check("there", "example.com/budget"))
    cache.set_admission_check(check("off", "example.com/budget", active=False))
    status, reason, message = active(cache)
    assert (status, reason) == ("False", "AdmissionCheckNotFound")
    assert message == (
        "Can't admit new workloads: references missing AdmissionCheck(s): [gone], references "
        "inactive AdmissionCheck(s): [off, there]"
    )
    cache.set_admission_check(check("gone", "example.com/budget", active=True))
    assert active(cache)[:2] == ("False", "AdmissionCheckInactive")
    for name in ("there", "off"):
        cache.set_admission_check(check(name, "example.com/budget", active=True))
    assert active(cache)[0] == "True"


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([{"name": "mk"}, {"name": "mk-2"}], "MultipleMultiKueueAdmissionChecks"),
        (
            [{"name": "mk", "onFlavors": ["plain"]}],
            "MultiKueueAdmissionCheckAppliedPerFlavor",
        ),
        ([{"name": "mk"}, {"name": "pr"}], "MultiKueueWithProvisioningRequest"),
        ([{"name": "mk"}], "Ready"),
    ],
)
def test_a_multikueue_check_stands_alone_and_applies_to_all_flavors(
    rules: list[dict[str, Any]], reason: str
) -> None:
    strategy = {"admissionChecks": rules}
    queue = cluster_queue("cq", {"plain": {"cpu": "1"}}, admissionChecksStrategy=strategy)
    cache = cache_with(queue=queue)
    cache.set_flavor(flavor("plain", None, {}))
    for name in ("mk", "mk-2"):
        cache.set_admission_check(check(name, names.MULTIKUEUE_CONTROLLER, active=True))
    cache.set_admission_check(check("pr", names.PROVISIONING_CONTROLLER, active=True))
    assert active(cache)[1] == reason


OFF = {"TASWithCohorts": False, "TASWithPreemption": False}
LIMITS = {
    "TASWithCohorts": "TAS is not supported in a cohort",
    "TASWithPreemption": "TAS is not supported with preemption",
    "TASWithMultiKueue": "TAS is not supported with a MultiKueue admission check",
    "TASWithProvisioningRequest": "TAS is not supported with a ProvisioningRequest admission check",
}


def limited() -> Any:
    queue = cluster_queue(
        cohortName="all",
        preemption={"withinClusterQueue": "LowerPriority"},
        admissionChecksStrategy=checks_of("mk", "pr"),
    )
    cache = cache_with([node("a")], queue=queue)
    cache.set_admission_check(check("mk", names.MULTIKUEUE_CONTROLLER, active=True))
    cache.set_admission_check(check("pr", names.PROVISIONING_CONTROLLER, active=True))
    return cache


@pytest.mark.requirement("VAL-05", "VAL-06", "VAL-07", "VAL-08", "VAL-09")
def test_all_limits_of_topology_queues_are_listed_at_once() -> None:
    status, reason, message = active(limited(), **OFF)
    assert (status, reason) == ("False", "NotSupportedWithTopologyAwareScheduling")
    assert all(text in message for text in LIMITS.values())


@pytest.mark.requirement("VAL-09")
@pytest.mark.parametrize("gate", LIMITS)
def test_each_limit_is_lifted_by_its_own_gate(gate: str) -> None:
    message = active(limited(), **{**OFF, gate: True})[2]
    assert LIMITS[gate] not in message
    assert all(text in message for name, text in LIMITS.items() if name != gate)


@pytest.mark.requirement("VAL-06")
@pytest.mark.parametrize(
    "preemption",
    [
        {"reclaimWithinCohort": "Any"},
        {"reclaimWithinCohort": "LowerPriority"},
        {"withinClusterQueue": "LowerPriority"},
        {"withinClusterQueue": "LowerOrNewerEqualPriority"},
        {"borrowWithinCohort": {"policy": "LowerPriority"}},
    ],
)
def test_any_kind_of_preemption_counts(preemption: dict[str, Any]) -> None:
    cache = cache_with(queue=cluster_queue(preemption=preemption))
    assert active(cache)[0] == "True"
    assert active(cache, **OFF) == (
        "False",
        "NotSupportedWithTopologyAwareScheduling",
        "Can't admit new workloads: TAS is not supported with preemption",
    )


@pytest.mark.requirement("VAL-06")
def test_a_queue_that_says_never_to_preemption_is_active() -> None:
    never = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
    assert active(cache_with(queue=cluster_queue(preemption=never)))[0] == "True"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"cohortName": "all"}, marks=pytest.mark.requirement("VAL-05")),
        pytest.param(
            {"preemption": {"withinClusterQueue": "LowerPriority"}},
            marks=pytest.mark.requirement("VAL-06"),
        ),
        pytest.param(
            {"admissionChecksStrategy": checks_of("mk")},
            marks=pytest.mark.requirement("VAL-07"),
        ),
        pytest.param(
            {"admissionChecksStrategy": checks_of("pr")},
            marks=pytest.mark.requirement("VAL-08"),
        ),
    ],
)
def test_nothing_is_admitted_from_a_limited_queue_until_it_is_fixed(spec: dict[str, Any]) -> None:
    cache = cache_with([node("a")], queue=cluster_queue(**spec), features=OFF)
    cache.set_admission_check(check("mk", names.MULTIKUEUE_CONTROLLER, active=True))
    cache.set_admission_check(check("pr", names.PROVISIONING_CONTROLLER, active=True))
    cache.set_workload(workload("w", [podset(topology={"required": RACK})]))
    assert active(cache, **OFF)[0] == "False"
    assert plan_cycle(cache) == [Requeue("team/w", "Misconfigured", "ClusterQueue cq is inactive")]
    cache.set_cluster_queue(cluster_queue())
    assert isinstance(plan_cycle(cache)[0], Admit)


def test_a_queue_in_a_cohort_needs_no_cohort_object() -> None:
    assert active(cache_with(queue=cluster_queue(cohortName="all")))[2] == "Can admit new workloads"


@pytest.mark.parametrize("name", ["a", "b", "below"])
def test_a_queue_below_cohorts_that_are_above_themselves_is_inactive(name: str) -> None:
    cache = cache_with(queue=cluster_queue(cohortName=name))
    for child, parent in (("a", "b"), ("b", "a"), ("below", "a")):
        cache.set_cohort(cohort(child, parent))
    status, reason, message = active(cache)
    assert (status, reason) == ("False", "CohortCycle")
    start = "b" if name == "b" else "a"
    other = "a" if start == "b" else "b"
    assert message.endswith(f"is in a cycle of Cohorts: {start} -> {other} -> {start}")
    cache.drop_cohort("b")
    assert active(cache)[0] == "True"


def test_a_local_queue_is_as_active_as_what_it_leads_to() -> None:
    cache = cache_with()
    cache.set_local_queue(local_queue("lost", "nowhere"))
    cache.set_local_queue(local_queue("held", stopPolicy="Hold"))

    def told(key: str) -> tuple[str, str]:
        (condition,) = local_queue_status_of(cache, key)["conditions"]
        return condition["status"], condition["reason"]

    assert told("team/lq") == ("True", "Ready")
    assert told("team/lost") == ("False", "ClusterQueueDoesNotExist")
    assert told("team/held") == ("False", "Stopped")
    cache.set_cluster_queue(cluster_queue(stopPolicy="Hold"))
    assert told("team/lq") == ("False", "ClusterQueueIsInactive")

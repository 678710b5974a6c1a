"""Rules on pods of elastic Workloads: each planted broken, beside what is legal."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate_invariants.judge import judge
from tests.support.sound_cluster import (
    EARLY,
    LATE,
    RACK,
    assignment,
    conditions,
    found,
    job,
    queue_status,
    rules,
)
from tests.support.sound_slices import (
    MIDDLE,
    PARENT,
    RAY,
    controlled,
    grant,
    merge_slices,
    piece,
    ray,
    ray_pod,
    released,
    want,
    written,
)

WORKERS = f"team/{PARENT}/workers"


def later(item: dict[str, Any], at: str = LATE) -> dict[str, Any]:
    """The same pod, made and bound then."""
    item["metadata"]["creationTimestamp"] = at
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    item["status"]["conditions"] = [scheduled]
    return item


@pytest.mark.parametrize("topology", [True, False])
def test_a_sound_cluster_shows_nothing(topology: bool) -> None:
    assert judge(ray(topology=topology).cluster()) == []


# Granted per PodSet, slices included.


@pytest.mark.field_note("E1")
@pytest.mark.requirement("SLC-14")
def test_a_pod_released_while_its_slice_waits_is_found() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, None))
    world.pods.append(later(ray_pod(3, None)))
    assert rules(world) == [], "it waits behind its gate"
    world.pods[-1] = later(ray_pod(3, ""))
    breach, left = found(world)
    assert (breach.rule, breach.subject) == ("over-granted", WORKERS)
    assert breach.found == "4 live ungated pods, 3 admitted"
    assert (left.rule, left.subject) == ("over-granted-left", WORKERS)


def test_a_pod_released_under_an_admitted_slice_is_no_breach() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, ""))
    world.pods.append(later(ray_pod(3, "")))
    assert "over-granted" not in rules(world)


@pytest.mark.field_note("E2")
def test_a_slice_that_is_being_evicted_admits_nothing_more() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, ""))
    evicted = conditions(QuotaReserved=True, Admitted=True, Evicted=True)
    for condition in evicted:
        condition["lastTransitionTime"] = MIDDLE
    world.workloads[-1]["status"]["conditions"] = evicted
    world.pods.append(later(ray_pod(3, ""), EARLY))
    assert "over-granted" not in rules(world), "it was released before"
    assert "over-granted-left" in rules(world), "but it may not stay"
    later(world.pods[-1], LATE)
    assert "over-granted" in rules(world)


@pytest.mark.requirement("SLC-15")
def test_a_slice_that_is_settled_and_still_there_counts_once() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, ""))
    merge_slices(world, world.workloads[-1])
    world.pods.append(ray_pod(3, ""))
    assert "over-granted" not in rules(world)
    world.pods.append(later(ray_pod(4, "")))
    assert "over-granted" in rules(world)


def test_a_slice_of_a_workload_that_may_not_be_resized_admits_nothing() -> None:
    world = ray(topology=True)
    want(world, 4)
    world.workloads.append(piece(0, "n2"))
    world.workload["metadata"]["annotations"] = {}
    world.pods.append(released(later(ray_pod(3, "n2")), LATE))
    assert {"over-granted", "over-domain"} <= set(rules(world))


def test_pods_that_are_left_after_a_scale_down_are_no_breach() -> None:
    world = ray()
    want(world, 1)
    grant(world, 1)
    world.workload["metadata"]["managedFields"] = written(LATE)
    assert rules(world) == ["over-granted-left"], "their deletion is the operator's affair"
    want(world, 1, scaleStrategy={"workersToDelete": ["ray-workers-1", "ray-workers-2"]})
    assert rules(world) == []
    want(world, 1, scaleStrategy={})
    for item in world.pods[2:]:
        item["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == []


@pytest.mark.requirement("SLC-17")
def test_a_pod_released_beside_those_that_are_on_their_way_out_is_found() -> None:
    world = ray(topology=True)
    want(world, 2)
    grant(world, 2, {"n1": 2})
    world.workload["metadata"]["managedFields"] = written(MIDDLE)
    for item in world.pods:
        released(item, EARLY)
    world.pods[3]["metadata"]["deletionTimestamp"] = MIDDLE
    assert rules(world) == []
    world.pods[2]["metadata"]["deletionTimestamp"] = MIDDLE
    world.pods.append(released(later(ray_pod(3, "n1")), LATE))
    assert set(rules(world)) == {"over-granted", "over-domain"}
    world.pods[-1] = released(later(ray_pod(3, "n1")), MIDDLE)
    assert rules(world) == [], "within the second of the shrink nobody can tell"


def test_a_grown_pod_outside_the_places_of_parent_and_slices_is_found() -> None:
    world = ray(topology=True)
    want(world, 4)
    world.workloads.append(piece(0, "n2"))
    world.pods.append(released(later(ray_pod(3, "n3")), LATE))
    assert "outside-assignment" in rules(world)
    world.pods[-1] = released(later(ray_pod(3, "n2")), LATE)
    assert set(rules(world)) == {"over-capacity", "slice-not-settled"}


def test_a_slice_with_other_levels_has_its_pods_beside_those_of_its_parent() -> None:
    """The Topology was made anew with others while the cluster ran."""
    world = ray(topology=True)
    want(world, 4)
    beside = piece(0, "n2")
    given = beside["status"]["admission"]["podSetAssignments"][0]
    given["topologyAssignment"] = assignment({("r1",): 1}, (RACK,))
    world.workloads.append(beside)
    world.pods.append(released(later(ray_pod(3, "n2")), LATE))
    world.pods[-1]["spec"]["nodeSelector"] = {RACK: "r1"}
    assert not {"past-the-gate", "outside-assignment", "over-granted"} & set(rules(world))
    world.pods[-1]["spec"]["nodeSelector"] = {RACK: "r2"}
    assert "past-the-gate" in rules(world)


@pytest.mark.requirement("SLC-36")
def test_a_slice_in_another_rack_than_its_parent_requires_is_found() -> None:
    world = ray(topology=True)
    want(world, 4)
    world.workloads.append(piece(0, "n3"))
    assert ("level-split", WORKERS) in [(one.rule, one.subject) for one in found(world)]


def test_room_of_a_slice_is_charged_once() -> None:
    world = ray(topology=True)
    want(world, 4)
    world.nodes[1]["status"]["allocatable"]["cpu"] = "10"
    world.workloads.append(piece(0, "n2"))
    assert "over-capacity" not in rules(world)
    merge_slices(world, world.workloads[-1], places={"n1": 2, "n2": 2})
    assert "over-capacity" not in rules(world)
    world.nodes[1]["status"]["allocatable"]["cpu"] = "9"
    assert "over-capacity" in rules(world)


@pytest.mark.requirement("SLC-21")
def test_quota_of_a_slice_is_counted_once() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, ""))
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 2, 18)
    assert [one.rule for one in judge(world.cluster())] == ["slice-not-settled"]
    merge_slices(world, world.workloads[-1])
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 1, 18)
    assert [one.rule for one in judge(world.cluster())] == ["slice-not-settled"]


# Gates.


@pytest.mark.requirement("SLC-13")
def test_a_template_of_a_running_cluster_without_the_gate_is_found() -> None:
    world = ray()
    del world.rayclusters[0]["spec"]["workerGroupSpecs"][0]["template"]["spec"]["schedulingGates"]
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("elastic-gate-missing", f"team/{RAY}")
    assert "PodSet workers" in breach.found
    world.workload["metadata"]["annotations"] = {}
    assert rules(world) == [], "of a cluster that is not elastic nothing is asked"


@pytest.mark.field_note("E5")
def test_a_recreated_pod_that_stays_gated_is_found() -> None:
    world = ray()
    world.pods[3] = ray_pod(2, None)
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("not-released", WORKERS)
    assert breach.found == "1 gated pods have capacity (ray-workers-2)"
    world.pods.append(ray_pod(3, ""))
    world.pods[-1]["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == [], "one that is on its way out holds its place"


@pytest.mark.requirement("OPS-14")
def test_a_gated_pod_that_names_only_the_first_slice_of_kueue_is_no_breach() -> None:
    world = ray()
    key, pod = names.KUEUE_SLICE_CHAIN_ANNOTATION, ray_pod(2, None)
    pod["metadata"]["annotations"][key] = pod["metadata"]["annotations"].pop(
        names.WORKLOAD_ANNOTATION
    )
    world.pods[3] = pod
    assert rules(world) == ["not-released"]
    del pod["metadata"]["annotations"][key]
    assert "orphan-gated-pod" in rules(world)


def test_a_recreated_pod_of_a_placed_cluster_that_stays_gated_is_found() -> None:
    world = ray(topology=True)
    world.pods[3] = ray_pod(2, None)
    world.pods[3]["spec"]["schedulingGates"].append({"name": names.TOPOLOGY_GATE})
    assert [(one.rule, one.subject) for one in found(world)] == [("not-released", WORKERS)]


@pytest.mark.field_note("E16")
def test_an_elastic_gate_that_no_one_will_take_is_found() -> None:
    world = ray()
    world.workload["metadata"]["annotations"] = {}
    world.pods[3] = ray_pod(2, None)
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("orphan-gated-pod", "team/ray-workers-2")
    assert "is not elastic" in breach.found


def test_what_cleans_up_after_a_cluster_is_nobodys_pod() -> None:
    world = ray()
    cleanup = later(ray_pod(9, "", podset="head"))
    cleanup["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] = names.RAY_CLEANUP_TYPE
    cleanup["metadata"]["ownerReferences"] = controlled("Job", "ray-redis-cleanup")
    world.pods.append(cleanup)
    assert rules(world) == ["stray-marks"], "anybody can say so"
    made = job("ray-redis-cleanup", 1, queue=None)
    made["metadata"]["ownerReferences"] = controlled("RayCluster", RAY)
    world.jobs.append(made)
    assert rules(world) == []


def test_the_gates_of_a_stopped_cluster_are_those_of_its_creation() -> None:
    world = ray()
    world.pods = []
    world.workload["status"] = {"conditions": conditions(QuotaReserved=False, Admitted=False)}
    world.rayclusters[0]["spec"]["suspend"] = True
    assert rules(world) == []
    world.rayclusters[0]["spec"]["enableInTreeAutoscaling"] = False
    assert rules(world) == ["not-restored"]

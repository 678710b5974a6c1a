"""What is kept of a Workload, a pod and a node, and what cannot be read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.wire import core, kueue
from rackgate_assigner.scheduler.cycle import cycle_order
from rackgate_assigner.topology.model import SliceLayer, TopologyRequest
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.info import (
    node_info,
    pod_info,
    quota_usage,
    remaining_pods,
    workload_info,
)
from tests.unit.assigner.builders import CREATED, RACK, node, pod, podset, workload

AFFINITY: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}


def test_a_row_keeps_what_placement_asks_and_not_the_template() -> None:
    row = workload_info(
        workload(
            "w",
            [
                podset(
                    "main",
                    4,
                    {"cpu": "500m", "memory": "1Gi"},
                    topology={"required": RACK, "podSetGroupName": "g"},
                    nodeSelector={"a": "b"},
                    tolerations=[{"operator": "Exists"}],
                    affinity=AFFINITY,
                )
            ],
            priority=7,
        )
    )
    (found,) = row.podsets
    request = found.request
    assert (request.name, request.count) == ("main", 4)
    assert request.requests == {"cpu": 500, "memory": 2**30}
    assert request.topology == TopologyRequest(required=RACK)
    assert (request.group, request.node_selector) == ("g", {"a": "b"})
    assert request.tolerations == (core.Toleration(operator="Exists"),)
    assert request.node_affinity == AFFINITY["nodeAffinity"]
    assert (row.key, row.queue, row.owner_uid) == ("team/w", "team/lq", "job-w")
    assert (row.priority, row.pending, row.holds_quota) == (7, True, False)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None),
        ({}, None),
        ({"podIndexLabel": "i"}, None),
        ({"unconstrained": True}, TopologyRequest(unconstrained=True)),
        (
            {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 2},
            TopologyRequest(slices=(SliceLayer(RACK, 2),)),
        ),
        (
            {"podSetSliceRequiredTopology": RACK},
            TopologyRequest(slices=(SliceLayer(RACK, 0),)),
        ),
        (
            {"podsetSliceRequiredTopologyConstraints": [{"topology": RACK, "size": 3}]},
            TopologyRequest(slices=(SliceLayer(RACK, 3),)),
        ),
    ],
)
def test_topology_requests_are_read_in_every_form(
    asked: dict[str, Any] | None, expected: TopologyRequest | None
) -> None:
    row = workload_info(workload("w", [podset(topology=asked)]))
    assert row.podsets[0].request.topology == expected


@pytest.mark.parametrize("cpu", ["much", "-1"])
def test_a_request_that_makes_no_sense_is_named_not_raised(cpu: str) -> None:
    (found,) = workload_info(workload("w", [podset(requests={"cpu": cpu})])).podsets
    assert found.problem is not None
    assert "spec.podSets[main].template" in found.problem


def test_templates_of_a_known_generation_are_not_read_again() -> None:
    first = workload_info(workload("w"))
    assert workload_info(workload("w", version="2"), first).podsets is first.podsets
    assert workload_info(workload("w", generation=2), first).podsets is not first.podsets


def test_equal_shapes_are_equal_whatever_the_workload_is_called() -> None:
    one = workload_info(workload("a", [podset(nodeSelector={"x": "1", "y": "2"})]))
    two = workload_info(workload("b", [podset(nodeSelector={"y": "2", "x": "1"})]))
    other = workload_info(workload("b", [podset(nodeSelector={"x": "1"})]))
    assert one.shape == two.shape
    assert hash(one.shape) == hash(two.shape)
    assert one.shape != other.shape


@pytest.mark.parametrize(
    ("reason", "age"),
    [
        ("PodsReadyTimeout", "2030-01-01T00:00:00Z"),
        ("AdmissionCheck", "2030-01-01T00:00:00Z"),
        ("JobSuspended", "2030-01-01T00:00:00Z"),
        ("ClusterQueueStopped", CREATED),
    ],
)
def test_age_is_creation_but_for_evictions_that_renew_it(reason: str, age: str) -> None:
    evicted = core.Condition("Evicted", "True", reason, "", "2030-01-01T00:00:00Z")
    status = kueue.WorkloadStatus(conditions=(evicted,))
    assert (
        workload_info(msgspec.structs.replace(workload("w"), status=status)).queue_timestamp == age
    )


def test_a_priority_class_counts_while_no_priority_is_written() -> None:
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    foreign = {**reference, "group": "scheduling.k8s.io"}
    high = workload_info(workload("z-high", priorityClassRef=reference))
    plain = workload_info(workload("a-plain", priorityClassRef=foreign))
    written = workload_info(workload("m-written", priorityClassRef=reference, priority=1))
    order = cycle_order([plain, written, high], {"high": 9})
    assert [row.name for row in order] == ["z-high", "m-written", "a-plain"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_have_no_row(phase: str) -> None:
    assert pod_info(pod("p", "a", phase=phase)) is None


def test_pods_that_are_not_bound_have_no_row() -> None:
    assert pod_info(pod("p", "")) is None


@pytest.mark.requirement("CAP-01")
@pytest.mark.field_note("C16")
def test_allocatable_is_read_exactly_and_what_cannot_be_read_is_absent() -> None:
    found = node("a", cpu="7500m")
    found.status.allocatable.update({"memory": "1.5Gi", "example.com/x": "lots"})
    facts = node_info(found)
    assert facts.allocatable == {"cpu": 7500, "memory": 3 * 2**29, "pods": 110}


@pytest.mark.requirement("CAP-01")
def test_allocatable_counts_with_every_resource_and_capacity_never() -> None:
    found = msgspec.convert(
        {
            "metadata": {"name": "a"},
            "status": {
                "capacity": {"cpu": "8", "nvidia.com/gpu": "8", "example.com/only-here": "1"},
                "allocatable": {"cpu": "7", "nvidia.com/gpu": "4", "hugepages-2Mi": "1Gi"},
            },
        },
        core.Node,
    )
    assert node_info(found).allocatable == {
        "cpu": 7000,
        "nvidia.com/gpu": 4,
        "hugepages-2Mi": 2**30,
    }


@pytest.mark.requirement("SLC-05")
def test_a_slice_is_known_by_its_owner_and_its_mark_together() -> None:
    row = workload_info(workload("s", parent="ray"))
    assert (row.parent, row.owner_uid, row.elastic) == ("team/ray", "uid-ray", True)
    assert workload_info(workload("ray", elastic=True)).parent == ""
    unmarked = workload("s", parent="ray")
    unmarked.metadata.annotations.clear()
    assert workload_info(unmarked).parent == ""


def test_slices_of_different_parents_are_never_answered_for_each_other() -> None:
    first, second = (workload_info(workload("s", parent=name)) for name in ("ray", "other"))
    assert first.shape != second.shape


def test_what_is_folded_done_and_reserved_is_read_from_the_status() -> None:
    podsets = [podset(count=3)]
    assignment = Assignment("cq", (PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 3000}, 3),))
    found = workload_info(
        workload(
            "w",
            podsets,
            assignment=assignment,
            folded=["s"],
            reclaimable={"main": 2},
            reserved_at=CREATED,
        )
    )
    assert (found.merged_slices, found.reclaimable) == (frozenset({"uid-s"}), {"main": 2})
    assert found.reserved_at == CREATED
    assert workload_info(workload("w", podsets)).reserved_at == ""
    assert remaining_pods(found) == {"main": 1}
    assert quota_usage(assignment, remaining_pods(found)) == {("tas", "cpu"): 1000}

"""What became of an admitted Workload's pods."""

from __future__ import annotations

import msgspec
import pytest

from rackgate.api import names
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire import core
from rackgate_assigner.explain.explanation import PodSetStatus
from rackgate_assigner.explain.running import find_unhealthy_nodes, pods_of, with_pod_status
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.info import node_info, workload_info
from tests.unit.assigner.builders import HOST, node, workload

RUN = PodSetStatus(podset="main", flavors={"cpu": "tas"}, granted=8)


def pod(name: str, phase: str = "Pending", claim: str = "w", **spec: object) -> core.Pod:
    meta = {
        "name": name,
        "namespace": "team",
        "annotations": {names.WORKLOAD_ANNOTATION: claim},
        "labels": {names.PODSET_LABEL: "main"},
    }
    conditions = spec.pop("conditions", [])
    if spec.pop("leaving", False):
        meta["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    status = {"phase": phase, "conditions": conditions}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, core.Pod)


def test_every_pod_that_does_not_run_has_a_reason() -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    pods = [
        pod("runs", "Running", nodeName="a"),
        pod("ended", "Succeeded", nodeName="a"),
        pod("gated", schedulingGates=[{"name": names.TOPOLOGY_GATE}]),
        pod("gang", schedulingGates=[{"name": g} for g in (names.TOPOLOGY_GATE, names.GANG_GATE)]),
        pod("other", schedulingGates=[{"name": "example.com/licence"}]),
        pod("stuck", conditions=[unschedulable]),
        pod("grouped", schedulingGroup={"podGroupName": "train-gg"}),
        pod("starts", nodeName="a"),
        pod("foreign", claim="other"),
    ]
    run = msgspec.structs.replace(RUN, granted=9)
    found = with_pod_status(run, pods_of(core.Meta(name="w"), pods)["main"], top=2)
    assert (found.running, found.ended, found.missing) == (1, 1, 1)
    assert {held.why: held.names for held in found.held} == {
        "gated: the ungater has not released it": ("gated",),
        "gated: its gang has not started; `kubectl get swl` says what it waits for": ("gang",),
        "has scheduling gates of others: example.com/licence": ("other",),
        "not scheduled: 0/3 nodes": ("stuck",),
        "not scheduled yet: it waits with PodGroup train-gg": ("grouped",),
        "bound to its node, phase Pending": ("starts",),
    }


@pytest.mark.requirement("OPS-14")
def test_pods_that_name_a_slice_that_kueue_replaced_are_those_of_the_next_one() -> None:
    chain = {names.KUEUE_SLICE_CHAIN_ANNOTATION: "first"}
    old, other = pod("old", "Running"), pod("other", "Running", claim="other")
    old.metadata.annotations.update(chain)
    own = pods_of(core.Meta(name="larger", annotations=chain), [old, other])
    assert own == {"main": [old]}
    assert pods_of(core.Meta(name="larger"), [old, other]) == {}


def test_a_pod_that_is_being_deleted_does_not_count_as_running() -> None:
    found = with_pod_status(RUN, [pod("going", "Running", nodeName="a", leaving=True)], top=1)
    assert (found.running, found.held[0].pods) == (0, 1)


def test_assigned_hosts_that_are_gone_or_broken_are_named() -> None:
    hosts = ("a", "b", "c", "d")
    placed = TopologyAssignment((HOST,), tuple(((host,), 1) for host in hosts))
    assignment = Assignment(
        "cq", (PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 4}, 4, placed),)
    )
    row = workload_info(workload("w", assignment=assignment))
    nodes = {name: node_info(node(name, ready=name != "b")) for name in ("a", "b", "c")}
    assert find_unhealthy_nodes(row, "main", nodes, ["c"]) == (
        "b (not ready)",
        "c (marked unhealthy)",
        "d (gone)",
    )
    assert find_unhealthy_nodes(row, "other", nodes, []) == ()

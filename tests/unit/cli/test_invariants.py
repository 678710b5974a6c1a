"""Every invariant is planted broken once; a sound cluster shows none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.wire.batch import Job
from rackgate.wire.core import Node, Pod
from rackgate.wire.kueue import Workload
from rackgate_cli.invariants import Breach, Cluster, breaches, lasting

UID = "job-uid"
OWNER = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID, "controller": True}]
CONTAINERS = [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]


def node(name: str, cpu: str = "8") -> Node:
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {names.HOSTNAME_LABEL: name}},
            "status": {"allocatable": {"cpu": cpu, "pods": "10"}},
        },
        Node,
    )


def pod(
    name: str,
    host: str | None,
    *,
    gated: bool = False,
    bound: bool = True,
    uid: str = UID,
    phase: str = "Running",
    terminating: bool = False,
) -> Pod:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "labels": {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"},
        "ownerReferences": [{**OWNER[0], "uid": uid}],
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, Any] = {"containers": CONTAINERS}
    if gated:
        spec["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    elif host:
        spec["nodeSelector"] = {names.HOSTNAME_LABEL: host}
        if bound:
            spec["nodeName"] = host
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Pod)


def job() -> Job:
    metadata = {
        "name": "train",
        "namespace": "team",
        "uid": UID,
        "labels": {names.QUEUE_LABEL: "queue"},
    }
    return msgspec.convert({"metadata": metadata}, Job)


def workload(hosts: dict[str, int], *, count: int | None = None, admitted: bool = True) -> Workload:
    total = sum(hosts.values()) if count is None else count
    template = {"spec": {"containers": CONTAINERS}}
    status: dict[str, Any] = {}
    if admitted:
        individual = {"roots": list(hosts)}
        piece = {
            "domainCount": len(hosts),
            "valuesPerLevel": [{"individual": individual}],
            "podCounts": {"individual": list(hosts.values())},
        }
        topology = {"levels": [names.HOSTNAME_LABEL], "slices": [piece]}
        grant = {
            "name": "main",
            "count": total,
            "flavors": {"cpu": "tas"},
            "topologyAssignment": topology,
        }
        status = {"admission": {"clusterQueue": "cq", "podSetAssignments": [grant]}}
    raw = {
        "metadata": {"name": "job-train", "namespace": "team", "ownerReferences": OWNER},
        "spec": {"podSets": [{"name": "main", "count": total, "template": template}]},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(raw), type=Workload)


def cluster(load: Workload, *pods: Pod, nodes: tuple[Node, ...] = ()) -> Cluster:
    return Cluster(nodes or (node("n1"), node("n2")), pods, (job(),), (load,))


def rules(found: list[Breach]) -> list[str]:
    return [breach.rule for breach in found]


def test_a_sound_cluster_has_no_breach() -> None:
    load = workload({"n1": 2, "n2": 1})
    sound = cluster(
        load, pod("a", "n1"), pod("b", "n1"), pod("c", "n2"), pod("d", None, gated=True)
    )
    assert breaches(sound) == []


def test_one_pod_too_many_in_a_domain_is_found() -> None:
    load = workload({"n1": 1, "n2": 2})
    found = breaches(cluster(load, pod("a", "n1"), pod("b", "n1"), pod("c", "n2")))
    assert rules(found) == ["over-domain"]


def test_one_pod_too_many_of_a_podset_is_found() -> None:
    load = workload({"n1": 1})
    found = breaches(cluster(load, pod("a", "n1"), pod("b", "n2")))
    assert "over-granted" in rules(found)


def test_a_terminated_pod_leaves_its_place_to_another() -> None:
    load = workload({"n1": 1})
    ended = pod("a", "n1", phase="Failed")
    assert breaches(cluster(load, ended, pod("b", "n1"))) == []


def test_an_ungated_pod_before_admission_is_found() -> None:
    load = workload({"n1": 1}, admitted=False)
    found = breaches(cluster(load, pod("a", "n1")))
    assert rules(found) == ["ungated-before-admission"]


def test_a_leaving_pod_of_an_evicted_workload_is_no_breach() -> None:
    load = workload({"n1": 1}, admitted=False)
    assert breaches(cluster(load, pod("a", "n1", terminating=True))) == []


def test_a_pod_bound_outside_its_assignment_is_found() -> None:
    load = workload({"n1": 1})
    strayed = msgspec.structs.replace(
        pod("a", "n1"), spec=msgspec.structs.replace(pod("a", "n1").spec, node_name="n2")
    )
    assert rules(breaches(cluster(load, strayed))) == ["outside-assignment"]


def test_a_pod_that_a_dead_node_cannot_end_is_no_breach_once_its_host_was_given_up() -> None:
    swapped = cluster(workload({"n2": 1}), pod("a", "n1", terminating=True), pod("b", "n2"))
    assert rules(breaches(swapped)) == ["over-granted"], "its node may still end it"
    ends = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert rules(breaches(replace(swapped, read_at=ends + 29))) == ["over-granted"]
    assert breaches(replace(swapped, read_at=ends + 31)) == []
    kept = cluster(workload({"n1": 1}), pod("a", "n1", terminating=True), pod("b", "n1"))
    assert rules(breaches(replace(kept, read_at=ends + 31))) == ["over-domain", "over-granted"]


def test_a_gated_replacement_waits_without_a_breach() -> None:
    load = workload({"n1": 1, "n2": 1})
    waiting = cluster(load, pod("a", "n1", terminating=True), pod("b", None, gated=True))
    assert breaches(waiting) == []


def test_a_pod_on_a_host_that_was_given_up_still_takes_room_there() -> None:
    load = workload({"n2": 2})
    leaving = [pod(name, "n1", terminating=True) for name in "ab"]
    foreign = pod("x", "n1", uid="other")
    assert rules(breaches(cluster(load, *leaving))) == []
    assert rules(breaches(cluster(load, *leaving, foreign))) == ["over-capacity"]


def test_an_assignment_that_does_not_sum_to_its_count_is_found() -> None:
    assert rules(breaches(cluster(workload({"n1": 1}, count=2)))) == ["assignment-sum"]


def test_a_host_charged_beyond_its_allocatable_is_found() -> None:
    foreign = pod("x", "n1", uid="other")
    found = breaches(cluster(workload({"n1": 2}), foreign))
    assert rules(found) == ["over-capacity"]
    assert found[0].subject == "n1 cpu"


def test_only_a_breach_that_stays_is_lasting() -> None:
    here = Breach("over-domain", "a", "2 live")
    assert lasting([here], [Breach("over-domain", "a", "3 live")]) == [here]
    assert lasting([here], [Breach("over-domain", "b", "2 live")]) == []

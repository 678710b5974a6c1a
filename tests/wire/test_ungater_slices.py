"""Elastic jobs against an API server: what a slice grants, merged or not, seen or not yet."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.resources import PODS, WORKLOADS
from rackgate.features import ELASTIC_JOBS
from rackgate.topology.assignment import Domain, TopologyAssignment, encode
from rackgate_ungater.shards.handover import SHARDS, shard_of
from tests.support.apiserver import Fault
from tests.support.apiserver_faults import Request
from tests.support.waiting import until
from tests.wire.test_ungater_shards_acting import Led, stall
from tests.wire.ungater_world import (
    FOREIGN,
    LEVELS,
    R1,
    R2,
    STREAMS,
    Object,
    Replica,
    World,
    condition,
    sample,
    uid_in,
)

Start = Callable[..., Replica]

BOTH = (names.TOPOLOGY_GATE, names.ELASTIC_GATE)
CLUSTER = "raycluster-uid"
ON = {"feature_gates": {ELASTIC_JOBS: True}}
Counts = int | dict[Domain, int]


def given(counts: Counts) -> Object:
    """A PodSetAssignment of PodSet `main`."""
    if isinstance(counts, int):
        return {"name": "main", "count": counts}
    assigned = encode(TopologyAssignment(LEVELS, tuple(counts.items())))
    return {"name": "main", "count": sum(counts.values()), "topologyAssignment": assigned}


def put(world: World, name: str, owner: Object, counts: Counts, **more: Any) -> Object:
    """A Workload of the elastic job; `conditions` are Admitted unless given."""
    conditions = more.pop("conditions", ("Admitted",))
    status = {
        "conditions": [condition(kind) for kind in conditions],
        "admission": {"clusterQueue": "cq", "podSetAssignments": [given(counts)]},
        "foldedSlices": [{"uid": uid, "podSet": "main"} for uid in more.pop("merged", ())],
    }
    meta = {
        "name": name,
        "namespace": "team",
        "labels": {names.JOB_UID_LABEL: CLUSTER},
        "annotations": {names.ELASTIC_ANNOTATION: "true"},
        "ownerReferences": [{**owner, "controller": True}],
        **more,
    }
    spec = {"podSets": [{"name": "main", "count": status_count(counts), "template": {}}]}
    return world.server.put(WORKLOADS, {"metadata": meta, "spec": spec, "status": status})


def status_count(counts: Counts) -> int:
    return counts if isinstance(counts, int) else sum(counts.values())


def parent(world: World, counts: Counts, **more: Any) -> Object:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": CLUSTER}
    return put(world, "train", owner, counts, uid=more.pop("uid", "parent"), **more)


def grow(world: World, number: int, counts: Counts = 1, **more: Any) -> Object:
    """A slice, admitted unless told otherwise."""
    uid = more.pop("parent_uid", "parent")
    owner = {"apiVersion": names.API_VERSION, "kind": "Workload", "name": "train", "uid": uid}
    name = f"train-main-{number}"
    return put(world, name, owner, counts, uid=more.pop("uid", f"slice-{number}"), **more)


def fold(world: World, counts: Counts, *numbers: int, prune: bool = False) -> None:
    """Counts and UIDs in one write, then the slices go; and, if asked, the UIDs."""
    parent(world, counts, merged=[f"slice-{number}" for number in numbers])
    for number in numbers:
        world.server.remove(WORKLOADS, f"train-main-{number}", "team")
    if prune:
        parent(world, counts)


def pods(world: World, *numbers: int, gates: tuple[str, ...] = (names.ELASTIC_GATE,)) -> None:
    for number in numbers:
        item = copy.deepcopy(world.pod(number))
        labels = item["metadata"]["labels"]
        del labels[names.COMPLETION_INDEX_LABEL]
        if names.TOPOLOGY_GATE not in gates:
            del labels[names.TAS_LABEL]
        item["metadata"]["ownerReferences"][0] |= {"kind": "RayCluster", "uid": CLUSTER}
        item["spec"]["schedulingGates"] = [{"name": name} for name in (FOREIGN, *gates)]
        world.server.put(PODS, item)


def free(world: World) -> list[int]:
    """Numbers of the pods that no gate of ours holds."""
    found = []
    for pod in world.server._objects.get("pods", {}).values():
        gates = {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}
        if not gates & set(BOTH):
            found.append(int(pod["metadata"]["name"].removeprefix("train-")))
    return sorted(found)


def slices_read(world: World) -> list[Request]:
    """Live reads of a Workload with its slices: one in each look that would release."""
    return [one for one in world.asked("GET", "/workloads") if one.query.get("labelSelector")]


async def quiet(world: World, replica: Replica) -> list[int]:
    """Nothing is under way any more; who runs then."""
    await replica.has_no_open_requests()
    await replica.idle()
    return free(world)


@pytest.mark.requirement("SLC-14", "SLC-15", "SLC-18", "SLC-20", "SLC-30", "UNG-03")
@pytest.mark.field_note("E1")
async def test_a_cluster_grows_by_as_many_pods_as_slices_were_admitted(
    world: World, start: Start
) -> None:
    wait = {"name": names.ELASTIC_GATE, "cluster_queue": "cq"}
    before = sample("pod_scheduling_gate_removal_seconds_count", **wait)
    parent(world, 1)
    pods(world, 0)
    replica = start(**ON)
    await until(lambda: free(world) == [0])
    (patch,) = world.asked("PATCH")
    assert json.loads(patch.body)["spec"] == {
        "schedulingGates": [{"$patch": "delete", "name": names.ELASTIC_GATE}]
    }
    for number in (1, 2):
        grow(world, number, conditions=())
    pods(world, 1, 2)
    await replica.knows(3)
    assert await quiet(world, replica) == [0]
    grow(world, 1)
    await until(lambda: free(world) == [0, 1])
    fold(world, 2, 1, prune=True)
    assert await quiet(world, replica) == [0, 1]
    grow(world, 2)
    await until(lambda: free(world) == [0, 1, 2])
    assert len(world.asked("PATCH")) == 3
    assert "team/train-main-1" not in replica.ungater._recreated, "nobody acts on a slice"
    waits = "pod_scheduling_gate_removal_seconds_count"
    await until(lambda: sample(waits, **wait) == before + 3)
    assert world.events() == []


@pytest.mark.requirement("UNG-20", "SLC-36")
async def test_both_gates_go_in_one_patch_to_domains_of_parent_and_slices(
    world: World, start: Start
) -> None:
    parent(world, {R1: 1})
    grow(world, 1, {R2: 1})
    pods(world, 0, 1, 2, gates=BOTH)
    replica = start(**ON)
    await until(lambda: len(free(world)) == 2)
    assert await quiet(world, replica) == [0, 1]
    assert world.domains() == {"train-0": R1, "train-1": R2}
    patches = world.asked("PATCH")
    assert len(patches) == 2
    gone = [{"$patch": "delete", "name": name} for name in BOTH]
    assert all(json.loads(one.body)["spec"]["schedulingGates"] == gone for one in patches)
    pod = world.server.get(PODS, "train-0", "team") or {}
    assert pod["spec"]["schedulingGates"] == [{"name": FOREIGN}]


@pytest.mark.requirement("SLC-14", "UNG-11")
@pytest.mark.field_note("E2")
async def test_a_slice_evicted_behind_the_watch_releases_nothing(
    world: World, start: Start
) -> None:
    parent(world, 0)
    grow(world, 1)
    replica = start(lead=False, **ON)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    stall(world, "workloads")
    grow(world, 1, conditions=("Admitted", "Evicted"))
    pods(world, 0)
    await replica.knows(1)
    replica.lead()
    # Each look reads the slices live: when the second one begins, the first has written nothing.
    await until(lambda: len(slices_read(world)) >= 2)
    assert world.asked("PATCH") == []


@pytest.mark.requirement("SLC-15", "SLC-21")
async def test_a_fold_behind_the_watch_counts_no_slice_twice(world: World, start: Start) -> None:
    """Its UID is pruned already, and the watch still shows the slice as admitted."""
    parent(world, 1)
    grow(world, 1)
    replica = start(lead=False, **ON)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    stall(world, "workloads")
    fold(world, 2, 1, prune=True)
    pods(world, 0, 1, 2, 3)
    await replica.knows(4)
    replica.lead()
    await until(lambda: len(free(world)) == 2)
    assert len(await quiet(world, replica)) == 2


@pytest.mark.requirement("SLC-14", "UNG-11")
async def test_what_the_server_admits_beyond_the_watch_waits_for_the_watch(
    world: World, start: Start
) -> None:
    parent(world, 1)
    replica = start(lead=False, **ON)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    stall(world, "workloads")
    grow(world, 1)
    pods(world, 0, 1)
    await replica.knows(2)
    replica.lead()
    await until(lambda: free(world) == [0])
    assert await quiet(world, replica) == [0]


@pytest.mark.requirement("SLC-16")
@pytest.mark.field_note("E5")
async def test_a_pod_made_again_is_released_when_the_broken_one_is_gone(
    world: World, start: Start
) -> None:
    parent(world, 2)
    pods(world, 0, 1)
    replica = start(**ON)
    await until(lambda: free(world) == [0, 1])
    pods(world, 2)
    await replica.knows(3)
    assert await quiet(world, replica) == [0, 1]
    world.server.remove(PODS, "train-0", "team")
    await until(lambda: free(world) == [1, 2])


@pytest.mark.requirement("UNG-15", "SLC-30")
async def test_a_slice_is_served_in_the_shard_of_its_parent(world: World, start: Start) -> None:
    parent(world, 0, uid=uid_in(3))
    pods(world, 0)
    replica = start(lead=False, **ON)
    await replica.synced()
    led = Led(replica, [3])
    await until(lambda: replica.ungater.leading == {3})
    uid = next(f"s-{n}" for n in range(1000) if shard_of(f"s-{n}") == 9)
    grow(world, 1, parent_uid=uid_in(3), uid=uid)
    await until(lambda: free(world) == [0])
    await led.end()


@pytest.mark.requirement("SLC-15", "UNG-07", "UNG-10")
async def test_requests_under_way_hold_the_podset_while_slices_are_folded(
    world: World, start: Start
) -> None:
    parent(world, 2)
    for number in range(4):
        grow(world, number)
    world.server.faults.append(Fault.slow(0.05, method="PATCH", times=100))
    replica = start(batch_window=0, concurrency=2, **ON)
    await replica.synced()
    for number in range(10):
        pods(world, number)
        await asyncio.sleep(0)
    for number in range(4):
        await until(lambda number=number: len(free(world)) > number)  # type: ignore[misc]  # bound
        fold(world, 3 + number, number)
    await until(lambda: len(free(world)) == 6)
    assert len(await quiet(world, replica)) == 6


@pytest.mark.requirement("UNG-14", "SLC-15")
@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_never_leads_to_one_more_release_by_number(
    world: World, start: Start, applied: bool
) -> None:
    parent(world, 2)
    world.server.faults.append(Fault.cut(applied=applied, method="PATCH", times=2))
    pods(world, 0, 1, 2)
    replica = start(**ON)
    await until(lambda: len(free(world)) >= 2)
    assert len(await quiet(world, replica)) == 2


@pytest.mark.requirement("OPS-08", "UNG-17")
async def test_asked_to_leave_it_does_not_wait_for_a_throttled_list(
    world: World, start: Start
) -> None:
    parent(world, 1)
    pods(world, 0)
    replica = start(lead=False, **ON)
    await replica.synced()
    wait = {"Retry-After": "30"}
    fault = Fault.status(429, headers=wait, method="GET", path="/workloads", watch=False, times=99)
    world.server.faults.append(fault)
    led = Led(replica, range(SHARDS))
    await until(lambda: any(r.query.get("labelSelector") for r in world.asked("GET", "/workloads")))
    async with asyncio.timeout(15):
        await led.end()


@pytest.mark.requirement("SLC-14")
async def test_a_parent_that_lost_its_label_admits_what_is_its_own(
    world: World, start: Start
) -> None:
    parent(world, 1, labels={})
    pods(world, 0)
    start(**ON)
    await until(lambda: free(world) == [0])


@pytest.mark.requirement("SLC-01", "UNG-20")
@pytest.mark.field_note("E16")
async def test_with_the_gate_off_only_topology_gates_are_taken_off(
    world: World, start: Start
) -> None:
    parent(world, {R1: 2})  # the pod without topology counts, too
    grow(world, 1, {R2: 1})
    pods(world, 0, 1, gates=BOTH)
    pods(world, 2)
    replica = start()
    await until(lambda: world.domains() == {"train-0": R1, "train-2": ("", "")})
    await replica.knows(3)
    await replica.idle()
    assert free(world) == []
    assert len(world.asked("PATCH")) == 1
    assert [r.path.rsplit("/", 1)[1] for r in world.asked("GET", "/workloads/")] == ["train"]


@pytest.mark.field_note("E16")
async def test_a_plain_job_is_read_and_released_as_ever_beside_elastic_ones(
    world: World, start: Start
) -> None:
    parent(world, 1)
    world.workload({R1: 2}, name="plain")
    world.pods(0, 1, 2, workload="plain")
    replica = start(**ON)
    await world.released(2)
    await replica.has_no_open_requests()
    assert set(world.domains()) == {"plain-0", "plain-1"}
    reads = [
        r for r in world.asked("GET", "/workloads") if not r.watch and r.query.get("labelSelector")
    ]
    assert reads == [], "no list for a job that is not elastic"
    assert world.asked("GET", "/workloads/plain")


def kueue_chain(world: World, name: str, counts: Counts, **more: Any) -> None:
    """A Workload slice as Kueue writes it; the first one of the job is `train`."""
    annotations = {
        names.ELASTIC_ANNOTATION: "true",
        names.KUEUE_SLICE_CHAIN_ANNOTATION: "train",
    }
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": CLUSTER}
    put(world, name, owner, counts, uid=f"uid-{name}", annotations=annotations, **more)


@pytest.mark.requirement("SLC-14", "OPS-14")
@pytest.mark.parametrize("topology", [True, False], ids=["both names", "the first slice alone"])
@pytest.mark.parametrize("workload_first", [True, False], ids=["Workloads first", "pods first"])
async def test_pods_that_name_a_slice_that_kueue_replaced_belong_to_the_slice_after_it(
    world: World, start: Start, workload_first: bool, topology: bool
) -> None:
    """Three pods were admitted; one runs, which Kueue released, so two more are released.

    With its gate TopologyAwareScheduling off, Kueue does not write the name of the Workload.
    """

    def workloads() -> None:
        kueue_chain(world, "train", 1, conditions=("Admitted", "Finished"))
        kueue_chain(world, "train-larger", 3)

    if workload_first:
        workloads()
    pods(world, 0, gates=())
    pods(world, 1, 2, 3)
    for item in world.server._objects["pods"].values():
        item["metadata"]["annotations"][names.KUEUE_SLICE_CHAIN_ANNOTATION] = "train"
        if not topology:
            del item["metadata"]["annotations"][names.WORKLOAD_ANNOTATION]
        world.server.put(PODS, item)
    replica = start(**ON)
    if not workload_first:
        await replica.knows(4)
        workloads()
    await until(lambda: len(free(world)) == 3)
    assert await quiet(world, replica) == [0, 1, 2]

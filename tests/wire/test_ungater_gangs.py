"""The whole ungater with gangs: all pods of a gang are released, or none. Names give the race."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import GANG_WORKLOADS, JOBS, JOBSETS, WORKLOADS
from rackgate.gang.link import child_job_link, run_id
from rackgate.jobframework.pod_group.membership import uid_of_group
from rackgate_ungater.state_machine import gang_waits
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.gang_world import (
    BOTH,
    FIRST,
    ON,
    SECOND,
    GangWorld,
    by_replicated_job,
    gates_of,
    podset_names,
)
from tests.wire.ungater_world import FOREIGN, R1, R2, Replica, sample

EIGHT = range(8)
ALL = podset_names("main", *EIGHT)
RUN = run_id("k", FIRST)


@pytest.fixture
async def world() -> AsyncIterator[GangWorld]:
    async with FakeApiServer() as server:
        yield GangWorld(server)


@pytest.fixture
async def start(world: GangWorld) -> AsyncIterator[Callable[..., Replica]]:
    replicas: list[Replica] = []

    def started(*, lead: bool = True, **settings: Any) -> Replica:
        replicas.append(Replica(world.server, **{**ON, **settings}))
        if lead:
            replicas[-1].lead()
        return replicas[-1]

    yield started
    for replica in replicas:
        await replica.kill()


Start = Callable[..., Replica]


async def settled(world: GangWorld, start: Start, **settings: Any) -> Replica:
    """A replica that leads and has seen everything."""
    replica = start(**settings)
    await replica.synced()
    await until(lambda: replica.leads)
    await world.seen(replica)
    return replica


@pytest.mark.requirement("GNG-10", "GNG-12", "GNG-16")
async def test_race_19_five_of_eight_wait_and_the_eighth_releases_all(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 5, R2: 3})
    world.members(*range(5))
    replica = await settled(world, start)
    assert world.asked("PATCH") == []
    world.members(5, 6)
    await world.seen(replica)
    assert world.asked("PATCH") == []
    world.member(7)
    await world.all_free(*ALL)
    assert world.counts() == {R1: 5, R2: 3}
    assert world.runs() == dict.fromkeys(ALL, RUN)


@pytest.mark.requirement("GNG-12")
async def test_one_patch_removes_all_gates_and_records_the_run(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 1})
    world.admitted({R1: 1})
    before = world.member(0)
    start()
    await world.all_free("main-0")
    (patch,) = world.asked("PATCH")
    assert json.loads(patch.body) == {
        "metadata": {
            "uid": before["metadata"]["uid"],
            "resourceVersion": before["metadata"]["resourceVersion"],
            "annotations": {names.GANG_RUN_ANNOTATION: RUN},
        },
        "spec": {
            "schedulingGates": [
                {"$patch": "delete", "name": names.GANG_GATE},
                {"$patch": "delete", "name": names.TOPOLOGY_GATE},
            ],
            "nodeSelector": {"block": "b1", "rack": "r1"},
        },
    }


@pytest.mark.requirement("GNG-06")
@pytest.mark.parametrize("last", ["Workload of gangs", "pod"])
async def test_race_1_either_order_of_pods_and_workload_of_gangs(
    world: GangWorld, start: Start, last: str
) -> None:
    world.admitted()
    if last == "pod":
        world.gangs()
        world.members(*range(7))
    else:
        world.members(*EIGHT)
    await settled(world, start, batch_window=60)
    assert world.asked("PATCH") == []
    if last == "pod":
        world.member(7)
    else:
        world.gangs()
    await world.all_free(*ALL)


@pytest.mark.requirement("GNG-06", "GNG-14")
async def test_pods_without_a_link_never_wait(world: GangWorld, start: Start) -> None:
    world.admitted()
    world.member(0, link="", gates=(names.TOPOLOGY_GATE,))
    world.member(1)
    start()
    await world.all_free("main-0")
    assert "main-1" not in world.free()


@pytest.mark.requirement("GNG-12")
async def test_race_3_an_eviction_stops_the_patches_and_the_next_run_is_whole(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*EIGHT)
    patched = 0

    async def evict_at_the_third(_: web.Request, handle: Handler) -> web.StreamResponse:
        nonlocal patched
        patched += 1
        if patched == 3:
            world.admitted(conditions=("Admitted", "Evicted"))
            await until(lambda: not replica.ungater.workloads.store["team/train"].admitted)
        return await handle()

    world.server.faults.append(Fault(evict_at_the_third, method="PATCH", path="/pods/", times=99))
    replica = start(concurrency=1)
    await until(lambda: patched == 3)
    await replica.has_no_open_requests()
    await replica.idle()
    assert len(world.free()) == 3
    world.terminate(*ALL)
    world.admitted(at=SECOND)
    world.members(*range(10, 17))
    await world.seen(replica)
    assert len(world.free()) == 3, "those of the first run are being deleted, and do not count"
    world.remove(*ALL)
    world.member(17)
    await world.all_free(*podset_names("main", *range(10, 18)))
    assert set(world.runs().values()) == {run_id("k", SECOND)}


@pytest.mark.requirement("GNG-12")
@pytest.mark.parametrize("applied", [1, 2, 5])
async def test_race_4_a_crash_between_two_patches_is_finished_by_the_next_process(
    world: GangWorld, start: Start, applied: int
) -> None:
    """Without quorum: three members are gone meanwhile."""
    world.gangs()
    world.admitted()
    world.members(*EIGHT)
    patched = 0

    async def die(_: web.Request, handle: Handler) -> web.StreamResponse:
        nonlocal patched
        patched += 1
        if patched > applied:
            await asyncio.Event().wait()
        return await handle()

    fault = Fault(die, method="PATCH", path="/pods/", times=99)
    world.server.faults.append(fault)
    first = start(concurrency=1)
    await until(lambda: patched == applied + 1)
    await first.kill()
    world.server.faults.remove(fault)
    assert len(world.free()) == applied
    world.remove("main-5", "main-6", "main-7")
    start()
    await world.all_free(*podset_names("main", *range(5)))


@pytest.mark.requirement("GNG-12")
async def test_race_4_pods_that_succeeded_meanwhile_are_the_record_as_well(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    done = {names.GANG_RUN_ANNOTATION: RUN, names.GANG_LINK_ANNOTATION: "train"}
    made = world.admitted()
    made["status"]["reclaimablePods"] = [{"name": "main", "count": 2}]
    world.server.put(WORKLOADS, made)
    for number in (0, 1):
        world.member(number, gates=(), phase="Succeeded")
        world.change_member(
            f"main-{number}", metadata={"annotations": {names.WORKLOAD_ANNOTATION: "train", **done}}
        )
    world.members(*range(2, 6))
    start()
    await world.all_free(*podset_names("main", *range(6)))


@pytest.mark.requirement("GNG-12")
async def test_race_4_a_pod_that_succeeded_and_may_be_made_again_is_the_record_as_well(
    world: GangWorld, start: Start
) -> None:
    """A JobSet that may restart reclaims nothing, and the other pods of its gang are all done."""
    world.gangs()
    world.admitted()
    done = {names.WORKLOAD_ANNOTATION: "train", names.GANG_LINK_ANNOTATION: "train"}
    world.member(
        0, gates=(), phase="Succeeded", annotations={**done, names.GANG_RUN_ANNOTATION: RUN}
    )
    world.members(1)
    start()
    await world.all_free("main-0", "main-1")


JOB = {names.JOB_INDEX_LABEL: "0"}


def of_jobset(world: GangWorld, counts: dict[str, int], done: dict[str, dict[str, int]]) -> None:
    """The Workload is that of a JobSet, admitted with pods by PodSet, of which some were done."""
    given: dict[str, Any] = {name: {R1: count} for name, count in counts.items()}
    made = copy.deepcopy(world.admitted(**given))
    (owner,) = made["metadata"]["ownerReferences"]
    owner |= {"apiVersion": JOBSETS.api_version, "kind": "JobSet"}
    made["metadata"]["annotations"] = {names.GANG_DONE_PODS_ANNOTATION: json.dumps(done)}
    world.server.put(WORKLOADS, made)


def child_job(world: GangWorld, name: str, uid: str) -> None:
    owner = {"apiVersion": JOBSETS.api_version, "kind": "JobSet", "name": "train"}
    owners = [{**owner, "uid": "train-job", "controller": True}]
    labels = {names.JOBSET_NAME_LABEL: "train"}
    meta = {"namespace": "team", "labels": labels, "ownerReferences": owners}
    world.server.put(JOBS, {"metadata": {**meta, "name": name, "uid": uid}})


@pytest.mark.requirement("GNG-10")
async def test_pods_that_a_child_job_had_done_before_the_run_count_while_it_exists(
    world: GangWorld, start: Start
) -> None:
    """A JobSet that restarts makes other child Jobs, which do everything again."""
    world.gangs()
    of_jobset(world, {"main": 8}, {"main": {"child": 3, "former": 5}})
    child_job(world, "train-main-0", "child")
    for number in range(3, 7):
        world.member(number, owner="child", labels=JOB)
    # One of those that are done exists, from an earlier run.
    world.member(0, owner="child", labels=JOB, gates=(), phase="Succeeded")
    await settled(world, start)
    assert world.free() == {"main-0"}, "seven of eight"
    world.member(7, owner="child", labels=JOB)
    await world.all_free(*podset_names("main", 0, *range(3, 8)))


@pytest.mark.requirement("GNG-10")
async def test_done_pods_of_a_podset_without_pods_count(world: GangWorld, start: Start) -> None:
    """The child Job is seen after the pods, and what it has done after that."""
    world.gangs({"name": "gg", "minCount": 4})
    of_jobset(world, {"first": 2, "main": 2}, {})
    for number in range(2):
        world.member(number, owner="child", labels=JOB)
    replica = await settled(world, start)
    child_job(world, "train-main-0", "child")
    child_job(world, "train-first-0", "other")
    await world.seen(replica)
    assert world.free() == set(), "two of four"
    of_jobset(world, {"first": 2, "main": 2}, {"first": {"other": 2}})
    await world.all_free("main-0", "main-1")


@pytest.mark.requirement("GNG-10", "GNG-29")
async def test_done_pods_of_a_child_job_count_in_its_own_gang_alone(
    world: GangWorld, start: Start
) -> None:
    """The pods of the other child Job are all done and gone."""
    own = {"name": "gg", "minCount": 2}
    link = child_job_link("train-main-1", "second-uid")
    world.gangs(own, name=link)
    of_jobset(world, {"main": 4}, {"main": {"first-uid": 2}})
    child_job(world, "train-main-0", "first-uid")
    child_job(world, "train-main-1", "second-uid")
    options: dict[str, Any] = {
        "owner": "second-uid",
        "link": link,
        "labels": {names.JOB_INDEX_LABEL: "1"},
    }
    world.member(0, **options)
    await settled(world, start)
    assert world.free() == set(), "one of two"
    of_jobset(world, {"main": 4}, {"main": {"first-uid": 2, "second-uid": 1}})
    await world.all_free("main-0")


@pytest.mark.requirement("GNG-10", "GNG-29")
async def test_pods_that_succeeded_count_for_their_own_child_job(
    world: GangWorld, start: Start
) -> None:
    """One completes six pods and needs two more; the other one needs four, of which two exist."""
    made = {"b-uid": (2, 2), "a-uid": (4, 2)}
    numbers = iter(range(10))
    of_jobset(world, {"main": 8}, {"main": {"a-uid": 2}})
    for index, (uid, (succeeded, gated)) in enumerate(made.items()):
        link = child_job_link(f"train-main-{index}", uid)
        world.gangs({"name": "gg", "minCount": 4}, name=link)
        child_job(world, f"train-main-{index}", uid)
        options: dict[str, Any] = {"owner": uid, "link": link}
        options["labels"] = {names.JOB_INDEX_LABEL: str(index)}
        for _ in range(succeeded):
            world.member(next(numbers), gates=(), phase="Succeeded", **options)
        for _ in range(gated):
            world.member(next(numbers), **options)
    await settled(world, start)
    ended = podset_names("main", 0, 1, *range(4, 8))
    await world.all_free(*ended, "main-8", "main-9")
    assert world.free() == {*ended, "main-8", "main-9"}


@pytest.mark.requirement("GNG-10")
async def test_a_pod_that_succeeded_in_an_earlier_run_counts_when_it_is_gone(
    world: GangWorld, start: Start
) -> None:
    """A Job does not make the pod of a completed index again, whoever deleted it."""
    world.gangs()
    made = copy.deepcopy(world.admitted({R1: 7}))
    made["spec"]["podSets"][0]["count"] = 8
    world.server.put(WORKLOADS, made)
    world.members(*range(1, 8))
    await settled(world, start)
    assert world.free() == set()
    more = copy.deepcopy(made)
    more["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    world.server.put(WORKLOADS, more)
    await world.all_free(*podset_names("main", *range(1, 8)))


@pytest.mark.requirement("GNG-12")
async def test_race_5_without_a_record_the_gang_is_held_again(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*range(6))
    replica = await settled(world, start)
    assert world.free() == set()
    world.members(6, 7)
    await world.all_free(*ALL)
    await replica.kill()
    world.remove(*ALL)
    world.members(*range(10, 17))
    await settled(world, start)
    assert world.free() == set()


@pytest.mark.requirement("GNG-12")
async def test_race_6_if_the_first_patch_hits_a_dead_pod_nothing_is_released(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*EIGHT)

    async def dies(_: web.Request, handle: Handler) -> web.StreamResponse:
        world.remove("main-0")
        return await handle()

    world.server.faults.append(Fault(dies, method="PATCH", path="/pods/main-0"))
    replica = await settled(world, start)
    assert len(world.asked("PATCH")) == 1
    assert world.free() == set()
    world.member(8)
    await world.all_free(*podset_names("main", *range(1, 9)))
    await world.seen(replica)


async def test_race_6_a_pod_that_dies_after_the_first_patch_does_not_stop_the_others(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*EIGHT)

    async def dies(_: web.Request, handle: Handler) -> web.StreamResponse:
        world.remove("main-4")
        return await handle()

    world.server.faults.append(Fault(dies, method="PATCH", path="/pods/main-4"))
    start(concurrency=1)
    await world.all_free(*(set(ALL) - {"main-4"}))
    world.member(9)
    await world.all_free("main-9")


async def test_a_rejected_pod_is_retried_and_the_rest_of_its_gang_goes_on(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*EIGHT)
    world.server.faults.append(Fault.status(422, "Invalid", method="PATCH", path="/pods/main-3"))
    start()
    await world.all_free(*ALL)


async def test_a_rejected_first_pod_holds_its_gang(world: GangWorld, start: Start) -> None:
    world.gangs()
    world.admitted()
    world.members(*EIGHT)
    fault = Fault.status(422, "Invalid", method="PATCH", path="/pods/main-0", times=2)
    world.server.faults.append(fault)
    free_before: list[int] = []

    async def look(_: web.Request, handle: Handler) -> web.StreamResponse:
        free_before.append(len(world.free()))
        return await handle()

    world.server.faults.append(Fault(look, method="PATCH", path="/pods/main-0"))
    start()
    await world.all_free(*ALL)
    assert free_before == [0]


@pytest.mark.requirement("GNG-12")
async def test_race_8_terminating_pods_of_the_last_run_keep_their_places(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 4})
    world.admitted({R1: 4})
    world.members(*range(4))
    replica = start()
    await world.all_free(*podset_names("main", *range(4)))
    await world.seen(replica)
    world.admitted({R1: 4}, conditions=("Admitted", "Evicted"))
    world.terminate("main-0", "main-1")
    world.remove("main-2", "main-3")
    world.admitted({R1: 4}, at=SECOND)
    world.members(*range(10, 14))
    await world.seen(replica)
    assert world.free() == {"main-0", "main-1"}
    world.remove("main-0", "main-1")
    await world.all_free(*podset_names("main", *range(10, 14)))


async def test_race_8_running_pods_of_the_last_run_are_no_members(
    world: GangWorld, start: Start
) -> None:
    """A watch of pods that lags shows them beside the next admission."""
    world.gangs({"name": "gg", "minCount": 4})
    world.admitted({R1: 4})
    world.members(*range(4))
    replica = start()
    await world.all_free(*podset_names("main", *range(4)))
    await world.seen(replica)
    world.admitted({R1: 4, R2: 4}, at=SECOND)
    world.members(10, 11)
    await world.seen(replica)
    assert "main-10" not in world.free()
    world.members(12, 13)
    await world.all_free(*podset_names("main", *range(10, 14)))


@pytest.mark.requirement("GNG-12")
async def test_race_9_an_index_that_is_made_again_counts_once(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 3})
    world.admitted({R1: 3})
    world.members(0, 1)
    world.terminate("main-1")
    index = {names.COMPLETION_INDEX_LABEL: "1"}
    world.member(11, labels=index)
    replica = await settled(world, start)
    assert world.free() == set()
    world.member(2)
    await world.all_free("main-0", "main-11", "main-2")
    world.member(21, labels=index)
    await world.seen(replica)
    assert "main-21" not in world.free(), "more than were admitted"


@pytest.mark.requirement("GNG-12")
async def test_race_10_a_gate_of_another_owner_on_one_pod_holds_all(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*range(7))
    world.member(7, gates=(*BOTH, FOREIGN))
    await settled(world, start, batch_window=60)
    assert world.asked("PATCH") == []
    world.change_member("main-7", spec={"schedulingGates": [{"name": gate} for gate in BOTH]})
    await world.all_free(*ALL)


async def test_a_pod_of_another_owner_neither_counts_nor_holds(
    world: GangWorld, start: Start
) -> None:
    """Anybody may create a pod that claims to belong to the Workload."""
    world.gangs({"name": "gg", "minCount": 2})
    world.admitted({R1: 2})
    world.member(0)
    world.member(8, owner="other")
    world.member(9, owner="other", gates=(*BOTH, FOREIGN))
    await settled(world, start)
    assert world.free() == set()
    world.member(1)
    await world.all_free("main-0", "main-1")
    assert "main-8" not in world.free()


async def test_race_13_a_workload_of_gangs_that_is_made_again_is_the_same(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.members(*range(7))
    replica = await settled(world, start)
    world.server.remove(GANG_WORKLOADS, "train", "team")
    await world.seen(replica)
    world.member(7)
    await world.seen(replica)
    assert world.free() == set(), "deleted: its pods stay gated"
    world.gangs()
    await world.all_free(*ALL)
    world.server.remove(GANG_WORKLOADS, "train", "team")
    await world.seen(replica)
    world.remove("main-7")
    world.member(8)
    await world.seen(replica)
    assert "main-8" not in world.free()
    world.gangs()
    await world.all_free("main-8")


async def test_race_17_pods_of_a_slice_follow_their_gang(world: GangWorld, start: Start) -> None:
    from tests.wire import test_ungater_slices as slices

    gates = (*BOTH, names.ELASTIC_GATE)
    world.gangs({"name": "gg", "minCount": 4})
    slices.parent(world, {R1: 4})
    world.members(*range(3), gates=gates, owner=slices.CLUSTER)
    replica = await settled(
        world, start, feature_gates={**ON["feature_gates"], **slices.ON["feature_gates"]}
    )
    assert world.free() == set()
    world.members(3, 4, gates=gates, owner=slices.CLUSTER)
    await world.all_free(*podset_names("main", *range(4)))
    await world.seen(replica)
    assert "main-4" not in world.free(), "more than the parent has"
    slices.grow(world, 0, {R2: 1})
    await world.all_free("main-4")
    assert len(set(world.runs().values())) == 1


async def test_race_18_a_pod_keeps_the_gang_that_it_had_at_first_sight(
    world: GangWorld, start: Start
) -> None:
    world.gangs(by_replicated_job("a", 2), by_replicated_job("b", 2))
    world.admitted({R1: 4})
    world.member(0, labels={names.REPLICATED_JOB_LABEL: "a"})
    world.member(1, labels={names.REPLICATED_JOB_LABEL: "b"})
    replica = await settled(world, start)
    labels = {names.PODSET_LABEL: "main", names.TAS_LABEL: "true", names.REPLICATED_JOB_LABEL: "a"}
    world.change_member("main-1", metadata={"labels": labels})
    await world.seen(replica)
    assert world.free() == set()
    world.member(2, labels={names.REPLICATED_JOB_LABEL: "b"})
    await world.all_free("main-1", "main-2")
    assert "main-0" not in world.free()


@pytest.mark.requirement("GNG-17")
async def test_gangs_of_a_jobset_start_independently_and_do_not_wait_for_the_batch(
    world: GangWorld, start: Start
) -> None:
    world.gangs(by_replicated_job("driver", 1), by_replicated_job("workers", 4))
    made = world.admitted(driver={R2: 1}, workers={R1: 4})
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    made["metadata"]["ownerReferences"] = [{**jobset, "uid": "jobset", "controller": True}]
    world.server.put(WORKLOADS, made)
    for name in ("driver", "workers"):
        meta = {
            "name": f"train-{name}-0",
            "namespace": "team",
            "uid": f"{name}-job",
            "labels": {names.JOBSET_NAME_LABEL: "train"},
            "ownerReferences": made["metadata"]["ownerReferences"],
        }
        world.server.put(JOBS, {"metadata": meta})

    def member(number: int, name: str) -> None:
        labels = {names.REPLICATED_JOB_LABEL: name, names.JOB_INDEX_LABEL: "0"}
        world.member(number, podset=name, owner=f"{name}-job", labels=labels)

    for number in range(3):
        member(number, "workers")
    replica = await settled(world, start, batch_window=60)
    assert world.free() == set()
    member(0, "driver")
    await world.all_free("driver-0")
    assert not world.free() & set(podset_names("workers", *range(4)))
    member(3, "workers")
    await world.all_free(*podset_names("workers", *range(4)))
    await world.seen(replica)


@pytest.mark.requirement("GNG-16")
async def test_a_gang_over_two_podsets_is_released_as_one(world: GangWorld, start: Start) -> None:
    world.gangs({"name": "gg", "minCount": 4})
    world.admitted(leader={R2: 1}, workers={R1: 3})
    world.members(0, 1, 2, podset="workers")
    await settled(world, start)
    assert world.free() == set()
    world.member(0, podset="leader")
    await world.all_free("leader-0", *podset_names("workers", 0, 1, 2))


async def test_a_gang_on_a_flavor_without_topology(world: GangWorld, start: Start) -> None:
    world.gangs({"name": "gg", "minCount": 3})
    world.admitted(3)
    gang_gate = (names.GANG_GATE,)
    world.members(0, 1, gates=gang_gate)
    replica = await settled(world, start, batch_window=60)
    assert world.free() == set()
    world.member(2, gates=gang_gate)
    await world.all_free(*podset_names("main", 0, 1, 2))
    assert all(pod["spec"]["nodeSelector"] == {} for pod in world.all_pods().values())
    assert set(world.runs().values()) == {RUN}
    world.member(3, gates=gang_gate)
    await world.seen(replica)
    assert "main-3" not in world.free(), "more than were admitted"
    await until(lambda: "GangReleased" in world.reasons())


async def test_a_pod_that_lost_its_topology_gate_waits_for_its_gang(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 2})
    world.admitted({R1: 2})
    world.member(0)
    world.change_member("main-0", spec={"schedulingGates": [{"name": names.GANG_GATE}]})
    replica = await settled(world, start)
    assert world.free() == set()
    world.member(1)
    await world.all_free("main-0", "main-1")
    await world.seen(replica)
    assert world.counts() == {R1: 2}


async def test_plain_pods_of_a_gang_lose_all_their_gates_together(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 2})
    made = world.admitted({R1: 2})
    made["metadata"] |= {
        "ownerReferences": [{"kind": "Pod", "apiVersion": "v1", "name": "main-0", "uid": "p"}],
        "annotations": {names.GROUP_WORKLOAD_ANNOTATION: "true"},
        "labels": {names.JOB_UID_LABEL: uid_of_group("team", "train")},
    }
    world.server.put(WORKLOADS, made)
    plain: dict[str, Any] = {
        "gates": (names.ADMISSION_GATE, names.GANG_GATE),
        "labels": {
            names.MANAGED_LABEL: "true",
            names.POD_GROUP_LABEL: "train",
            names.TAS_LABEL: "true",
        },
        "ownerReferences": [],
    }
    world.member(0, **plain)
    await settled(world, start)
    assert gates_of(world.all_pods()["main-0"]) == {names.ADMISSION_GATE, names.GANG_GATE}
    world.member(1, **plain)
    await until(lambda: not any(gates_of(pod) for pod in world.all_pods().values()))
    assert world.counts() == {R1: 2}
    assert set(world.runs().values()) == {RUN}


async def test_pods_are_released_in_the_order_of_their_ranks(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R2: 4, R1: 4})
    world.members(*reversed(EIGHT))
    start(concurrency=1)
    await world.all_free(*ALL)
    assert [patch.path.rpartition("/")[2] for patch in world.asked("PATCH")] == ALL


@pytest.mark.requirement("STR-15")
async def test_more_pods_than_the_quorum_follow_later(world: GangWorld, start: Start) -> None:
    world.gangs({"name": "gg", "minCount": 6})
    world.admitted()
    world.members(*range(6))
    await settled(world, start)
    await world.all_free(*podset_names("main", *range(6)))
    world.members(6, 7)
    await world.all_free(*ALL)
    # Most of them are gone; a replacement needs no quorum again.
    world.remove(*podset_names("main", *range(1, 8)))
    world.member(1)
    await world.all_free("main-1")


async def test_without_the_feature_gate_the_gate_belongs_to_another_owner(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 1})
    world.member(0)
    start(feature_gates={})
    await until(lambda: gates_of(world.all_pods()["main-0"]) == {names.GANG_GATE})
    assert world.runs() == {}
    assert not [one for one in world.server.requests if "schedworkloads" in one.path]


@pytest.mark.requirement("GNG-08")
async def test_pods_of_no_group_are_reported_on_the_workload_of_gangs(
    world: GangWorld, start: Start
) -> None:
    world.gangs(by_replicated_job("a", 1))
    world.admitted({R1: 3})
    world.members(0, 1)
    replica = await settled(world, start)
    await until(lambda: "PodNotMatched" in world.reasons())
    (event,) = [one for one in world.events() if one["reason"] == "PodNotMatched"]
    assert event["regarding"]["apiVersion"] == "scheduling.rackgate.dev/v1alpha1"
    assert event["note"] == "NoPart: 2 pods stay gated: main-0, main-1"
    assert sample("gang_held_pods", reason="NoPart") == 2
    world.member(2, labels={names.REPLICATED_JOB_LABEL: "a"})
    await world.all_free("main-2")
    await world.seen(replica)
    assert world.free() == {"main-2"}


@pytest.mark.requirement("GNG-08")
async def test_a_gang_that_waits_is_reported_when_that_is_due_without_another_event(
    world: GangWorld, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_waits, "GANG_WAITING_S", 0.3)
    world.gangs()
    world.admitted()
    world.members(*range(7))
    await settled(world, start)
    await until(lambda: "GangWaiting" in world.reasons())
    noted = {event["note"] for event in world.events() if event["reason"] == "GangWaiting"}
    assert noted == {"PodsMissing: 7 of 8 pods of gang gg exist"}


@pytest.mark.requirement("GNG-08")
async def test_a_missing_workload_of_gangs_is_reported_on_a_pod_when_that_is_due(
    world: GangWorld, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_waits, "WORKLOAD_MISSING_S", 0.3)
    world.admitted()
    world.members(*EIGHT)
    await settled(world, start)
    await until(lambda: "WorkloadMissing" in world.reasons("Pod"))


@pytest.mark.requirement("GNG-08")
async def test_race_2_a_pod_that_was_created_without_the_gate_is_reported(
    world: GangWorld, start: Start
) -> None:
    world.gangs()
    world.admitted()
    world.member(0, gates=())
    world.members(1, 2)
    await settled(world, start)
    await until(lambda: "PodNotMatched" in world.reasons())
    (event,) = [one for one in world.events() if one["reason"] == "PodNotMatched"]
    assert event["note"] == "NotHeld: 1 pods were created without the gate of gangs: main-0"


@pytest.mark.requirement("GNG-36")
@pytest.mark.parametrize("where", ["labels", "annotations"])
async def test_ranks_of_either_form_decide_the_domains_of_a_gang(
    world: GangWorld, start: Start, where: str
) -> None:
    world.gangs({"name": "gg", "minCount": 4})
    made = world.admitted({R1: 2, R2: 2})
    made["spec"]["podSets"][0]["topologyRequest"] = {"required": "block", "podIndexLabel": "r/rank"}
    world.server.put(WORKLOADS, made)
    for number in range(4):
        world.member(number)
        pod = world.all_pods()[f"main-{number}"]
        ranks = {**pod["metadata"][where], "r/rank": str(3 - number)}
        world.change_member(f"main-{number}", metadata={where: ranks})
    start()
    await world.all_free(*podset_names("main", *range(4)))
    racks = {name: pod["spec"]["nodeSelector"]["rack"] for name, pod in world.all_pods().items()}
    assert racks == {"main-3": "r1", "main-2": "r1", "main-1": "r2", "main-0": "r2"}


WIDGET: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "train"}


@pytest.mark.requirement("GNG-02")
async def test_a_gang_of_a_kind_that_nobody_knows_is_released(
    world: GangWorld, start: Start
) -> None:
    """Only pods, the Workload of gangs and the admission are read."""
    world.gangs({"name": "gg", "minCount": 4})
    made = world.admitted({R1: 4})
    made["metadata"]["ownerReferences"] = [{**WIDGET, "uid": "widget", "controller": True}]
    world.server.put(WORKLOADS, made)
    for number in range(4):
        owner = {**WIDGET, "uid": "widget", "controller": True}
        world.member(number, ownerReferences=[owner])
    start()
    await world.all_free(*podset_names("main", *range(4)))
    assert not [one for one in world.server.requests if "example.com" in one.path]


@pytest.mark.requirement("GNG-49")
async def test_what_a_scheduler_of_single_pods_needs_is_all_that_is_written(
    world: GangWorld, start: Start
) -> None:
    """Each pod by itself: gates go, and node labels say where. Nothing names a group."""
    world.gangs({"name": "gg", "minCount": 4})
    world.admitted({R1: 4})
    world.members(*range(4))
    start()
    await world.all_free(*podset_names("main", *range(4)))
    patches = world.asked("PATCH")
    assert len(patches) == 4
    for patch in patches:
        body = json.loads(patch.body)
        assert set(body) == {"metadata", "spec"}
        assert set(body["metadata"]) == {"uid", "resourceVersion", "annotations"}
        assert set(body["metadata"]["annotations"]) == {names.GANG_RUN_ANNOTATION}
        assert set(body["spec"]) == {"schedulingGates", "nodeSelector"}
    assert not [one for one in world.server.requests if "/scheduling.k8s.io/" in one.path]

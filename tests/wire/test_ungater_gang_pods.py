"""The whole ungater with gangs of pods that no managed job owns: their Workload has the numbers."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import WORKLOADS
from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate.gang.forms.expand import expand
from rackgate.gang.link import run_id
from rackgate.gang.native.model import pod_group_name
from rackgate.gang.native.v1alpha2 import POD_GROUPS
from rackgate.gang.runs.run_spec import encode_instance_spec
from rackgate.jobframework.pod_group.membership import uid_of_gang
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.gang_world import FIRST, ON, SECOND, GangWorld, gates_of, podset_names
from tests.wire.ungater_world import R1, R2, Object, Replica

GATES = (names.GANG_GATE,)
UID = uid_of_gang("team", "train", "gg")
OTHER = uid_of_gang("team", "other", "gg")
RUN = run_id("k", FIRST)
LABELS = {names.MANAGED_LABEL: "true", names.GANG_ID_LABEL: UID}
GROUP: Object = {"name": "gg", "minCount": 4}


@pytest.fixture
async def world() -> AsyncIterator[GangWorld]:
    async with FakeApiServer() as server:
        yield GangWorld(server)


@pytest.fixture
async def start(world: GangWorld) -> AsyncIterator[Callable[..., Replica]]:
    replicas: list[Replica] = []

    def started(**settings: Any) -> Replica:
        replicas.append(Replica(world.server, **{**ON, **settings}))
        replicas[-1].lead()
        return replicas[-1]

    yield started
    for replica in replicas:
        await replica.kill()


Start = Callable[..., Replica]


async def settled(world: GangWorld, start: Start) -> Replica:
    replica = start()
    await replica.synced()
    await until(lambda: replica.leads)
    await world.seen(replica)
    return replica


def admitted(
    world: GangWorld,
    counts: int | Mapping[Any, int],
    *,
    group: Object = GROUP,
    pod: str = "",
    replica: str = "",
    **more: Any,
) -> None:
    """The Workload of the gang, as the assigner makes it."""
    (canonical,) = expand({"gangGroups": [group]})["gangGroups"]
    made = copy.deepcopy(world.admitted(counts, **more))
    made["metadata"] |= {
        "ownerReferences": [],
        "annotations": {
            names.GROUP_WORKLOAD_ANNOTATION: "true",
            names.GANG_RUN_SPEC_ANNOTATION: encode_instance_spec(
                "train", ["main"], canonical, pod=pod, replica=replica
            ),
        },
        "labels": {names.JOB_UID_LABEL: UID},
    }
    world.server.put(WORKLOADS, made)


def evict(world: GangWorld) -> None:
    admitted(world, 4, conditions=("Admitted", "Evicted"))


def member(world: GangWorld, *numbers: int, gang: str = UID, **more: Any) -> None:
    """Started pods of a StatefulSet."""
    for number in numbers:
        labels = {names.MANAGED_LABEL: "true", **({names.GANG_ID_LABEL: gang} if gang else {})}
        world.member(number, gates=GATES, owner="set", labels=labels, **more)


@pytest.mark.requirement("GNG-10")
@pytest.mark.parametrize("counts", [4, {R1: 2, R2: 2}], ids=["quota", "topology"])
async def test_race_19_started_pods_are_released_together_when_the_last_one_is_started(
    world: GangWorld, start: Start, counts: Any
) -> None:
    world.gangs(GROUP)
    admitted(world, counts)
    member(world, 0, 1, 2)
    replica = await settled(world, start)
    assert world.free() == set()
    member(world, 3)
    await world.all_free(*(f"main-{number}" for number in range(4)))
    await world.seen(replica)
    assert set(world.runs().values()) == {RUN}
    if not isinstance(counts, int):
        assert world.counts() == {R1: 2, R2: 2}


@pytest.mark.parametrize("gang", ["", OTHER], ids=["no id", "id of another gang"])
async def test_a_pod_of_another_gang_neither_counts_nor_starts(
    world: GangWorld, start: Start, gang: str
) -> None:
    world.gangs(GROUP)
    admitted(world, 4)
    member(world, 0, 1, 2)
    member(world, 3, gang=gang)
    replica = await settled(world, start)
    assert world.free() == set()
    member(world, 4)
    await world.all_free("main-0", "main-1", "main-2", "main-4")
    await world.seen(replica)
    assert gates_of(world.all_pods()["main-3"]) == set(GATES)


async def test_race_12_the_numbers_of_the_admission_count_not_those_that_were_edited(
    world: GangWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 2})
    admitted(world, 4)
    member(world, 0, 1, 2)
    await settled(world, start)
    assert world.free() == set()
    world.gangs({"name": "gg", "minCount": 9})
    member(world, 3)
    await world.all_free(*(f"main-{number}" for number in range(4)))


async def test_race_13_the_workload_of_gangs_is_not_needed_after_the_admission(
    world: GangWorld, start: Start
) -> None:
    admitted(world, 4)
    member(world, 0, 1, 2, 3)
    start()
    await world.all_free(*(f"main-{number}" for number in range(4)))


async def test_a_pod_that_starts_by_itself_waits_for_no_other(
    world: GangWorld, start: Start
) -> None:
    world.gangs(GROUP)
    admitted(world, 1, pod="uid")
    member(world, 0)
    start()
    await world.all_free("main-0")


@pytest.mark.parametrize("replica", ["", "r1"])
async def test_pods_whose_template_names_the_native_pod_group_of_their_gang_get_it(
    world: GangWorld, start: Start, replica: str
) -> None:
    group_path = "/apis/scheduling.k8s.io"
    world.server.documents[group_path] = {"versions": [{"version": "v1alpha2"}]}
    resources = {"resources": [{"name": "podgroups"}]}
    world.server.documents[f"{group_path}/v1alpha2"] = resources
    name = pod_group_name("train", "gg", replica)
    admitted(world, {R1: 4}, replica=replica)
    member(world, *range(4), pod_group=name)
    start(feature_gates={GANG_SCHEDULING: True, NATIVE_POD_GROUPS: True})
    await world.all_free(*podset_names("main", *range(4)))
    found = world.server.get(POD_GROUPS, name, "team")
    assert found is not None
    assert found["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}


@pytest.mark.requirement("GNG-12")
async def test_race_3_an_eviction_stops_the_patches_and_deletes_the_pods(
    world: GangWorld, start: Start
) -> None:
    """Their controller makes pods of the same names: a patch that is under way is not for them."""
    world.gangs(GROUP)
    admitted(world, 4)
    member(world, 0, 1, 2, 3)
    pods = [f"main-{number}" for number in range(4)]
    patched = 0

    async def evict_at_the_second(_: web.Request, handle: Handler) -> web.StreamResponse:
        nonlocal patched
        patched += 1
        if patched == 2:
            evict(world)
            await until(lambda: not replica.ungater.workloads.store["team/train"].admitted)
            world.remove(*pods)
            world.members(*range(4), gates=GATES, owner="set", labels=LABELS)
        return await handle()

    world.server.faults.append(Fault(evict_at_the_second, method="PATCH", path="/pods/", times=99))
    replica = start(concurrency=1)
    await until(lambda: patched >= 2)
    await world.seen(replica)
    assert world.free() == set(), "no patch for a deleted pod reaches the one after it"
    admitted(world, 4, at=SECOND)
    await world.all_free(*pods)
    await world.seen(replica)
    assert set(world.runs().values()) == {run_id("k", SECOND)}


@pytest.mark.requirement("GNG-12")
async def test_race_20_the_pod_group_of_a_gang_of_pods_is_made_before_the_first_patch(
    world: GangWorld, start: Start
) -> None:
    path = "/apis/scheduling.k8s.io"
    world.server.documents[path] = {"versions": [{"version": "v1alpha2"}]}
    world.server.documents[f"{path}/v1alpha2"] = {"resources": [{"name": "podgroups"}]}
    world.gangs(GROUP)
    admitted(world, 4)
    member(world, 0, 1, 2, pod_group="train-gg")
    both = {GANG_SCHEDULING: True, NATIVE_POD_GROUPS: True}
    replica = start(feature_gates=both)
    await until(lambda: replica.leads)
    await world.seen(replica)
    assert world.server.get(POD_GROUPS, "train-gg", "team") is None
    member(world, 3, pod_group="train-gg")
    await world.all_free(*(f"main-{number}" for number in range(4)))
    made = world.server.get(POD_GROUPS, "train-gg", "team")
    assert made is not None
    assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == ["k"]
    posts = [one for one in world.asked("POST", "/podgroups") if "dryRun" not in one.query]
    order = [one for one in world.server.requests if one in (*posts, *world.asked("PATCH"))]
    assert order[0] is posts[0]


@pytest.mark.requirement("GNG-12")
async def test_race_10_a_gate_of_another_owner_holds_all(world: GangWorld, start: Start) -> None:
    world.gangs(GROUP)
    admitted(world, 4)
    member(world, 0, 1, 2)
    world.member(
        3,
        gates=(*GATES, "example.com/mine"),
        owner="set",
        labels=LABELS,
    )
    await settled(world, start)
    assert world.free() == set()
    gates = {"schedulingGates": [{"name": names.GANG_GATE}]}
    world.change_member("main-3", spec=gates)
    await world.all_free(*(f"main-{number}" for number in range(4)))

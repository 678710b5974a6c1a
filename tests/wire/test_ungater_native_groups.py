"""The ungater with native PodGroups: each exists before the first pod of its gang is released."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import WORKLOADS
from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate.gang.link import run_id
from rackgate.gang.native.model import RUN_LABEL
from rackgate.gang.native.v1alpha2 import POD_GROUPS
from tests.support.apiserver import FakeApiServer, Fault, Request
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.gang_world import FIRST, SECOND, GangWorld, podset_names
from tests.wire.ungater_world import R1, Object, Replica

NATIVE: dict[str, Any] = {"feature_gates": {GANG_SCHEDULING: True, NATIVE_POD_GROUPS: True}}
WITHOUT: dict[str, Any] = {"feature_gates": {GANG_SCHEDULING: True}}
GROUP_PATH = "/apis/scheduling.k8s.io"
EIGHT = range(8)
ALL = podset_names("main", *EIGHT)
RUN, NEXT_RUN = run_id("k", FIRST), run_id("k", SECOND)
NAME = "train-gg"


class NativeWorld(GangWorld):
    """A cluster that serves PodGroups. `train-gg` is the one of the gang."""

    def serve(self, *versions: str) -> None:
        documents = self.server.documents
        documents[GROUP_PATH] = {"versions": [{"version": version} for version in versions]}
        for version in versions:
            documents[f"{GROUP_PATH}/{version}"] = {"resources": [{"name": "podgroups"}]}

    def stop_serving(self) -> None:
        self.server.documents.clear()

    def named_members(self, *numbers: int, **options: Any) -> None:
        self.members(*numbers, **{"pod_group": NAME, **options})

    def pod_group(self) -> Object | None:
        return self.server.get(POD_GROUPS, NAME, "team")

    def put_pod_group(
        self, *, owner: str = "k", run: str = RUN, least: int = 8, **metadata: Any
    ) -> Object:
        owners = [{"kind": "Workload", "name": "train", "uid": owner, "controller": True}]
        meta = {"name": NAME, "namespace": "team", "ownerReferences": owners, **metadata}
        if run:
            meta["labels"] = {RUN_LABEL: run}
        policy = {"gang": {"minCount": least}}
        return self.server.put(POD_GROUPS, {"metadata": meta, "spec": {"schedulingPolicy": policy}})

    def group_requests(self, method: str) -> list[Request]:
        found = self.asked(method, "/podgroups")
        return [one for one in found if "dryRun" not in one.query]


@pytest.fixture
async def world() -> AsyncIterator[NativeWorld]:
    async with FakeApiServer() as server:
        world = NativeWorld(server)
        world.serve("v1", "v1alpha2")
        yield world


@pytest.fixture
async def start(world: NativeWorld) -> AsyncIterator[Callable[..., Replica]]:
    replicas: list[Replica] = []

    def started(**settings: Any) -> Replica:
        replicas.append(Replica(world.server, **{**NATIVE, **settings}))
        replicas[-1].lead()
        return replicas[-1]

    yield started
    for replica in replicas:
        await replica.kill()


Start = Callable[..., Replica]


@pytest.mark.requirement("GNG-12")
async def test_race_20_the_pod_group_is_made_before_the_first_patch(
    world: NativeWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 8, "reschedulingPolicy": "TerminateAll"})
    world.admitted({R1: 8})
    world.named_members(*range(7))
    replica = start()
    await until(lambda: replica.leads)
    await world.seen(replica)
    assert world.group_requests("POST") == [], "an incomplete gang needs none"
    world.named_members(7)
    await world.all_free(*ALL)
    (made,) = world.group_requests("POST")
    assert json.loads(made.body) == {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {
            "name": NAME,
            "namespace": "team",
            "labels": {RUN_LABEL: RUN},
            "ownerReferences": [
                {
                    "apiVersion": WORKLOADS.api_version,
                    "kind": "Workload",
                    "name": "train",
                    "uid": "k",
                    "controller": True,
                }
            ],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": 8}}, "disruptionMode": "PodGroup"},
    }
    order = [one for one in world.server.requests if one in (made, *world.asked("PATCH"))]
    assert order[0] is made


@pytest.mark.requirement("GNG-12")
async def test_one_without_the_name_makes_it_basic_and_none_makes_none(
    world: NativeWorld, start: Start
) -> None:
    """A group that counts only a part of its gang would never start."""
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*range(7))
    world.member(7)
    start()
    await world.all_free(*ALL)
    group = world.pod_group()
    assert group is not None
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}


async def test_pods_without_a_name_are_released_without_a_pod_group(
    world: NativeWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.members(*EIGHT)
    start()
    await world.all_free(*ALL)
    assert world.group_requests("POST") == []


async def test_pods_in_groups_of_another_controller_keep_them(
    world: NativeWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.members(*EIGHT, pod_group="theirs")
    start()
    await world.all_free(*ALL)
    assert world.group_requests("POST") == []
    await until(lambda: "NativeGroupForeign" in world.reasons())


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "answer-lost"])
async def test_race_20_the_ungater_dies_while_it_makes_the_pod_group(
    world: NativeWorld, start: Start, applied: bool
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    reached = asyncio.Event()

    async def stall(_: web.Request, handle: Handler) -> web.StreamResponse:
        if applied:
            await handle()
        reached.set()
        await asyncio.sleep(60)
        return web.Response()

    world.server.faults.append(
        Fault(stall, method="POST", path="/namespaces/team/podgroups", times=1)
    )
    first = start()
    await reached.wait()
    await first.kill()
    assert not world.free()
    start()
    await world.all_free(*ALL)
    group = world.pod_group()
    assert group is not None
    assert group["metadata"]["labels"][RUN_LABEL] == RUN


@pytest.mark.requirement("GNG-12")
async def test_race_20_the_ungater_dies_between_the_pod_group_and_the_first_patch(
    world: NativeWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    reached = asyncio.Event()

    async def stall(_: web.Request, __: Handler) -> web.StreamResponse:
        reached.set()
        await asyncio.sleep(60)
        return web.Response()

    world.server.faults.append(Fault(stall, method="PATCH", path="/pods/", times=1))
    first = start()
    await reached.wait()
    await first.kill()
    made = world.pod_group()
    assert made is not None
    assert not world.free()
    start()
    await world.all_free(*ALL)
    assert world.pod_group() == made


@pytest.mark.requirement("GNG-12")
@pytest.mark.parametrize(("code", "reason"), [(500, "InternalError"), (403, "Forbidden")])
async def test_without_its_pod_group_no_pod_of_the_gang_is_released(
    world: NativeWorld, start: Start, code: int, reason: str
) -> None:
    """Its pods would not be scheduled."""
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*range(7))
    world.member(7)
    fault = Fault.status(
        code, reason, method="POST", path="/namespaces/team/podgroups", times=1_000_000
    )
    world.server.faults.append(fault)
    start()
    await until(lambda: len(world.group_requests("POST")) > 1)
    assert not world.free()
    if code == 403:
        await until(lambda: "NativeGroupRejected" in world.reasons())
    fault.times = 0
    await world.all_free(*ALL)


@pytest.mark.parametrize(("owner", "run"), [("other", RUN), ("k", "")], ids=["owner", "user"])
async def test_race_20_a_pod_group_of_another_owner_is_left_alone(
    world: NativeWorld, start: Start, owner: str, run: str
) -> None:
    theirs = world.put_pod_group(owner=owner, run=run)
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    start()
    await world.all_free(*ALL)
    assert world.pod_group() == theirs
    assert world.group_requests("DELETE") == []
    await until(lambda: "NativeGroupTaken" in world.reasons())


@pytest.mark.requirement("GNG-49")
async def test_where_no_pod_groups_are_served_gangs_start_as_ever(
    world: NativeWorld, start: Start
) -> None:
    world.stop_serving()
    world.gangs()
    world.admitted({R1: 8})
    # They were created while it was served.
    world.named_members(*EIGHT)
    start()
    await world.all_free(*ALL)
    assert world.asked("POST", "podgroups") == []
    assert {one.path for one in world.server.requests if "scheduling.k8s.io" in one.path} == {
        GROUP_PATH
    }


async def test_until_it_is_known_what_is_served_gangs_that_name_a_group_wait(
    world: NativeWorld, start: Start
) -> None:
    fault = Fault.status(500, "InternalError", path=GROUP_PATH, method="GET", times=1_000_000)
    world.server.faults.append(fault)
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    replica = start()
    await until(lambda: replica.leads)
    await until(lambda: len(world.asked("GET", GROUP_PATH)) > 1)
    assert not world.free()
    fault.times = 0
    await world.all_free(*ALL)
    assert world.pod_group() is not None


async def test_an_api_that_appears_later_is_used(world: NativeWorld, start: Start) -> None:
    world.stop_serving()
    replica = start()
    native = replica.ungater._native
    assert native is not None
    await native._served.checked.wait()
    assert native._served.adapter is None
    world.serve("v1", "v1alpha2")
    native._served.check_soon()
    await until(lambda: native._served.adapter is not None)
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    await world.all_free(*ALL)
    assert world.pod_group() is not None


async def test_a_server_that_drops_the_policy_counts_as_one_without_pod_groups(
    world: NativeWorld, start: Start
) -> None:
    dropped = json.dumps({"metadata": {"name": "x"}, "spec": {}}).encode()
    world.server.faults.append(
        Fault.body(dropped, 201, method="POST", path="/podgroups", times=1_000_000)
    )
    world.gangs()
    world.admitted({R1: 8})
    world.members(*EIGHT)
    replica = start()
    await world.all_free(*ALL)
    native = replica.ungater._native
    assert native is not None
    await native._served.checked.wait()
    assert native._served.adapter is None


async def test_after_an_upgrade_running_pod_groups_are_kept(
    world: NativeWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    replica = start()
    await world.all_free(*ALL)
    made = world.pod_group()
    world.serve("v1", "v1alpha2", "v1beta1")
    native = replica.ungater._native
    assert native is not None
    native._served.check_soon()
    await until(lambda: f"team/{NAME}" in native._served.store and _version(native) == "v1beta1")
    await world.seen(replica)
    assert world.pod_group() == made


def _version(native: Any) -> str:
    return str(native._served.adapter.resource.version)


@pytest.mark.requirement("GNG-12")
async def test_race_20_each_run_has_a_pod_group_of_its_own(
    world: NativeWorld, start: Start
) -> None:
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    replica = start()
    await world.all_free(*ALL)
    world.admitted({R1: 8}, conditions=("Admitted", "Evicted"))
    await until(lambda: world.pod_group() is None)
    world.remove(*ALL)
    await world.seen(replica)
    world.admitted({R1: 8}, at=SECOND)
    world.named_members(*EIGHT)
    await world.all_free(*ALL)
    group = world.pod_group()
    assert group is not None
    assert group["metadata"]["labels"][RUN_LABEL] == NEXT_RUN


async def test_the_pod_group_of_a_run_that_ended_while_no_ungater_ran_is_replaced(
    world: NativeWorld, start: Start
) -> None:
    before = world.put_pod_group(run=RUN)
    world.gangs()
    world.admitted({R1: 8}, at=SECOND)
    world.named_members(*EIGHT)
    start()
    await world.all_free(*ALL)
    group = world.pod_group()
    assert group is not None
    assert group["metadata"]["uid"] != before["metadata"]["uid"]
    assert group["metadata"]["labels"][RUN_LABEL] == NEXT_RUN


async def test_one_of_an_earlier_run_that_cannot_go_any_more_is_used(
    world: NativeWorld, start: Start
) -> None:
    """The pods of the next run named it before it was gone, so it stays, and works."""
    lingering = world.put_pod_group(run=RUN, deletionTimestamp=FIRST)
    world.gangs()
    world.admitted({R1: 8}, at=SECOND)
    world.named_members(*EIGHT)
    start()
    await world.all_free(*ALL)
    assert world.pod_group() == lingering


async def test_one_of_an_earlier_run_with_another_count_is_waited_for(
    world: NativeWorld, start: Start
) -> None:
    world.put_pod_group(run=RUN, least=4, deletionTimestamp=FIRST)
    world.gangs()
    world.admitted({R1: 8}, at=SECOND)
    world.named_members(*EIGHT)
    start()
    await until(lambda: "NativeGroupFailed" in world.reasons())
    assert not world.free()
    world.server.remove(POD_GROUPS, NAME, "team")
    await world.all_free(*ALL)


async def test_a_pod_group_that_somebody_deletes_is_made_again(
    world: NativeWorld, start: Start
) -> None:
    """Pods that are released and not bound yet wait for it."""
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    replica = start()
    await world.all_free(*ALL)
    await world.seen(replica)
    native = replica.ungater._native
    assert native is not None
    await until(lambda: f"team/{NAME}" in native._served.store)
    first = world.pod_group()
    world.server.remove(POD_GROUPS, NAME, "team")
    await until(lambda: world.pod_group() not in (None, first))


async def test_the_run_is_read_live_before_a_pod_group_is_deleted(
    world: NativeWorld, start: Start
) -> None:
    """Another replica made it for a run that this one has not seen."""
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    replica = start()
    await world.all_free(*ALL)
    await world.seen(replica)
    workload = world.server.get(WORKLOADS, "train", "team")
    assert workload is not None
    for stream in world.server.streams:
        if stream.follows(WORKLOADS.full_name, workload):
            stream.since = 1_000_000  # it shows nothing any more
    world.admitted({R1: 8}, at=SECOND)
    path = WORKLOADS.path("team", "train")
    before = len(world.asked("GET", path))
    world.put_pod_group(run=NEXT_RUN)
    await until(lambda: len(world.asked("GET", path)) > before)
    await replica.idle()
    group = world.pod_group()
    assert group is not None
    assert group["metadata"]["labels"][RUN_LABEL] == NEXT_RUN


async def test_a_pod_that_starts_alone_and_names_a_group_gets_a_basic_one(
    world: NativeWorld, start: Start
) -> None:
    world.gangs({"name": "gg", "minCount": 0})
    world.admitted({R1: 2})
    world.named_members(0)
    world.member(1)
    start()
    await world.all_free("main-0", "main-1")
    group = world.pod_group()
    assert group is not None
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}


async def test_pods_that_have_succeeded_are_not_counted_again(
    world: NativeWorld, start: Start
) -> None:
    """kube-scheduler counts live pods: it would wait for eight of six."""
    world.gangs()
    world.admitted({R1: 8})
    found = world.server.get(WORKLOADS, "train", "team")
    assert found is not None
    found = json.loads(json.dumps(found))
    found["status"]["reclaimablePods"] = [{"name": "main", "count": 2}]
    world.server.put(WORKLOADS, found)
    world.named_members(0, 1, gates=(), phase="Succeeded")
    world.named_members(*range(2, 8))
    start()
    await world.all_free(*ALL)
    group = world.pod_group()
    assert group is not None
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 6}}


@pytest.mark.requirement("GNG-49")
async def test_without_the_gate_nobody_asks_for_pod_groups(
    world: NativeWorld, start: Start
) -> None:
    """One pod at a time is enough for a gang."""
    world.gangs()
    world.admitted({R1: 8})
    world.named_members(*EIGHT)
    start(**WITHOUT)
    await world.all_free(*ALL)
    assert not [one for one in world.server.requests if "scheduling.k8s.io" in one.path]
    assert names.GANG_RUN_ANNOTATION in world.all_pods()["main-0"]["metadata"]["annotations"]

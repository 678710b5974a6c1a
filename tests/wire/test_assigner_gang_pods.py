"""Gangs of pods that no managed job owns: quota, start, end, giving way, and races."""

from __future__ import annotations

import json

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support import objects
from tests.support.apiserver import Object
from tests.support.objects import RACK
from tests.wire.assigner_world import NAMESPACE, eventually
from tests.wire.gang_pods_world import JOB, GangPodsWorld, gang_pods_world
from tests.wire.gangs_world import GANGS, gang_assigner

ONE: Object = {"gangGroups": [{"name": "gg", "minCount": 4}]}
SHORT: Object = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 2}]}
PODS: Object = {"replicaMode": "ReplicatedPods"}


def pending(world: GangPodsWorld, link: str) -> str:
    """Why the only Workload of Kueue's API is pending; "" if there is none."""
    found = world.of_gang(link)
    for condition in found[0].get("status", {}).get("conditions", []) if found else ():
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            return str(condition["message"])
    return ""


@pytest.mark.requirement("GNG-10")
async def test_race_19_pods_of_a_stateful_set_start_together_when_all_exist() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 3, "train", queue="queue")
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train") == []
        world.add_pod("a-3", **world.sets["uid-a"])
        await eventually(lambda: world.running("a") == 4)
        assert world.releases == [1, 4]
        (workload,) = world.of_gang("train")
        assert workload["metadata"]["annotations"][names.GROUP_WORKLOAD_ANNOTATION] == "true"
        owners = [owner["kind"] for owner in workload["metadata"]["ownerReferences"]]
        assert owners == ["Workload", *["Pod"] * 4]
        for pod in world.pods_of("a"):
            labels = pod["metadata"]["labels"]
            assert (
                labels[names.GANG_ID_LABEL] == workload["metadata"]["labels"][names.JOB_UID_LABEL]
            )
        world.delete_set("a")
        await eventually(lambda: world.of_gang("train") == [])


@pytest.mark.requirement("GNG-06")
@pytest.mark.parametrize("first", ["pods", "workload"])
async def test_race_1_pods_and_their_workload_come_in_any_order(first: str) -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        if first == "workload":
            world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        if first == "pods":
            assert world.gated("a") == 4
            world.describe("train", ONE)
        await eventually(lambda: world.running("a") == 4)


@pytest.mark.requirement("GNG-12")
async def test_race_10_a_foreign_gate_holds_the_whole_gang_before_it_has_quota() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 3, "train", queue="queue")
        foreign = [{"name": names.GANG_GATE}, {"name": "example.com/mine"}]
        world.add_pod("a-3", "train", queue="queue", schedulingGates=foreign)
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train") == []
        gate = [{"name": names.GANG_GATE}]
        world.change(kinds.PODS, "a-3", lambda pod: pod["spec"].update(schedulingGates=gate))
        await eventually(lambda: world.running("a") == 4)


@pytest.mark.requirement("GNG-18", "GNG-33", "GNG-46")
async def test_each_replica_has_a_workload_of_its_own_and_starts_alone() -> None:
    spec = {"replicaMode": "ReplicatedGangs", "replicaKey": "rank", **ONE}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", spec)
        for replica in ("R_1", "r-1", "r-2"):
            for index in range(4 if replica != "r-2" else 3):
                world.add_pod(
                    f"a-{replica.lower().replace('_', '')}-{index}",
                    "train",
                    queue="plain",
                    labels={"rank": replica},
                )
        await eventually(lambda: world.running("a") == 8)
        assert len(world.of_gang("train")) == 2
        assert world.gated("a") == 3


@pytest.mark.requirement("GNG-33")
async def test_pods_without_a_gang_get_a_workload_each() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("web", PODS)
        world.add_set("a", 3, "web", queue="queue")
        await eventually(lambda: world.running("a") == 3)
        before = {own["metadata"]["name"] for own in world.of_gang("web")}
        assert len(before) == 3
        assert world.releases == [1, 1, 1]
        world.remove(kinds.PODS, "a-0", NAMESPACE)
        await eventually(lambda: world.running("a") == 3)
        await eventually(lambda: len(world.of_gang("web")) == 3)
        assert len(before & {own["metadata"]["name"] for own in world.of_gang("web")}) == 2


@pytest.mark.requirement("GNG-10")
async def test_pods_without_a_gang_and_without_a_queue_are_not_held() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.add_set("a", 3, "web")
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.gated("a") == 3, "the Workload of gangs does not exist"
        world.describe("web", PODS)
        await eventually(lambda: world.gated("a") == 0)
        assert world.of_gang("web") == []


async def test_a_gang_without_a_queue_is_held_until_there_is_one() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train")
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train") == []
        assert world.gated("a") == 4
        queue = objects.local_queue("default", "cq")
        queue["metadata"]["namespace"] = NAMESPACE
        world.put(kinds.LOCAL_QUEUES, queue)
        await eventually(lambda: world.running("a") == 4)
        world.remove(kinds.LOCAL_QUEUES, "default", NAMESPACE)
        world.add_pod("probe-1", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 2)
        assert world.running("a") == 4


async def test_the_workload_of_gangs_names_the_queue_for_its_pods() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE, labels={names.QUEUE_LABEL: "queue"})
        world.add_set("a", 4, "train")
        await eventually(lambda: world.running("a") == 4)
        assert world.of_gang("train")[0]["spec"]["queueName"] == "queue"


@pytest.mark.requirement("GNG-13")
@pytest.mark.parametrize("number", range(3))
async def test_of_two_gangs_with_room_for_one_exactly_one_runs(number: int) -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.change(
            kinds.CLUSTER_QUEUES,
            "cq",
            lambda o: o["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0].update(
                nominalQuota="16"
            ),
        )
        world.describe("one", ONE)
        world.describe("two", ONE)
        for index in range(4):
            for name in ("one", "two") if number % 2 else ("two", "one"):
                world.add_pod(f"{name}-{index}", name, queue="queue")
        await eventually(lambda: world.running("one") + world.running("two") == 4)
        assert {world.running("one"), world.running("two")} == {0, 4}
        first = "one" if world.running("one") else "two"
        other = "two" if first == "one" else "one"
        for index in range(4):
            world.remove(kinds.PODS, f"{first}-{index}", NAMESPACE)
        await eventually(lambda: world.running(other) == 4)


@pytest.mark.requirement("GNG-11")
async def test_race_11_a_gang_that_is_not_bound_in_time_is_deleted_and_comes_back_later() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", SHORT)
        world.stuck.add("a-2")
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 3)
        uids = {pod["metadata"]["uid"] for pod in world.pods()}
        await eventually(lambda: world.reason("train", "Evicted") == "GangTimeout")
        await eventually(lambda: not uids & {pod["metadata"]["uid"] for pod in world.pods()})
        await eventually(lambda: not world.of_gang("train")[0]["status"].get("admission"))
        (workload,) = world.of_gang("train")
        assert workload["status"]["requeueState"]["count"] == 1
        assert world.gated("a") == 4
        world.stuck.clear()
        world.change(
            kinds.WORKLOADS,
            workload["metadata"]["name"],
            lambda o: o["status"]["requeueState"].update(requeueAt="2026-01-01T00:00:00Z"),
        )
        await eventually(lambda: world.running("a") == 4)
        assert world.of_gang("train")[0]["metadata"]["uid"] == workload["metadata"]["uid"]


@pytest.mark.requirement("STR-13")
async def test_pods_of_a_gang_that_gives_way_end_with_their_own_grace_period() -> None:
    """The gang keeps its quota and its nodes until the last of them is gone."""
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", SHORT)
        world.stuck.add("a-3")
        for index in range(4):
            world.add_pod(f"a-{index}", "train", queue="queue", terminationGracePeriodSeconds=300)
        await eventually(lambda: world.running("a") == 3)
        ending = {"finalizers": ["example.com/kubelet"]}  # they end when the test says so
        for index in range(3):
            world.change(kinds.PODS, f"a-{index}", lambda pod: pod["metadata"].update(ending))
        await eventually(lambda: world.reason("train", "Evicted") == "GangTimeout")
        await eventually(lambda: len(world.pods_of("a")) == 3)
        await eventually(lambda: all(map(_is_ending, world.pods_of("a"))))
        deletions = [one for one in world.requests if one.method == "DELETE"]
        assert {one.path.rpartition("/")[2] for one in deletions} == {f"a-{n}" for n in range(4)}
        for one in deletions:
            assert "gracePeriodSeconds" not in one.query
            assert json.loads(one.body).keys() == {"preconditions"}, "nothing but which pod"
        await eventually(lambda: world.events("EvictedDueToGangTimeout"))
        await eventually(lambda: world.events("GangTimeout"))
        for index in range(2):
            world.change(kinds.PODS, f"a-{index}", _finish)
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train")[0]["status"]["admission"], "one pod is left"
        world.change(kinds.PODS, "a-2", _finish)
        await eventually(lambda: not world.of_gang("train")[0]["status"].get("admission"))


def _is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _finish(pod: Object) -> None:
    pod["metadata"]["finalizers"] = []


async def test_the_pods_of_a_job_are_not_deleted_because_of_the_time() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", SHORT)
        world.stuck.update({"a-2", "b-2"})
        for index in range(4):
            owner = {**JOB, "name": "a", "uid": "job"}
            world.add_pod(f"a-{index}", "train", queue="queue", owner=owner)
        await eventually(lambda: world.running("a") == 3)
        world.describe("other", SHORT)
        world.add_set("b", 4, "other", queue="plain")
        await eventually(lambda: world.reason("other", "Evicted") == "GangTimeout")
        assert world.reason("train", "Evicted") == ""
        assert world.running("a") == 3


@pytest.mark.requirement("GNG-35")
async def test_a_lost_pod_makes_all_start_again_if_the_gang_says_so() -> None:
    group = {**ONE["gangGroups"][0], "reschedulingPolicy": "TerminateAll"}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", {"gangGroups": [group]})
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        await eventually(lambda: world.reason("train", "PodsReady"))
        uids = {pod["metadata"]["uid"] for pod in world.pods()}
        world.remove(kinds.PODS, "a-1", NAMESPACE)
        await eventually(lambda: not uids & {pod["metadata"]["uid"] for pod in world.pods()})
        await eventually(lambda: world.running("a") == 4)
        assert world.of_gang("train")[0]["status"]["requeueState"]["count"] == 1


async def test_a_pod_that_is_replaced_starts_under_the_same_admission() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        (before,) = world.of_gang("train")
        world.remove(kinds.PODS, "a-1", NAMESPACE)
        await eventually(lambda: world.running("a") == 4)
        (after,) = world.of_gang("train")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_race_12_the_run_keeps_the_numbers_that_it_was_admitted_with() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        (before,) = world.of_gang("train")
        world.change(GANGS, "train", lambda o: o["spec"]["gangGroups"][0].update(minCount=9))
        world.remove(kinds.PODS, "a-1", NAMESPACE)
        await eventually(lambda: world.running("a") == 4)
        (after,) = world.of_gang("train")
        key = names.GANG_RUN_SPEC_ANNOTATION
        assert after["metadata"]["annotations"][key] == before["metadata"]["annotations"][key]


async def test_race_13_a_workload_of_gangs_that_is_deleted_frees_no_quota() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        (before,) = world.of_gang("train")
        world.remove(GANGS, "train", NAMESPACE)
        world.remove(kinds.PODS, "a-1", NAMESPACE)
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        (after,) = world.of_gang("train")
        assert after["status"]["admission"] == before["status"]["admission"]
        world.describe("train", ONE)
        await eventually(lambda: world.running("a") == 4)
        uid = world.gang("train")["metadata"]["uid"]  # type: ignore[index]  # it was just made
        await eventually(
            lambda: any(
                owner["uid"] == uid
                for owner in world.of_gang("train")[0]["metadata"]["ownerReferences"]
            )
        )


@pytest.mark.requirement("GNG-17")
async def test_race_18_a_label_that_changes_moves_no_pod_to_another_gang() -> None:
    selector = {"key": "role", "values": ["b"]}
    spec = {
        "gangGroups": [
            {"name": "a", "minCount": 4},
            {"name": "b", "minCount": 4, "selector": selector},
        ]
    }
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", spec)
        for index in range(4):
            world.add_pod(f"a-{index}", "train", queue="queue", labels={"role": "a"})
        for index in range(3):
            world.add_pod(f"b-{index}", "train", queue="queue", labels={"role": "b"})
        await eventually(lambda: world.running("a") == 4)
        world.add_pod("c-0", "train", queue="queue", labels={"role": "a"})
        world.change(kinds.PODS, "c-0", lambda pod: pod["metadata"]["labels"].update(role="b"))
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.gated("b") == 3


async def test_late_pods_start_by_themselves_up_to_the_greatest_number() -> None:
    group = {"name": "gg", "minCount": 2, "maxCount": 4}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", {"gangGroups": [group]})
        for index in range(2):
            world.add_pod(f"a-{index}", "train", queue="queue")
        await eventually(lambda: world.running("a") == 2)
        for index in range(2, 6):
            world.add_pod(f"a-{index}", "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.gated("a") == 2
        assert len(world.of_gang("train")) == 3
        assert world.releases[:3] == [2, 1, 1]


async def test_bare_pods_end_and_others_run_under_the_same_workload_of_gangs() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        for index in range(4):
            world.add_pod(f"a-{index}", "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        for index in range(4):
            world.end(f"a-{index}")
        await eventually(lambda: world.reason("train", "Finished") == "Succeeded")
        (before,) = world.of_gang("train")
        for index in range(4):
            world.add_pod(f"b-{index}", "train", queue="queue")
        await eventually(lambda: world.running("b") == 4)
        (after,) = world.of_gang("train")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_topology_requests_of_a_gang_reach_its_workload() -> None:
    spec = {"gangGroups": [{**ONE["gangGroups"][0], "topologyRequest": {"required": RACK}}]}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", spec)
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        (podset,) = world.of_gang("train")[0]["spec"]["podSets"]
        assert podset["topologyRequest"]["required"] == RACK


async def test_a_topology_request_that_cannot_be_met_holds_the_gang() -> None:
    spec = {"gangGroups": [{**ONE["gangGroups"][0], "topologyRequest": {"required": "none"}}]}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", spec)
        world.add_set("a", 4, "train", queue="queue")
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train") == []


async def test_a_gang_that_lacks_a_pod_again_waits_without_losing_its_age() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("big", ONE)
        for index in range(4):
            world.add_pod(f"a-{index}", "big", queue="queue", cpu="100")
        await eventually(lambda: pending(world, "big"))
        (before,) = world.of_gang("big")
        world.remove(kinds.PODS, "a-0", NAMESPACE)
        await eventually(lambda: "3 of 4 pods of gang gg exist" in pending(world, "big"))
        world.add_pod("a-0", "big", queue="queue", cpu="100")
        await eventually(lambda: "exist" not in pending(world, "big"))
        assert world.of_gang("big")[0]["metadata"]["uid"] == before["metadata"]["uid"]


async def test_without_the_gate_nothing_is_asked_or_written_about_such_pods() -> None:
    async with gang_pods_world() as world, gang_assigner(world, featureGates={}):
        world.add_set("a", 4, "train", queue="queue")
        world.submit("job")
        await eventually(world.started("job"))
        assert not [request for request in world.writes() if "/pods" in request.path]


async def test_pods_of_a_namespace_that_is_not_managed_have_no_queue() -> None:
    selector = {"matchLabels": {"managed": "yes"}}
    async with (
        gang_pods_world() as world,
        gang_assigner(world, managedJobsNamespaceSelector=selector),
    ):
        world.describe("web", PODS)
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        world.add_set("b", 2, "web", queue="queue")
        await eventually(lambda: world.gated("b") == 0)
        assert world.gated("a") == 4
        assert world.workloads() == []


async def test_race_8_quota_is_kept_until_the_pods_of_the_last_run_are_gone() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="plain")
        await eventually(lambda: world.running("a") == 4)
        kept = ["example.com/slow"]
        world.change(kinds.PODS, "a-2", lambda pod: pod["metadata"].update(finalizers=kept))
        stop = {"stopPolicy": "HoldAndDrain"}
        world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stop))
        await eventually(lambda: world.gated("a") == 3)
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.of_gang("train")[0]["status"]["admission"]
        world.change(kinds.PODS, "a-2", lambda pod: pod["metadata"].update(finalizers=[]))
        await eventually(lambda: not world.of_gang("train")[0]["status"].get("admission"))
        assert world.gated("a") == 4


async def test_race_9_a_pod_that_is_made_again_while_the_old_one_ends_waits_for_it() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", ONE)
        world.add_set("a", 4, "train", queue="queue")
        await eventually(lambda: world.running("a") == 4)
        gone = {"deletionTimestamp": "2026-08-01T12:00:00Z", "deletionGracePeriodSeconds": 30}
        more = {"finalizers": ["example.com/slow"]}
        world.change(kinds.PODS, "a-2", lambda pod: pod["metadata"].update({**gone, **more}))
        world.add_pod("b-2", **world.sets["uid-a"])
        world.describe("probe", PODS)
        world.add_pod("probe-0", "probe", queue="queue")
        await eventually(lambda: world.running("probe") == 1)
        assert world.gated("b") == 1
        world.change(kinds.PODS, "a-2", lambda pod: pod["metadata"].update(finalizers=[]))
        await eventually(lambda: world.running("a") + world.running("b") >= 4)


async def test_race_21_the_time_runs_on_while_no_one_acts() -> None:
    long = {"gangGroups": [{**ONE["gangGroups"][0], "scheduleTimeoutSeconds": 3600}]}
    async with gang_pods_world() as world:
        world.stuck.add("a-2")
        async with gang_assigner(world):
            world.describe("train", long)
            world.add_set("a", 4, "train", queue="queue")
            await eventually(lambda: world.running("a") == 3)
        name = world.of_gang("train")[0]["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, _age)
        async with gang_assigner(world):
            await eventually(lambda: world.reason("train", "Evicted") == "GangTimeout")


def _age(workload: Object) -> None:
    """As if it had been admitted long ago."""
    for condition in workload["status"]["conditions"]:
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


@pytest.mark.requirement("STR-17")
async def test_the_status_shows_the_phase_of_pods_of_any_controller() -> None:
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", {**ONE, "gangGroups": [{"name": "gg", "minCount": 2}]})
        world.add_pod("a-0", "train", queue="queue")

        def shown() -> list[Object] | None:
            found = (world.gang("train") or {}).get("status", {})
            assert found.get("podPhase") == found.get("gangGroups", [{}])[0].get("phase")
            listed: list[Object] | None = found.get("gangGroups")
            return listed

        await eventually(lambda: shown() == [{"name": "gg", "phase": "Pending"}])
        world.add_pod("a-1", "train", queue="queue")
        await eventually(lambda: shown() == [{"name": "gg", "phase": "Running"}])
        world.end("a-0")
        world.end("a-1", "Failed")
        await eventually(lambda: shown() == [{"name": "gg", "phase": "Failed"}])


def matched(world: GangPodsWorld, link: str) -> tuple[str, str]:
    """Reason and message of PodsMatched."""
    found = (world.gang(link) or {}).get("status", {}).get("conditions", [])
    shown = [(c["reason"], c["message"]) for c in found if c["type"] == "PodsMatched"]
    return shown[0] if shown else ("", "")


@pytest.mark.requirement("GNG-43", "GNG-08")
async def test_pods_of_another_shape_than_their_eq_group_start_and_are_shown() -> None:
    folder = {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}
    template = {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}],
            "volumes": [folder],
        }
    }
    eq_group = {"name": "big", "template": template}
    group = {"name": "gg", "minCount": 3, "eqGroups": [eq_group]}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", {"gangGroups": [group]})
        world.add_pod("a-0", "train", queue="queue", volumes=[folder])
        world.add_pod("a-1", "train", queue="queue", volumes=[folder])
        await eventually(lambda: matched(world, "train")[0] == "AllMatched")
        world.add_pod("a-2", "train", queue="queue", cpu="3")
        await eventually(lambda: world.running("a") == 3)
        text = "1 pod: a-2: unlike big: requests cpu 3, not 4; emptyDir scratch 0, not 1Gi"
        expected = ("ShapeDiffers", text)
        await eventually(lambda: matched(world, "train") == expected)
        await eventually(lambda: world.events("PodNotMatched"))
        (event,) = world.events("PodNotMatched")
        assert event["note"] == f"ShapeDiffers: {text}"
        assert event["regarding"]["name"] == "train"
        world.remove(kinds.PODS, "a-2", NAMESPACE)
        await eventually(lambda: matched(world, "train")[0] == "AllMatched")


@pytest.mark.requirement("GNG-08")
async def test_pods_in_no_inner_group_start_and_are_shown() -> None:
    def ranked(name: str) -> Object:
        return {"name": name, "selector": {"key": "role", "values": [name]}}

    group = {"name": "gg", "minCount": 2, "rankedGroups": [ranked("driver"), ranked("worker")]}
    async with gang_pods_world() as world, gang_assigner(world):
        world.describe("train", {"gangGroups": [group]})
        for index, role in enumerate(("driver", "other")):
            world.add_pod(f"a-{index}", "train", queue="queue", labels={"role": role})
        await eventually(lambda: world.running("a") == 2)
        expected = ("Ambiguous", "1 pod: a-1: in no group inside of gg")
        await eventually(lambda: matched(world, "train") == expected)
        await eventually(lambda: world.events("PodNotMatched"))

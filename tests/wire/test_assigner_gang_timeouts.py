"""Gangs that do not run as a whole: eviction without a failure of the job, backoff, lost pods."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import parse_rfc3339
from rackgate.runtime import clock
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, eventually
from tests.wire.gangs_world import GANGS, GangWorld, gang_assigner, gang_world
from tests.wire.killing import WATCHED, Killer, at_each, keep_running, while_running

pytestmark = pytest.mark.steady_clock

# The timestamps of objects have whole seconds, so a timeout may end up to a second earlier.
SHORT: Object = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 2}]}
LONG_S = 3600
LONG: Object = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": LONG_S}]}
TERMINATE: Object = {
    "gangGroups": [{**LONG["gangGroups"][0], "reschedulingPolicy": "TerminateAll"}]
}


def tries(world: GangWorld, name: str) -> Object:
    found: Object = world.workload(name)["status"].get("requeueState", {})
    return found


def message(world: GangWorld, name: str, type_: str = "Evicted") -> str:
    (found,) = [c for c in world.workload(name)["status"]["conditions"] if c["type"] == type_]
    return str(found["message"])


def lists_of_pods(world: GangWorld, name: str) -> int:
    selector = f"{names.CONTROLLER_UID_LABEL}={world.job(name)['metadata']['uid']}"
    return sum(request.query.get("labelSelector") == selector for request in world.requests)


async def started(world: GangWorld, name: str, spec: Object) -> None:
    """A Job that runs, and whose pods are not ready."""
    world.ready = False
    world.describe("mine", spec)
    world.submit_gang(name, link="mine")
    await eventually(world.started(name))


@pytest.mark.requirement("GNG-11")
async def test_race_11_a_gang_that_is_not_bound_in_time_gives_everything_back_and_waits() -> None:
    """Another pod took the node of one member, between the assignment and the bind."""
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        template = world.workload("train")["spec"]["podSets"][0]["template"]
        world.add_pods("train", 0, 1, 2)
        await eventually(world.shows("train", "Evicted", "True", "GangTimeout"))
        assert message(world, "train") == (
            "3 of 4 pods of gang gg are bound, 3 exist 2 s after the admission"
        )
        assert world.condition("train", "Requeued") == ("False", "GangTimeout")
        await eventually(lambda: not world.runs("train"))
        for index in range(3):
            world.remove(kinds.PODS, f"train-{index}", NAMESPACE)
        await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
        assert world.job("train")["spec"]["template"] == template
        assert world.job("train")["status"].get("failed", 0) == 0
        assert tries(world, "train")["count"] == 1
        (evicted,) = [
            c for c in world.workload("train")["status"]["conditions"] if c["type"] == "Evicted"
        ]
        pause = parse_rfc3339(tries(world, "train")["requeueAt"]) - parse_rfc3339(
            evicted["lastTransitionTime"]
        )
        assert 47 <= pause.total_seconds() <= 61
        await eventually(lambda: world.events("EvictedDueToGangTimeout"))


@pytest.mark.requirement("STR-13")
async def test_a_job_that_gives_way_ends_its_own_pods_and_keeps_its_quota_until_they_are_gone() -> (
    None
):
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.add_pods("train", 0, 1, 2)
        await eventually(world.shows("train", "Evicted", "True", "GangTimeout"))
        await eventually(lambda: not world.runs("train"))
        world.remove(kinds.PODS, "train-0", NAMESPACE)
        world.remove(kinds.PODS, "train-1", NAMESPACE)
        world.submit("probe")
        await eventually(world.started("probe"))
        assert world.workload("train")["status"]["admission"], "one pod is left"
        assert not [one for one in world.requests if one.method == "DELETE"], (
            "the Job controller deletes its pods, with their grace period"
        )
        world.remove(kinds.PODS, "train-2", NAMESPACE)
        await eventually(lambda: "admission" not in world.workload("train")["status"])


@pytest.mark.requirement("GNG-11", "STR-12")
async def test_a_gang_that_is_bound_in_time_is_left_alone_also_if_it_is_not_ready() -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.add_pods("train", 0, 1, 2, 3)
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")
        assert lists_of_pods(world, "train") == 0, "the watch shows that all are bound"


async def test_race_7_a_member_that_is_bound_while_the_time_ends_counts() -> None:
    """The watch does not show it yet; the pods are read before the eviction."""
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.unseen.add("train-3")
        world.add_pods("train", 0, 1, 2, 3)
        await eventually(lambda: lists_of_pods(world, "train"))
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")
        assert lists_of_pods(world, "train") == 1, "it is read once"


@pytest.mark.requirement("GNG-11")
async def test_pods_that_have_succeeded_count_as_present() -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.add_pods("train", 0, 1, phase="Succeeded")
        world.add_pods("train", 2, 3)
        await eventually(lambda: lists_of_pods(world, "train"))
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")


async def test_race_12_a_workload_that_is_edited_during_a_run_counts_from_the_next_one() -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.add_pods("train", 0, 1, 2, 3)
        world.change(GANGS, "mine", lambda o: o["spec"]["gangGroups"][0].update(minCount=9))
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")
        world.remove(GANGS, "mine", NAMESPACE)
        world.change(kinds.JOBS, "train", lambda job: job["spec"].update(suspend=True))
        for index in range(4):
            world.remove(kinds.PODS, f"train-{index}", NAMESPACE)
        await eventually(lambda: '"mine" does not exist' in world.pending_message("train"))


async def test_race_21_the_time_runs_on_while_no_one_acts() -> None:
    async with gang_world() as world:
        async with gang_assigner(world):
            await started(world, "train", LONG)
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, _age)
        async with gang_assigner(world):
            await eventually(world.shows("train", "Evicted", "True", "GangTimeout"))
        assert "none of the 4 pods of gang gg exists" in message(world, "train")


async def test_race_21_a_wall_clock_that_is_set_ahead_evicts_no_gang() -> None:
    try:
        async with gang_world() as world, gang_assigner(world):
            await started(world, "train", LONG)
            clock.shift(2 * LONG_S)
            world.describe("other", SHORT)
            world.submit_gang("slow", link="other", queue="plain")
            await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
            assert world.condition("train", "Evicted") == ("", "")
    finally:
        clock.shift(0)


async def test_a_limit_of_evictions_deactivates() -> None:
    async with gang_world() as world, gang_assigner(world, gangTimeoutLimit=0):
        await started(world, "train", SHORT)
        await eventually(lambda: world.workload("train")["spec"]["active"] is False)
        reason = "DeactivatedDueToRequeuingLimitExceeded"
        await eventually(world.shows("train", "Evicted", "True", reason))
        await eventually(lambda: not world.runs("train"))


@pytest.mark.requirement("GNG-35")
async def test_a_lost_pod_makes_all_start_again_at_once_if_the_gang_says_so() -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", TERMINATE)
        world.add_pods("train", 0, 1, 2, 3)
        await eventually(lambda: lists_of_pods(world, "train"))
        world.remove(kinds.PODS, "train-2", NAMESPACE)
        await eventually(world.shows("train", "Evicted", "True", "GangMemberLost"))
        assert message(world, "train") == "lost pods that had started: train-2"
        for index in (0, 1, 3):
            world.remove(kinds.PODS, f"train-{index}", NAMESPACE)
        await eventually(lambda: tries(world, "train") == {"count": 1})
        before = world.job("train")["metadata"]["resourceVersion"]
        await eventually(
            lambda: world.runs("train") and world.job("train")["metadata"]["generation"] > 2
        )
        assert world.job("train")["metadata"]["resourceVersion"] >= before
        assert world.condition("train", "Evicted")[0] == "False"


@pytest.mark.requirement("GNG-35", "STR-14")
@pytest.mark.parametrize("spec", [LONG, TERMINATE], ids=["no action", "TerminateAll"])
async def test_a_pod_that_fails_is_lost_only_with_the_policy(spec: Object) -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", spec)
        world.add_pods("train", 0, 1, 2, 3)
        world.change(kinds.PODS, "train-1", lambda pod: pod["status"].update(phase="Failed"))
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        if spec is TERMINATE:
            await eventually(world.shows("train", "Evicted", "True", "GangMemberLost"))
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        if spec is LONG:
            assert world.condition("train", "Evicted") == ("", "")


@pytest.mark.requirement("STR-16")
async def test_a_gang_is_taken_down_as_soon_as_a_node_is_drained() -> None:
    """The evicted pod terminates for an hour; nothing waits for it. A cordon changes nothing."""
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", TERMINATE)
        world.add_pods("train", 0, 1, 2, 3)
        await eventually(lambda: lists_of_pods(world, "train"))
        pod = world.get(kinds.PODS, "train-2", NAMESPACE)
        assert pod is not None
        world.change(
            kinds.NODES,
            pod["spec"]["nodeName"],
            lambda one: one.update(spec={"unschedulable": True}),
        )
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")

        def evict(pod: Object) -> None:
            now = "2026-01-01T00:00:00Z"
            pod["metadata"] |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 3600}
            pod["metadata"]["finalizers"] = ["example.com/terminates"]
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]

        world.change(kinds.PODS, "train-2", evict)
        await eventually(world.shows("train", "Evicted", "True", "GangMemberLost"))
        assert message(world, "train") == "lost pods that had started: train-2"


async def test_a_pod_that_succeeds_is_not_lost() -> None:
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", TERMINATE)
        world.add_pods("train", 0, 1, 2, 3)
        await eventually(lambda: lists_of_pods(world, "train"))
        before = lists_of_pods(world, "train")
        world.change(kinds.PODS, "train-1", lambda pod: pod["status"].update(phase="Succeeded"))
        await eventually(lambda: lists_of_pods(world, "train") > before)
        world.describe("other", SHORT)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")


async def test_a_pod_that_fails_while_no_one_acts_is_lost() -> None:
    async with gang_world() as world:
        async with gang_assigner(world):
            await started(world, "train", TERMINATE)
            world.add_pods("train", 0, 1, 2, 3)
        world.change(kinds.PODS, "train-1", lambda pod: pod["status"].update(phase="Failed"))
        async with gang_assigner(world):
            await eventually(world.shows("train", "Evicted", "True", "GangMemberLost"))


async def test_pods_that_only_look_like_members_do_not_count() -> None:
    """Any user may write labels and annotations; the owner is what the Job controller writes."""
    async with gang_world() as world, gang_assigner(world):
        await started(world, "train", SHORT)
        world.add_pods("train", 0, 1, 2, 3)
        for index in range(4):
            world.change(kinds.PODS, f"train-{index}", _disown)
        await eventually(world.shows("train", "Evicted", "True", "GangTimeout"))


async def test_a_job_that_is_not_managed_is_never_touched() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", SHORT)
        world.submit_gang("bare", link="mine", labels={})
        world.change(kinds.JOBS, "bare", lambda job: job["spec"].update(suspend=False))
        await started_other(world)
        assert not [r for r in world.writes() if r.path.endswith(("/bare", "/mine"))]


async def started_other(world: GangWorld) -> None:
    world.ready = False
    world.describe("other", SHORT)
    world.submit_gang("slow", link="other", queue="plain")
    await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))


def _age(own: Object) -> None:
    """It was admitted long ago."""
    status: Any = own["status"]
    for condition in status["conditions"]:
        if condition["type"] == "Admitted":
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


def _disown(pod: Any) -> None:
    pod["metadata"]["ownerReferences"][0]["uid"] = "somebody"


# Of the writes of the life below: both Workloads, the admission, the start, the eviction, the two
# of the stop, the release, and the status of the Workload of gangs somewhere between them.
@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
async def test_a_death_at_any_write_leaves_no_gang_half_started(applied: bool) -> None:
    async def life(number: int) -> None:
        async with gang_world() as world:
            world.ready = False
            killer = Killer(number, applied=applied, watched=(*WATCHED, GANGS.plural))
            world.faults.append(killer.fault())
            await while_running(keep_running(world, killer.struck, gang_assigner), _life(world))

    await at_each(range(8), life)


async def _life(world: GangWorld) -> None:
    world.submit_gang("train", own=SHORT)
    original = world.job("train")["spec"]["template"]
    await eventually(lambda: world.workload_of(world.job("train")))
    await eventually(world.shows("train", "Evicted", "True", "GangTimeout"))
    await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
    await eventually(lambda: world.job("train")["spec"]["template"] == original)
    assert tries(world, "train")["count"] == 1
    assert len(world.gangs()) == 1
    assert names.GANG_RUN_SPEC_ANNOTATION not in str(world.job("train")["metadata"])

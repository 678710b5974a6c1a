"""No queue is charged less than what the pods of its jobs take while they live."""

from __future__ import annotations

import msgspec
import pytest

from rackgate.api import names
from rackgate.features import Features
from rackgate.wire import core
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.pods.live_pods import LivePodCount
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.workload.decisions import Admit, Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    flavor,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    workload,
)

CPU = ("tas", "cpu")


def assignment(count: int, flavors: str = "tas") -> Assignment:
    return Assignment(
        "cq", (PodSetAssignment("main", {"cpu": flavors}, {"cpu": 1000 * count}, count),)
    )


def world(**features: bool) -> Cache:
    return cache_with([node("a", cpu="64"), node("b", cpu="64")], features=features or None)


def used(cache: Cache) -> int:
    return cache.totals.used().get("cq", {}).get(CPU, 0)


def is_job_pod(name: str, uid: str = "job-w", *, on: str = "a", leaving: bool = False) -> core.Pod:
    """A pod of a plain Job: its controller alone says whose it is."""
    found = pod(name, on, leaving=leaving)
    owner = core.OwnerReference(kind="Job", name="j", uid=uid, controller=True)
    meta = msgspec.structs.replace(found.metadata, owner_references=(owner,))
    return msgspec.structs.replace(found, metadata=meta)


def start(cache: Cache, granted: int, living: int) -> None:
    cache.set_workload(workload("w", [podset(count=granted)], assignment=assignment(granted)))
    for index in range(living):
        cache.set_pod(is_job_pod(f"p{index}"))


@pytest.mark.requirement("CAP-02")
@pytest.mark.parametrize(("granted", "living", "charged"), [(4, 0, 4), (4, 4, 4), (4, 40, 40)])
def test_charged_is_the_larger_of_admitted_and_living(
    granted: int, living: int, charged: int
) -> None:
    cache = world()
    start(cache, granted, living)
    assert used(cache) == 1000 * charged
    status = cluster_queue_status_of(cache, "cq")
    assert status["flavorsReservation"][0]["resources"][0]["total"] == str(charged)
    assert status["flavorsUsage"] == [
        {**found, "resources": found["resources"]} for found in status["flavorsReservation"]
    ]
    assert status["reservingWorkloads"] == 1
    assert rebuild_matches(cache) == []


def test_pods_that_terminate_hold_quota_after_the_admission_is_gone() -> None:
    cache = world()
    start(cache, 4, 4)
    for index in range(4):
        cache.set_pod(is_job_pod(f"p{index}", leaving=True))
    cache.set_workload(workload("w", [podset(count=4)], version="2"))
    assert used(cache) == 4000
    epoch = cache.epoch
    cache.drop_pod("team/p0")
    assert (used(cache), cache.epoch > epoch) == (3000, True)
    assert rebuild_matches(cache) == []


def test_the_gate_gives_the_quota_of_terminating_pods_back_at_once() -> None:
    cache = world(RackgateHoldQuotaForTerminatingPods=False)
    start(cache, 4, 6)
    assert used(cache) == 6000
    for index in range(6):
        cache.set_pod(is_job_pod(f"p{index}", leaving=True))
    assert used(cache) == 4000
    cache.set_workload(workload("w", [podset(count=4)], version="2"))
    assert used(cache) == 0


def test_pods_without_any_workload_are_charged_to_the_queue_of_their_job() -> None:
    cache = world()
    start(cache, 4, 4)
    cache.drop_workload("team/w")
    assert used(cache) == 0  # nobody's: nothing tells of a queue
    cache.set_job("job-w", "team/lq")
    assert used(cache) == 4000
    cache.drop_job("job-w")
    assert used(cache) == 4000
    for index in range(4):
        cache.drop_pod(f"team/p{index}")
    assert used(cache) == 0
    cache.set_pod(is_job_pod("late"))
    assert used(cache) == 0


def test_a_pod_that_loses_its_controller_is_still_charged() -> None:
    cache = world()
    start(cache, 1, 2)
    cache.set_pod(pod("p0", "a"))
    assert used(cache) == 2000
    assert rebuild_matches(cache) == []
    cache.drop_pod("team/p0")
    assert used(cache) == 1000


def test_a_workload_keeps_the_account_of_its_job_when_it_loses_its_owner() -> None:
    cache = world()
    start(cache, 1, 2)
    found = workload("w", [podset(count=1)], assignment=assignment(1), version="2")
    labels = {names.JOB_UID_LABEL: "job-w"}
    meta = msgspec.structs.replace(found.metadata, owner_references=(), labels=labels)
    cache.set_workload(msgspec.structs.replace(found, metadata=meta))
    assert used(cache) == 2000


def test_pods_of_a_child_job_are_those_of_the_managed_jobset_alone() -> None:
    cache = world()
    cache.set_workload(workload("w", [podset(count=1)], assignment=assignment(1)))
    for index in range(3):
        cache.set_pod(is_job_pod(f"p{index}", "child"))
    cache.set_owner("child", "job-w")
    assert used(cache) == 1000  # a claim: it has no effect before the JobSet is known
    cache.set_job("job-w", "team/lq")
    assert used(cache) == 3000
    cache.drop_owner("child")
    assert used(cache) == 3000
    assert cache.live_pod_count("job-w") == LivePodCount(running=3)
    assert rebuild_matches(cache) == []


def test_a_claim_on_an_owner_that_is_not_managed_changes_nothing() -> None:
    cache = world()
    cache.set_job("child", "team/lq")
    cache.set_pod(is_job_pod("p", "child"))
    cache.set_owner("child", "invented")
    assert used(cache) == 1000


def test_a_pod_that_terminates_on_a_node_that_cannot_tell_holds_nothing() -> None:
    cache = world()
    cache.set_job("job-w", "team/lq")
    cache.set_pod(is_job_pod("p", leaving=True))
    assert used(cache) == 1000
    cache.set_node(node("a", cpu="64", ready=False))
    assert (used(cache), cache.live_pod_count("job-w")) == (0, LivePodCount(on_unreachable_node=1))
    cache.set_node(node("a", cpu="64"))
    assert (used(cache), cache.live_pod_count("job-w")) == (1000, LivePodCount(terminating=1))
    assert rebuild_matches(cache) == []


def test_each_pod_counts_for_the_flavor_of_its_node_where_several_were_admitted() -> None:
    quotas = {"tas": {"cpu": "9"}, "spot": {"cpu": "9"}}
    cache = cache_with([], queue=cluster_queue("cq", quotas))
    cache.set_flavor(flavor("spot", None, {"kind": "spot"}))
    cache.set_node(node("a", cpu="64"))
    cache.set_node(node("b", cpu="64", labels={"kind": "spot", "pool": "x"}))
    both = (
        PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000}, 1),
        PodSetAssignment("more", {"cpu": "spot"}, {"cpu": 1000}, 1),
    )
    podsets = [podset("main"), podset("more")]
    cache.set_workload(workload("w", podsets, assignment=Assignment("cq", both)))
    for index, on in enumerate("abbb"):
        cache.set_pod(is_job_pod(f"p{index}", on=on))
    assert cache.totals.used()["cq"] == {CPU: 1000, ("spot", "cpu"): 3000}
    cache.set_node(node("b", cpu="64"))
    assert cache.totals.used()["cq"] == {CPU: 4000, ("spot", "cpu"): 1000}
    assert rebuild_matches(cache) == []


def test_a_slice_takes_over_what_its_family_is_charged_for_already() -> None:
    cache = cache_with(
        [node("a", cpu="64")],
        queue=cluster_queue("cq", {"tas": {"cpu": "4"}}),
        features={"ElasticJobsViaWorkloadSlices": True, "TopologyAwareScheduling": False},
    )
    parent = workload("ray", [podset(count=1)], assignment=assignment(1), elastic=True)
    cache.set_workload(parent)
    for index in range(4):
        cache.set_pod(is_job_pod(f"p{index}", "job-ray"))
    assert used(cache) == 4000
    for name in ("ray-main-0", "ray-main-1", "ray-main-2", "ray-main-3"):
        cache.set_workload(workload(name, [podset()], parent="ray"))
    cache.set_workload(workload("other", [podset()]))
    admitted = [one.workload for one in plan_cycle(cache) if isinstance(one, Admit)]
    assert admitted == ["team/ray-main-0", "team/ray-main-1", "team/ray-main-2"]
    for key in admitted:
        cache.assume(key, assignment(1))
    assert used(cache) == 4000


def test_explain_says_that_pods_hold_the_quota_of_an_evicted_workload() -> None:
    cache = world()
    start(cache, 2, 2)
    conditions = {"Evicted": ("True", "JobSuspended", "")}
    cache.set_workload(
        workload(
            "w", [podset(count=2)], assignment=assignment(2), conditions=conditions, version="2"
        )
    )
    told = workload_explanation.explain(cache, "team/w", Features())
    assert told is not None
    assert told.summary.startswith("It was evicted at 2")
    assert told.summary.endswith(
        "2 pods of its job still run or terminate. Their quota is held until they are gone."
    )


def test_pods_beyond_the_admission_are_named_as_holders_of_quota() -> None:
    cache = world()
    start(cache, 2, 5)
    cache.set_workload(workload("next", [podset(count=99)]))
    told = workload_explanation.explain(cache, "team/next", Features())
    assert told is not None
    held = {holder.name: holder.amounts["cpu"] for line in told.quota for holder in line.holders}
    assert held == {"team/w": "5"}


def test_resources_that_no_one_asked_for_are_charged_where_the_queue_covers_them() -> None:
    """KubeRay adds a container of its own to workers."""
    quotas = {"tas": {"cpu": "9", "memory": "9Gi"}}
    cache = cache_with([node("a", cpu="64")], queue=cluster_queue("cq", quotas))
    cache.set_workload(workload("w", [podset()], assignment=assignment(1)))
    found = is_job_pod("p")
    asked = core.Resources(requests={"cpu": "200m", "memory": "256Mi"})
    wait = core.Container(name="wait", resources=asked)
    spec = msgspec.structs.replace(found.spec, init_containers=(wait,))
    cache.set_pod(msgspec.structs.replace(found, spec=spec))
    assert cache.totals.used()["cq"] == {CPU: 1000, ("tas", "memory"): 256 * 2**20}
    assert rebuild_matches(cache) == []
    cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "9"}}))
    assert cache.totals.used()["cq"] == {CPU: 1000}
    assert rebuild_matches(cache) == []


def named(name: str) -> core.Pod:
    """A pod of a plain Job that lost its controller, and names its Workload."""
    found = pod(name, "a")
    meta = msgspec.structs.replace(found.metadata, annotations={names.WORKLOAD_ANNOTATION: "w"})
    return msgspec.structs.replace(found, metadata=meta)


@pytest.mark.parametrize("first", ["pods", "workload"])
def test_pods_without_a_controller_are_those_of_the_job_of_the_workload_they_name(
    first: str,
) -> None:
    """A process that starts now never saw their controller."""
    cache = world()
    found = workload("w", [podset(count=1)], assignment=assignment(1))
    if first == "workload":
        cache.set_workload(found)
    for name in ("p", "q"):
        cache.set_pod(named(name))
    if first == "pods":
        cache.set_workload(found)
    assert used(cache) == 2000
    assert cache.live_pod_count("job-w").total == 2
    assert rebuild_matches(cache) == []
    cache.drop_pod("team/p")
    cache.drop_pod("team/q")
    assert (used(cache), cache._pods_without_owner) == (1000, {})


def test_a_claim_of_another_namespace_changes_nothing() -> None:
    cache = world()
    cache.set_job("job-w", "team/lq")
    cache.set_pod(is_job_pod("p", "child"))
    cache.set_owner("child", "job-w", "other")
    assert used(cache) == 0
    cache.set_owner("child", "job-w", "team")
    assert used(cache) == 1000


def test_a_child_that_left_its_owner_counts_for_itself() -> None:
    cache = world()
    cache.set_job("job-w", "team/lq")
    cache.set_pod(is_job_pod("p", "child"))
    cache.set_owner("child", "job-w", "team")
    assert cache.live_pod_count("job-w").total == 1
    cache.set_owner("child", "")
    assert (cache.live_pod_count("job-w").total, used(cache)) == (0, 0)
    assert rebuild_matches(cache) == []


def test_verification_goes_by_the_gate() -> None:
    cache = world(RackgateHoldQuotaForTerminatingPods=False)
    start(cache, 1, 4)
    for index in range(4):
        cache.set_pod(is_job_pod(f"p{index}", leaving=True))
    assert rebuild_matches(cache) == []


def test_repair_remembers_which_jobs_are_gone() -> None:
    cache = world()
    cache.set_job("job-w", "team/lq")
    cache.set_pod(is_job_pod("p"))
    cache.drop_job("job-w")
    cache.rebuild_derived_state()
    assert used(cache) == 1000
    cache.drop_pod("team/p")
    assert cache.live_pods.queues == {}


def test_others_hear_when_what_is_charged_beyond_an_admission_changes() -> None:
    cache = world()
    told: list[str] = []
    cache.on_excess_usage_changed = lambda excess: told.append(excess.local_queue)
    cache.set_job("job-w", "team/lq")
    assert told == []
    cache.set_pod(is_job_pod("p"))
    cache.drop_pod("team/p")
    assert told == ["team/lq", "team/lq"]


def test_a_deleted_job_gives_back_what_each_of_its_pods_took() -> None:
    cache = world()
    cache.set_job("job-w", "team/lq")
    start(cache, 4, 3)
    found = workload("w", [podset(count=4)], assignment=assignment(4), version="2", deleting=True)
    cache.set_workload(found)
    assert used(cache) == 4000  # its job may still make pods
    cache.drop_job("job-w")
    assert used(cache) == 3000
    cache.drop_pod("team/p0")
    assert used(cache) == 2000
    assert rebuild_matches(cache) == []
    cache.drop_pod("team/p1")
    cache.drop_pod("team/p2")
    assert used(cache) == 0


def test_a_job_of_several_flavors_without_excess_follows_the_labels_of_its_nodes() -> None:
    quotas = {"tas": {"cpu": "9"}, "spot": {"cpu": "9"}}
    cache = cache_with([], queue=cluster_queue("cq", quotas))
    cache.set_flavor(flavor("spot", None, {"kind": "spot"}))
    cache.set_node(node("a", cpu="64"))
    cache.set_node(node("b", cpu="64", labels={"kind": "spot", "pool": "x"}))
    both = (
        PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000}, 1),
        PodSetAssignment("more", {"cpu": "spot"}, {"cpu": 1000}, 1),
    )
    podsets = [podset("main"), podset("more")]
    cache.set_workload(workload("w", podsets, assignment=Assignment("cq", both)))
    cache.set_pod(is_job_pod("p", on="a"))
    cache.set_pod(is_job_pod("q", on="b"))
    assert cache.totals.used()["cq"] == {CPU: 1000, ("spot", "cpu"): 1000}
    cache.set_node(node("b", cpu="64"))
    assert rebuild_matches(cache) == []
    assert cache.totals.used()["cq"] == {CPU: 2000, ("spot", "cpu"): 1000}

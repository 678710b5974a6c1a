"""Rules about room, quota, stops and what is lost: each planted broken, beside a healthy twin."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rackgate.api import names
from rackgate_invariants.judge import judge
from tests.support.sound_cluster import (
    EARLY,
    HOST,
    LATE,
    RACK,
    World,
    conditions,
    found,
    job,
    other_pod,
    owner,
    pod,
    queue_status,
    rules,
    sound,
    workload,
)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


# Invariant 3.


def test_a_host_charged_beyond_its_allocatable_is_found() -> None:
    world = sound()
    world.pods.append(other_pod("x", "n1"))
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("over-capacity", "n1 cpu")
    assert breach.found == "12000 charged, 8000 allocatable"


@pytest.mark.requirement("OPS-12")
def test_two_workloads_on_one_host_that_takes_only_one_are_found() -> None:
    world = sound()
    world.workloads.append(workload("second", {("n1",): 1}))
    world.jobs.append(job("second", 1))
    assert [(one.rule, one.subject) for one in found(world)] == [("over-capacity", "n1 cpu")]


@pytest.mark.requirement("OPS-12")
def test_what_a_job_left_that_is_gone_holds_what_its_pods_take() -> None:
    """Its Workload keeps a finalizer until somebody leads."""
    world = sound()
    left = workload("second", {("n1",): 1})
    world.workloads.append(left)
    assert "over-capacity" in rules(world)
    left["metadata"]["deletionTimestamp"] = LATE
    assert "over-capacity" not in rules(world)
    assert "over-quota" not in rules(world)
    living = pod("second", 0, "n1")
    living["metadata"]["creationTimestamp"] = "2026-01-01T09:00:00Z"
    world.pods.append(living)
    assert "over-capacity" in rules(world)


def test_a_pod_that_came_after_the_admission_is_the_schedulers_affair() -> None:
    world = sound()
    late = other_pod("daemon", "n1")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": LATE}
    late["status"] = {"conditions": [scheduled]}
    world.pods.append(late)
    assert rules(world) == []
    scheduled["lastTransitionTime"] = "2026-01-01T09:00:00Z"
    assert rules(world) == ["over-capacity"]


def test_a_pod_on_a_host_that_was_given_up_takes_room_there() -> None:
    world = sound()
    created = {"creationTimestamp": "2026-01-01T09:00:00Z", "deletionTimestamp": LATE}
    world.pod("train-2")["metadata"] |= created
    world.place({("n1",): 2, ("n3",): 1})
    world.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    world.workloads.append(workload("second", {("n2",): 1}))
    world.jobs.append(job("second", 1))
    assert rules(world) == []
    world.pods.append(other_pod("x", "n2"))
    assert rules(world) == ["over-capacity"]


def test_resources_that_have_no_flavor_count_for_no_room() -> None:
    world = sound()
    for item in world.pods:
        item["spec"]["containers"][0]["resources"]["requests"]["example.com/extra"] = "5"
    raw = world.workload["spec"]["podSets"][0]["template"]
    raw["spec"]["containers"][0]["resources"]["requests"]["example.com/extra"] = "5"
    assert rules(world) == []


@pytest.mark.parametrize(("other", "expected"), [("4", []), ("8", ["over-capacity"])])
def test_a_coarse_leaf_takes_what_its_nodes_offer_together(other: str, expected: list[str]) -> None:
    world = sound()
    world.topologies[0]["spec"]["levels"].pop()
    world.place({("r1",): 3}, RACK)
    for item in world.pods:
        item["spec"]["nodeSelector"] = {RACK: "r1"}
    world.pods.append(other_pod("x", "n2", other))
    assert rules(world) == expected
    if expected:
        assert found(world)[0].found == "20000 charged, 16000 allocatable on 2 nodes"


def test_hosts_and_racks_of_two_topologies_share_their_nodes() -> None:
    world = sound()
    world.workloads.append(workload("racks", {("r1",): 1}, (RACK,)))
    world.jobs.append(job("racks", 1))
    assert rules(world) == []
    world.workloads[-1] = workload("racks", {("r1",): 2}, (RACK,))
    assert [(one.rule, one.subject) for one in found(world)] == [("over-capacity", "r1 cpu")]


def test_usage_beyond_the_nominal_quota_is_found() -> None:
    world = sound()
    quota = world.cluster_queues[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    quota["nominalQuota"] = "8"
    assert [(one.rule, one.subject) for one in found(world)] == [
        ("over-quota", "cq tas/cpu"),
        ("pods-over-quota", "cq tas/cpu"),
    ]
    lowered = {"time": LATE, "fieldsV1": {"f:spec": {"f:resourceGroups": {}}}}
    world.cluster_queues[0]["metadata"]["managedFields"] = [lowered]
    assert rules(world) == [], "a quota that is lowered takes nothing back"


def test_a_charge_that_is_not_what_its_pods_ask_is_found() -> None:
    world = sound()
    world.granted["resourceUsage"] = {"cpu": "4"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("usage-differs", "team/job-train/main cpu")


def test_a_job_that_holds_quota_twice_is_found() -> None:
    world = sound()
    second = workload("train", {("n3",): 1})
    second["metadata"] |= {"name": "job-train-old", "uid": "old"}
    world.workloads.append(second)
    assert ("admitted-twice", "team/train") in [(one.rule, one.subject) for one in found(world)]
    second["metadata"]["deletionTimestamp"] = LATE
    assert "admitted-twice" not in rules(world)


@pytest.mark.parametrize("kind", ["local_queues", "cluster_queues"])
def test_a_queue_that_counts_wrong_is_found(kind: str) -> None:
    world = sound()
    (queue,) = getattr(world, kind)
    queue["status"] = queue_status(1, 1, 8)
    breach, *more = judge(world.cluster())
    assert [one.rule for one in more] == (["uncharged"] if kind == "cluster_queues" else [])
    name, rule = ("team/queue", "local-queue-counts"), ("cq", "queue-counts")
    assert (breach.subject, breach.rule) == (name if kind == "local_queues" else rule)
    assert "pendingWorkloads says 1, 0 exist" in breach.found
    assert "flavorsUsage of tas/cpu says 8000, 12000 is reserved" in breach.found
    assert breach.since == moment(EARLY)


def test_a_waiting_workload_is_counted_where_its_queue_leads() -> None:
    world = sound()
    world.pend()
    world.pods = []
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(1, 0, 0)
    assert judge(world.cluster()) == []


# Invariant 5.


@pytest.mark.parametrize("mark", ["job", "annotation", "tas", "gate", "selector"])
def test_what_a_stop_left_behind_is_found(mark: str) -> None:
    world = sound()
    world.pend()
    world.pods = []
    assert rules(world) == []
    kept = world.job["spec"]["template"]
    if mark == "job":
        world.job["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "job-train"}
    elif mark == "annotation":
        kept["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "job-train"}
    elif mark == "tas":
        kept["metadata"]["labels"] = {names.TAS_LABEL: "true"}
    elif mark == "gate":
        kept["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    else:
        kept["spec"]["nodeSelector"] = {"pool": "tas"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("not-restored", "team/train")


def test_the_marks_of_creation_are_no_trace_of_a_stop() -> None:
    world = sound()
    world.pend()
    world.pods = []
    kept = world.job["spec"]["template"]
    kept["metadata"] = {
        "annotations": {names.REQUIRED_TOPOLOGY: RACK},
        "labels": {names.PODSET_LABEL: "main"},
    }
    kept["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    assert rules(world) == []


def test_a_workload_that_holds_quota_for_a_job_that_is_gone_is_found() -> None:
    world = sound()
    world.jobs, world.pods = [], []
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("held-after-end", "team/job-train")


# Invariant 6.


def test_an_admitted_job_that_stays_suspended_is_found() -> None:
    world = sound()
    world.job["spec"]["suspend"], world.pods = True, []
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("not-started", "team/train")
    assert breach.since == moment(EARLY)


@pytest.mark.parametrize("workload_is", ["pending", "evicted", "absent", "reserved"])
def test_a_job_that_runs_without_admission_is_found(workload_is: str) -> None:
    world = sound()
    world.pods = []
    if workload_is == "pending":
        world.pend()
        world.job["spec"]["suspend"] = False
    elif workload_is == "evicted":
        stopping = conditions(QuotaReserved=True, Admitted=True, Evicted=True)
        world.workload["status"]["conditions"] = stopping
    elif workload_is == "reserved":
        wait_for_checks(world)
    else:
        world.workloads = []
    assert [(one.rule, one.subject) for one in found(world)] == [("not-stopped", "team/train")]


def wait_for_checks(world: World) -> None:
    """The Workload has quota, and its admission checks are not Ready."""
    world.workload["status"]["conditions"] = conditions(QuotaReserved=True, Admitted=False)


def test_a_job_that_waits_for_its_admission_checks_has_no_running_pods() -> None:
    world = sound()
    wait_for_checks(world)
    world.job["spec"]["suspend"] = True
    assert "ungated-before-admission" in rules(world)
    world.pods = []
    before = rules(world)
    world.job["spec"]["template"]["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] = "w"
    assert "not-restored" in rules(world)
    assert "not-restored" not in before


@pytest.mark.requirement("OPS-12")
def test_a_gated_pod_that_has_room_is_found() -> None:
    world = sound()
    world.pods[2] = pod("train", 2, None)
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("not-released", "team/job-train/main")
    assert breach.found == "1 gated pods have capacity (train-2)"
    assert breach.since == moment(LATE)


@pytest.mark.parametrize("why", ["rank taken", "host broken", "own selector", "evicted", "surplus"])
def test_a_gated_pod_that_waits_for_good_reason_is_no_breach(why: str) -> None:
    world = sound()
    world.pods[2] = pod("train", 2, None)
    if why == "rank taken":
        world.pods[0] = pod("train", 0, "n2")
    elif why == "host broken":
        world.workload["status"]["unhealthyNodes"] = [{"name": "n2"}]
    elif why == "own selector":
        world.pods[2]["spec"]["nodeSelector"] = {HOST: "n1"}
    elif why == "evicted":
        stopping = conditions(QuotaReserved=True, Admitted=True, Evicted=True)
        world.workload["status"]["conditions"] = stopping
    else:
        world.pods[2] = pod("train", 3, None)
    assert "not-released" not in rules(world)


def test_a_managed_job_without_a_workload_is_found() -> None:
    world = sound()
    world.workloads, world.pods = [], []
    world.job["spec"]["suspend"] = True
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("no-workload", "team/train")
    world.job["metadata"]["labels"][names.PRIORITY_CLASS_LABEL] = "late"
    assert rules(world) == [], "its class may be missing"


@pytest.mark.parametrize("why", ["absent", "unnamed", "another's"])
def test_a_gated_pod_that_no_one_can_release_is_found(why: str) -> None:
    world = sound()
    lost = pod("lost", 0, None)
    world.pods.append(lost)
    if why == "unnamed":
        del lost["metadata"]["annotations"]
    elif why == "another's":
        lost["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "job-train"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("orphan-gated-pod", "team/lost-0")


def test_pods_that_wait_for_a_host_that_is_gone_are_found() -> None:
    world = sound()
    del world.nodes[1]
    del world.pod("train-2")["spec"]["nodeName"]
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("domain-gone", "team/job-train/main")
    world.pod("train-2")["spec"]["nodeName"] = "n2"
    assert rules(world) == [], "a pod that was bound there is not waiting"


# Invariant 7.


@pytest.mark.parametrize("mark", ["gate", "label", "annotation"])
def test_marks_on_a_job_that_no_one_governs_are_found(mark: str) -> None:
    world = sound()
    free = job("free", 1, queue=None)
    world.jobs.append(free)
    assert rules(world) == []
    if mark == "gate":
        free["spec"]["template"]["spec"]["schedulingGates"] = [{"name": names.ELASTIC_GATE}]
    elif mark == "label":
        free["spec"]["template"]["metadata"]["labels"] = {names.TAS_LABEL: "true"}
    else:
        key = names.WORKLOAD_ANNOTATION
        free["spec"]["template"]["metadata"]["annotations"] = {key: "x"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("marks-on-ungoverned", "team/free")
    free["metadata"]["ownerReferences"] = owner("set")
    assert rules(world) == [], "its owner answers for it"

"""Rules about the quota that queues share: each planted broken, beside a healthy twin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sound_cluster import LATE, Object, World, found, rules, sound, workload

BOTH = ["over-quota", "pods-over-quota"]
SOONER = "2026-01-01T09:30:00Z"
ROOT, MIDDLE = "Cohort/org tas/cpu", "Cohort/dept tas/cpu"


def groups(**quota: str) -> list[Object]:
    flavor = {"name": "tas", "resources": [{"name": "cpu", **quota}]}
    return [{"coveredResources": ["cpu"], "flavors": [flavor]}]


def queue(name: str, cohort: str, **quota: str) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": groups(**quota)},
    }


def cohort(name: str, parent: str | None = None, **quota: str) -> Object:
    spec: Object = {"parentName": parent} if parent else {}
    spec |= {"resourceGroups": groups(**quota)} if quota else {}
    return {"metadata": {"name": name}, "spec": spec}


def shared(own: dict[str, str], *others: Object, cohorts: tuple[Object, ...] = ()) -> World:
    """Queue `cq` in Cohort `dept` uses 12 CPU with the quota `own`."""
    world = sound()
    world.cluster_queues[0]["spec"] |= {"cohortName": "dept", "resourceGroups": groups(**own)}
    world.cluster_queues += others
    world.cohorts += cohorts
    return world


def subjects(world: World) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in found(world)]


def both(subject: str) -> list[tuple[str, str]]:
    return [(rule, subject) for rule in BOTH]


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(("lent", "expected"), [("4", []), ("3", both("Cohort/dept tas/cpu"))])
def test_a_queue_uses_its_quota_and_what_others_of_its_cohort_lend(
    lent: str, expected: list[tuple[str, str]]
) -> None:
    other = queue("other", "dept", nominalQuota="10", lendingLimit=lent)
    assert subjects(shared({"nominalQuota": "8"}, other)) == expected


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(("limit", "expected"), [("4", []), ("3", both("cq tas/cpu"))])
def test_a_queue_borrows_no_more_than_its_borrowing_limit(
    limit: str, expected: list[tuple[str, str]]
) -> None:
    own = {"nominalQuota": "8", "borrowingLimit": limit}
    world = shared(own, queue("other", "dept", nominalQuota="10"))
    assert subjects(world) == expected
    assert not expected or found(world)[0].found == "12000 in use, the quota is 11000"


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(
    ("root", "middle", "expected"),
    [
        # The quota of Cohorts counts at any depth.
        ({"nominalQuota": "4"}, {"nominalQuota": "0"}, []),
        ({"nominalQuota": "2"}, {"nominalQuota": "2"}, []),
        ({"nominalQuota": "2"}, {"nominalQuota": "1"}, both(ROOT)),
        # The borrowing limit of a Cohort is for all queues below it.
        ({"nominalQuota": "9"}, {"nominalQuota": "1", "borrowingLimit": "3"}, []),
        ({"nominalQuota": "9"}, {"nominalQuota": "1", "borrowingLimit": "2"}, both(MIDDLE)),
        # What a Cohort does not lend is its own, and no use of its parent.
        ({"nominalQuota": "0"}, {"nominalQuota": "4", "lendingLimit": "0"}, []),
        ({"nominalQuota": "0"}, {"nominalQuota": "3", "lendingLimit": "0"}, both(ROOT)),
    ],
)
def test_the_quota_of_cohorts_limits_all_queues_below_them(
    root: dict[str, str], middle: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    cohorts = (cohort("org", **root), cohort("dept", "org", **middle))
    assert subjects(shared({"nominalQuota": "8"}, cohorts=cohorts)) == expected


def test_what_a_queue_keeps_for_itself_is_not_used_by_its_cohort() -> None:
    """Ten of its twelve CPU are lent to nobody: it borrows two."""
    other = queue("other", "dept", nominalQuota="2")
    world = shared({"nominalQuota": "10", "lendingLimit": "0"}, other)
    assert rules(world) == []
    other["spec"]["resourceGroups"] = groups(nominalQuota="1")
    assert subjects(world) == both(MIDDLE)
    assert found(world)[0].found == "2000 in use, the quota is 1000"


@pytest.mark.parametrize("where", ["cluster_queues", "cohorts"])
def test_quota_that_anybody_lowers_in_a_tree_takes_nothing_back(where: str) -> None:
    cohorts = (cohort("org", nominalQuota="1"), cohort("dept", "org"))
    world = shared({"nominalQuota": "8"}, queue("other", "dept", nominalQuota="1"), cohorts=cohorts)
    assert subjects(world) == both(ROOT)
    lowered = {"time": LATE, "fieldsV1": {"f:spec": {"f:resourceGroups": {}}}}
    getattr(world, where)[-1]["metadata"]["managedFields"] = [lowered]
    assert rules(world) == []


def written(world: World, kind: str, at: str, *, created: str = SOONER) -> None:
    """Quota of the last object of a kind was last changed then."""
    entry = {"time": at, "fieldsV1": {"f:spec": {"f:resourceGroups": {}}}}
    metadata = getattr(world, kind)[-1]["metadata"]
    metadata |= {"creationTimestamp": created, "managedFields": [entry]}


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize(
    ("created", "at", "expected"),
    [
        # The Workload reserved quota at 10:00:00.
        (SOONER, "2026-01-01T09:59:40Z", []),
        (SOONER, "2026-01-01T09:59:20Z", BOTH),
        # Nothing was admitted by an earlier quota: there was none.
        ("2026-01-01T09:59:40Z", "2026-01-01T09:59:40Z", BOTH),
    ],
)
def test_an_assigner_that_learns_late_of_a_lower_quota_breaks_no_promise(
    created: str, at: str, expected: list[str]
) -> None:
    world = sound()
    world.cluster_queues[0]["spec"]["resourceGroups"] = groups(nominalQuota="8")
    written(world, "cluster_queues", at, created=created)
    assert rules(world) == expected


def test_an_admission_that_is_written_again_reserved_its_quota_before() -> None:
    """A node is replaced, or a job is resized, after the quota was lowered."""
    world = sound()
    world.cluster_queues[0]["spec"]["resourceGroups"] = groups(nominalQuota="8")
    written(world, "cluster_queues", "2026-01-01T10:30:00Z")
    again = {"manager": "rackgate-admission", "subresource": "status", "time": LATE}
    world.workload["metadata"]["managedFields"] = [again]
    assert rules(world) == []


def test_who_uses_only_what_it_keeps_took_nothing_that_was_lowered() -> None:
    """Another queue is admitted later; its Cohort has lost quota that the first one borrows."""
    world = shared({"nominalQuota": "8"}, cohorts=(cohort("dept", nominalQuota="1"),))
    assert subjects(world) == both(MIDDLE)
    written(world, "cohorts", "2026-01-01T10:30:00Z")
    assert rules(world) == []
    late = workload("late", {("n3",): 1})
    for condition in late["status"]["conditions"]:
        condition["lastTransitionTime"] = LATE
    late["status"]["admission"]["clusterQueue"] = "keeps"
    world.workloads.append(late)
    world.cluster_queues.append(queue("keeps", "dept", nominalQuota="4", lendingLimit="0"))
    assert not set(rules(world)) & set(BOTH)
    world.cluster_queues[-1] = queue("keeps", "dept", nominalQuota="4")
    assert ("over-quota", MIDDLE) in subjects(world)


def test_a_cohort_without_an_object_has_the_quota_of_its_queues() -> None:
    world = shared({"nominalQuota": "8"}, cohorts=(cohort("dept", "org"),))
    assert subjects(world) == both(ROOT)
    world.cluster_queues.append(queue("far", "org", nominalQuota="4"))
    assert rules(world) == []


def test_cohorts_in_a_circle_say_nothing_of_what_their_queues_may_use() -> None:
    cohorts = (cohort("org", "dept"), cohort("dept", "org"))
    assert rules(shared({"nominalQuota": "1"}, cohorts=cohorts)) == []


# Queues with a stop policy.


def stop(world: World, kind: str, policy: str, at: str) -> None:
    (found_queue,) = getattr(world, kind)
    found_queue["spec"]["stopPolicy"] = policy
    written = {"time": at, "fieldsV1": {"f:spec": {"f:stopPolicy": {}}}}
    found_queue["metadata"] |= {"creationTimestamp": SOONER, "managedFields": [written]}


@pytest.mark.parametrize("kind", ["local_queues", "cluster_queues"])
@pytest.mark.parametrize(
    ("policy", "at", "expected"),
    [
        ("None", SOONER, []),
        ("Hold", SOONER, ["admitted-while-stopped"]),
        ("Hold", "2026-01-01T09:59:40Z", []),  # the assigner did not know yet
        ("Hold", LATE, []),  # what was admitted before stays
        ("HoldAndDrain", LATE, ["drained-queue-holds"]),
        ("HoldAndDrain", SOONER, ["admitted-while-stopped", "drained-queue-holds"]),
    ],
)
def test_a_queue_that_is_stopped_admits_nothing_and_a_drained_one_empties(
    kind: str, policy: str, at: str, expected: list[str]
) -> None:
    world = sound()
    stop(world, kind, policy, at)
    assert rules(world) == expected


def test_what_a_drained_queue_evicts_may_hold_its_quota_until_its_pods_are_gone() -> None:
    world = sound()
    stop(world, "local_queues", "HoldAndDrain", LATE)
    world.workload["status"]["conditions"].append(true("Evicted", "LocalQueueStopped"))
    world.pods = []
    assert rules(world) == ["not-stopped"]


def test_an_assigner_whose_clock_is_ahead_admitted_nothing_late() -> None:
    """The API server says when the admission was written."""
    world = sound()
    stop(world, "cluster_queues", "Hold", "2026-01-01T10:30:00Z")
    for condition in world.workload["status"]["conditions"]:
        condition["lastTransitionTime"] = LATE
    written: dict[str, Any] = {"manager": "rackgate-admission", "subresource": "status"}
    world.workload["metadata"]["managedFields"] = [written]
    written["time"] = "2026-01-01T10:29:00Z"
    assert rules(world) == []
    written["time"] = LATE
    assert rules(world) == ["admitted-while-stopped"]


# Evictions.


def true(type_: str, reason: str, message: str = "") -> Object:
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": LATE,
    }


TOLD = "Preempted to accommodate a workload (UID: 77-a, JobUID: 78) due to prioritization"


def preempted(*, message: str = TOLD, counted: int = 1, cause: str = "InClusterQueue") -> World:
    """The Workload is evicted for another one, and its Job has stopped."""
    world = sound()
    status = world.workload["status"]
    status["conditions"].append(true("Evicted", "Preempted", message))
    if cause:
        status["conditions"].append(true("Preempted", cause, message))
    entry = {"reason": "Preempted", "underlyingCause": "", "count": counted}
    status["schedulingStats"] = {"evictions": [entry]}
    world.job["spec"]["suspend"] = True
    world.pods = []
    return world


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"message": "Preempted"}, "no preemptor is named"),
        ({"counted": 0}, "status.schedulingStats does not count it"),
        ({"cause": "Whim"}, 'the reason of Preempted is "Whim"'),
        ({"cause": ""}, "the reason of Preempted is"),
    ],
)
def test_a_preempted_workload_says_for_whom_and_why(wrong: dict[str, Any], words: str) -> None:
    assert rules(preempted()) == []
    (breach,) = found(preempted(**wrong))
    assert breach.rule == "preemption-unrecorded"
    assert words in breach.found


def test_a_preempted_workload_is_evicted_for_whatever_reason_comes_later() -> None:
    world = preempted()
    evicted = world.workload["status"]["conditions"][-2]
    evicted["reason"] = "DeactivatedDueToAdmissionCheck"
    assert rules(world) == []
    evicted["status"] = "False"
    assert "preemption-unrecorded" in rules(world)


def test_pods_of_an_evicted_workload_that_nobody_deletes_are_found() -> None:
    world = preempted()
    world.pods = sound().pods
    for pod in world.pods:
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T11:59:50Z"}
    assert rules(world) == [], "they have their grace periods"
    for pod in world.pods:
        del pod["metadata"]["deletionTimestamp"]
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("evicted-still-runs", "team/job-train")
    assert breach.found.startswith("evicted (Preempted), and pods run: train-0")
    assert breach.since > 0


def test_pods_of_an_evicted_workload_that_outlive_their_grace_are_found_where_a_kubelet_lives() -> (
    None
):
    world = preempted()
    world.pods = sound().pods[:1]
    world.pods[0]["metadata"]["deletionTimestamp"] = LATE
    (breach,) = found(world)
    assert breach.found == "evicted (Preempted), and pods outlive their grace: train-0"
    world.nodes[0]["status"]["conditions"] = []
    assert rules(world) == []


def requeue(world: World, **state: Any) -> World:
    world.workload["status"]["requeueState"] = state
    return world


def test_a_workload_that_backs_off_gets_no_quota() -> None:
    assert rules(requeue(sound(), count=2)) == [], "its time has come"
    (breach,) = found(requeue(sound(), count=2, requeueAt=LATE))
    assert (breach.rule, breach.subject) == ("requeue-state", "team/job-train")
    waiting = requeue(sound(), count=2, requeueAt=LATE)
    waiting.pods = []
    waiting.pend()
    waiting.workload["status"]["requeueState"] = {"count": 2, "requeueAt": LATE}
    assert rules(waiting) == []


def timed_out(**state: Any) -> World:
    """It is evicted with its next requeue time, and has quota until its Job has stopped."""
    world = requeue(sound(), **state)
    world.workload["status"]["conditions"].append(true("Evicted", "PodsReadyTimeout"))
    world.job["spec"]["suspend"] = True
    world.pods = []
    return world


def test_a_timeout_of_pods_is_counted() -> None:
    assert rules(timed_out(count=1, requeueAt=LATE)) == []
    (breach,) = found(timed_out(count=0, requeueAt=LATE))
    assert breach.rule == "requeue-state"
    assert "requeueState counts 0" in breach.found

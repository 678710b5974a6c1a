"""Rules on JobSets: pods belong to their JobSet by way of its child Jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import judge
from rackgate_invariants.reading import SOURCES
from tests.support.sound_cluster import HOST, LATE, NOW, conditions, found, queue_status, rules
from tests.support.sound_slices import child, controlled, set_pod, sets


def test_a_sound_jobset_shows_nothing() -> None:
    assert judge(sets().cluster()) == []


@pytest.mark.requirement("TAS-28")
def test_a_pod_too_many_of_a_child_job_is_found_by_the_jobsets_workload() -> None:
    world = sets()
    world.pods.append(set_pod("workers", 1, 2, "n2"))
    subjects = {(one.rule, one.subject) for one in found(world)}
    assert ("over-granted", "team/jobset-set/workers") in subjects
    assert ("over-domain", "team/jobset-set/workers n2") in subjects


def test_a_pod_of_a_stranger_that_claims_the_workload_is_not_counted_but_shown() -> None:
    world = sets()
    stranger = set_pod("workers", 1, 2, "n4")
    stranger["metadata"]["ownerReferences"] = controlled("Job", "somebody-else")
    world.pods.append(stranger)
    assert rules(world) == ["stray-marks"]


def test_ranks_run_over_the_child_jobs() -> None:
    world = sets()
    for job, index, host in ((0, 1, "n2"), (1, 0, "n1")):
        pod = world.pod(f"set-workers-{job}-{index}")
        pod["spec"] |= {"nodeSelector": {HOST: host}, "nodeName": host}
    assert [(one.rule, one.subject) for one in found(world)] == [
        ("rank-order", "team/set-workers-0-1"),
        ("rank-order", "team/set-workers-1-0"),
    ]
    assert "rank 1 belongs to n1" in found(world)[0].found
    del world.pod("set-workers-0-0")["metadata"]["labels"][names.JOB_INDEX_LABEL]
    assert rules(world) == [], "the ranks are in doubt"


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("ended", [0, 1])
def test_ranks_that_several_child_jobs_have_stay_in_doubt_when_one_of_them_has_ended(
    ended: int,
) -> None:
    """Without a topology request, ranks are the indexes of each child Job: they are doubled."""
    world = sets()
    for podset in world.workload["spec"]["podSets"]:
        podset.pop("topologyRequest", None)
    for index, host in enumerate(("n2", "n1")):
        pod = world.pod(f"set-workers-{1 - ended}-{index}")
        pod["spec"] |= {"nodeSelector": {HOST: host}, "nodeName": host}
    gone = f"set-workers-{ended}-"
    world.pods = [pod for pod in world.pods if not pod["metadata"]["name"].startswith(gone)]
    assert "rank-order" not in rules(world)


def test_pods_of_a_jobset_before_its_admission_are_found() -> None:
    world = sets()
    world.workload["status"] = {"conditions": conditions(QuotaReserved=False, Admitted=False)}
    breaches = {(one.rule, one.subject) for one in found(world)}
    assert ("not-stopped", "team/set") in breaches
    early = [subject for rule, subject in breaches if rule == "ungated-before-admission"]
    assert len(early) == 5


def test_a_jobset_is_started_and_has_a_workload() -> None:
    world = sets()
    world.pods = []
    world.jobsets[0]["spec"]["suspend"] = True
    assert [(one.rule, one.subject) for one in found(world)] == [("not-started", "team/set")]
    world.workloads = []
    assert [(one.rule, one.subject) for one in found(world)] == [("no-workload", "team/set")]


def test_a_workload_whose_jobset_is_gone_holds_nothing() -> None:
    world = sets()
    world.jobsets, world.pods = [], []
    assert [(one.rule, one.subject) for one in found(world)] == [
        ("held-after-end", "team/jobset-set")
    ]
    assert judge(world.cluster(unread={"jobsets": "jobsets cannot be listed"})) == []


@pytest.mark.parametrize("plural", ["jobs", "jobsets", "pods", "workloads", "nodes"])
@pytest.mark.parametrize("gated", [True, False])
def test_what_cannot_be_read_invents_no_breach(plural: str, gated: bool) -> None:
    world = sets()
    if gated:
        world.nodes[1]["status"]["allocatable"]["cpu"] = "8"
        world.pods[-1] = set_pod("workers", 1, 1, None)
        world.pods[-2]["status"] = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    setattr(world, plural, [])
    judged = judge(world.cluster(unread={plural: "forbidden"}))
    assert {one.rule for one in judged} <= {"not-released"}


def _stopped() -> Any:
    world = sets()
    world.pods = []
    world.workload["status"] = {"conditions": conditions(QuotaReserved=False, Admitted=False)}
    world.jobsets[0]["spec"]["suspend"] = True
    world.jobs = [child("workers", 0, suspended=True)]
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(1, 0, 0)
    return world


@pytest.mark.parametrize("left", ["annotation", "selector", "gate"])
def test_what_an_earlier_admission_left_in_a_child_job_is_found(left: str) -> None:
    """It would come back merged into what the next admission gives."""
    world = _stopped()
    assert judge(world.cluster()) == []
    template = world.jobs[0]["spec"]["template"]
    if left == "annotation":
        template["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "jobset-set"}
    elif left == "selector":
        template["spec"]["nodeSelector"] = {"pool": "a"}
    else:
        template["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    assert [(one.rule, one.subject) for one in found(world)] == [
        ("not-restored", "team/set-workers-0")
    ]
    world.jobs[0]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert rules(world) == [], "what has finished is not started again"


def test_what_jobset_itself_adds_to_a_child_job_is_its_own() -> None:
    world = _stopped()
    spec = world.jobs[0]["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"alpha.jobset.sigs.k8s.io/namespaced-job": "team_set"}
    spec["tolerations"] = [{"key": "alpha.jobset.sigs.k8s.io/no-schedule", "operator": "Exists"}]
    assert rules(world) == []


def test_marks_of_a_stopped_jobset_are_reported_with_their_podset() -> None:
    world = _stopped()
    template = world.jobsets[0]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    template["metadata"]["labels"] = {names.TAS_LABEL: "true"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("not-restored", "team/set")
    assert f"label {names.TAS_LABEL} of workers" in breach.found


def test_a_child_job_is_never_managed_on_its_own() -> None:
    world = sets()
    for job in world.jobs:
        job["metadata"]["labels"][names.QUEUE_LABEL] = "queue"
        job["spec"]["suspend"] = True
    assert rules(world) == [], "also when it inherits the label"


def test_pods_that_are_done_leave_their_quota_and_room_to_others() -> None:
    world = sets()
    world.workload["status"]["reclaimablePods"] = [{"name": "workers", "count": 2}]
    world.pods = [one for one in world.pods if "workers-0" not in one["metadata"]["name"]]
    world.jobs[1]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 1, 10)
    assert judge(world.cluster()) == []


def test_a_jobset_followed_in_any_order_shows_what_a_reading_shows() -> None:
    story = sets()
    story.pods.append(set_pod("workers", 1, 2, "n2"))
    story.pods[-1]["metadata"]["deletionTimestamp"] = LATE
    for order in (SOURCES, tuple(reversed(SOURCES))):
        world = ClusterState()
        keys = []
        for source in order:
            for item in getattr(story, source.attribute):
                row = source.decode(json.dumps(item).encode())
                keys.append((source.attribute, str(getattr(row, "key", "") or row.name)))
                world.put(*keys[-1], row)
                assert world.judge(NOW) == judge(world.cluster(NOW)), keys[-1]
        assert "over-granted" in [one.rule for one in world.judge(NOW)]
        for attribute, key in keys:
            world.drop(attribute, key)
            assert world.judge(NOW) == judge(world.cluster(NOW)), (attribute, key)

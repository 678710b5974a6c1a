"""Rules that compare what is charged with what lives, told from pods alone, whoever made it live.

Each way in which somebody got more than a queue grants is planted here, and found by its rule.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate_invariants.cluster_state import ClusterState as Followed
from rackgate_invariants.judge import breaches, judge
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.tracker import Tracker
from tests.support.sound_cluster import (
    LATE,
    NAMESPACE,
    NOW,
    OF_STATUS,
    Object,
    World,
    found,
    job,
    owner,
    plain,
    plain_pod,
    pod,
    queue_status,
    rules,
    sound,
    workload,
)
from tests.support.sound_slices import controlled, ray, ray_pod, set_pod, sets

JOBSET = "jobset.x-k8s.io/v1alpha2"


def every(world: World) -> list[str]:
    return [one.rule for one in judge(world.cluster())]


def say(world: World, cpu: int, *, holding: int = 1) -> None:
    """What all queues say is in use."""
    for queue in (*world.cluster_queues, *world.local_queues):
        queue["status"] = queue_status(0, holding, cpu)


def quota(world: World, cpu: int) -> None:
    group = world.cluster_queues[0]["spec"]["resourceGroups"][0]
    group["flavors"][0]["resources"][0]["nominalQuota"] = str(cpu)


def forged(name: str, kind: str = "JobSet", uid: str = "invented") -> Object:
    """A Job with the queue label that names an owner."""
    version = JOBSET if kind == "JobSet" else "ray.io/v1"
    made = job(name, 2)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": version, "kind": kind, "name": "nobody", "uid": uid, "controller": True}
    ]
    return made


def subjects(world: World) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in found(world)]


def test_a_sound_job_without_a_topology_shows_nothing() -> None:
    assert judge(plain().cluster()) == []


# What lives is charged.


@pytest.mark.requirement("OPS-12")
def test_pods_that_live_beyond_the_charge_are_found_in_their_queue() -> None:
    world = plain()
    world.pods.append(plain_pod("train", 3, "n2"))
    charged = [one for one in judge(world.cluster()) if one.rule == "uncharged"]
    assert [(one.subject, one.found) for one in charged] == [
        ("cq tas/cpu", "running pods use 16000, 12000 is charged")
    ]
    say(world, 16)
    assert every(world) == ["beyond-grant"], "it is charged now, and still more than was granted"


def test_a_queue_that_charges_what_lives_counts_right() -> None:
    """A RayCluster that was shrunk, and whose pods KubeRay keeps."""
    world = ray()
    granted = world.workload["status"]["admission"]["podSetAssignments"][1]
    granted |= {"count": 1, "resourceUsage": {"cpu": "4"}}
    world.workload["spec"]["podSets"][1]["count"] = 1
    world.rayclusters[0]["spec"]["workerGroupSpecs"][0]["replicas"] = 1
    say(world, 14)
    assert every(world) == ["over-granted-left"]
    say(world, 6)
    assert every(world) == [
        "local-queue-counts",
        "over-granted-left",
        "queue-counts",
        "uncharged",
    ]


def test_pods_that_are_being_deleted_hold_quota_when_their_job_holds_none() -> None:
    world = plain()
    world.pend()
    for item in world.pods:
        item["metadata"]["deletionTimestamp"] = LATE
    for queue in (*world.cluster_queues, *world.local_queues):
        queue["status"] = queue_status(1, 0, 12)
    assert every(world) == []
    for queue in (*world.cluster_queues, *world.local_queues):
        queue["status"] = queue_status(1, 0, 0)
    assert every(world) == ["uncharged"], "a setting lets go of it, and then it is shown"


@pytest.mark.parametrize("node", ["gone", "not ready"])
def test_what_a_lost_node_cannot_end_takes_nothing(node: str) -> None:
    world = plain()
    world.pend()
    for item in world.pods:
        item["metadata"]["deletionTimestamp"] = LATE
        item["spec"]["nodeName"] = "n1"
    for queue in (*world.cluster_queues, *world.local_queues):
        queue["status"] = queue_status(1, 0, 0)
    if node == "gone":
        del world.nodes[0]
    else:
        world.nodes[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert every(world) == []
    del world.pods[0]["metadata"]["deletionTimestamp"]
    assert "uncharged" in every(world), "one that nobody deletes lives, wherever it is"


def test_what_a_node_really_set_aside_for_a_pod_counts() -> None:
    world = plain()
    grown = {"name": "main", "allocatedResources": {"cpu": "7"}}
    world.pods[2]["status"]["containerStatuses"] = [grown]
    charged = [one.found for one in judge(world.cluster()) if one.rule == "uncharged"]
    assert charged == ["running pods use 15000, 12000 is charged"]


def test_a_pod_takes_the_flavor_of_its_node() -> None:
    world = plain()
    flavors = world.cluster_queues[0]["spec"]["resourceGroups"][0]["flavors"]
    flavors.append({"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "4"}]})
    world.flavors[0]["spec"]["nodeLabels"] = {"pool": "tas"}
    world.flavors.append({"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": "spot"}}})
    for one in world.nodes:
        one["metadata"]["labels"]["pool"] = "tas"
    assert every(world) == []
    world.nodes[1]["metadata"]["labels"]["pool"] = "spot"
    charged = [one.subject for one in judge(world.cluster()) if one.rule == "uncharged"]
    assert charged == ["cq spot/cpu"]
    world.flavors[1]["spec"]["nodeLabels"] = world.flavors[0]["spec"]["nodeLabels"] = {}
    assert every(world) == [], "where both fit the admission tells"


def test_pods_beyond_the_quota_are_found_whatever_workloads_say() -> None:
    world = plain()
    quota(world, 12)
    assert every(world) == []
    world.pods.append(plain_pod("train", 3, "n2"))
    assert "pods-over-quota" in rules(world)
    world.pods[-1]["metadata"]["deletionTimestamp"] = LATE
    assert "pods-over-quota" not in rules(world), "one that goes may overlap with its successor"


def test_a_quota_that_was_lowered_takes_nothing_from_what_was_admitted() -> None:
    world = plain()
    quota(world, 4)
    lowered = {"time": LATE, "fieldsV1": {"f:spec": {"f:resourceGroups": {}}}}
    world.cluster_queues[0]["metadata"]["managedFields"] = [lowered]
    assert rules(world) == []
    world.pods.append(plain_pod("train", 3, "n2"))
    assert "pods-over-quota" in rules(world), "but more than was granted is more"


# Beyond a grant, by owner and not by marks.


@pytest.mark.requirement("OPS-12")
def test_more_bound_pods_than_a_plain_job_was_admitted_are_found() -> None:
    world = plain()
    world.pods.append(plain_pod("train", 3, "n2"))
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("beyond-grant", "team/train")
    assert breach.found.startswith('4 bound pods of PodSet "main" (train-0, train-1, train-2')
    assert breaches(world.cluster())[0] == breach, "a correct cluster never shows it"
    world.pods[-1]["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == []


def plain_sets() -> World:
    world = sets()
    for given in world.workload["status"]["admission"]["podSetAssignments"]:
        del given["topologyAssignment"]
    for asked in world.workload["spec"]["podSets"]:
        del asked["topologyRequest"]
    for item in world.pods:
        item["metadata"] |= {"labels": {}, "annotations": {}}
    return world


def test_a_child_job_that_somebody_raised_is_found_without_marks() -> None:
    world = plain_sets()
    assert judge(world.cluster()) == []
    quota(world, 100)
    for index in (2, 3, 4):
        more = set_pod("workers", 0, index, "n4")
        more["metadata"] |= {"labels": {}, "annotations": {}}
        world.pods.append(more)
    assert subjects(world) == [("beyond-grant", "team/set")]
    assert '7 bound pods of PodSet "workers"' in found(world)[0].found


def test_pods_of_a_child_job_that_is_no_part_of_the_admission_are_beyond_it() -> None:
    """A Job that names a JobSet that does exist, and that did not make it."""
    world = plain_sets()
    quota(world, 100)
    world.jobs.append(forged("mine", uid="set"))
    world.pods.append(plain_pod("mine", 0, "n4"))
    assert subjects(world) == [("beyond-grant", "team/set")]
    assert '1 bound pods of PodSet ""' not in found(world)[0].found


def test_pods_of_a_cluster_in_a_queue_without_a_topology_count_by_group() -> None:
    world = ray()
    del world.workload["metadata"]["annotations"]
    world.rayclusters[0]["spec"]["enableInTreeAutoscaling"] = False
    for item in world.pods:
        item["metadata"]["annotations"] = {}
        group = item["metadata"]["labels"].pop(names.PODSET_LABEL)
        item["metadata"]["labels"] = {names.RAY_GROUP_LABEL: group.title()}
    assert rules(world) == []
    more = ray_pod(7, "")
    more["metadata"] |= {"annotations": {}, "labels": {names.RAY_GROUP_LABEL: "Workers"}}
    world.pods.append(more)
    assert subjects(world) == [("beyond-grant", "team/ray")]


def test_pods_that_come_back_after_their_quota_was_given_back_are_found() -> None:
    world = plain_sets()
    world.workload["status"]["reclaimablePods"] = [{"name": "workers", "count": 2}]
    world.pods = world.pods[:3]
    say(world, 10)
    assert judge(world.cluster()) == []
    for index in (0, 1):
        world.pods.append(set_pod("workers", 1, index, "n2"))
        world.pods[-1]["metadata"] |= {"labels": {}, "annotations": {}}
    say(world, 18)
    assert [(one.rule, one.subject) for one in judge(world.cluster())] == [
        ("reclaimed-came-back", "team/jobset-set/workers")
    ]
    assert "4 pods, 2 of 4 were reclaimed" in found(world)[0].found


@pytest.mark.parametrize("how", ["held by a finalizer", "ended"])
def test_pods_of_a_job_that_is_over_without_a_workload_are_found(how: str) -> None:
    world = plain()
    world.workloads = []
    if how == "ended":
        world.job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    else:
        world.job["metadata"]["deletionTimestamp"] = LATE
    assert subjects(world) == [("running-without-workload", "team/train")]
    assert "uncharged" not in every(world), "as long as its queue is charged"
    say(world, 0, holding=0)
    assert "uncharged" in every(world)


# Owners that are not there.


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("kind", ["JobSet", "RayCluster"])
def test_a_job_that_names_an_owner_that_is_not_there_is_a_job_like_any_other(kind: str) -> None:
    world = plain()
    world.jobs.append(forged("mine", kind))
    world.pods += [plain_pod("mine", 0, "n3"), plain_pod("mine", 1, "n4")]
    assert set(every(world)) == {"forged-owner", "not-stopped", *OF_STATUS}
    one = found(world)[0]
    assert one.found == f'names {kind} "nobody" as its controller, which does not exist'
    plural = f"{kind.lower()}s"
    assert judge(world.cluster(unread={plural: "no right"})) == [], "then it is believed"


def test_an_owner_of_another_namespace_or_kind_is_none() -> None:
    world = sets()
    world.jobs.append(forged("mine", "RayCluster", uid="set"))
    assert ("forged-owner", "team/mine") in subjects(world)
    world.jobs[-1] = forged("mine", "JobSet", uid="set")
    assert "forged-owner" not in rules(world)
    for item in (*world.jobs, *world.jobsets):
        item["metadata"]["namespace"] = "other" if item is world.jobs[-1] else NAMESPACE
    assert ("forged-owner", "other/mine") in subjects(world)


def test_parts_of_a_jobset_that_is_being_collected_are_no_forgery() -> None:
    world = sets()
    world.jobsets = []
    for item in world.jobs:
        item["metadata"]["deletionTimestamp"] = LATE
    assert "forged-owner" not in rules(world)


def test_only_jobs_are_parts_of_others() -> None:
    world = ray()
    world.workloads, world.pods = [], []
    world.rayclusters[0]["metadata"]["ownerReferences"] = controlled("JobSet", "nobody")
    assert ("not-stopped", "team/ray") in subjects(world)


# Pods with marks.


@pytest.mark.parametrize("how", ["no such owner", "cleaning up", "somebody else's"])
def test_a_released_pod_with_marks_that_belongs_to_no_one_is_found(how: str) -> None:
    world = sound()
    stray = pod("nobody", 0, "n4")
    stray["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "job-train"}
    if how == "cleaning up":
        stray["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] = names.RAY_CLEANUP_TYPE
    elif how == "somebody else's":
        world.jobs.append(job("nobody", 1))
        world.workloads.append(workload("nobody", {("n4",): 1}))
    world.pods.append(stray)
    assert subjects(world) == [("stray-marks", "team/nobody-0")]


def test_a_pod_that_says_that_it_cleans_up_counts_for_its_job() -> None:
    world = sound()
    liar = pod("train", 3, "n4")
    liar["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] = names.RAY_CLEANUP_TYPE
    world.pods.append(liar)
    assert {"over-granted", "outside-assignment"} <= set(rules(world))


def test_a_pod_of_a_podset_that_its_workload_has_not_is_found() -> None:
    world = sound()
    liar = pod("train", 3, "n4")
    liar["metadata"]["labels"][names.PODSET_LABEL] = "other"
    world.pods.append(liar)
    assert "stray-marks" in rules(world)


def test_marks_of_a_workload_written_by_hand_lead_to_its_owner_of_any_kind() -> None:
    world = sound()
    world.jobs = []
    for item in (*world.pods, *world.workloads):
        item["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "StatefulSet"}
    assert judge(world.cluster()) == []


@pytest.mark.parametrize("how", ["by its marks", "by its label"])
def test_pods_that_were_left_behind_are_found_and_counted(how: str) -> None:
    """`kubectl delete job --cascade=orphan`: pods and Workload lose their owner."""
    world = sound() if how == "by its marks" else plain()
    world.jobs = []
    world.workload["metadata"]["labels"] = {names.JOB_UID_LABEL: "train"}
    for item in (*world.pods, *world.workloads):
        del item["metadata"]["ownerReferences"]
    left = {("left-behind", f"team/train-{index}") for index in range(3)}
    assert set(subjects(world)) == {*left, ("strange-owner", "team/job-train")}
    assert "uncharged" not in every(world)
    say(world, 0)
    assert "uncharged" in every(world)
    for item in world.pods:
        item["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == ["strange-owner"], "they go"


def test_who_follows_knows_whose_a_pod_was() -> None:
    world = plain()
    followed = Followed()
    for source in SOURCES:
        for item in getattr(world, source.attribute):
            _put(followed, source, item)
    assert followed.judge(NOW) == []
    world.pods[2]["metadata"] |= {"ownerReferences": [], "labels": {}}
    _put(followed, SOURCES[3], world.pods[2])
    assert [one.rule for one in followed.judge(NOW)] == ["left-behind"]
    assert judge(world.cluster()) == [], "who looks once cannot know"


def _put(followed: Followed, source: Any, item: Object) -> None:
    row = source.decode(json.dumps(item).encode())
    followed.put(source.attribute, str(getattr(row, "key", "") or row.name), row)


# Workloads whose owner is none.


@pytest.mark.parametrize("owner_is", ["none", "of another kind", "itself", "another job"])
def test_a_workload_of_a_strange_owner_that_holds_quota_is_found(owner_is: str) -> None:
    world = plain()
    world.pods, world.jobs = [], [job("other", 3)]
    refs: list[Object] = []
    if owner_is == "of another kind":
        refs = [{**owner("train")[0], "apiVersion": "v1", "kind": "ConfigMap"}]
    elif owner_is == "itself":
        refs = controlled("Workload", "workload-train")
    elif owner_is == "another job":
        refs = owner("other")
    world.workload["metadata"]["ownerReferences"] = refs
    shown = {one.rule: one.found for one in found(world)}
    assert "holds quota of cq" in shown["strange-owner"]
    world.workload["metadata"]["labels"] = {}
    if owner_is in ("none", "of another kind"):
        assert "strange-owner" not in rules(world), "somebody wrote it by hand"
        world.workload["metadata"]["managedFields"] = [
            {"manager": "rackgate-assigner", "operation": "Update", "time": LATE}
        ]
        assert "strange-owner" in rules(world)


@pytest.mark.requirement("OPS-12")
def test_a_workload_of_a_job_that_is_over_holds_until_its_pods_are_gone() -> None:
    world = plain()
    world.job["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == []
    world.jobs = []
    assert rules(world) == [], "what lives is charged"
    world.pods = []
    assert subjects(world) == [("held-after-end", "team/job-train")]
    world.jobs = [job("train", 3)]
    world.job["metadata"]["deletionTimestamp"] = LATE
    (breach,) = found(world)
    assert breach.found == 'holds quota of cq, Job "train" is being deleted, and no pod of it runs'


# Charges.


@pytest.mark.parametrize(
    ("charged", "asked", "right"),
    [("15", "5", True), ("15", None, True), ("15", "4", False), ("9", "4", False)],
)
def test_what_the_api_server_adds_to_a_template_is_charged(
    charged: str, asked: str | None, right: bool
) -> None:
    """Overhead of a RuntimeClass, defaults of a LimitRange: real pods show them."""
    world = plain()
    quota(world, 100)
    world.granted["resourceUsage"]["cpu"] = charged
    hosts = ("n1", "n2", "n3")
    world.pods = [plain_pod("train", i, hosts[i], cpu=asked) for i in range(3)] if asked else []
    shown = rules(world)
    assert ("usage-differs" in shown) is not right


def test_what_is_added_to_a_template_takes_room_too() -> None:
    world = sound()
    world.granted["resourceUsage"]["cpu"] = "15"
    for item in world.pods:
        item["spec"]["overhead"] = {"cpu": "1"}
    assert [(one.rule, one.subject) for one in found(world)] == [("over-capacity", "n1 cpu")]


# When it counts.


def test_one_look_finds_what_has_been_there_for_long() -> None:
    world = plain()
    world.jobs.append(forged("mine"))
    world.pods += [plain_pod("mine", 0, "n3"), plain_pod("mine", 1, "n4")]
    tracker = Tracker(3.0, 60.0, trust_object_times=True)
    tracker.update(NOW, judge(world.cluster()))
    tracker.update(NOW + 3, judge(world.cluster(NOW + 3)))
    counting = {one.rule for one in tracker.active_breaches}
    assert counting == {"forged-owner", "not-stopped", *OF_STATUS}


def test_a_forged_job_is_found_in_any_order_of_events() -> None:
    story = plain_sets()
    story.jobs.append(forged("mine"))
    story.pods.append(plain_pod("mine", 0, "n4"))
    cleanup = job("clean", 1, queue=None)
    cleanup["metadata"]["ownerReferences"] = controlled("RayCluster", "ray")
    story.jobs.append(cleanup)
    story.rayclusters = ray().rayclusters
    story.pods.append(pod("clean", 0, "n4"))
    story.pods[-1]["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] = names.RAY_CLEANUP_TYPE
    story.pods.append(plain_pod("gone", 0, "n4"))
    del story.pods[-1]["metadata"]["ownerReferences"]
    story.pods[-1]["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "jobset-set"}
    story.pods[-1]["metadata"]["labels"] = {}
    story.workloads.append(workload("lost", {("n4",): 1}))
    del story.workloads[-1]["metadata"]["ownerReferences"]
    story.workloads[-1]["metadata"]["labels"] = {names.JOB_UID_LABEL: "lost"}
    story.pods.append(plain_pod("lost", 0, "n4"))
    del story.pods[-1]["metadata"]["ownerReferences"]
    for order in (SOURCES, tuple(reversed(SOURCES))):
        followed = Followed()
        keys = []
        for source in order:
            for item in getattr(story, source.attribute):
                row = source.decode(json.dumps(item).encode())
                keys.append((source.attribute, str(getattr(row, "key", "") or row.name)))
                followed.put(*keys[-1], row)
                assert followed.judge(NOW) == judge(followed.cluster(NOW)), keys[-1]
        shown = [one.rule for one in followed.judge(NOW)]
        assert {"forged-owner", "left-behind", "uncharged"} <= set(shown)
        for attribute, key in keys:
            followed.drop(attribute, key)
            assert followed.judge(NOW) == judge(followed.cluster(NOW)), (attribute, key)
        assert followed.judge(NOW) == []

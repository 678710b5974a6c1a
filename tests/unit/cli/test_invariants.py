"""Rules about pods and assignments: each planted broken, beside a healthy twin."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackgate.api import names
from rackgate_invariants.judge import breaches, judge, lasting, skipped_rules
from rackgate_invariants.rules.catalog import RULES, Breach
from tests.support.sound_cluster import (
    EARLY,
    HOST,
    LATE,
    NOW,
    RACK,
    assignment,
    conditions,
    found,
    node,
    other_pod,
    pod,
    rules,
    sound,
    template,
)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


def test_a_sound_cluster_shows_nothing() -> None:
    assert judge(sound().cluster()) == []


# Invariant 1.


@pytest.mark.requirement("OPS-12")
def test_one_pod_too_many_in_a_domain_is_found_by_name() -> None:
    world = sound()
    world.place({("n1",): 1, ("n2",): 2})
    (breach,) = (one for one in found(world) if one.rule != "rank-order")
    assert (breach.rule, breach.subject) == ("over-domain", "team/job-train/main n1")
    assert "2 live ungated pods (train-0, train-1), 1 assigned" in breach.found


def test_one_pod_too_many_of_a_podset_is_found() -> None:
    world = sound()
    world.pods.append(pod("train", 3, "n2"))
    assert rules(world) == ["over-domain", "over-granted"]


def test_a_terminating_pod_holds_its_place() -> None:
    world = sound()
    world.pod("train-2")["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert rules(world) == []
    world.pods.append(pod("train", 2, "n2") | {"metadata": {**pod("train", 2, "n2")["metadata"]}})
    world.pods[-1]["metadata"] |= {"name": "train-2b", "uid": "train-2b"}
    assert rules(world) == ["over-domain", "over-granted"]


def test_pods_that_leave_an_earlier_admission_may_be_more_than_this_one_has_room_for() -> None:
    world = sound()
    admitted = {"manager": "rackgate-admission", "subresource": "status", "time": LATE}
    world.workload["metadata"]["managedFields"] = [admitted]
    world.place({("n1",): 1, ("n2",): 2})
    released = {"manager": "rackgate-ungater", "time": EARLY}
    for item in world.pods:
        item["metadata"] |= {"managedFields": [released], "deletionTimestamp": LATE}
    assert rules(world) == []
    world.pods.append(pod("train", 0, "n1"))
    world.pods[-1]["metadata"] |= {"name": "train-0b", "uid": "train-0b"}
    assert rules(world) == ["over-domain", "over-granted"], "released while the place was taken"


def test_a_gated_replacement_waits_without_a_breach() -> None:
    world = sound()
    world.pod("train-2")["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    world.pods.append(pod("train", 2, None))
    world.pods[-1]["metadata"] |= {"name": "train-2b", "uid": "train-2b"}
    assert rules(world) == []


def test_a_pod_that_a_lost_node_cannot_end_counts_until_it_is_overdue() -> None:
    world = sound()
    world.place({("n1",): 2, ("n3",): 1})
    world.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    world.pod("train-2")["metadata"]["deletionTimestamp"] = LATE
    world.pods.append(pod("train", 2, "n3"))
    world.pods[-1]["metadata"] |= {"name": "train-2b", "uid": "train-2b"}
    assert rules(world, moment(LATE) + 29) == ["over-granted"], "its node may still end it"
    assert rules(world, moment(LATE) + 31) == []


def test_a_pod_sent_outside_its_assignment_is_found() -> None:
    world = sound()
    world.pod("train-2")["spec"] |= {"nodeSelector": {HOST: "n3"}, "nodeName": "n3"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("outside-assignment", "team/train-2")
    assert "ungated for n3" in breach.found


def test_a_pod_bound_elsewhere_than_it_was_sent_is_found() -> None:
    world = sound()
    world.pod("train-2")["spec"]["nodeName"] = "n4"
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("outside-assignment", "team/train-2")
    assert 'bound to node "n4"' in breach.found


def test_a_pod_that_stays_on_a_host_that_was_replaced_later_is_no_breach() -> None:
    world = sound()
    swapped = {"manager": "rackgate-admission", "subresource": "status", "time": LATE}
    world.workload["metadata"]["managedFields"] = [swapped]
    world.place({("n1",): 1, ("n2",): 1, ("n3",): 1})
    world.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    world.pods = [pod("train", 0, "n2"), pod("train", 1, "n1"), pod("train", 2, "n4")]
    released = {"manager": "rackgate-ungater", "time": EARLY}
    for item in world.pods:
        item["metadata"]["managedFields"] = [released]
    assert rules(world) == [], "neither its place nor the order of ranks is as it was"
    released["time"] = LATE
    assert rules(world) == ["outside-assignment"], "pods that are gone may have had these ranks"
    world.job["status"] = {"startTime": "2026-01-01T11:00:01Z"}
    assert rules(world) == ["outside-assignment", "rank-order", "rank-order"]


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize(
    ("started_at", "placed_at", "released_at", "judged"),
    [
        # The Workload was admitted at 10:00:00.
        ("10:00:01", "10:00:01", "10:00:01", False),
        ("10:00:01", "10:00:01", "10:00:02", True),
        ("10:00:01", "10:00:00", "10:00:01", True),
        ("10:00:01", "10:00:02", "10:00:02", False),
        ("10:00:00", "10:00:00", "10:00:00", True),
    ],
    ids=["that second", "released later", "not replaced", "replaced later", "all in one second"],
)
def test_ranks_are_not_judged_if_a_node_was_replaced_in_the_second_of_the_start(
    started_at: str, placed_at: str, released_at: str, judged: bool
) -> None:
    """Times have whole seconds: two writes of one second are in either order."""
    world = sound()
    for name, host in (("train-0", "n2"), ("train-2", "n1")):
        world.pod(name)["spec"] |= {"nodeSelector": {HOST: host}, "nodeName": host}
    day = EARLY.partition("T")[0]
    for condition in world.workload["status"]["conditions"]:
        condition["lastTransitionTime"] = f"{day}T10:00:00Z"
    world.workload["metadata"]["managedFields"] = [
        {
            "manager": "rackgate-admission",
            "subresource": "status",
            "time": f"{day}T{placed_at}Z",
        }
    ]
    world.job["status"] = {"startTime": f"{day}T{started_at}Z"}
    for item in world.pods:
        released = {"manager": "rackgate-ungater", "time": f"{day}T{released_at}Z"}
        item["metadata"]["managedFields"] = [released]
    assert ("rank-order" in rules(world)) is judged


@pytest.mark.parametrize("bound", [True, False])
def test_a_pod_whose_gate_is_gone_without_a_place_is_found(bound: bool) -> None:
    world = sound()
    del world.pod("train-2")["spec"]["nodeSelector"]
    if not bound:
        del world.pod("train-2")["spec"]["nodeName"]
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("past-the-gate", "team/train-2")
    assert ('bound to node "n2"' in breach.found) is bound


def test_a_pod_in_the_domain_of_another_rank_is_found() -> None:
    world = sound()
    for name, host in (("train-0", "n2"), ("train-2", "n1")):
        world.pod(name)["spec"] |= {"nodeSelector": {HOST: host}, "nodeName": host}
    assert [(one.rule, one.subject) for one in found(world)] == [
        ("rank-order", "team/train-0"),
        ("rank-order", "team/train-2"),
    ]


@pytest.mark.parametrize("doubt", ["missing", "double", "beyond", "fewer at once"])
def test_ranks_are_left_alone_where_pods_could_not_be_placed_by_them(doubt: str) -> None:
    world = sound()
    for name, host in (("train-0", "n2"), ("train-2", "n1")):
        world.pod(name)["spec"] |= {"nodeSelector": {HOST: host}, "nodeName": host}
    labels = world.pod("train-1")["metadata"]["labels"]
    if doubt == "missing":
        del labels[names.COMPLETION_INDEX_LABEL]
    elif doubt == "double":
        labels[names.COMPLETION_INDEX_LABEL] = "2"
    elif doubt == "beyond":
        labels[names.COMPLETION_INDEX_LABEL] = "7"
    else:
        world.job["spec"]["completions"] = 9
    assert rules(world) == []


@pytest.mark.parametrize(
    "spoilt", [{"levels": []}, assignment({("n1",): 2, ("n2",): 1}, (HOST,)) | {"slices": []}]
)
def test_an_assignment_that_cannot_be_read_is_found(spoilt: dict[str, object]) -> None:
    world = sound()
    world.granted["topologyAssignment"] = spoilt
    world.pods = []
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("assignment-unreadable", "team/job-train/main")


def test_a_domain_that_comes_twice_is_found() -> None:
    world = sound()
    piece = world.granted["topologyAssignment"]["slices"][0]
    piece["valuesPerLevel"] = [{"individual": {"roots": ["n1", "n1"]}}]
    (breach,) = found(world)
    assert breach.rule == "assignment-unreadable"
    assert "appears twice" in breach.found


def test_an_assignment_that_does_not_sum_to_its_count_is_found() -> None:
    world = sound()
    world.place({("n1",): 2})
    world.pods.pop()
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("assignment-sum", "team/job-train/main")


def test_slices_that_do_not_divide_the_pods_may_leave_some_without_a_place() -> None:
    world = sound()
    request = world.workload["spec"]["podSets"][0]["topologyRequest"]
    request |= {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 2}
    world.place({("n1",): 2})
    world.pods.pop()
    assert rules(world) == []


def test_a_podset_that_asks_for_a_topology_and_got_none_is_found() -> None:
    world = sound()
    del world.granted["topologyAssignment"]
    assert rules(world) == ["assignment-missing"]
    world.granted["delayedTopologyRequest"] = "Pending"
    assert rules(world) == []


def test_a_podset_in_two_racks_of_the_required_level_is_found() -> None:
    world = sound()
    world.place({("n1",): 2, ("n3",): 1})
    world.pod("train-2")["spec"] |= {"nodeSelector": {HOST: "n3"}, "nodeName": "n3"}
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("level-split", "team/job-train/main")
    assert "r1, r2" in breach.found


def test_racks_of_the_same_name_in_two_blocks_are_two_racks() -> None:
    world = sound()
    for item, block in zip(world.nodes, ("b1", "b2", "b1", "b2"), strict=True):
        item["metadata"]["labels"] |= {"block": block, RACK: "r1"}
    assert rules(world) == [], "without blocks in the topology"
    world.topologies[0]["spec"]["levels"].insert(0, {"nodeLabel": "block"})
    assert rules(world) == ["level-split"]


def test_podsets_of_one_group_share_their_required_domain() -> None:
    world = sound()
    podset, given = world.workload["spec"]["podSets"][0], world.granted
    podset["topologyRequest"]["podSetGroupName"] = "g"
    leader = {**podset, "name": "leader", "count": 1}
    world.workload["spec"]["podSets"].append(leader)
    placed = assignment({("n2",): 1}, (HOST,))
    more = {**given, "name": "leader", "count": 1, "topologyAssignment": placed}
    more["resourceUsage"] = {"cpu": "4"}
    world.workload["status"]["admission"]["podSetAssignments"].append(more)
    assert rules(world) == []
    more["topologyAssignment"] = assignment({("n3",): 1}, (HOST,))
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("level-split", "team/job-train/main+leader")


def test_a_slice_that_is_split_over_racks_is_found() -> None:
    world = sound()
    request = world.workload["spec"]["podSets"][0]["topologyRequest"]
    request |= {
        "required": None,
        "podsetSliceRequiredTopologyConstraints": [{"topology": RACK, "size": 2}],
    }
    world.workload["spec"]["podSets"][0]["count"] = world.granted["count"] = 4
    world.granted["resourceUsage"] = {"cpu": "16"}
    world.place({("n1",): 2, ("n3",): 2})
    world.pods = []
    assert rules(world) == []
    world.place({("n1",): 1, ("n3",): 2, ("n4",): 1})
    assert set(rules(world)) == {"slice-split"}


# Invariant 2.


@pytest.mark.parametrize("state", ["bound", "ungated"])
def test_a_pod_before_admission_is_found(state: str) -> None:
    world = sound()
    world.pend()
    world.pods = [pod("train", 0, "n1")]
    if state == "ungated":
        del world.pods[0]["spec"]["nodeName"]
    (breach,) = (one for one in found(world) if one.rule == "ungated-before-admission")
    assert breach.subject == "team/train-0"
    assert state in breach.found
    assert "Workload team/job-train is not admitted" in breach.found


def test_quota_alone_is_no_admission() -> None:
    world = sound()
    world.workload["status"]["conditions"] = conditions(QuotaReserved=True, Admitted=False)
    assert "ungated-before-admission" in rules(world)


def test_pods_may_run_out_while_their_workload_is_evicted_or_just_gone() -> None:
    world = sound()
    stopping = conditions(QuotaReserved=True, Admitted=True, Evicted=True)
    world.workload["status"]["conditions"] = stopping
    assert breaches(world.cluster()) == []
    world.pend()
    for item in world.pods:
        item["metadata"]["deletionTimestamp"] = LATE
    assert breaches(world.cluster()) == []


@pytest.mark.parametrize("why", ["no label", "kube-system", "managed by another"])
def test_pods_of_jobs_that_are_not_managed_run_as_they_like(why: str) -> None:
    world = sound()
    world.workloads = []
    world.job["spec"]["template"] = template()
    if why == "no label":
        world.job["metadata"]["labels"] = {}
    elif why == "kube-system":
        for item in (*world.jobs, *world.pods):
            item["metadata"]["namespace"] = "kube-system"
    else:
        world.job["spec"]["managedBy"] = "example.com/other"
    assert rules(world) == []


# What a reading can and cannot tell.


def test_rules_that_need_what_was_not_read_are_left_out_by_name() -> None:
    world = sound()
    world.pods.append(other_pod("x", "n1"))
    world.pend()
    blind = world.cluster(unread={"nodes": "nodes cannot be listed"})
    left_out = skipped_rules(blind)
    of_quota = {"queue-counts", "local-queue-counts", "uncharged", "pods-over-quota"}
    of_places = {"over-capacity", "level-split", "slice-split", "domain-gone"}
    of_places.add("evicted-still-runs")
    assert set(left_out) == of_places | of_quota
    assert set(left_out.values()) == {"nodes cannot be listed"}
    assert "ungated-before-admission" in [one.rule for one in judge(blind)]
    assert {"gate-taken", "foreign-gate-taken"} <= set(
        skipped_rules(world.cluster(unread={"pods": "no"}))
    )
    alone = skipped_rules(world.cluster(whole=False))
    of_all = {"over-capacity", "over-quota", "queue-counts", "uncharged", "pods-over-quota"}
    assert set(alone) == of_all


def test_what_cannot_be_read_of_one_kind_invents_no_breach_of_another() -> None:
    for plural, attribute in (
        ("nodes", "nodes"),
        ("pods", "pods"),
        ("jobs", "jobs"),
        ("workloads", "workloads"),
        ("resourceflavors", "flavors"),
        ("topologies", "topologies"),
        ("clusterqueues", "cluster_queues"),
        ("localqueues", "local_queues"),
    ):
        world = sound()
        setattr(world, attribute, [])
        assert judge(world.cluster(unread={plural: "forbidden"})) == [], plural


def test_only_a_breach_that_stays_is_lasting() -> None:
    here = Breach("over-domain", "a", "2 live")
    assert lasting([here], [Breach("over-domain", "a", "3 live")]) == [here]
    assert lasting([here], [Breach("over-domain", "b", "2 live")]) == []


def test_one_reading_tells_only_what_a_correct_cluster_never_shows() -> None:
    world = sound()
    world.job["spec"]["suspend"] = True
    world.nodes = [node("n1", "r1", "4"), *world.nodes[1:]]
    shown = breaches(world.cluster(NOW))
    assert [one.rule for one in shown] == ["over-capacity"]
    assert not any(RULES[one.rule].patient for one in shown)


def test_the_documentation_lists_every_rule_as_it_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "invariants.md").read_text()
    for rule in RULES.values():
        assert f"| {rule.invariant} | `{rule.id}` | {rule.sentence} |" in page, rule.id
    assert page.count("\n| 1 |") == sum(rule.invariant == 1 for rule in RULES.values())


def test_every_invariant_has_rules_and_every_rule_a_breach_that_is_planted() -> None:
    assert {rule.invariant for rule in RULES.values()} == set(range(1, 10))
    planted = "".join(
        path.read_text() for path in Path(__file__).parent.glob("test_invariants*.py")
    )
    assert [rule.id for rule in RULES.values() if f'"{rule.id}"' not in planted] == []

"""Why a Workload waits: its queues, its quota, its topologies, and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rackgate.api.names import EvictionReason
from rackgate.features import Features
from rackgate.wire import kueue
from rackgate.wire.core import Condition, Taint
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.causes import near_level
from rackgate_assigner.explain.explanation import Explanation, FlavorView, schema
from rackgate_assigner.workload.decisions import Admit, Requeue
from rackgate_assigner.workload.info import workload_info
from tests.unit.assigner.builders import (
    BLOCK,
    CREATED,
    HOST,
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    explanation_of,
    flavor,
    fx_a,
    local_queue,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    workload,
)


def explained(cache: Cache, name: str = "w") -> Explanation:
    found = explanation_of(cache, f"team/{name}")
    assert found is not None
    return found


def only_view(found: Explanation) -> FlavorView:
    (view,) = found.flavors
    return view


def helps(found: Explanation) -> dict[str, str]:
    return {change.kind: change.when for change in found.changes}


@pytest.mark.requirement("TAS-32")
def test_a_workload_that_pauses_says_until_when() -> None:
    cache = cache_with(fx_a())
    own = workload("w", asking(4))
    pause = kueue.RequeueState(1, "2026-08-01T12:10:00Z")
    status = msgspec.structs.replace(own.status, requeue_state=pause)
    cache.set_workload(msgspec.structs.replace(own, status=status))
    found = explained(cache)
    assert (found.state, found.fits, found.reason) == ("waiting", False, "PendingEvaluation")
    assert found.summary == (
        "Not all of its pods were ready in time: queued again at 2026-08-01T12:10:00Z."
    )


def test_a_workload_whose_gangs_hold_it_says_why() -> None:
    """Only the assigner watches Workloads of gangs; what it wrote is repeated."""
    cache = cache_with(fx_a())
    own = workload("w", asking(4))
    message = 'the Workload of gangs "mine" does not exist: create it'
    quota = Condition("QuotaReserved", "False", "GangNotReady", message)
    status = msgspec.structs.replace(own.status, conditions=(quota,))
    cache.set_workload(msgspec.structs.replace(own, status=status))
    found = explained(cache)
    assert (found.state, found.fits, found.reason) == ("waiting", False, "GangNotReady")
    assert message[1:] in found.summary


def test_a_hold_ends_with_its_reason_and_the_workload_is_decided_about_again() -> None:
    cache = cache_with(fx_a())
    cache.set_hold("team/w", "not yet")  # before the watch shows the Workload
    cache.set_workload(workload("w", asking(4)))
    assert cache.workloads["team/w"].hold == "not yet"
    assert plan_cycle(cache) == [Requeue("team/w", "GangNotReady", "not yet")]
    cache.take_changes()
    epoch = cache.epoch
    cache.set_hold("team/w", "not yet")
    assert cache.epoch == epoch
    cache.set_hold("team/w", "")
    assert cache.epoch > epoch
    assert "team/w" in cache.take_changes().workloads
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Admit)
    rebuild_matches(cache)


@pytest.mark.requirement("TAS-32")
def test_a_workload_that_fits_and_is_blocked_says_what_it_waits_for() -> None:
    """The command knows no settings of the assigner: the condition says it."""
    cache = cache_with(fx_a())
    blocked = {"QuotaReserved": ("False", "WaitingForPodsReady", "waiting for all")}
    cache.set_workload(workload("w", asking(4), conditions=blocked))
    found = explained(cache)
    assert found.fits
    assert "while pods of an admitted Workload are not ready" in found.summary
    cache.set_workload(workload("w", asking(4), version="2"))
    assert "in the next cycle" in explained(cache).summary


@pytest.mark.requirement("TAS-32")
@pytest.mark.parametrize(
    ("ready", "more"),
    [
        (("False", "WaitForRecovery"), f" Since {CREATED} not all of its pods are ready."),
        (("False", "WaitForStart"), " Not all of its pods are ready yet."),
        ((), " Not all of its pods are ready yet."),
        (("True", "Started"), ""),
    ],
)
def test_an_admitted_workload_says_since_when_pods_are_missing(
    ready: tuple[str, ...], more: str
) -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", asking(4)))
    (assignment,) = admissions(plan_cycle(cache)).values()
    conditions = {"PodsReady": (ready[0], ready[1], "")} if ready else {}
    cache.set_workload(workload("w", asking(4), assignment=assignment, conditions=conditions))
    said = "It is admitted."
    assert explained(cache).summary == said + more


def asking(count: int, level: str = RACK, cpu: str = "4", **more: Any) -> list[dict[str, Any]]:
    return [podset(count=count, requests={"cpu": cpu}, topology={"required": level}, **more)]


@pytest.mark.requirement("TAS-20")
def test_a_level_without_room_is_reported_with_its_best_domain_and_what_that_lacks() -> None:
    cache = cache_with(fx_a())
    cache.set_pod(pod("other", "b1-r1-1", cpu="4"))
    told = {"QuotaReserved": ("False", "WaitingForQuota", "old news")}
    cache.set_workload(workload("first", priority=3))
    cache.set_workload(workload("w", asking(5), conditions=told))
    found = explained(cache)
    assert (found.state, found.fits, found.reason) == ("waiting", False, "TopologyPlacementFailed")
    assert found.message.endswith('topology "default" allows to fit only 4 out of 5 pod(s)')
    assert found.told == "old news"
    assert found.summary == (
        "15 pods fit in total, but no single rack fits 5: the best candidate, b1/r2, fits 4."
    )
    view = only_view(found)
    assert (view.chosen, view.fitting, view.wanted, view.fits_when_empty) == (True, 4, 5, False)
    best = {level.level: (level.best[0].domain, level.best[0].pods) for level in view.levels}
    assert best == {
        BLOCK: (("b2",), 8),
        RACK: (("b1", "r2"), 4),
        HOST: (("b1", "r1", "b1-r1-2"), 2),
    }
    rack = next(level for level in view.levels if level.asked)
    assert (rack.pods, rack.fragmented) == (15, True)
    cpu = rack.best[0].resources[0]
    assert (cpu.wanted, cpu.free, cpu.missing, cpu.pods) == ("20", "16", "4", 4)
    assert rack.best[0].tightest == "cpu"
    assert helps(found) == {
        "coarserLevel": "now",
        "preferred": "now",
        "fewerPods": "now",
        "room": "perhaps",
    }


def test_room_is_held_by_workloads_and_by_pods_of_others() -> None:
    cache = cache_with([node("a", cpu="8"), node("b", cpu="8")])
    cache.set_workload(workload("big", asking(3)))
    admit_all(cache)
    cache.set_pod(pod("daemon", "b", namespace="kube-system", cpu="1"))
    cache.set_workload(workload("w", asking(2)))
    found = explained(cache)
    rack = next(level for level in only_view(found).levels if level.asked)
    holders = [(one.kind, one.name, one.pods, one.amounts) for one in rack.best[0].holders]
    assert holders == [
        ("Workload", "team/big", 3, {"cpu": "12"}),
        ("Pod", "kube-system/daemon", 1, {"cpu": "1"}),
    ]
    assert only_view(found).fits_when_empty is True
    wait = next(change for change in found.changes if change.kind == "wait")
    assert (wait.value, wait.when) == ("team/big", "whenEmpty")


def test_pods_that_no_admission_covers_any_more_are_named() -> None:
    cache = cache_with([node("a", cpu="8")])
    cache.set_workload(workload("old", [podset(count=2)], queue=""))
    cache.set_pod(pod("left-over", "a", cpu="7", workload="old"))
    cache.set_workload(workload("w", asking(1)))
    best = only_view(explained(cache)).levels[0].best[0]
    assert [(one.kind, one.name) for one in best.holders] == [("Pod", "team/left-over")]


def test_free_amounts_in_pieces_too_small_are_reported_from_missing_ones() -> None:
    cache = cache_with([node(name, cpu="3") for name in "abcd"])
    cache.set_workload(workload("w", asking(6, cpu="2")))
    best = next(level for level in only_view(explained(cache)).levels if level.asked).best[0]
    cpu = best.resources[0]
    assert (cpu.free, cpu.missing, cpu.stranded, best.fragmented) == ("12", "0", "4", True)


def test_nodes_are_excluded_by_rule_and_a_change_that_lifts_the_rule_is_tried() -> None:
    nodes = [
        node("tainted", taints=[{"key": "maint", "effect": "NoSchedule"}]),
        node("spinning"),
        node("quick", labels={"disk": "ssd"}),
        node("cordoned", unschedulable=True),
        node("down", ready=False),
        node("web", labels={"pool": "web"}),
    ]
    cache = cache_with(nodes)
    cache.set_workload(workload("w", asking(2, nodeSelector={"disk": "ssd"})))
    found = explained(cache)
    excluded = {(one.rule, one.detail): one.names for one in only_view(found).excluded}
    assert excluded == {
        ("notReady", ""): ("down",),
        ("unschedulable", ""): ("cordoned",),
        ("taint", "maint:NoSchedule"): ("tainted",),
        ("nodeSelector", "disk=ssd"): ("spinning",),
        ("flavorLabels", "pool=gpu"): ("web",),
    }
    assert helps(found)["nodeSelector"] == "now"
    assert "toleration" not in helps(found)


@pytest.mark.requirement("TAS-04")
@pytest.mark.field_note("C18")
def test_nodes_without_level_labels_are_reported_as_a_change_that_could_help() -> None:
    bare = [node("bare-1"), node("bare-2")]
    for one in bare:
        one.metadata.labels.pop(RACK)
    cache = cache_with([*bare, node("good")])
    cache.set_workload(workload("w", asking(3)))
    found = explained(cache)
    lacking = next(one for one in only_view(found).excluded if one.rule == "missingLevel")
    assert (lacking.detail, lacking.names) == (RACK, ("bare-1", "bare-2"))
    change = next(change for change in found.changes if change.kind == "nodeLabels")
    assert 'bare-1, bare-2: no label "rack"' in change.text


@pytest.mark.requirement("TAS-33")
def test_flavors_that_share_nodes_are_named_with_how_many() -> None:
    cache = cache_with([node("a", labels={"team": "x"}), node("b")])
    cache.set_flavor(flavor("narrow", node_labels={"team": "x"}))
    cache.set_workload(workload("w", asking(9)))
    view = next(view for view in explained(cache).flavors if view.flavor == "tas")
    assert [(one.flavor, one.nodes) for one in view.overlaps] == [("narrow", 1)]


@pytest.mark.requirement("TAS-20")
def test_quota_is_reported_by_flavor_with_who_holds_it() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "16"}}))
    cache.set_workload(workload("first", asking(3)))
    admit_all(cache)
    cache.set_workload(workload("w", asking(2)))
    found = explained(cache)
    (line,) = found.quota
    assert (line.requested, line.used, line.nominal, line.missing) == ("8", "12", "16", "4")
    assert [one.name for one in line.holders] == ["team/first"]
    assert (only_view(found).fits, helps(found)) == (True, {"quota": "whenEmpty"})
    assert "4 cpu of the quota of flavor tas are missing" in found.summary


def test_more_than_the_whole_quota_never_fits() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "4"}}))
    cache.set_workload(workload("w", asking(2)))
    found = explained(cache)
    assert (found.reason, found.quota[0].never) == ("ExceedsMaxQuota", True)
    assert helps(found) == {"quota": "perhaps"}
    assert "more than the nominal quota of" in found.summary


@pytest.mark.requirement("TAS-20")
def test_a_change_that_fixes_one_of_two_obstacles_is_not_called_enough_for_both() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "24"}}))
    cache.set_workload(workload("first", asking(3)))
    admit_all(cache)
    cache.set_workload(workload("w", asking(5)))
    found = explained(cache)
    assert (found.quota[0].missing, only_view(found).fits_when_empty) == ("8", False)
    assert helps(found) == {
        "coarserLevel": "whenEmpty",
        "preferred": "whenEmpty",
        "fewerPods": "whenEmpty",
        "room": "perhaps",
        "quota": "perhaps",
    }


def test_no_smaller_change_is_enough_for_more_than_the_whole_quota() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "4"}}))
    cache.set_workload(workload("w", asking(5)))
    assert set(helps(explained(cache)).values()) == {"perhaps"}


@pytest.mark.parametrize(
    ("resource", "change"),
    [
        ("gpu", "do not request gpu, or ask the administrator of the ClusterQueue to cover it"),
        ("memry", "request memory instead of memry"),
    ],
)
def test_a_resource_that_no_flavor_covers_is_the_cause(resource: str, change: str) -> None:
    """Not that no node has it: nothing about the topology helps before."""
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "40", "memory": "1Ti"}}))
    requests = {"cpu": "1", resource: "1"}
    cache.set_workload(workload("w", [podset(requests=requests, topology={"required": RACK})]))
    found = explained(cache)
    problem = f'o flavor of ClusterQueue "cq" covers {resource} (covered: cpu, memory)'
    assert found.quota[-1].problem == f"n{problem}"
    assert found.summary == f"N{problem}."
    assert [(one.kind, one.text) for one in found.changes] == [("resource", change)]


def test_the_place_in_the_line_names_those_ahead() -> None:
    cache = cache_with([])
    for name, priority in (("low", 0), ("high", 9), ("w", 5)):
        cache.set_workload(workload(name, priority=priority))
    cache.set_local_queue(local_queue("other"))
    cache.set_workload(workload("beside", queue="other", priority=7))
    side = explained(cache).queue
    assert side is not None
    assert (side.position, side.waiting, side.local_position) == (2, 4, 1)
    assert [one.workload for one in side.ahead] == ["team/high", "team/beside"]


def test_what_fits_alone_may_have_to_let_others_go_first() -> None:
    queue = cluster_queue("cq", queueingStrategy="StrictFIFO")
    cache = cache_with([node("a", cpu="8")], queue=queue)
    cache.set_workload(workload("runs", asking(1)))
    assignment = admissions(plan_cycle(cache))["runs"]
    cache.set_workload(workload("runs", asking(1), version="2", assignment=assignment))
    cache.set_workload(workload("head", asking(2), priority=1))
    cache.set_workload(workload("w", asking(1)))
    found = explained(cache)
    assert found.fits is True
    assert found.in_turn == "waiting for the workloads ahead in StrictFIFO ClusterQueue cq"
    assert "come first" in found.summary


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda cache: cache.drop_local_queue("team/lq"), 'LocalQueue "lq" does not exist'),
        (lambda cache: cache.drop_cluster_queue("cq"), 'ClusterQueue "cq" does not exist'),
        (lambda cache: cache.drop_topology("default"), 'no Topology "default"'),
        (lambda cache: cache.drop_flavor("tas"), "missing ResourceFlavor"),
        (
            lambda cache: cache.set_local_queue(local_queue(stopPolicy="Hold")),
            "is stopped (stopPolicy: Hold)",
        ),
        (
            lambda cache: cache.set_cluster_queue(cluster_queue(stopPolicy="HoldAndDrain")),
            "is stopped (stopPolicy: HoldAndDrain)",
        ),
        (
            lambda cache: cache.set_cluster_queue(
                cluster_queue(namespaceSelector={"matchLabels": {"a": "b"}})
            ),
            "namespaceSelector does not match",
        ),
    ],
)
def test_a_queue_that_admits_nothing_is_the_first_thing_said(spoil, words) -> None:  # type: ignore[no-untyped-def]  # one lambda per row
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", asking(1)))
    spoil(cache)
    found = explained(cache)
    assert words in found.summary
    assert found.fits is False
    assert "queue" in helps(found)


def test_a_level_that_no_topology_has_is_reported_with_those_it_has() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", asking(1, level="rak")))
    found = explained(cache)
    assert found.reason == EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
    assert found.summary == 'Topology "default" has no level "rak".'
    (change,) = found.changes
    assert (change.kind, change.value, change.when) == ("levelName", RACK, "now")
    assert change.text == f'use "rack" instead of "rak"; levels: {BLOCK}, {RACK}, {HOST}'
    cache.set_workload(workload("v", asking(9, level="example.com/datacenter")))
    (change,) = explained(cache, "v").changes
    assert change.text == f"name a level of the topology: {BLOCK}, {RACK}, {HOST}"


@pytest.mark.requirement("VAL-13")
def test_a_deactivated_workload_keeps_what_would_help_and_says_how_to_reactivate_it() -> None:
    cache = cache_with(fx_a())
    reason = EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
    evicted = {"Evicted": ("True", reason, "level rak")}
    cache.set_workload(workload("w", asking(2, level="rak"), active=False, conditions=evicted))
    found = explained(cache)
    assert (found.state, found.fits, found.told) == ("inactive", None, "")
    assert found.summary == (
        'It was deactivated: topology "default" has no level "rak". '
        "Correct its job, and then reactivate the Workload."
    )
    level, reactivate = found.changes
    assert (level.kind, level.value) == ("levelName", RACK)
    assert (reactivate.kind, reactivate.value) == ("reactivate", "team/w")
    assert reactivate.text == (
        "reactivate it: kubectl patch workloads.kueue.x-k8s.io w -n team --type=merge "
        """-p '{"spec":{"active":true}}'"""
    )
    assert {level.when, reactivate.when} == {"perhaps"}
    assert only_view(found).cause


@pytest.mark.requirement("VAL-13")
@pytest.mark.parametrize(
    ("reason", "summary"),
    [
        (
            EvictionReason.DEACTIVATED_INVALID_TOPOLOGY,
            "It was deactivated for its topology request, which is valid now. Reactivate it.",
        ),
        (
            "Deactivated",
            "It is inactive. It is pending again when spec.active of the Workload is true.",
        ),
    ],
)
def test_an_inactive_workload_whose_request_is_valid_needs_only_to_be_reactivated(
    reason: str, summary: str
) -> None:
    cache = cache_with(fx_a())
    evicted = {"Evicted": ("True", reason, "")}
    cache.set_workload(workload("w", asking(2), active=False, conditions=evicted))
    found = explained(cache)
    assert found.summary == summary
    assert helps(found) == {"reactivate": "now"}


def test_a_misspelled_level_is_found_by_its_last_part() -> None:
    levels = ("cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", HOST)
    for name in ("rak", "topology-rack", "example.com/rack", "cloud.provider.com/topology-rak"):
        assert near_level(name, levels) == levels[1]
    assert near_level("zone", levels) == ""


def test_slices_above_the_requested_level_are_reported_with_both_orders() -> None:
    cache = cache_with(fx_a())
    sliced = {"required": RACK, "podSetSliceRequiredTopology": BLOCK, "podSetSliceSize": 2}
    cache.set_workload(workload("w", [podset(count=4, requests={"cpu": "4"}, topology=sliced)]))
    found = explained(cache)
    assert found.summary == (
        'The level of the slices, "block", is above the requested level "rack" in topology '
        f'"default" (levels: {BLOCK}, {RACK}, {HOST}).'
    )
    assert [(one.text, one.when) for one in found.changes] == [
        ("request block instead of rack", "now"),
        ("use rack as level of the slices", "now"),
    ]


def test_a_preferred_level_above_the_required_one_is_reported_with_both_orders() -> None:
    features = Features(required_and_preferred=True)
    cache = cache_with(fx_a(), features={"RackgateRequiredAndPreferred": True})
    both = {"required": RACK, "preferred": BLOCK}
    cache.set_workload(workload("w", [podset(count=2, requests={"cpu": "4"}, topology=both)]))
    found = workload_explanation.explain(cache, "team/w", features)
    assert found is not None
    assert 'The preferred level, "block", is above the requested level "rack"' in found.summary
    assert helps(found) == {"levelName": "now"}


@pytest.mark.requirement("TAS-20")
@pytest.mark.parametrize(
    ("requests", "words", "changes"),
    [
        (
            {"cpu": "16"},
            "One pod requests 16 cpu, and no node that it may use has more than 8.",
            [("podSize", "now", "request at most 8 cpu per pod")],
        ),
        (
            {"cpu": "1", "memory": "32Gi"},
            "One pod requests 32Gi memory, and no node that it may use has more than 16Gi.",
            [("podSize", "now", "request at most 16Gi memory per pod")],
        ),
        (
            {"cpu": "1", "vendor.example/gpus": "1"},
            'No node of flavor "tas" that its pods may use has vendor.example/gpus.',
            [("resource", "now", "do not request vendor.example/gpus")],
        ),
    ],
)
def test_a_pod_that_is_larger_than_every_node_is_the_cause(
    requests: dict[str, str], words: str, changes: list[tuple[str, str, str]]
) -> None:
    """Free capacity in the best rack would not help."""
    quotas = {"cpu": "40", "memory": "1Ti", "vendor.example/gpus": "40"}
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": quotas}))
    asked = podset(count=2, requests=requests, topology={"required": RACK})
    cache.set_workload(workload("w", [asked]))
    found = explained(cache)
    assert found.summary == words
    assert only_view(found).cause == words.rstrip(".")
    assert [(one.kind, one.when, one.text) for one in found.changes] == changes


def test_only_nodes_that_a_pod_may_use_count_for_its_size() -> None:
    taint = [{"key": "big", "effect": "NoSchedule"}]
    cache = cache_with([node("big", cpu="32", taints=taint), node("small", cpu="4")])
    cache.set_workload(workload("w", asking(1, cpu="8")))
    found = explained(cache)
    assert "no node that it may use has more than 4" in found.summary
    assert helps(found) == {"podSize": "now", "toleration": "now"}


def test_free_capacity_is_not_advised_where_no_node_may_be_used() -> None:
    taint = [{"key": "maint", "effect": "NoSchedule"}]
    cache = cache_with([node("a", taints=taint), node("b", taints=taint)])
    cache.set_workload(workload("w", asking(1)))
    assert helps(explained(cache)) == {"toleration": "now"}


def test_a_node_selector_that_no_node_has_is_the_cause() -> None:
    nodes = [node("a", labels={"disk": "ssd"}), node("b", labels={"disk": "hdd"})]
    cache = cache_with(nodes)
    cache.set_workload(workload("w", asking(1, nodeSelector={"disk": "sdd"})))
    found = explained(cache)
    assert found.summary == (
        'None of the 2 nodes of flavor "tas" has the label disk=sdd of the nodeSelector '
        "(values of disk: hdd, ssd)."
    )
    assert [(one.when, one.text) for one in found.changes] == [
        ("now", "use the nodeSelector disk=ssd instead of disk=sdd"),
        ("now", "remove the nodeSelector disk=sdd"),
    ]
    both = {"disk": "ssd", "zone": "a"}
    cache.set_workload(workload("v", asking(1, nodeSelector=both)))
    assert "has the label zone=a of the nodeSelector." in explained(cache, "v").summary
    cache.set_node(node("b", labels={"disk": "hdd", "zone": "a"}))
    assert explained(cache, "v").summary == (
        'None of the 2 nodes of flavor "tas" has all the labels of the nodeSelector: '
        "disk=ssd, zone=a."
    )


def test_a_template_that_cannot_be_read_is_reported() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset(requests={"cpu": "much"})]))
    assert "cannot be scheduled" in explained(cache).summary


def test_explain_knows_every_state() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w"))
    assert explained(cache).fits is True
    assignment = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", version="2", assignment=assignment))
    found = explained(cache)
    assert (found.state, found.podsets[0].granted) == ("admitted", 1)
    waits = {"Admitted": ("False", "UnsatisfiedAdmissionChecks", "")}
    reserved = workload("w", version="2", assignment=assignment, conditions=waits)
    asked = (
        kueue.AdmissionCheckState("budget", "Ready"),
        kueue.AdmissionCheckState("nodes", "Pending", "asked for 2"),
        kueue.AdmissionCheckState("licence", "Pending"),
    )
    status = msgspec.structs.replace(reserved.status, admission_checks=asked)
    cache.set_workload(msgspec.structs.replace(reserved, status=status))
    found = explained(cache)
    assert (found.state, found.podsets[0].granted) == ("reserved", 1)
    assert found.summary == (
        "Quota is reserved for it. It waits for admission checks: nodes (Pending: asked for 2), "
        "licence (Pending)."
    )
    cache.set_workload(workload("w", conditions={"Finished": ("True", "Succeeded", "")}))
    assert explained(cache).state == "finished"
    cache.set_workload(workload("off", active=False))
    assert explained(cache, "off").state == "inactive"
    cache.set_workload(workload("going", deleting=True))
    assert explained(cache, "going").state == "deleting"
    assert explanation_of(cache, "team/nobody") is None


def test_what_is_not_submitted_is_judged_behind_those_that_wait() -> None:
    cache = cache_with([node("a", cpu="8")])
    cache.set_workload(workload("first", asking(2)))
    row = replace(workload_info(workload("new", asking(2))), queue_timestamp="9999")
    found = workload_explanation.explain_row(cache, row, "notSubmitted", Features())
    assert (found.fits, found.queue and found.queue.position) == (True, 1)
    assert "allows to fit" in found.in_turn or "doesn't allow to fit" in found.in_turn
    assert "team/new" not in cache.workloads


def test_with_topologies_switched_off_there_is_no_topology_to_explain() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset(count=2)]))
    found = workload_explanation.explain(cache, "team/w", Features(topology_aware_scheduling=False))
    assert found is not None
    assert found.flavors == ()


def test_an_explanation_leaves_the_cache_as_it_was() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("big", asking(4)))
    admit_all(cache)
    cache.set_workload(workload("w", asking(5)))
    epoch = cache.epoch
    explained(cache)
    assert cache.epoch == epoch
    assert rebuild_matches(cache) == []


def test_the_json_of_an_explanation_reads_back_as_the_same_and_has_a_schema() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", asking(5)))
    found = explained(cache)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found
    assert found.api_version == "explain.rackgate.dev/v1"
    described = schema()["$defs"]["Explanation"]["properties"]
    assert set(msgspec.to_builtins(found)) == set(described)


def test_slices_and_leaders_are_counted_as_the_rejection_counts_them() -> None:
    cache = cache_with(fx_a())
    sliced = {
        "required": BLOCK,
        "podSetSliceRequiredTopology": RACK,
        "podSetSliceSize": 3,
    }
    cache.set_workload(workload("s", [podset(count=9, requests={"cpu": "4"}, topology=sliced)]))
    assert explained(cache, "s").summary == (
        "16 pods fit in total, but no single block fits 3 slices: the best candidate, b1, fits 2."
    )
    view = only_view(explained(cache, "s"))
    assert (view.unit, view.slice_size, view.fitting, view.wanted) == ("slice", 3, 2, 3)
    group = {"required": RACK, "podSetGroupName": "g"}
    parts = [
        podset("leader", 1, {"cpu": "8"}, topology=group),
        podset("workers", 3, {"cpu": "4"}, topology=group),
    ]
    cache.set_workload(workload("g", parts))
    view = only_view(explained(cache, "g"))
    assert (view.leader, view.refused) == ("leader", ("leader", "workers"))
    rack = next(level for level in view.levels if level.asked)
    assert (rack.best[0].pods, rack.best[0].pods_with_leader) == (4, 2)


def test_hostile_labels_and_taints_are_reported_as_they_are() -> None:
    strange = Taint("\x1b[31m", "a\nb", "NoSchedule")
    one = node("a")
    facts_of_node = msgspec.structs.replace(
        one, spec=msgspec.structs.replace(one.spec, taints=(strange,))
    )
    cache = cache_with([facts_of_node])
    cache.set_workload(workload("w", asking(1)))
    assert only_view(explained(cache)).excluded[0].detail == "\x1b[31m=a\nb:NoSchedule"

"""What the cache charges to whom: Workloads by assignment, other pods by node."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    domains,
    explanation_of,
    flavor,
    local_queue,
    node,
    overlaps_of,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    topology,
    workload,
)


def free(cache: Cache, leaf: str, flavor_name: str = "tas", resource: str = "cpu") -> int:
    """Free amount of a leaf: a node, or the joined path where racks are the leaves."""
    flavor_topology = cache.flavor_topologies().by_flavor[flavor_name]
    tree = flavor_topology.tree
    found = tree.leaf_of_values(tuple(leaf.split("/")))
    assert found is not None
    return int(flavor_topology.capacity.free[found, flavor_topology.capacity.rows[resource]])


def running(cache: Cache, name: str = "w", count: int = 2, **more: Any) -> Assignment:
    """Admit a Workload of `count` pods of 1 cpu and show the cache the result."""
    podsets = [podset(count=count, **more)]
    cache.set_workload(workload(name, podsets))
    assignment = admissions(plan_cycle(cache))[name]
    cache.set_workload(workload(name, podsets, version="2", assignment=assignment))
    return assignment


@pytest.mark.requirement("CAP-02", "CAP-04")
def test_usage_follows_admission_suspension_and_finish() -> None:
    cache = cache_with([node("a")])
    assignment = running(cache)
    assert (free(cache, "a"), free(cache, "a", resource="pods")) == (2000, 108)
    cache.set_workload(workload("w", [podset(count=2)], version="3"))
    assert free(cache, "a") == 4000
    cache.set_workload(workload("w", [podset(count=2)], version="4", assignment=assignment))
    assert free(cache, "a") == 2000
    done = {"Finished": ("True", "Succeeded", "")}
    cache.set_workload(
        workload("w", [podset(count=2)], version="5", assignment=assignment, conditions=done)
    )
    assert free(cache, "a") == 4000


@pytest.mark.requirement("CAP-02")
def test_a_deleted_workload_gives_everything_back() -> None:
    cache = cache_with([node("a")])
    running(cache)
    cache.drop_workload("team/w")
    assert free(cache, "a") == 4000
    assert cluster_queue_status_of(cache, "cq")["reservingWorkloads"] == 0


@pytest.mark.requirement("TAS-24")
def test_a_resumed_workload_gets_a_new_assignment() -> None:
    cache = cache_with([node("a"), node("b")])
    first = running(cache, count=4)
    (host,) = domains(first)
    cache.set_workload(workload("w", [podset(count=4)], version="3"))
    assert free(cache, host) == 4000
    cache.set_pod(pod("foreign", host, cpu="4"))
    second = admissions(plan_cycle(cache))["w"]
    assert domains(second).keys() != domains(first).keys()


@pytest.mark.requirement("CAP-03")
def test_other_pods_take_their_requests_and_one_pod_of_their_node() -> None:
    cache = cache_with([node("a")])
    cache.set_pod(pod("daemon", "a", cpu="500m"))
    assert (free(cache, "a"), free(cache, "a", resource="pods")) == (3500, 109)


@pytest.mark.requirement("CAP-03")
@pytest.mark.field_note("C5")
def test_other_pods_give_back_when_they_end_move_shrink_or_go() -> None:
    cache = cache_with([node("a"), node("b")])
    cache.set_pod(pod("p", "a", cpu="2"))
    cache.set_pod(pod("p", "a", cpu="1"))
    assert free(cache, "a") == 3000
    cache.set_pod(pod("p", "b", cpu="1"))
    assert (free(cache, "a"), free(cache, "b")) == (4000, 3000)
    cache.set_pod(pod("p", "b", cpu="1", phase="Failed"))
    assert free(cache, "b") == 4000
    cache.set_pod(pod("q", "b"))
    cache.drop_pod("team/q")
    assert free(cache, "b") == 4000


@pytest.mark.requirement("CAP-04")
def test_a_pod_of_an_admitted_workload_is_not_charged_again() -> None:
    cache = cache_with([node("a")])
    running(cache)
    cache.set_pod(pod("w-0", "a", workload="w"))
    cache.set_pod(pod("w-1", "a", workload="w"))
    assert free(cache, "a") == 2000


@pytest.mark.requirement("HOOK-08", "CAP-03")
@pytest.mark.parametrize("first", ["pod", "workload"])
def test_a_pod_that_its_user_bound_to_another_node_takes_room_there(first: str) -> None:
    cache = cache_with([node("a"), node("b")])
    podsets = [podset(count=2)]
    cache.set_workload(workload("w", podsets))
    assignment = admissions(plan_cycle(cache))["w"]
    assert domains(assignment) == {"a": 2}
    steps: list[Callable[[], None]] = [
        lambda: cache.set_pod(pod("w-0", "b", workload="w")),
        lambda: cache.set_workload(workload("w", podsets, version="2", assignment=assignment)),
    ]
    for step in steps if first == "pod" else steps[::-1]:
        step()
        cache.flavor_topologies()
    assert (free(cache, "a"), free(cache, "b")) == (2000, 3000)


@pytest.mark.parametrize(
    "stranger",
    [
        pod("x", "a", workload="w", podset="other"),
        pod("x", "a", workload="gone"),
        pod("x", "a", workload="w", owner="another-job"),
        pod("x", "a", workload="w", namespace="elsewhere"),
    ],
)
@pytest.mark.field_note("W9")
def test_marks_alone_do_not_make_a_pod_ours(stranger: Any) -> None:
    cache = cache_with([node("a")])
    running(cache)
    cache.set_pod(stranger)
    assert free(cache, "a") == 1000


@pytest.mark.field_note("U1")
def test_pods_beyond_a_domains_count_are_charged_to_the_node() -> None:
    cache = cache_with([node("a")])
    running(cache)
    for index in range(3):
        cache.set_pod(pod(f"w-{index}", "a", workload="w"))
    assert free(cache, "a") == 1000
    cache.drop_pod("team/w-0")
    assert free(cache, "a") == 2000


@pytest.mark.field_note("U2")
def test_pods_outside_the_assigned_domains_are_charged_to_their_node() -> None:
    cache = cache_with([node("a"), node("b")])
    assignment = running(cache)
    (host,) = domains(assignment)
    other = "b" if host == "a" else "a"
    cache.set_pod(pod("w-0", other, workload="w"))
    assert free(cache, other) == 3000
    assert free(cache, host) == 2000


@pytest.mark.field_note("C4")
def test_pods_of_a_finished_workload_hold_their_room_until_they_are_gone() -> None:
    cache = cache_with([node("a")])
    assignment = running(cache)
    cache.set_pod(pod("w-0", "a", workload="w"))
    done = {"Finished": ("True", "Succeeded", "")}
    cache.set_workload(
        workload("w", [podset(count=2)], version="3", assignment=assignment, conditions=done)
    )
    assert free(cache, "a") == 3000
    assert cluster_queue_status_of(cache, "cq")["reservingWorkloads"] == 0
    cache.drop_pod("team/w-0")
    assert free(cache, "a") == 4000


@pytest.mark.field_note("C15")
def test_pods_are_bound_by_node_name_and_assigned_by_hostname() -> None:
    cache = cache_with([node("machine-7", host="rack-1")])
    assignment = running(cache)
    assert domains(assignment) == {"rack-1": 2}
    cache.set_pod(pod("w-0", "machine-7", workload="w"))
    cache.set_pod(pod("foreign", "machine-7"))
    assert free(cache, "rack-1") == 1000


@pytest.mark.field_note("C15")
def test_pods_follow_a_node_whose_labels_come_late() -> None:
    cache = cache_with([node("a")])
    running(cache)
    cache.set_pod(pod("w-0", "a", workload="w"))
    cache.drop_node("a")
    cache.set_node(node("a", labels={"new": "label"}))
    assert free(cache, "a") == 2000


@pytest.mark.requirement("TAS-33")
@pytest.mark.field_note("C13")
def test_flavors_that_share_a_node_share_its_usage() -> None:
    cache = cache_with([node("a")], queue=cluster_queue("cq", {"tas": {"cpu": "9"}}))
    cache.set_flavor(flavor("twin"))
    running(cache)
    assert free(cache, "a", "twin") == free(cache, "a", "tas") == 2000
    assert overlaps_of(cache) == [("tas", "twin", 1)]


@pytest.mark.field_note("C13")
def test_racks_are_shared_only_by_flavors_with_a_common_node() -> None:
    cache = cache_with(
        [node("a", labels={"kind": "x"}), node("b", labels={"kind": "y"})],
        queue=cluster_queue("cq", {"x": {"cpu": "9"}}),
    )
    cache.set_topology(topology("racks", (BLOCK, RACK)))
    for name, labels in (("x", {"kind": "x"}), ("y", {"kind": "y"}), ("all", {"pool": "gpu"})):
        cache.set_flavor(flavor(name, "racks", labels))
    assignment = running(cache, count=3)
    assert domains(assignment) == {"b1/r1": 3}
    assert free(cache, "b1/r1", "x") == 1000
    assert free(cache, "b1/r1", "y") == 4000
    assert free(cache, "b1/r1", "all") == 5000
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("TAS-33")
def test_flavors_that_share_no_node_do_not_overlap() -> None:
    cache = cache_with([node("a"), node("b", labels={"pool": "other"})])
    cache.set_flavor(flavor("other", node_labels={"pool": "other"}))
    assert overlaps_of(cache) == []


@pytest.mark.field_note("C14")
@pytest.mark.parametrize("host", ["r1", "b1", "b1/r1", "b1,r1", "b1-r1"])
def test_a_host_named_like_a_rack_is_no_rack(host: str) -> None:
    cache = cache_with([node("n1", host=host), node("n2", "b1/r1")])
    running(cache, count=8)
    assert (free(cache, "n2"), rebuild_matches(cache)) == (0, [])


@pytest.mark.field_note("C2", "C3")
def test_a_topology_or_flavor_made_again_finds_all_usage_again() -> None:
    cache = cache_with([node("a")])
    running(cache, "kept")
    running(cache, "gone", count=1)
    cache.drop_topology("default")
    cache.drop_flavor("tas")
    cache.drop_workload("team/gone")
    cache.set_flavor(flavor())
    cache.set_topology(topology())
    assert free(cache, "a") == 2000


@pytest.mark.requirement("CAP-09")
@pytest.mark.field_note("C1")
def test_a_cache_filled_in_any_order_knows_what_runs() -> None:
    cache = cache_with([node("a")])
    assignment = running(cache)
    late = Cache()
    late.set_pod(pod("w-0", "a", workload="w"))
    late.set_workload(workload("w", [podset(count=2)], version="2", assignment=assignment))
    late.set_node(node("a"))
    late.set_flavor(flavor())
    late.set_topology(topology())
    late.set_local_queue(local_queue())
    late.set_cluster_queue(cluster_queue())
    assert free(late, "a") == 2000
    assert cluster_queue_status_of(late, "cq")["admittedWorkloads"] == 1


@pytest.mark.requirement("OPS-14", "CAP-04")
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_pods_that_name_a_slice_that_kueue_replaced_are_charged_once(order: list[int]) -> None:
    """Of one job: the Workload that its pods name is Finished, and another has its quota."""
    cache = cache_with([node("a")])
    assignment = running(cache, count=3)
    cache.drop_workload("team/w")
    ours: dict[str, Any] = {"owner": "job", "chain": "first"}
    finished = {"Finished": ("True", "WorkloadSliceReplaced", "")}
    first = workload("first", [podset(count=1)], conditions=finished, **ours)
    second = workload("second", [podset(count=3)], assignment=assignment, **ours)
    pods = [pod(f"w-{n}", "a", workload="first", **ours) for n in range(3)]
    for at in order:
        if at == 0:
            cache.set_workload(first)
        elif at == 1:
            cache.set_workload(second)
        else:
            for one in pods:
                cache.set_pod(one)
        cache.flavor_topologies()
    assert free(cache, "a") == 1000
    assert len(cache.pods.domains_of("team/second", "main")) == 3
    assert not rebuild_matches(cache)
    cache.drop_pod("team/w-0")
    assert free(cache, "a") == 1000, "its Workload holds the quota"
    other = pod("w-0", "a", workload="first", owner="other", chain="first")
    cache.set_pod(other)
    assert free(cache, "a") == 0, "an annotation alone makes no pod of a job"
    cache.drop_workload("team/second")
    assert free(cache, "a") == 1000, "the pods are charged to the node"


@pytest.mark.requirement("CAP-06")
def test_leaves_above_the_host_add_up_their_nodes() -> None:
    cache = cache_with([node("a"), node("b")])
    cache.set_topology(topology(levels=(BLOCK, RACK)))
    running(cache, count=1, requests={"cpu": "6"})
    assert free(cache, "b1/r1") == 2000


def test_an_admission_that_cannot_be_read_holds_nothing_and_its_pods_hold_their_nodes() -> None:
    cache = cache_with([node("a")])
    assignment = running(cache)
    found = workload("w", [podset(count=2)], version="3", assignment=assignment)
    assert found.status.admission is not None
    found.status.admission.pod_set_assignments[0].resource_usage["cpu"] = "many"
    cache.set_pod(pod("w-0", "a", workload="w"))
    cache.set_workload(found)
    assert free(cache, "a") == 3000
    assert plan_cycle(cache) == []
    told = explanation_of(cache, "team/w")
    assert told is not None
    assert "is not a quantity" in told.message


@pytest.mark.requirement("CAP-10")
def test_a_late_daemon_pod_may_overcommit_a_node_and_is_counted_from_then_on() -> None:
    cache = cache_with([node("a")])
    running(cache, count=4)
    cache.set_pod(pod("daemon", "a"))
    assert free(cache, "a") == -1000
    cache.set_workload(workload("next"))
    assert admit_all(cache) == {}


def test_hostname_levels_are_stored_alone() -> None:
    cache = cache_with([node("a")])
    (part,) = running(cache).podsets
    assert part.topology is not None
    assert part.topology.levels == (HOST,)


@pytest.mark.requirement("CAP-02", "CAP-04")
def test_pods_assigned_by_levels_that_went_are_charged_to_their_nodes() -> None:
    cache = cache_with([node("a"), node("b")])
    cache.set_topology(topology(levels=(BLOCK, RACK)))
    running(cache)
    for name in ("w-0", "w-1"):
        cache.set_pod(pod(name, "a", workload="w"))
    assert free(cache, "b1/r1") == 6000
    # Deleted and made anew with other levels: the assignment fits no leaf any more.
    cache.drop_topology("default")
    cache.set_topology(topology(levels=(RACK, HOST)))
    assert (free(cache, "a"), free(cache, "b")) == (2000, 4000)
    assert rebuild_matches(cache) == []
    cache.drop_pod("team/w-1")
    assert free(cache, "a") == 3000
    cache.drop_flavor("tas")
    cache.set_topology(topology(levels=(BLOCK, RACK)))
    cache.set_flavor(flavor())
    assert free(cache, "b1/r1") == 6000
    assert rebuild_matches(cache) == []

"""Which assigned hosts are broken: nodes and pods in, names out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.node_replacement.unhealthy import (
    HostAssessment,
    HostState,
    JobPod,
    PodState,
    assess_hosts,
    host_state,
    supports_node_replacement,
    suspect_hosts,
)
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.info import HOST_LEVELS, WorkloadInfo, node_info, workload_info
from tests.unit.assigner.builders import node, podset, workload

CLOSING = Taint("maintenance", "", "NoExecute")
FLAVORS = {"tas": FlavorInfo("tas", tolerations=(Toleration("added", "Exists"),))}


def hosts(**nodes: Mapping[str, Any]) -> Hosts:
    """Nodes n1, n2, n3 unless told otherwise; an empty mapping removes one."""
    found = Hosts()
    for name in ("n1", "n2", "n3"):
        options = nodes.get(name, {"ready": True})
        if options:
            found.put(node_info(node(name, **options)))
    return found


def row(
    counts: Mapping[str, int] | None = None,
    *,
    unhealthy: Sequence[str] = (),
    levels: tuple[str, ...] = HOST_LEVELS,
    **more: Any,
) -> WorkloadInfo:
    """An admitted Workload: one pod on n1 and one on n2 unless told otherwise."""
    assigned = {"n1": 1, "n2": 1} if counts is None else counts
    topology = TopologyAssignment(levels, tuple(((h,), count) for h, count in assigned.items()))
    total = sum(assigned.values())
    part = PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000 * total}, total, topology)
    made = workload(
        "w",
        [podset(count=total, **more)],
        assignment=Assignment("cq", (part,)),
        unhealthy=unhealthy,
    )
    return workload_info(made)


def pods(*states: str) -> list[JobPod]:
    """`live n1`, `gated`, `pinned! n2`: state, `!` for unschedulable, host."""
    found = []
    for number, text in enumerate(states):
        state, _, host = text.partition(" ")
        fact = JobPod(
            f"p{number}", "team", f"u{number}", "1", "main", host, PodState(state.rstrip("!"))
        )
        found.append(replace(fact, unschedulable=state.endswith("!")))
    return found


def look(nodes: Hosts, *states: str, of: WorkloadInfo | None = None) -> HostAssessment:
    return assess_hosts(of or row(), pods(*states), nodes, FLAVORS)


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("N1")
@pytest.mark.parametrize(
    ("states", "broken"),
    [
        (("live n1", "live n2"), ()),
        (("ending n1", "live n2"), ("n1",)),
        (("failed n1", "gated", "live n2"), ("n1",)),
        (("ending n1", "live n1", "live n2"), ()),
        (("gated", "live n2"), ("n1",)),
    ],
)
def test_a_node_that_is_not_ready_is_broken_once_nothing_of_the_workload_runs_there(
    states: tuple[str, ...], broken: tuple[str, ...]
) -> None:
    assert look(hosts(n1={"ready": False}), *states).unhealthy == broken


@pytest.mark.field_note("N2")
def test_before_all_pods_exist_an_empty_host_proves_nothing() -> None:
    down = hosts(n1={"ready": False})
    assert look(down, of=row()).unhealthy == ()
    assert look(down, "gated").unhealthy == (), "one of two: the other may be on its way there"
    assert look(down, "gated", "gated").unhealthy == ("n1",)


def test_a_node_that_is_gone_is_broken_whatever_its_pods_say() -> None:
    gone = hosts(n1={})
    assert look(gone, "live n1", "live n2").unhealthy == ("n1",)
    assert look(gone, "gated", "live n2").unhealthy == ("n1",)
    assert look(gone, "live n2").unhealthy == (), "nobody needs the place yet"


@pytest.mark.requirement("TAS-23")
def test_a_hostname_label_that_changes_under_a_running_pod_breaks_nothing() -> None:
    relabelled = hosts(n1={"host": "other"})
    live = [replace(pod, node=pod.host) for pod in pods("live n1", "live n2")]
    assert assess_hosts(row(), live, relabelled, FLAVORS).unhealthy == ()
    assert assess_hosts(row(), live, hosts(n1={}), FLAVORS).unhealthy == ("n1",)


def test_what_has_succeeded_needs_no_other_place() -> None:
    gone = hosts(n1={})
    assert look(gone, "succeeded n1", "live n2").unhealthy == ()
    assert look(gone, "succeeded n1", "gated", "live n2").unhealthy == ("n1",)


@pytest.mark.field_note("N3")
def test_pods_of_another_assignment_break_and_repair_nothing() -> None:
    down = hosts(n1={"ready": False})
    assert look(down, "live n3", "ending n1", "live n2").unhealthy == ("n1",)
    assert look(hosts(n3={"ready": False}), "ending n3", "live n1", "live n2") == HostAssessment()


@pytest.mark.field_note("N5")
@pytest.mark.parametrize(
    ("tolerations", "state"),
    [
        ((), HostState.CLOSED),
        ((Toleration("maintenance", "Exists"),), HostState.HEALTHY),
        ((Toleration("maintenance", "Exists", toleration_seconds=60),), HostState.DRAINING),
        ((Toleration("other", "Exists"),), HostState.CLOSED),
        (
            (
                Toleration("", "Exists", toleration_seconds=60),
                Toleration("maintenance", "Exists"),
            ),
            HostState.HEALTHY,
        ),
    ],
)
def test_a_taint_counts_by_what_the_pods_tolerate(
    tolerations: tuple[Toleration, ...], state: HostState
) -> None:
    assert host_state(node_info(node("n", taints=[_wire(CLOSING)])), tolerations) is state


def _wire(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "effect": taint.effect}


@pytest.mark.field_note("N5")
def test_tolerations_of_template_flavor_and_pods_count_together() -> None:
    tainted = [{"key": key, "effect": "NoExecute"} for key in ("own", "added", "checked")]
    nodes = hosts(n1={"taints": tainted})
    own = row(tolerations=[{"key": "own", "operator": "Exists"}])
    ending = pods("ending n1", "live n2")
    assert assess_hosts(own, ending, nodes, FLAVORS).unhealthy == ("n1",)
    carried = [replace(pod, tolerations=(Toleration("checked", "Exists"),)) for pod in ending]
    assert assess_hosts(own, carried, nodes, FLAVORS).unhealthy == ()
    assert suspect_hosts(own, nodes, FLAVORS) == {"n1"}


@pytest.mark.field_note("N5")
def test_a_taint_that_is_tolerated_for_a_while_breaks_a_host_only_when_pods_end() -> None:
    nodes = hosts(n1={"taints": [_wire(CLOSING)]})
    patient = row(
        tolerations=[{"key": "maintenance", "operator": "Exists", "tolerationSeconds": 60}]
    )
    assert look(nodes, "live n1", "live n2", of=patient).unhealthy == ()
    assert look(nodes, "gated", "gated", of=patient).unhealthy == ()
    assert look(nodes, "ending n1", "live n2", of=patient).unhealthy == ("n1",)


def test_a_drained_node_is_broken_and_a_cordoned_one_is_not() -> None:
    cordoned = hosts(n1={"unschedulable": True})
    assert look(cordoned, "live n1", "live n2").unhealthy == ()
    assert look(cordoned, "ending n1", "live n2").unhealthy == ("n1",)


@pytest.mark.field_note("N6")
def test_a_pod_that_waits_for_a_broken_node_is_unhealthy() -> None:
    down = hosts(n1={"ready": False})
    found = look(down, "pinned! n1", "live n2")
    assert [pod.name for pod in found.stranded_pods] == ["p0"]
    assert found.unhealthy == ("n1",)
    young = look(down, "pinned n1", "live n2")
    assert (young.stranded_pods, young.unhealthy, young.stable) == ((), (), False)
    assert look(hosts(), "pinned! n1", "live n2").stranded_pods == (), "it waits for room there"


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("N6", "U3")
def test_a_pod_is_not_ended_while_its_successor_would_be_sent_to_the_same_host() -> None:
    two = row({"n1": 2, "n2": 1})
    for closed in (hosts(n1={"ready": False}), hosts(n1={"unschedulable": True})):
        found = look(closed, "pinned! n1", "live n1", "live n2", of=two)
        assert (found.stranded_pods, found.unhealthy, found.stable) == ((), (), False)
        over = look(closed, "pinned! n1", "ending n1", "live n2", of=two)
        assert ([pod.name for pod in over.stranded_pods], over.unhealthy) == (["p0"], ("n1",))
    named = replace(two, unhealthy=("n1",))
    found = look(hosts(n1={"ready": False}), "pinned! n1", "live n1", "live n2", of=named)
    assert [pod.name for pod in found.stranded_pods] == ["p0"], "successors stay gated"


@pytest.mark.field_note("N6", "U3")
def test_a_pod_waits_for_its_end_until_there_is_room_for_the_name_of_its_host() -> None:
    counts = {f"n{number}": 1 for number in range(10)}
    found = assess_hosts(row(counts), pods(*(f"pinned! {h}" for h in counts)), Hosts(), FLAVORS)
    assert {pod.host for pod in found.stranded_pods} == set(found.unhealthy)


def test_a_pod_that_waits_for_no_host_of_ours_is_never_ended() -> None:
    assert look(hosts(), "pinned! ", "live n1", "live n2").stranded_pods == ()


def test_bound_pods_on_all_hosts_leave_nothing_to_ask_for() -> None:
    down = hosts(n1={"ready": False})
    assert look(down, "live n1", "live n2").fully_bound
    assert look(down, "live n1", "succeeded n2").fully_bound
    for coming in ("gated", "pinned n2", "ending n2"):
        assert not look(down, "live n1", coming).fully_bound
    assert not look(down, "live n1").fully_bound, "its successor is not shown before it is bound"
    assert not look(down, "live n1", "live n2", of=row(unhealthy=["n1"])).fully_bound


@pytest.mark.field_note("U2", "N6")
def test_a_pod_that_waits_for_a_host_that_was_given_up_is_unhealthy() -> None:
    found = look(hosts(), "pinned! n3", "live n1", "live n2")
    assert [pod.name for pod in found.stranded_pods] == ["p0"]


@pytest.mark.field_note("N3")
def test_a_named_host_that_is_back_is_unmarked() -> None:
    marked = row(unhealthy=["n1"])
    assert look(hosts(), "gated", "live n2", of=marked).recovered == ("n1",)
    assert look(hosts(n1={"ready": False}), "gated", "live n2", of=marked).recovered == ()


def test_a_healthy_host_that_somebody_named_is_to_be_replaced() -> None:
    marked = row(unhealthy=["n1"])
    assert look(hosts(), "live n1", "live n2", of=marked).requested == {"n1"}
    assert look(hosts(), "gated", "gated", of=marked).requested == {"n1"}, "nothing runs yet"


def test_a_name_that_no_pod_is_assigned_to_is_taken_out() -> None:
    assert look(hosts(), "live n1", "live n2", of=row(unhealthy=["n3", "x"])).recovered == (
        "n3",
        "x",
    )


@pytest.mark.field_note("C15")
def test_hosts_are_known_by_their_label_whatever_their_nodes_are_called() -> None:
    nodes = Hosts()
    nodes.put(node_info(node("machine-1", host="n1", ready=False)))
    nodes.put(node_info(node("n1", host="n2")))
    assert look(nodes, "ending n1", "live n2").unhealthy == ("n1",)
    named = row(unhealthy=["machine-1"])
    assert look(nodes, "ending n1", "live n2", of=named).unhealthy == (), "named already"


def test_no_more_names_are_written_than_the_api_takes() -> None:
    counts = {f"n{number}": 1 for number in range(10)}
    broken = assess_hosts(
        row(counts), pods(*(f"live {h}" for h in counts)), Hosts(), FLAVORS
    ).unhealthy
    assert len(broken) == 8
    many = row(counts, unhealthy=[f"n{number}" for number in range(7)])
    assert assess_hosts(many, pods(*(f"live {h}" for h in counts)), Hosts(), FLAVORS).unhealthy == (
        "n7",
    )


def test_a_look_is_the_last_one_when_all_pods_run_on_healthy_hosts() -> None:
    assert look(hosts(), "live n1", "live n2").stable
    assert look(hosts(), "live n1", "succeeded n2").stable
    assert look(hosts(), "live n1").stable, "whoever comes later is sent by what is assigned"
    assert look(hosts(), "live n1", "ending n3").stable, "a host that was given up"
    for coming in ("gated", "pinned n2", "ending n2"):
        assert not look(hosts(), "live n1", coming).stable
    assert not look(hosts(n1={"ready": False}), "live n1", "live n2").stable


def test_a_workload_without_hosts_is_not_disposed() -> None:
    assert supports_node_replacement(row())
    assert not supports_node_replacement(row(levels=("rack",)))
    assert not supports_node_replacement(replace(row(), evicted=True))
    assert not supports_node_replacement(replace(row(), finished=True))
    assert not supports_node_replacement(replace(row(), active=False))


def test_of_two_nodes_with_one_hostname_the_ready_one_counts() -> None:
    nodes = Hosts()
    assert nodes.put(node_info(node("a", host="h", ready=False))) == {"h"}
    assert nodes.put(node_info(node("b", host="h"))) == {"h"}
    assert nodes.is_healthy("h")
    assert nodes.put(node_info(node("b", host="h", cpu="9"))) == set(), "only the room changed"
    assert nodes.drop("b") == {"h"}
    assert not nodes.is_healthy("h")
    assert nodes.drop("a") == {"h"}
    assert nodes.node("h") is None

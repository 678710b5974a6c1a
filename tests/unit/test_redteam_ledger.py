"""The red team's account: it must see what an attack makes live, or it would find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.topology.assignment import TopologyAssignment, encode
from tests.security.attacker_client import RejectedWrite
from tests.security.ledger import UNMANAGED, Ledger, lives, pod_cpu

MINE, THEIRS = "attacker", "tenant"


def pod(name: str, cpu: str = "4", namespace: str = MINE, **more: Any) -> dict[str, Any]:
    """A bound pod that runs, with our marks; `more` goes into its parts."""
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}/{name}",
        "annotations": {names.WORKLOAD_ANNOTATION: "w"},
        "labels": {names.PODSET_LABEL: "main"},
        **more.get("metadata", {}),
    }
    spec = {
        "nodeName": "host-1",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        **more.get("spec", {}),
    }
    return {
        "metadata": meta,
        "spec": spec,
        "status": {"phase": "Running", **more.get("status", {})},
    }


def ledger(*, topology: bool = False) -> Ledger:
    return Ledger(MINE, frozenset((MINE, THEIRS)), topology)


def workload(name: str = "w", **counts: int) -> dict[str, Any]:
    domains = tuple(((host.replace("_", "-"),), count) for host, count in counts.items())
    wire = encode(TopologyAssignment((names.HOSTNAME_LABEL,), domains))
    part = {"name": "main", "topologyAssignment": wire}
    return {
        "metadata": {"name": name, "namespace": MINE},
        "status": {"admission": {"podSetAssignments": [part]}},
    }


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        ({}, 4000),
        ({"containers": [container("1"), container("500m")]}, 1500),
        ({"initContainers": [container("6")]}, 6000),
        ({"initContainers": [container("2", restartPolicy="Always")]}, 6000),
        (
            {"initContainers": [container("2", restartPolicy="Always"), container("3")]},
            6000,
        ),
        ({"resources": {"requests": {"cpu": "7"}}}, 7000),
        ({"overhead": {"cpu": "3"}}, 7000),
    ],
)
def test_a_pod_counts_with_all_that_it_asks_of_its_node(spec: dict[str, Any], milli: int) -> None:
    assert pod_cpu(pod("a", spec=spec)) == milli


@pytest.mark.parametrize(
    ("more", "alive"),
    [
        ({}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        ({"status": {"phase": "Pending"}}, True),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"spec": {"nodeName": ""}}, False),
    ],
)
def test_a_pod_lives_from_its_binding_to_its_end(more: dict[str, Any], alive: bool) -> None:
    assert lives(pod("a", **more)) is alive


def test_the_peak_is_kept_when_pods_are_gone() -> None:
    account = ledger()
    for name in ("a", "b"):
        account.pod("ADDED", pod(name))
    account.pod("ADDED", pod("c", namespace=THEIRS))
    for name in ("a", "b"):
        account.pod("DELETED", pod(name))
    assert (account.peak, account.now) == (12_000, 4_000)
    assert len(account.peak_pods) == 3
    assert account.ever_bound == {f"{MINE}/a", f"{MINE}/b"}


def test_a_pod_that_is_resized_counts_again() -> None:
    account = ledger()
    account.pod("ADDED", pod("a"))
    account.pod("MODIFIED", pod("a", cpu="9"))
    assert account.peak == 9_000


def test_pods_that_no_queue_is_asked_for_do_not_count() -> None:
    account = ledger()
    account.pod("ADDED", pod("a", metadata={"labels": {UNMANAGED: "true"}}))
    assert account.peak == 0


def test_a_pod_of_the_other_tenant_that_is_taken_away_is_noticed() -> None:
    account = ledger()
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    account.pod("MODIFIED", pod("a", namespace=THEIRS, metadata=gone))
    account.pod("MODIFIED", pod("b", metadata=gone))
    assert account.lost == {"a"}


def test_places_are_judged_by_what_was_ever_assigned() -> None:
    account = ledger(topology=True)
    account.workload(workload(host_1=2))
    account.workload(workload(host_2=1))  # moved: what it had before counts still
    for name in ("a", "b"):
        account.pod("ADDED", pod(name))
    account.pod("ADDED", pod("c", spec={"nodeName": "host-2"}))
    assert account.misplaced() == []


def test_a_pod_too_many_on_a_host_is_misplaced() -> None:
    account = ledger(topology=True)
    account.workload(workload(host_1=1))
    for name in ("a", "b"):
        account.pod("ADDED", pod(name))
    account.pod("DELETED", pod("a"))
    assert account.misplaced() == ["2 pods of attacker/w/main on host-1, 1 assigned"]


def test_a_pod_on_a_host_that_no_one_assigned_is_misplaced() -> None:
    account = ledger(topology=True)
    account.workload(workload(host_1=1))
    account.pod("ADDED", pod("a", spec={"nodeName": "host-9"}))
    assert account.misplaced() == ["1 pods of attacker/w/main on host-9, 0 assigned"]


def test_a_bound_pod_without_marks_is_misplaced_where_a_topology_places() -> None:
    account = ledger(topology=True)
    account.pod("ADDED", pod("a", metadata={"annotations": {}}))
    assert account.misplaced() == ["a was bound without a place"]
    plain = ledger()
    plain.pod("ADDED", pod("a", metadata={"annotations": {}}))
    assert plain.misplaced() == []


@pytest.mark.parametrize(
    ("words", "by"),
    [
        ("ValidatingAdmissionPolicy 'rackgate-jobs' with binding 'x' denied request: no", "policy"),
        ('admission webhook "jobs.rackgate.dev" denied the request: no', "webhook"),
        ('nodes "x" is forbidden: User "mallory" cannot patch resource "nodes"', "rights"),
        ("json: cannot unmarshal number 2147483648", "validation"),
        ("field is immutable", "validation"),
    ],
)
def test_who_rejected_is_reported_by_the_words(words: str, by: str) -> None:
    assert RejectedWrite("create", words).by == by

"""Which groups a pod belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.gang.forms.expand import expand
from rackgate.gang.membership import GangKey, Mismatch, Part, Parts, part_of, replica_key
from rackgate.gang.readiness import Member, gangs_of
from rackgate.gang.topology_requests import GangPodSet, topology_requests
from tests.support.gang_cases import rev_n_specs


def _spec(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return expand({**fields, "gangGroups": list(groups)})


def _group(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "minCount": 2, **fields}


def _selector(*values: str) -> dict[str, Any]:
    return {"key": "role", "values": list(values)}


def test_a_single_group_takes_every_pod() -> None:
    found = part_of(_spec(_group("gg")), {"any": "label"})
    assert found == Part(GangKey("gg"), "rg", "template")


@pytest.mark.requirement("GNG-07")
@pytest.mark.parametrize(
    ("labels", "group"),
    [
        ({"role": "driver"}, "a"),
        ({"role": "worker"}, "b"),
        ({"role": "helper"}, "b"),
        ({"role": "other"}, "c"),
        ({}, "c"),
    ],
)
def test_a_selector_takes_its_values_and_the_group_without_one_the_rest(
    labels: dict[str, str], group: str
) -> None:
    spec = _spec(
        _group("a", selector=_selector("driver")),
        _group("b", selector=_selector("worker", "helper")),
        _group("c"),
    )
    found = part_of(spec, labels)
    assert isinstance(found, Part)
    assert found.gang == GangKey(group)


@pytest.mark.requirement("GNG-07")
def test_a_pod_that_no_selector_takes_belongs_nowhere() -> None:
    spec = _spec(
        _group("a", selector=_selector("driver")), _group("b", selector=_selector("worker"))
    )
    assert part_of(spec, {"role": "other"}) is Mismatch.NO_PART


@pytest.mark.requirement("GNG-07")
def test_without_selectors_the_first_name_label_decides() -> None:
    spec = _spec(_group("driver"), _group("workers"))
    label = "jobset.sigs.k8s.io/replicatedjob-name"
    found = part_of(spec, {label: "workers"})
    assert isinstance(found, Part)
    assert found.gang == GangKey("workers")
    # A label of the user takes precedence, and a name that is no group is not replaced.
    both = {label: "workers", "scheduling.rackgate.dev/group": "neither"}
    assert part_of(spec, both) is Mismatch.NO_PART
    assert part_of(spec, {}) is Mismatch.NO_PART


def test_an_unknown_part_of_a_lower_level_leaves_the_gang() -> None:
    ranked = [
        {"name": "a", "selector": _selector("x")},
        {"name": "b", "selector": _selector("y")},
    ]
    found = part_of(_spec(_group("gg", rankedGroups=ranked)), {"role": "z"})
    assert found == Part(GangKey("gg"), None, None)


def test_replicas_are_told_apart_by_their_key() -> None:
    spec = _spec(_group("gg"), replicaMode="ReplicatedGangs", replicaKey="team/replica")
    found = part_of(spec, {"team/replica": "r1"})
    assert isinstance(found, Part)
    assert found.gang == GangKey("gg", "r1")
    assert part_of(spec, {"team/replica": ""}) is Mismatch.NO_REPLICA
    assert part_of(spec, {}) is Mismatch.NO_REPLICA


@pytest.mark.requirement("GNG-07")
def test_the_replica_key_of_a_leader_worker_set_is_known() -> None:
    spec = _spec(
        _group("gg"),
        replicaMode="ReplicatedGangs",
        controllerRef={"apiGroup": "leaderworkerset.x-k8s.io", "kind": "LeaderWorkerSet"},
    )
    assert replica_key(spec) == "leaderworkerset.sigs.k8s.io/group-key"
    assert replica_key(_spec(_group("gg"))) == ""


@pytest.mark.requirement("GNG-07")
def test_a_part_that_is_looked_up_once_is_that_of_each_pod() -> None:
    spec = _spec(
        _group("a", selector={"key": "role", "values": ["a"]}),
        _group("rest"),
        replicaMode="ReplicatedGangs",
        replicaKey="replica",
    )
    parts = Parts(spec)
    for role in ("a", "b"):
        for replica in ("0", "1"):
            labels = {"role": role, "replica": replica, "example.com/any": role + replica}
            assert parts.of(labels) == part_of(spec, labels)
    assert parts.of({"role": "a"}) is Mismatch.NO_REPLICA


@pytest.mark.requirement("GNG-04")
@pytest.mark.parametrize("name", [name for name, _ in rev_n_specs()])
def test_the_controller_reference_changes_nothing_for_the_scheduling(name: str) -> None:
    """It is for people and for checks at admission: anything may stand there."""
    written = dict(rev_n_specs())[name]
    spec = {key: value for key, value in written.items() if key != "controllerRef"}
    members = [
        Member(f"{kind}{number}", f"{kind}{number}", labels, gated=True)
        for kind, labels in {
            "any": {},
            "lws": {"leaderworkerset.sigs.k8s.io/group-key": "r"},
            "jobset": {"jobset.sigs.k8s.io/replicatedjob-name": "workers"},
        }.items()
        for number in range(2)
    ]
    podset = GangPodSet("main", 8, {"leaderworkerset.sigs.k8s.io/group-key": "r"})

    def answers(reference: dict[str, str] | None) -> tuple[object, ...]:
        canonical = expand(spec if reference is None else {**spec, "controllerRef": reference})
        return (
            gangs_of(canonical, members, run="run", assigned={one.uid for one in members}),
            topology_requests(canonical, (podset,), workload="w", nested=True),
        )

    without = answers(None)
    for group, kind in (
        ("batch", "Job"),
        ("jobset.x-k8s.io", "JobSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("example.com", "Widget"),
    ):
        assert answers({"apiGroup": group, "kind": kind, "name": "x"}) == without

"""Which groups a pod belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.gang.expand import expand
from rackgate.gang.membership import GangKey, Mismatch, Part, part_of, replica_key


def _spec(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return expand({**fields, "gangGroups": list(groups)})


def _group(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "minCount": 2, **fields}


def _selector(*values: str) -> dict[str, Any]:
    return {"key": "role", "values": list(values)}


def test_a_single_group_takes_every_pod() -> None:
    found = part_of(_spec(_group("gg")), {"any": "label"})
    assert found == Part(GangKey("gg"), "rg", "template")


@pytest.mark.parametrize(
    ("labels", "group"),
    [({"role": "driver"}, "a"), ({"role": "worker"}, "b"), ({"role": "other"}, "c"), ({}, "c")],
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


def test_a_pod_that_no_selector_takes_belongs_nowhere() -> None:
    spec = _spec(
        _group("a", selector=_selector("driver")), _group("b", selector=_selector("worker"))
    )
    assert part_of(spec, {"role": "other"}) is Mismatch.NO_PART


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


def test_the_replica_key_of_a_leader_worker_set_is_known() -> None:
    spec = _spec(
        _group("gg"),
        replicaMode="ReplicatedGangs",
        controllerRef={"apiGroup": "leaderworkerset.x-k8s.io", "kind": "LeaderWorkerSet"},
    )
    assert replica_key(spec) == "leaderworkerset.sigs.k8s.io/group-key"
    assert replica_key(_spec(_group("gg"))) == ""

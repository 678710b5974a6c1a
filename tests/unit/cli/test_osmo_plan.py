"""What `rackgate osmo apply` decides about one object."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate_cli.osmo.apply.plan import (
    Create,
    MergePatch,
    Reject,
    Replace,
    Unchanged,
    WaitForDeletion,
    live_pods,
    plan_pod,
    plan_pod_group,
    plan_topology,
    with_hash_annotation,
    with_missing_level,
)
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION
from tests.support.apiserver_objects import merged

Object = dict[str, Any]
ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
TOPOLOGY = "osmo-pool-my-pool-topology"


def topology(*labels: str) -> Object:
    levels = [{"nodeLabel": label} for label in labels]
    return {"metadata": {"name": TOPOLOGY}, "spec": {"levels": levels}}


def constraint(required: str | None = None, preferred: str | None = None) -> Object:
    found = {
        "topology": TOPOLOGY,
        "requiredTopologyLevel": required,
        "preferredTopologyLevel": preferred,
    }
    return {name: value for name, value in found.items() if value}


def group(*subgroups: Object, **spec: Any) -> Object:
    metadata = {"name": "train", "labels": {"kai.scheduler/queue": "osmo-pool-my-pool"}}
    more = {"subGroups": list(subgroups)} if subgroups else {}
    return {"metadata": metadata, "spec": {"queue": "osmo-pool-my-pool", **more, **spec}}


def leaf(name: str, count: int = 2) -> Object:
    return {"name": name, "minMember": count, "topologyConstraint": constraint(RACK)}


def pod(name: str = "p", **spec: Any) -> Object:
    container = {"name": "task", "image": "trainer:1", **spec}
    return {
        "metadata": {"name": name, "annotations": {POD_GROUP_ANNOTATION: "train"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [container]},
    }


def stored(wanted: Object, **metadata: Any) -> Object:
    """An object as the server holds it."""
    found = copy.deepcopy(wanted)
    found["metadata"] |= {"uid": "u1", "resourceVersion": "7", **metadata}
    return found


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        (plan_topology, topology(ZONE)),
        (lambda wanted, found: plan_pod_group(wanted, found, ()), group(minMember=2)),
        (plan_pod, pod()),
    ],
    ids=["topology", "pod group", "pod"],
)
def test_what_is_missing_is_created_what_is_equal_kept_and_what_goes_waited_for(
    plan: Any, wanted: Object
) -> None:
    assert plan(wanted, None) == Create()
    assert plan(wanted, stored(wanted)) == Unchanged()
    going = stored(wanted, deletionTimestamp="2026-01-01T00:00:00Z")
    assert plan(wanted, going) == WaitForDeletion()


@pytest.mark.requirement("OSM-08")
def test_other_levels_replace_the_very_topology_that_was_read() -> None:
    step = plan_topology(topology(ZONE, RACK), stored(topology(RACK, ZONE)))
    assert isinstance(step, Replace)
    assert step.preconditions == {"uid": "u1", "resourceVersion": "7"}
    assert step.note == f"levels were {RACK}, {ZONE}; running pods are not affected"


def test_the_order_of_subgroups_says_nothing() -> None:
    one, two = group(leaf("a"), leaf("b")), group(leaf("b"), leaf("a"))
    assert plan_pod_group(one, stored(two), ()) == Unchanged()


def test_what_others_write_into_a_group_stays() -> None:
    theirs = stored(group(minMember=2, priorityClassName="train", markUnschedulable=True))
    assert plan_pod_group(group(minMember=2), theirs, ()) == Unchanged()
    step = plan_pod_group(group(minMember=3), theirs, ())
    assert isinstance(step, MergePatch)
    assert merged(theirs, step.patch)["spec"] == theirs["spec"] | {"minMember": 3}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (group(minMember=2), group(leaf("a"), leaf("b"), topologyConstraint=constraint(ZONE))),
        (group(leaf("a")), group(minMember=2)),
        (
            group(minMember=2, topologyConstraint=constraint(None, RACK)),
            group(minMember=2, topologyConstraint=constraint(ZONE)),
        ),
        (group(minMember=2), stored(group(minMember=2), labels={"kai.scheduler/queue": "other"})),
    ],
    ids=["to a plain one", "to subgroups", "to a preference", "to another queue label"],
)
def test_a_change_leaves_the_group_exactly_as_wanted(wanted: Object, found: Object) -> None:
    step = plan_pod_group(wanted, stored(found), ())
    assert isinstance(step, MergePatch)
    after = merged(stored(found), step.patch)
    assert after["spec"] == wanted["spec"]
    assert after["metadata"]["labels"] == wanted["metadata"]["labels"]
    # Bound to what was read.
    assert (after["metadata"]["uid"], after["metadata"]["resourceVersion"]) == ("u1", "7")


@pytest.mark.requirement("OSM-17")
def test_a_group_with_pods_takes_no_other_shape() -> None:
    step = plan_pod_group(group(leaf("a"), leaf("b")), stored(group(leaf("a"))), ["t1", "t2"])
    assert isinstance(step, Reject)
    assert (
        "subGroups would change, but the group has pods that have not ended (t1, t2)"
        in step.message
    )


def test_pods_that_ended_or_belong_elsewhere_hold_no_group() -> None:
    others = pod("other")
    others["metadata"]["annotations"] = {POD_GROUP_ANNOTATION: "eval"}
    plain = {"metadata": {"name": "plain"}, "spec": {}}
    ended = [{**pod("done"), "status": {"phase": phase}} for phase in ("Succeeded", "Failed")]
    waits = {**pod("waits"), "status": {"phase": "Pending"}}
    assert live_pods([waits, *ended, others, plain, pod("new")], "train") == ["new", "waits"]


def test_a_pod_is_the_same_with_the_servers_defaults_and_its_spelling_of_amounts() -> None:
    wanted = pod(resources={"requests": {"cpu": "1000m", "memory": "1024Mi"}})
    found = stored(pod(resources={"requests": {"cpu": "1", "memory": "1Gi"}}, tty=False))
    found["spec"]["nodeName"] = "n1"
    assert plan_pod(wanted, found) == Unchanged()


@pytest.mark.parametrize(
    "change",
    [
        {"image": "trainer:2"},
        {"resources": {"requests": {"cpu": "2"}}},
        {"resources": {"requests": {"cpu": "1", "memory": "64Gi"}}},
        {"env": [{"name": "A", "value": "1000m"}]},
    ],
)
def test_another_pod_of_the_name_is_rejected(change: Object) -> None:
    before: Object = {
        "resources": {"requests": {"cpu": "1", "memory": "128Gi"}},
        "env": [{"name": "A", "value": "1"}],
    }
    step = plan_pod(pod(**(before | change)), stored(pod(**before)))
    assert isinstance(step, Reject)
    assert "delete it first" in step.message


def test_what_admission_adds_to_our_pod_makes_it_no_other() -> None:
    sizes = {"requests": {"memory": "1Gi"}}
    wanted = with_hash_annotation(pod(resources=sizes))
    assert with_hash_annotation(wanted) == wanted
    found = stored(wanted)
    # A LimitRange, and a webhook that brings a container.
    container = found["spec"]["containers"][0]
    container["resources"] = {"requests": {"memory": "1Gi", "cpu": "100m"}, "limits": {"cpu": "1"}}
    found["spec"]["containers"].append({"name": "sidecar", "image": "proxy:1"})
    assert plan_pod(wanted, found) == Unchanged()


@pytest.mark.parametrize("field", ["resources", "env", "image"])
def test_a_field_taken_out_of_the_workflow_makes_another_pod(field: str) -> None:
    before: Object = {"resources": {"requests": {"cpu": "1"}}, "env": [{"name": "A", "value": "1"}]}
    found = stored(with_hash_annotation(pod(**before)))
    wanted = pod(**before)
    del wanted["spec"]["containers"][0][field]
    assert isinstance(plan_pod(with_hash_annotation(wanted), found), Reject)


def test_a_pod_of_ours_whose_subgroup_was_changed_is_reported() -> None:
    wanted = pod()
    wanted["metadata"]["labels"] = {"kai.scheduler/subgroup-name": "a"}
    found = stored(with_hash_annotation(wanted))
    found["metadata"]["labels"] = {"kai.scheduler/subgroup-name": "b"}
    assert isinstance(plan_pod(with_hash_annotation(wanted), found), Reject)


def test_groups_that_name_a_level_which_goes_away_are_found() -> None:
    def named(name: str, found: Object) -> Object:
        return {**found, "metadata": {"name": name, "namespace": "a"}}

    elsewhere = constraint(ZONE) | {"topology": "other"}
    groups = [
        named("top", group(minMember=1, topologyConstraint=constraint(ZONE))),
        named("wish", group(minMember=1, topologyConstraint=constraint(RACK, ZONE))),
        named("below", group({"name": "z", "topologyConstraint": constraint(ZONE)}, leaf("r"))),
        named("fine", group(leaf("r"))),
        named("plain", group(minMember=1)),
        named("foreign", group(minMember=1, topologyConstraint=elsewhere)),
    ]
    assert with_missing_level(topology(RACK), groups) == ["a/below", "a/top", "a/wish"]

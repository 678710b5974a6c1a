"""The steps from a workflow to its PodGroups, each shown by the smallest workflow that needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from rackgate_osmo import Built, build_podgroups, read_pool, read_workflow, topology_of
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION, SUBGROUP_LABEL

TOPOLOGY: Final = "osmo-pool-p-topology"
POOL: Final = {
    "name": "p",
    "backend": "b",
    "topology_keys": [
        {"key": "zone", "label": "example.com/zone"},
        {"key": "spine", "label": "example.com/spine"},
        {"key": "rack", "label": "example.com/rack"},
    ],
}
Wishes = Sequence[tuple[str, ...]]


def required(key: str) -> dict[str, str]:
    """A constraint, as a PodGroup carries it."""
    return {"topology": TOPOLOGY, "requiredTopologyLevel": f"example.com/{key}"}


def preferred(key: str) -> dict[str, str]:
    return {"topology": TOPOLOGY, "preferredTopologyLevel": f"example.com/{key}"}


def built(groups: Mapping[str, Mapping[str, str | None]], **resources: Wishes) -> Built:
    """Build a workflow.

    Args:
        groups: by task group, the resource of each task; None where the task names none.
        resources: for each, key, group and, where it is not `required`, the type.
    """
    fields = ("key", "group", "requirementType")
    document: dict[str, Any] = {
        "workflow": {
            "name": "w",
            "groups": [
                {
                    "name": name,
                    "tasks": [
                        {"name": task, **({} if resource is None else {"resource": resource})}
                        for task, resource in tasks.items()
                    ],
                }
                for name, tasks in groups.items()
            ],
        },
        "resources": {
            name: {"topology": [dict(zip(fields, wish, strict=False)) for wish in wishes]}
            for name, wishes in resources.items()
        },
    }
    pool = read_pool(POOL)
    return build_podgroups(pool, read_workflow(document, pool))


def spec_of(tasks: Mapping[str, str | None], **resources: Wishes) -> dict[str, Any]:
    """Spec of the PodGroup of a single task group, without its queue."""
    (group,) = built({"g": tasks}, **resources).pod_groups
    return {key: value for key, value in group["spec"].items() if key != "queue"}


@pytest.mark.requirement("OSM-01")
def test_a_topology_lists_the_labels_of_the_keys_coarsest_first() -> None:
    topology = topology_of(read_pool(POOL))
    assert topology is not None
    assert topology["metadata"]["name"] == TOPOLOGY
    labels = [level["nodeLabel"] for level in topology["spec"]["levels"]]
    assert labels == ["example.com/zone", "example.com/spine", "example.com/rack"]
    assert topology_of(read_pool({"name": "p", "backend": "b"})) is None


@pytest.mark.requirement("OSM-05")
def test_a_task_has_the_topology_of_its_resource_and_else_that_of_default() -> None:
    found = spec_of(
        {"a": "one", "b": None}, one=[("rack", "x")], default=[("rack", "y")], other=[("zone",)]
    )
    assert found == {
        "subGroups": [
            {"name": "x", "minMember": 1, "topologyConstraint": required("rack")},
            {"name": "y", "minMember": 1, "topologyConstraint": required("rack")},
        ]
    }


@pytest.mark.requirement("OSM-09")
@pytest.mark.parametrize("wishes", [("rack", "zone"), ("zone", "rack")])
def test_levels_stand_in_the_order_of_the_pool_whatever_that_of_the_spec(wishes: Any) -> None:
    groups = {"zone": "z", "rack": "r"}
    one = [(key, groups[key]) for key in wishes]
    two = [(key, f"{groups[key]}2") for key in wishes]
    found = spec_of({"a": "one", "b": "two"}, one=one, two=two)
    assert [entry["name"] for entry in found["subGroups"]] == ["z", "z-r", "z2", "z2-r2"]


@pytest.mark.requirement("OSM-10", "OSM-11")
def test_a_group_is_one_node_below_each_parent_and_one_for_all_its_tasks() -> None:
    found = spec_of(
        {"a": "one", "b": "also", "c": "two"},
        one=[("zone", "z1"), ("rack", "r")],
        also=[("zone", "z1"), ("rack", "r")],
        two=[("zone", "z2"), ("rack", "r")],
    )
    assert [(entry["name"], entry.get("minMember")) for entry in found["subGroups"]] == [
        ("z1", None),
        ("z1-r", 2),
        ("z2", None),
        ("z2-r", 1),
    ]


@pytest.mark.requirement("OSM-12", "OSM-16")
def test_the_finest_level_that_all_share_is_on_top_and_the_first_branching_ends_it() -> None:
    alone = spec_of({"a": "one", "b": "one"}, one=[("zone", "z"), ("rack", "r")])
    assert alone == {"topologyConstraint": required("rack"), "minMember": 2}
    wishes = [("zone", "z"), ("spine", "s")]
    found = spec_of(
        {"a": "one", "b": "two"},
        one=[*wishes, ("rack", "r1")],
        two=[*wishes, ("rack", "r2")],
    )
    assert found["topologyConstraint"] == required("spine")
    assert [entry["name"] for entry in found["subGroups"]] == ["r1", "r2"]
    assert "minMember" not in found
    parted = spec_of(
        {"a": "one", "b": "two"},
        one=[("zone", "z1"), ("rack", "r")],
        two=[("zone", "z2"), ("rack", "r")],
    )
    assert "topologyConstraint" not in parted


@pytest.mark.requirement("OSM-13", "OSM-16", "OSM-18")
def test_subgroups_below_a_branching_name_their_parent_level_and_members() -> None:
    found = spec_of(
        {"a": "one", "b": "one", "c": "two"},
        one=[("spine", "s1"), ("rack", "r1")],
        two=[("spine", "s2", "preferred"), ("rack", "r2")],
    )
    assert found == {
        "subGroups": [
            {"name": "s1", "topologyConstraint": required("spine")},
            {
                "name": "s1-r1",
                "parent": "s1",
                "minMember": 2,
                "topologyConstraint": required("rack"),
            },
            {"name": "s2", "topologyConstraint": preferred("spine")},
            {
                "name": "s2-r2",
                "parent": "s2",
                "minMember": 1,
                "topologyConstraint": required("rack"),
            },
        ]
    }


@pytest.mark.requirement("OSM-14", "OSM-15")
def test_a_task_that_asks_for_nothing_gets_a_subgroup_with_preferences() -> None:
    made = built({"g": {"a": "one", "b": None}}, one=[("rack", "r")])
    (group,) = made.pod_groups
    assert group["spec"]["subGroups"] == [
        {"name": "r", "minMember": 1, "topologyConstraint": required("rack")},
        {"name": "zz-any", "minMember": 1, "topologyConstraint": preferred("rack")},
    ]
    labels = {task: marks.labels for (_, task), marks in made.pods.items()}
    assert labels == {"a": {SUBGROUP_LABEL: "r"}, "b": {SUBGROUP_LABEL: "zz-any"}}


@pytest.mark.requirement("OSM-15")
def test_a_task_of_fewer_levels_is_padded_and_what_not_all_share_stays_below() -> None:
    """Were `one` hoisted before the padding, both tasks would have to share its spine."""
    found = spec_of(
        {"a": "one", "b": "two"},
        one=[("zone", "z"), ("spine", "s"), ("rack", "r")],
        two=[("zone", "z"), ("rack", "r")],
    )
    assert found == {
        "topologyConstraint": required("zone"),
        "subGroups": [
            {"name": "s", "topologyConstraint": required("spine")},
            {
                "name": "s-r",
                "parent": "s",
                "minMember": 1,
                "topologyConstraint": required("rack"),
            },
            {"name": "zz-any", "topologyConstraint": preferred("spine")},
            {
                "name": "zz-any-r",
                "parent": "zz-any",
                "minMember": 1,
                "topologyConstraint": required("rack"),
            },
        ],
    }


@pytest.mark.requirement("OSM-22")
def test_each_task_group_has_a_pod_group_and_a_tree_of_its_own_tasks_alone() -> None:
    """Levels, members and parents of one task group say nothing about another."""
    made = built(
        {"g": {"a": "one", "b": "two"}, "h": {"c": "one", "d": "one"}},
        one=[("rack", "r")],
        two=[("zone", "z"), ("rack", "r")],
    )
    first, second = made.pod_groups
    assert [entry["name"] for entry in first["spec"]["subGroups"]] == [
        "z",
        "z-r",
        "zz-any",
        "zz-any-r",
    ]
    assert second["spec"] == {
        "queue": "osmo-pool-p",
        "topologyConstraint": required("rack"),
        "minMember": 2,
    }
    assert first["metadata"]["name"] != second["metadata"]["name"]
    marks = {key: dict(found.annotations) for key, found in made.pods.items()}
    names = {"g": first["metadata"]["name"], "h": second["metadata"]["name"]}
    assert marks == {
        (group, task): {POD_GROUP_ANNOTATION: names[group]}
        for group, task in (("g", "a"), ("g", "b"), ("h", "c"), ("h", "d"))
    }


@pytest.mark.requirement("OSM-23")
def test_tasks_of_one_group_share_a_domain_and_other_groups_have_their_own() -> None:
    found = spec_of(
        {"a": "one", "b": "again", "c": "two"},
        one=[("rack", "x")],
        again=[("rack", "x")],
        two=[("rack", "y")],
    )
    assert found["subGroups"] == [
        {"name": "x", "minMember": 2, "topologyConstraint": required("rack")},
        {"name": "y", "minMember": 1, "topologyConstraint": required("rack")},
    ]

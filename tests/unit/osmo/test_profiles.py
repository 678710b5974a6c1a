"""What `robust` writes otherwise, on the cases that real KAI leaves waiting."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_osmo import (
    Built,
    KaiVersion,
    Profile,
    build_podgroups,
    read_pool,
    read_workflow,
    topology_of,
)
from tests.support.osmo_cases import cases, submission

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
CLIQUE = "nvidia.com/gpu-clique"


def robust(name: str, **options: Any) -> Built:
    case = cases()[name]
    pool = read_pool(case["pool"])
    workflow = read_workflow(submission(case), pool)
    return build_podgroups(pool, workflow, case["podGroupNames"], profile=Profile.ROBUST, **options)


def spec_of(built: Built) -> dict[str, Any]:
    found: dict[str, Any] = built.pod_groups[0]["spec"]
    return found


def levels(holder: dict[str, Any]) -> tuple[str | None, str | None]:
    constraint = holder.get("topologyConstraint", {})
    return constraint.get("requiredTopologyLevel"), constraint.get("preferredTopologyLevel")


@pytest.mark.requirement("OSM-20")
@pytest.mark.parametrize("kai", KaiVersion)
def test_a_required_level_above_the_finest_also_prefers_the_finest(kai: KaiVersion) -> None:
    top = spec_of(robust("coarse-level-required", kai=kai))
    assert levels(top) == (ZONE, RACK)
    # One that is the finest of the workflow, but not of the Topology, has the defect too.
    nested = spec_of(robust("three-level-tree", kai=kai))["subGroups"]
    spine = "topology.kubernetes.io/spine"
    assert {levels(entry) for entry in nested} == {(ZONE, RACK), (spine, RACK), (RACK, None)}


@pytest.mark.requirement("OSM-20")
def test_a_lone_preference_prefers_the_finest_on_the_version_that_needs_it() -> None:
    case = cases()["uc4-four-key-pool"]
    plain = levels(case["expected"]["podGroups"][0]["spec"])
    old = levels(spec_of(robust("uc4-four-key-pool", kai=KaiVersion.V0_10)))
    assert plain[0] is None
    assert plain[1] != CLIQUE
    assert old == (None, CLIQUE)
    for kai in (KaiVersion.V0_12, KaiVersion.V0_13):
        assert levels(spec_of(robust("uc4-four-key-pool", kai=kai))) == plain


def test_the_largest_sibling_comes_first() -> None:
    found = spec_of(robust("sibling-order"))["subGroups"]
    assert [(entry["name"], entry["minMember"]) for entry in found] == [
        ("0-c", 3),
        ("1-a", 2),
        ("2-b", 2),
    ]


@pytest.mark.requirement("OSM-14")
def test_the_catch_all_of_tasks_that_asked_for_nothing_has_no_constraint() -> None:
    entries = {entry["name"]: entry for entry in spec_of(robust("catch-all"))["subGroups"]}
    assert levels(entries["1-zz-any"]) == (None, None)
    assert "topologyConstraint" not in entries["1-zz-any"]
    chain = {one["name"]: one for one in spec_of(robust("catch-all-two-levels"))["subGroups"]}
    assert {name for name in chain if "topologyConstraint" not in chain[name]} == {
        "1-zz-any",
        "0-zz-any-zz-any",
    }


def test_a_filler_below_a_constraint_keeps_its_preference() -> None:
    entries = {entry["name"]: entry for entry in spec_of(robust("padding"))["subGroups"]}
    assert levels(entries["1-zz-any"]) == (None, RACK)
    below = {one["name"]: one for one in spec_of(robust("padding-missing-coarse"))["subGroups"]}
    assert levels(below["1-zz-any"]) == (None, ZONE)


@pytest.mark.requirement("OSM-08")
def test_a_level_that_no_node_carries_leaves_the_topology() -> None:
    case = cases()["uc1-single-clique"]
    nodes = [entry["labels"] for entry in case["scheduling"][3]["nodes"]]
    found = robust("uc1-single-clique", nodes=nodes)
    assert found.topology is not None
    assert found.topology["spec"]["levels"] == [{"nodeLabel": CLIQUE}]
    assert levels(spec_of(found)) == (CLIQUE, None)
    assert found.topology == topology_of(
        read_pool(case["pool"]), profile=Profile.ROBUST, nodes=nodes
    )


@pytest.mark.requirement("OSM-20")
def test_a_preference_for_a_level_that_no_node_carries_is_left_out_and_a_required_one_stays() -> (
    None
):
    zoned = [{ZONE: "a"}]
    wishes = robust("single-level-preferred", nodes=zoned)
    assert levels(spec_of(wishes)) == (None, None)
    assert levels(spec_of(robust("single-level-required", nodes=zoned))) == (RACK, None)
    bare = robust("single-level-required", nodes=[{"other": "x"}])
    assert bare.topology is None
    assert levels(spec_of(bare)) == (RACK, None)


def test_a_level_that_some_nodes_carry_and_nodes_that_are_not_known_change_nothing() -> None:
    plain = robust("coarse-level-required")
    for nodes in ([], [{ZONE: "a"}, {RACK: "r"}]):
        assert robust("coarse-level-required", nodes=nodes) == plain


def test_seed_takes_no_notice_of_nodes() -> None:
    case = cases()["single-level-preferred"]
    pool = read_pool(case["pool"])
    workflow = read_workflow(submission(case), pool)
    found = build_podgroups(pool, workflow, case["podGroupNames"], nodes=[{"other": "x"}])
    assert found == build_podgroups(pool, workflow, case["podGroupNames"])


def sized(kind: str, *gpus: int) -> Built:
    """Two tasks of each size, all in one rack, required or preferred."""
    pool = read_pool({"name": "p", "topology_keys": [{"key": "rack", "label": RACK}]})
    topology = [{"key": "rack", "requirementType": kind}]
    resources = {f"r{gpu}": {"gpu": gpu, "cpu": 1, "topology": topology} for gpu in gpus}
    tasks = [{"name": f"{name}-{at}", "resource": name} for name in resources for at in range(2)]
    document = {"workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]}}
    workflow = read_workflow({**document, "resources": resources}, pool)
    return build_podgroups(pool, workflow, profile=Profile.ROBUST)


@pytest.mark.requirement("OSM-20")
def test_a_mere_preference_of_tasks_of_several_sizes_is_one_of_each_size() -> None:
    built = sized("preferred", 1, 8)
    spec = spec_of(built)
    assert levels(spec) == (None, None)
    assert [(one["name"], one["minMember"], levels(one)) for one in spec["subGroups"]] == [
        ("0-default-1", 2, (None, RACK)),
        ("1-default-2", 2, (None, RACK)),
    ]
    labels = {task: marks.labels for (_, task), marks in built.pods.items()}
    # What is larger is placed first.
    assert labels["r8-0"] == {"kai.scheduler/subgroup-name": "0-default-1"}
    assert labels["r1-1"] == {"kai.scheduler/subgroup-name": "1-default-2"}


@pytest.mark.requirement("OSM-20")
def test_one_size_gpus_in_some_tasks_only_and_what_is_required_stay_as_they_are() -> None:
    assert levels(spec_of(sized("preferred", 8))) == (None, RACK)
    assert levels(spec_of(sized("preferred", 0, 8))) == (None, RACK)
    required = spec_of(sized("required", 1, 8))
    assert (levels(required), required["minMember"]) == ((RACK, None), 4)

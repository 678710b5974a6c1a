"""Every case of pools and workflows gives the expected objects, or is refused as expected.

What real KAI did with these very objects is part of the cases; nothing here runs KAI.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from rackgate_osmo import (
    Built,
    KaiVersion,
    Pool,
    RejectedError,
    Rejection,
    Workflow,
    build_podgroups,
    read_pool,
    read_workflow,
    topology_of,
)
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION, SUBGROUP_LABEL
from tests.support.osmo_cases import (
    SUBGROUP_NAME,
    Case,
    cases,
    expected_tasks,
    kai_accepts,
    leaf_tasks,
    structure,
    submission,
)

ROOT: Final = Path(__file__).parents[2]
ANSWERED: Final = sorted(name for name, case in cases().items() if "expected" in case)
BUILT: Final = [name for name in ANSWERED if "podGroups" in cases()[name]["expected"]]
# Where the refusal points to.
PATHS: Final = {
    "refuse-bad-group": "resources.default.topology[0].group",
    "refuse-bad-label": "topology_keys[0].label",
    "refuse-duplicate-pool-key": "topology_keys[1].key",
    "refuse-duplicate-pool-label": "topology_keys[1].label",
    "refuse-empty-group": "resources.default.topology[0].group",
    "refuse-hostname-not-last": "topology_keys[0].label",
    "refuse-key-in-pool-without-keys": "resources.default.topology[0].key",
    "refuse-label-instead-of-key": "resources.default.topology[0].key",
    "refuse-long-label-name": "topology_keys[0].label",
    "refuse-other-scheduler": "topology_keys",
    "refuse-required-and-preferred": "resources.b.topology[0].requirementType",
    "refuse-requirement-type": "resources.default.topology[0].requirementType",
    "refuse-same-key-twice": "resources.default.topology[2].key",
    "refuse-seventeen-keys": "topology_keys",
    "refuse-unknown-field": "resources.default.topologies",
    "refuse-unknown-field-in-requirement": "resources.default.topology[0].requirement_type",
    "refuse-unknown-key": "resources.default.topology[0].key",
    "refuse-unknown-resource": "workflow.groups[0].tasks[0].resource",
    "strict-refuse-mixed-keys": "resources.b.topology",
}


def read(case: Case) -> tuple[Pool, Workflow]:
    pool = read_pool(case["pool"])
    strict = case.get("options", {}).get("strict", False)
    return pool, read_workflow(submission(case), pool, strict=strict)


def build(case: Case, **options: Any) -> Built:
    pool, workflow = read(case)
    return build_podgroups(pool, workflow, case["podGroupNames"], **options)


def test_no_case_is_missing() -> None:
    assert len(cases()) == 62
    assert len(ANSWERED) == 43
    assert set(PATHS) == set(cases()) - set(ANSWERED)


@pytest.mark.requirement("OSM-01", "OSM-02", "OSM-08", "OSM-19")
@pytest.mark.parametrize("name", ANSWERED)
def test_the_topology_is_the_expected_one(name: str) -> None:
    case = cases()[name]
    assert topology_of(read_pool(case["pool"])) == case["expected"]["topology"]


@pytest.mark.requirement("OSM-05", "OSM-09", "OSM-10", "OSM-11", "OSM-12")
@pytest.mark.requirement("OSM-13", "OSM-14", "OSM-15")
@pytest.mark.requirement("OSM-16", "OSM-17", "OSM-18", "OSM-19", "OSM-22")
@pytest.mark.requirement("OSM-23", "TST-17")
@pytest.mark.parametrize("name", BUILT)
def test_the_objects_are_the_expected_ones(name: str) -> None:
    case = cases()[name]
    built = build(case)
    wanted = case["expected"]["podGroups"]
    exact = case["expected"]["names"] == "exact"
    assert built.topology == case["expected"]["topology"]
    assert len(built.pod_groups) == len(wanted)
    for group, found, expected in zip(
        case["workflow"]["groups"], built.pod_groups, wanted, strict=True
    ):
        found_tasks = leaf_tasks(group["name"], built)
        assert without_subgroups(found) == without_subgroups(expected)
        assert structure(subgroups(found), found_tasks, names=exact) == structure(
            subgroups(expected), expected_tasks(expected["metadata"]["name"], case), names=exact
        )
        check_names(subgroups(found))


def subgroups(pod_group: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod_group["spec"].get("subGroups", [])
    return found


def without_subgroups(pod_group: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in pod_group["spec"].items() if key != "subGroups"}
    return {**pod_group, "spec": spec}


def check_names(entries: list[dict[str, Any]]) -> None:
    """Unique, label values, parents first."""
    known: set[str] = set()
    for entry in entries:
        assert SUBGROUP_NAME.fullmatch(entry["name"])
        assert entry.get("parent") is None or entry["parent"] in known
        assert entry["name"] not in known
        known.add(entry["name"])


@pytest.mark.requirement("OSM-17")
@pytest.mark.parametrize("name", BUILT)
def test_the_pods_carry_what_is_expected(name: str) -> None:
    case = cases()[name]
    group_of = {task: key for key, task in case["podGroupNames"].items()}
    built = build(case)
    wanted = {
        (group_of[entry["podGroup"]], task): entry
        for entry in case["expected"]["pods"]
        for task in entry["tasks"]
    }
    assert set(built.pods) == set(wanted)
    for pod, entry in wanted.items():
        marks = built.pods[pod]
        assert (marks.pod_group, marks.scheduler_name) == (entry["podGroup"], "kai-scheduler")
        assert (
            marks.annotations == {POD_GROUP_ANNOTATION: entry["podGroup"]} == entry["annotations"]
        )
        if case["expected"]["names"] == "exact":
            assert marks.labels == entry["labels"]
        assert set(marks.labels) == set(entry["labels"]) <= {SUBGROUP_LABEL}


@pytest.mark.requirement("OSM-02", "OSM-04", "OSM-06", "OSM-07", "OSM-08")
@pytest.mark.parametrize("name", PATHS)
def test_the_rejection_is_the_expected_one(name: str) -> None:
    case = cases()[name]
    with pytest.raises(RejectedError) as caught:
        read(case)
    refusal: Rejection
    (refusal,) = caught.value.rejections
    wanted = case["refused"]
    assert (refusal.at, refusal.why, refusal.path) == (wanted["at"], wanted["why"], PATHS[name])
    for text in wanted["mentions"]:
        assert text in refusal.message


@pytest.mark.requirement("OSM-08")
@pytest.mark.parametrize("kai", KaiVersion)
def test_the_topology_has_the_version_that_kai_reads(kai: KaiVersion) -> None:
    case = cases()["uc3-cliques-in-one-zone"]
    wanted = {**case["expected"]["topology"]}
    if kai is KaiVersion.V0_10:
        wanted["apiVersion"] = "kueue.x-k8s.io/v1alpha1"
    built = build(case, kai=kai)
    assert built.topology == wanted
    assert built.pod_groups == build(case).pod_groups


def test_every_line_that_the_sources_rely_on_is_there() -> None:
    named = {
        one.strip()
        for folder in ("shared", "services", "osmo", "invariants", "cli")
        for file in (ROOT / folder).rglob("*.py")
        for names in re.findall(r"\bKAI\[([a-z0-9, -]+)\]", file.read_text())
        for one in names.split(",")
    }
    assert "topology-immutable" in named
    assert named <= set(kai_accepts())

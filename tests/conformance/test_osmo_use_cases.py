"""The four use cases of OSMO's design, from the workflows that it prints (`tests/seeds`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate_cli.osmo.nodes import short_nodes
from rackgate_osmo import (
    Built,
    KaiVersion,
    Pool,
    Profile,
    Workflow,
    build_podgroups,
    read_pool,
    read_workflow,
)
from rackgate_osmo.explain.answer import ExplainRequest, explain
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION, SUBGROUP_LABEL

SEEDS = Path(__file__).parents[1] / "seeds" / "osmo"
POD_GROUP = "group1-abc123"
LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/spine",
    "topology.kubernetes.io/rack",
    "nvidia.com/gpu-clique",
)
MODEL_1 = {f"model1-shard{shard}" for shard in range(1, 5)}
MODEL_2 = {f"model2-shard{shard}" for shard in range(1, 5)}


def pool() -> Pool:
    """The pool of the examples, called as in the example of a PodGroup."""
    keys = yaml.safe_load((SEEDS / "pool-keys.yaml").read_text())
    return read_pool({"name": "my-pool", "backend": "b", **keys})


def workflow(case: int) -> Workflow:
    text = (SEEDS / f"use-case-{case}.yaml").read_text()
    return read_workflow(yaml.safe_load(text), pool())


def built(case: int) -> Built:
    return build_podgroups(pool(), workflow(case), {"group1": POD_GROUP})


def placed(case: int, nodes: Mapping[str, int]) -> dict[str, list[tuple[str, ...]]] | None:
    """Where the pods of each subgroup go; None where the workflow stays pending.

    Args:
        case: number of the use case.
        nodes: how many there are, by zone, spine, rack and clique.
    """
    entries = [
        {"count": count, "labels": dict(zip(LABELS, path.split("/"), strict=True))}
        for path, count in nodes.items()
    ]
    question = ExplainRequest(pool(), workflow(case), Profile.SEED, KaiVersion.V0_13)
    (group,) = explain(question, short_nodes("case", entries)).groups
    if group.answer != "scheduled":
        return None
    return {
        one.name: [place.domain for place in one.places for _ in range(place.pods)]
        for one in group.subgroups
        if one.places
    }


@pytest.mark.requirement("USR-10")
def test_four_tasks_are_in_one_clique_or_wait() -> None:
    places = placed(1, {"z/s/1/a": 4, "z/s/2/b": 4})
    assert places is not None
    ((_, domains),) = places.items()
    assert len(domains) == 4
    assert len(set(domains)) == 1
    assert placed(1, {"z/s/1/a": 3, "z/s/2/b": 3}) is None
    (group,) = built(1).pod_groups
    assert group["spec"]["minMember"] == 4


@pytest.mark.requirement("USR-11")
def test_each_of_two_model_instances_is_in_one_clique() -> None:
    places = placed(2, {"z/s/1/a": 4, "z/s/2/b": 4})
    assert places is not None
    assert set(places) == {"model-1-group", "model-2-group"}
    assert [Counter(domains).most_common(1)[0][1] for domains in places.values()] == [4, 4]
    assert placed(2, {"z/s/1/a": 4, "z/s/2/b": 3, "z/s/3/c": 1}) is None
    assert placed(2, {"z1/s1/1/a": 4, "z2/s2/2/b": 4}) is not None, "zones do not matter"


@pytest.mark.requirement("USR-12")
def test_both_instances_are_in_the_only_zone_that_has_a_clique_for_each() -> None:
    places = placed(3, {"b/2/3/c": 4, "a/1/1/a": 4, "a/1/2/b": 4})
    assert places is not None
    assert {domain[0] for domains in places.values() for domain in domains} == {"a"}
    assert [len(set(domains)) for domains in places.values()] == [1, 1]
    assert placed(3, {"a/1/1/a": 4, "b/2/2/b": 4}) is None, "cliques enough, but no zone"


@pytest.mark.requirement("USR-12", "OSM-24", "TST-17")
def test_the_pod_group_of_use_case_3_is_the_one_that_the_design_prints() -> None:
    """Two things differ, on purpose: KAI's spelling, and what subgroups are called."""
    printed = yaml.safe_load((SEEDS / "pod-group.yaml").read_text())
    wanted = {**printed["spec"], "subGroups": printed["spec"].pop("subgroups")}
    del wanted["subgroups"]
    for entry in wanted["subGroups"]:
        entry["name"] = entry["name"].replace("-subgroup", "-group")
    (group,) = built(3).pod_groups
    assert group == {**printed, "spec": wanted}


@pytest.mark.requirement("OSM-17", "OSM-24", "TST-17")
def test_pods_of_use_case_3_carry_the_marks_that_the_design_prints() -> None:
    first, second = yaml.safe_load_all(
        (SEEDS / "pod-marks.yaml").read_text().replace("\n\n#", "\n---\n#")
    )
    pods = built(3).pods
    assert {task for _, task in pods} == MODEL_1 | MODEL_2
    for (_, task), marks in pods.items():
        wanted = (first if task in MODEL_1 else second)["metadata"]
        assert marks.annotations == wanted["annotations"] == {POD_GROUP_ANNOTATION: POD_GROUP}
        labels = {
            key: name.replace("-subgroup", "-group") for key, name in wanted["labels"].items()
        }
        assert marks.labels == labels
        assert set(labels) == {SUBGROUP_LABEL}


@pytest.mark.requirement("USR-13")
def test_a_best_effort_that_can_be_had_is_had() -> None:
    places = placed(4, {"z/s/1/a": 4, "z/s/2/b": 4, "z/t/3/c": 4})
    assert places is not None
    assert [len({domain[:3] for domain in domains}) for domains in places.values()] == [1, 1]
    assert len({domain[1] for domains in places.values() for domain in domains}) == 1


@pytest.mark.requirement("USR-14")
def test_a_best_effort_that_cannot_be_had_costs_no_more_than_it_must() -> None:
    places = placed(4, {"z/s/1/a": 4, "z/t/2/b": 4})
    assert places is not None
    assert [len({domain[:3] for domain in domains}) for domains in places.values()] == [1, 1]
    assert {domain[1] for domains in places.values() for domain in domains} == {"s", "t"}


@pytest.mark.requirement("TST-17")
@pytest.mark.parametrize(
    ("case", "shape"),
    [
        (1, (["nvidia.com/gpu-clique"], [])),
        (2, ([], ["nvidia.com/gpu-clique"] * 2)),
        (3, (["topology.kubernetes.io/zone"], ["nvidia.com/gpu-clique"] * 2)),
        (4, (["topology.kubernetes.io/spine"], ["topology.kubernetes.io/rack"] * 2)),
    ],
)
def test_each_use_case_gives_the_levels_it_asks_for(case: int, shape: Any) -> None:
    found = built(case)
    assert found.topology is not None
    assert [level["nodeLabel"] for level in found.topology["spec"]["levels"]] == list(LABELS)
    (group,) = found.pod_groups
    field = "preferredTopologyLevel" if case == 4 else "requiredTopologyLevel"
    parts = [[group["spec"]], group["spec"].get("subGroups", [])]
    levels = tuple(
        [part["topologyConstraint"][field] for part in some if "topologyConstraint" in part]
        for some in parts
    )
    assert levels == shape

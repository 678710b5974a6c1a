"""Trees of drawn workflows: what holds for each, whatever its groups are called."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rackgate_osmo import (
    Built,
    KaiVersion,
    Kind,
    Node,
    Profile,
    RejectedError,
    build_podgroups,
    read_pool,
    read_workflow,
    subgroup_tree_of,
)
from rackgate_osmo.model.workflow import SUBGROUP_LABEL
from rackgate_osmo.render.subgroups import SubGroup, subgroup_of_built
from tests.support import osmo_oracle as oracle
from tests.support.osmo_cases import SUBGROUP_NAME, leaf_tasks, structure
from tests.support.osmo_drawing import Document, submissions

EXAMPLES = 60


def built(pool: Document, document: Document, **options: Any) -> Built:
    read = read_pool(pool)
    return build_podgroups(read, read_workflow(document, read), **options)


def accepted(pool: Document, document: Document) -> None:
    """Go on only without a conflict of types."""
    try:
        for group in document["workflow"]["groups"]:
            oracle.answer(pool, document, group)
    except oracle.ConflictError:
        assume(False)


def subgroups(pod_group: Document) -> list[Document]:
    found: list[Document] = pod_group["spec"].get("subGroups", [])
    return found


@pytest.mark.requirement("OSM-09", "OSM-10", "OSM-11", "OSM-12", "OSM-13")
@pytest.mark.requirement("OSM-15", "OSM-16", "OSM-22")
@pytest.mark.requirement("OSM-23")
@settings(max_examples=2 * EXAMPLES)
@given(submissions())
def test_the_objects_are_those_of_the_oracle(drawn: tuple[Document, Document]) -> None:
    pool, document = drawn
    try:
        wanted = [oracle.answer(pool, document, one) for one in document["workflow"]["groups"]]
    except oracle.ConflictError:
        with pytest.raises(RejectedError) as caught:
            built(pool, document)
        assert {refusal.why for refusal in caught.value.rejections} == {"conflict"}
        return
    found = built(pool, document)
    for group, pod_group, one in zip(
        document["workflow"]["groups"], found.pod_groups, wanted, strict=True
    ):
        spec = pod_group["spec"]
        assert spec.get("topologyConstraint", {}) == one.top
        assert spec.get("minMember") == one.min_member
        assert ("subGroups" in spec) == bool(one.subgroups)
        tasks = leaf_tasks(group["name"], found)
        assert structure(subgroups(pod_group), tasks, names=False) == structure(
            one.subgroups, one.tasks, names=False
        )
        names = {entry["name"] for entry in subgroups(pod_group)}
        assert names >= set(oracle.plain_names(one.subgroups))


@pytest.mark.requirement("OSM-11", "OSM-14", "OSM-15", "OSM-16")
@settings(max_examples=EXAMPLES)
@given(submissions(), st.sampled_from(Profile))
def test_every_task_is_in_exactly_one_leaf_and_leaves_have_one_depth(
    drawn: tuple[Document, Document], profile: Profile
) -> None:
    pool, document = drawn
    accepted(pool, document)
    found = built(pool, document, profile=profile)
    groups = document["workflow"]["groups"]
    everyone = {(group["name"], task["name"]) for group in groups for task in group["tasks"]}
    assert set(found.pods) == everyone
    for group, pod_group in zip(groups, found.pod_groups, strict=True):
        entries = {entry["name"]: entry for entry in subgroups(pod_group)}
        assert len(entries) == len(subgroups(pod_group))
        assert all(SUBGROUP_NAME.fullmatch(name) for name in entries)
        parents = {entry.get("parent") for entry in entries.values()} - {None}
        leaves = set(entries) - parents
        labels = [found.pods[group["name"], task["name"]].labels for task in group["tasks"]]
        if not entries:
            assert labels == [{}] * len(labels)
            assert pod_group["spec"]["minMember"] == len(labels)
            continue
        assert {label[SUBGROUP_LABEL] for label in labels} == leaves
        for name in leaves:
            assert entries[name]["minMember"] == labels.count({SUBGROUP_LABEL: name})
        assert not any("minMember" in entries[name] for name in parents)
        assert "minMember" not in pod_group["spec"]
        assert len({depth(entries, name) for name in leaves}) == 1


def depth(entries: dict[str, Document], name: str) -> int:
    parent = entries[name].get("parent")
    return 1 if parent is None else 1 + depth(entries, parent)


@pytest.mark.requirement("OSM-13", "OSM-18", "OSM-20", "OSM-23")
@settings(max_examples=EXAMPLES)
@given(submissions(), st.sampled_from(Profile), st.sampled_from(KaiVersion))
def test_tasks_that_require_one_domain_are_below_one_required_constraint(
    drawn: tuple[Document, Document], profile: Profile, kai: KaiVersion
) -> None:
    pool, document = drawn
    accepted(pool, document)
    found = built(pool, document, profile=profile, kai=kai)
    order = [key["label"] for key in pool["topology_keys"]]
    for group, pod_group in zip(document["workflow"]["groups"], found.pod_groups, strict=True):
        together = required_together(pool, document, group)
        held = constrained(pod_group, leaf_tasks(group["name"], found))
        for label, tasks in together:
            assert any(
                order.index(level) >= order.index(label) and tasks <= members
                for level, members in held
            )


def required_together(
    pool: Document, document: Document, group: Document
) -> list[tuple[str, frozenset[str]]]:
    """Tasks of each node that is required, with its label: by the oracle's paths."""
    found: dict[Any, set[str]] = {}
    for task in group["tasks"]:
        path = oracle.steps_of(pool, document, group, task)
        for end, step in enumerate(path, 1):
            if step.field == "requiredTopologyLevel":
                found.setdefault((step.label, path[:end]), set()).add(task["name"])
    return [(label, frozenset(tasks)) for (label, _), tasks in found.items()]


def constrained(
    pod_group: Document, tasks: dict[str | None, frozenset[str]]
) -> list[tuple[str, frozenset[str]]]:
    """Required level and tasks of every node that has one, the top included."""
    everyone = frozenset().union(*tasks.values())
    top = pod_group["spec"].get("topologyConstraint", {}).get("requiredTopologyLevel")
    found = [(top, everyone)] if top else []
    parents = {entry["name"]: entry.get("parent") for entry in subgroups(pod_group)}
    for entry in subgroups(pod_group):
        level = entry.get("topologyConstraint", {}).get("requiredTopologyLevel")
        below = [tasks[leaf] for leaf in tasks if leaf and is_below(parents, leaf, entry["name"])]
        if level:
            found.append((level, frozenset().union(*below)))
    return found


def is_below(parents: dict[str, str | None], name: str | None, top: str) -> bool:
    return name is not None and (name == top or is_below(parents, parents[name], top))


@pytest.mark.requirement("OSM-04", "OSM-09", "OSM-11")
@settings(max_examples=EXAMPLES)
@given(submissions(), st.randoms(use_true_random=False), st.sampled_from(Profile))
def test_the_order_of_tasks_requirements_and_resources_changes_nothing(
    drawn: tuple[Document, Document], randomness: Any, profile: Profile
) -> None:
    pool, document = drawn
    accepted(pool, document)
    shuffled = copy.deepcopy(document)
    for group in shuffled["workflow"]["groups"]:
        randomness.shuffle(group["tasks"])
    for resource in shuffled["resources"].values():
        randomness.shuffle(resource["topology"])
    names = list(shuffled["resources"])
    randomness.shuffle(names)
    shuffled["resources"] = {name: shuffled["resources"][name] for name in names}
    assert built(pool, shuffled, profile=profile) == built(pool, document, profile=profile)


@pytest.mark.requirement("OSM-20")
@settings(max_examples=2 * EXAMPLES)
@given(submissions(), st.sampled_from(KaiVersion))
def test_robust_differs_from_seed_only_as_its_functions_say(
    drawn: tuple[Document, Document], kai: KaiVersion
) -> None:
    pool, document = drawn
    accepted(pool, document)
    for resource in document["resources"].values():
        resource["gpu"] = 1  # one size: what several change is below
    seed, robust = (
        built(pool, document, profile=profile, kai=kai)
        for profile in (Profile.SEED, Profile.ROBUST)
    )
    assert robust.topology == seed.topology
    for group, plain, other in zip(
        document["workflow"]["groups"], seed.pod_groups, robust.pod_groups, strict=True
    ):
        assert constraint(other["spec"]) == mended(constraint(plain["spec"]), pool, kai)
        rest = ("queue", "minMember")
        assert [other["spec"].get(one) for one in rest] == [plain["spec"].get(one) for one in rest]
        wanted = oracle.answer(pool, document, group)
        entries = [robust_entry(entry, wanted, pool, kai) for entry in wanted.subgroups]
        assert structure(
            subgroups(other), leaf_tasks(group["name"], robust), names=False
        ) == structure(entries, wanted.tasks, names=False)


@pytest.mark.requirement("OSM-20")
@settings(max_examples=2 * EXAMPLES)
@given(submissions(), st.sampled_from(KaiVersion))
def test_in_robust_only_what_is_required_is_of_several_sizes(
    drawn: tuple[Document, Document], kai: KaiVersion
) -> None:
    pool, document = drawn
    accepted(pool, document)
    read = read_pool(pool)
    workflow = read_workflow(document, read)
    seed, robust = (
        build_podgroups(read, workflow, profile=profile, kai=kai)
        for profile in (Profile.SEED, Profile.ROBUST)
    )
    for index, group in enumerate(workflow.groups):
        gpus = {}
        for task in group.tasks:
            resource = workflow.resource_of(task)
            assert resource is not None
            gpus[task.name] = resource.gpu

        def check(part: SubGroup, bound: bool, gpus: dict[str, Any] = gpus) -> None:
            bound = bound or part.required is not None
            sizes = {gpus[task] for task in part.tasks}
            assert bound or not part.constrained or len(sizes) == 1
            for below in part.children:
                check(below, bound)

        check(subgroup_of_built(robust, index, group.name), bound=False)
        # Nothing is kept together that was not, and what is required is the same.
        assert required(robust, index, group.name) == required(seed, index, group.name)
        for part in subgroup_of_built(robust, index, group.name).walk():
            assert not part.constrained or any(
                set(part.tasks) <= set(one.tasks)
                for one in subgroup_of_built(seed, index, group.name).walk()
                if one.constrained
            )


def required(found: Built, index: int, group: str) -> set[tuple[int, frozenset[str]]]:
    """Required levels with their tasks."""
    parts = subgroup_of_built(found, index, group).walk()
    return {(one.required, frozenset(one.tasks)) for one in parts if one.required is not None}


def constraint(holder: Document) -> Document:
    found: Document = holder.get("topologyConstraint", {})
    return found


def mended(given: Document, pool: Document, kai: KaiVersion) -> Document:
    finest = pool["topology_keys"][-1]["label"]
    coarse = given.get("requiredTopologyLevel", finest) != finest
    lonely = "requiredTopologyLevel" not in given and kai is KaiVersion.V0_10
    if given and (coarse or lonely):
        return {**given, "preferredTopologyLevel": finest}
    return given


def robust_entry(
    entry: Document, wanted: oracle.Answer, pool: Document, kai: KaiVersion
) -> Document:
    """The subgroup as `robust` writes it: mended, or free below a mere catch-all."""
    start = entry["name"][:1]
    branch = [one["name"] for one in wanted.subgroups if one["name"][:1] == start]
    asked_for_nothing = all(part == oracle.FILLER for path in branch for part in path)
    if asked_for_nothing and not wanted.top:
        return {name: value for name, value in entry.items() if name != "topologyConstraint"}
    return {**entry, "topologyConstraint": mended(constraint(entry), pool, kai)}


@settings(max_examples=EXAMPLES)
@given(submissions())
def test_robust_names_siblings_in_the_order_of_placing(drawn: tuple[Document, Document]) -> None:
    pool, document = drawn
    accepted(pool, document)
    read = read_pool(pool)
    workflow = read_workflow(document, read)
    for group in workflow.groups:
        pending = [subgroup_tree_of(group, workflow, read, Profile.ROBUST)]
        while pending:
            node = pending.pop()
            pending += node.children
            siblings = [child for child in node.children if child.name]
            assert siblings == sorted(siblings, key=lambda one: one.name.encode())
            ranks = [(*strength(one), -one.gpus_milli, -one.size) for one in siblings]
            assert ranks == sorted(ranks)


def strength(node: Node) -> tuple[bool, bool, bool]:
    """Required first, then what has a required one below, fillers last of the rest."""
    below = any(one.kind is Kind.REQUIRED for one in node.below())
    required = node.kind is Kind.REQUIRED
    return not required, not (required or below), node.kind is Kind.FILLER and not below

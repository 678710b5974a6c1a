"""Names stay unique, valid and independent of order, whatever groups are called."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_osmo.model.names import (
    FILLER,
    MAX_NAME,
    Path,
    digest,
    pod_group_names,
    segment,
    unique_names,
)
from tests.support.osmo_cases import SUBGROUP_NAME

OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def named(paths: list[Path]) -> dict[Path, str]:
    texts = ["-".join(map(segment, path)) for path in paths]
    return dict(zip(paths, unique_names(texts, paths), strict=True))


@pytest.mark.requirement("OSM-11")
def test_a_text_of_its_own_is_the_name() -> None:
    found = named([("Zone_A",), ("Zone_A", "R.1"), (None,), (None, "r")])
    assert list(found.values()) == ["zone_a", "zone_a-r.1", FILLER, f"{FILLER}-r"]


@pytest.mark.requirement("OSM-11")
def test_texts_that_are_alike_get_a_digest_each() -> None:
    left, right, other = ("a-b", "c"), ("a", "b-c"), ("a",)
    found = named([left, right, other])
    assert found[other] == "a"
    assert found[left] == f"a-b-c-{digest(left)}"
    assert found[right] == f"a-b-c-{digest(right)}"
    assert found[left] != found[right]


@pytest.mark.requirement("OSM-11")
def test_a_text_of_63_characters_stays_and_one_of_64_is_cut_to_63() -> None:
    found = named([("x" * 63,), ("y" * 63, "z")])
    assert found["x" * 63,] == "x" * 63
    long = found["y" * 63, "z"]
    assert long == f"{'y' * 54}-{digest(('y' * 63, 'z'))}"
    assert len(long) == MAX_NAME


@pytest.mark.requirement("OSM-11")
def test_a_group_called_like_the_digest_of_another_takes_no_name_away() -> None:
    left, right = ("a-b", "c"), ("a", "b-c")
    thieves: list[Path] = [(f"a-b-c-{digest(left)}",), (f"a-b-c-{digest(left, 16)}",)]
    paths = [left, right, *thieves]
    found = named(paths)
    assert len(set(found.values())) == len(paths)
    assert found == named(paths[::-1])


@pytest.mark.requirement("OSM-11")
@settings(max_examples=100)
@given(
    st.lists(
        st.lists(
            st.none() | st.sampled_from(["a", "A", "a-b", "b", "zz-any", "x" * 63, "x" * 62 + "y"]),
            min_size=1,
            max_size=4,
        ).map(tuple),
        min_size=1,
        max_size=12,
        unique=True,
    ),
    st.randoms(use_true_random=False),
)
def test_names_are_unique_valid_and_keep_no_order(paths: list[Path], noise: random.Random) -> None:
    found = named(paths)
    assert len(set(found.values())) == len(paths)
    assert all(SUBGROUP_NAME.fullmatch(name) for name in found.values())
    noise.shuffle(paths)
    assert named(paths) == found


def test_a_digest_tells_apart_what_joins_to_the_same_text() -> None:
    lists: list[Path] = [("a", "b"), ("ab",), ("a", None, "b"), (None,), ("n;",), ("1:a;",)]
    assert len({digest(one) for one in lists}) == len(lists)


@pytest.mark.requirement("OSM-17")
def test_pod_groups_are_called_after_workflow_and_group() -> None:
    assert pod_group_names("train", ["main", "eval"]) == {
        "main": "train-main",
        "eval": "train-eval",
    }


@pytest.mark.requirement("OSM-17")
def test_two_workflows_never_mean_the_same_pod_group() -> None:
    assert pod_group_names("w", ["a-b"])["a-b"] != pod_group_names("w-a", ["b"])["b"]


@settings(max_examples=100)
@given(st.text(max_size=80), st.lists(st.text(min_size=1, max_size=80), unique=True, max_size=6))
def test_names_of_pod_groups_are_unique_names_of_objects(workflow: str, groups: list[str]) -> None:
    found = pod_group_names(workflow, groups)
    assert list(found) == groups
    assert len(set(found.values())) == len(groups)
    assert all(OBJECT_NAME.fullmatch(name) for name in found.values())

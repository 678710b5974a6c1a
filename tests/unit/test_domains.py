from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.domains import SLICE_DOMAINS, AssignmentError, TopologyAssignment, decode, encode


def assignment(*domains: tuple[tuple[str, ...], int], levels: int = 1) -> TopologyAssignment:
    keys = tuple(f"level-{i}" for i in range(levels))
    return TopologyAssignment(levels=keys, domains=domains)


def sliced(*parts: dict[str, Any], levels: int = 1) -> dict[str, Any]:
    return {"levels": [f"level-{i}" for i in range(levels)], "slices": list(parts)}


def part(values: Any, counts: Any, domains: Any = 2) -> dict[str, Any]:
    return {"domainCount": domains, "valuesPerLevel": values, "podCounts": counts}


@pytest.mark.requirement("TAS-11")
def test_common_ends_are_taken_out_and_equal_values_said_once() -> None:
    found = assignment((("b", "n-1.x"), 2), (("b", "n-22.x"), 1), levels=2)
    assert encode(found) == sliced(
        part(
            [
                {"universal": "b"},
                {"individual": {"prefix": "n-", "suffix": ".x", "roots": ["1", "22"]}},
            ],
            {"individual": [2, 1]},
        ),
        levels=2,
    )


def test_prefix_and_suffix_never_overlap_in_the_shortest_value() -> None:
    found = encode(assignment((("aa",), 1), (("aaa",), 1)))
    values = found["slices"][0]["valuesPerLevel"][0]["individual"]
    assert values == {"prefix": "aa", "roots": ["", "a"]}


def test_one_domain_needs_no_lists() -> None:
    assert encode(assignment((("n",), 3)))["slices"] == [
        part([{"universal": "n"}], {"universal": 3}, 1)
    ]


def test_more_domains_than_a_slice_holds_continue_in_the_next() -> None:
    domains = tuple(((f"n{i}",), 1) for i in range(SLICE_DOMAINS + 1))
    found = encode(TopologyAssignment(("l",), domains))
    assert [one["domainCount"] for one in found["slices"]] == [SLICE_DOMAINS, 1]
    assert decode(found).domains == domains


@pytest.mark.requirement("TAS-30")
@pytest.mark.field_note("C23")
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_very_many_host_names_stay_below_the_limit_of_a_request(count: int) -> None:
    domains = tuple(((f"gpu-node-{i:06d}.cluster.example",), 8 - i % 2) for i in range(count))
    found = encode(TopologyAssignment(("kubernetes.io/hostname",), domains))
    assert len(json.dumps(found, separators=(",", ":"))) < 1_500_000
    assert decode(found).domains == domains


def test_slices_are_read_in_their_order() -> None:
    found = decode(
        sliced(
            part([{"individual": {"roots": ["z", "y"]}}], {"universal": 2}),
            part([{"universal": "a"}], {"individual": [5]}, 1),
        )
    )
    assert found == assignment((("z",), 2), (("y",), 2), (("a",), 5))
    assert found.count == 9


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (assignment(), "slices"),
        (TopologyAssignment((), (((), 1),)), "levels"),
        (assignment((("a",), 1), (("a",), 1)), "slices"),
        (assignment((("a",), 0)), "slices"),
        (assignment((("a", "b"), 1)), "slices"),
        (assignment((("a" * 64,), 1)), "slices"),
    ],
)
@pytest.mark.requirement("TAS-12")
def test_what_breaks_an_invariant_is_not_written(broken: TopologyAssignment, path: str) -> None:
    with pytest.raises(AssignmentError, match=f"^{path}: "):
        encode(broken)


ROOTS = [{"individual": {"roots": ["a", "b"]}}]
ONE = {"universal": 1}


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        ({}, "levels"),
        ({"levels": "x", "slices": []}, "levels"),
        ({"levels": ["x"]}, "slices"),
        (sliced(), "slices"),
        ({"levels": ["x"], "slices": [None]}, "slices[0]"),
        (sliced(part(ROOTS, ONE, 0)), "slices[0].domainCount"),
        (sliced(part(ROOTS, ONE, True)), "slices[0].domainCount"),
        (sliced(part(ROOTS, ONE, 10**12)), "slices[0].domainCount"),
        (sliced(part(ROOTS, ONE), levels=2), "slices[0].valuesPerLevel"),
        (sliced(part([{}], ONE)), "slices[0].valuesPerLevel[0]"),
        (sliced(part([None], ONE)), "slices[0].valuesPerLevel[0]"),
        (sliced(part([{"universal": 5}], ONE)), "slices[0].valuesPerLevel[0].universal"),
        (sliced(part([{**ROOTS[0], "universal": "x"}], ONE)), "slices[0].valuesPerLevel[0]"),
        (sliced(part(ROOTS, ONE, 3)), "slices[0].valuesPerLevel[0].individual.roots"),
        (sliced(part([{"individual": []}], ONE)), "slices[0].valuesPerLevel[0].individual"),
        (
            sliced(part([{"individual": {"prefix": 1, "roots": ["a", "b"]}}], ONE)),
            "slices[0].valuesPerLevel[0].individual",
        ),
        (sliced(part(ROOTS, None)), "slices[0].podCounts"),
        (sliced(part(ROOTS, {"universal": 0})), "slices[0].podCounts"),
        (sliced(part(ROOTS, {"universal": "1"})), "slices[0].podCounts"),
        (sliced(part(ROOTS, {"individual": [1]})), "slices[0].podCounts.individual"),
        (sliced(part([{"universal": "a"}], ONE)), "slices"),
    ],
)
def test_malformed_assignments_are_refused_by_their_path(wire: dict[str, Any], path: str) -> None:
    with pytest.raises(AssignmentError) as refused:
        decode(wire)
    assert str(refused.value).startswith(f"{path}: ")

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names as api_names
from rackgate.topology.assignment import (
    LEVELS,
    MAX_PODS,
    MAX_SLICES,
    SLICE_DOMAINS,
    AssignmentError,
    TopologyAssignment,
    decode,
    encode,
    encoded_size,
)


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
    # Nothing is in common, so nothing else asks for a cut.
    domains = tuple(((chr(0x4E00 + i % 20_000) + chr(0x4E00 + i),), 1) for i in range(100_001))
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
        (assignment((("a",), MAX_PODS + 1)), "slices"),
        (assignment((("a",), MAX_PODS), (("b",), 1)), "slices"),
        (assignment((("a",) * 17, 1), levels=17), "levels"),
        (TopologyAssignment(("l" * 318,), ((("a",), 1),)), "levels[0]"),
        (TopologyAssignment(("l", "l"), ((("a", "b"), 1),)), "levels[1]"),
    ],
)
@pytest.mark.requirement("TAS-12")
def test_what_breaks_an_invariant_is_not_written(broken: TopologyAssignment, path: str) -> None:
    with pytest.raises(AssignmentError) as refused:
        encode(broken)
    assert str(refused.value).startswith(f"{path}: ")
    assert len(str(refused.value)) < 200


def test_the_bound_of_levels_is_that_of_a_topology() -> None:
    assert LEVELS == api_names.MAX_LEVELS


def named(*names: str, counts: int = 1) -> TopologyAssignment:
    return assignment(*(((name,), counts) for name in names))


def sizes(found: TopologyAssignment) -> list[int]:
    wire = encode(found)
    assert decode(wire) == found
    return [one["domainCount"] for one in wire["slices"]]


def test_runs_of_equal_beginnings_become_slices() -> None:
    pools = [f"gke-pool-{pool}-{i}" for pool in ("abcdef", "ghijkl", "mnopqr") for i in range(50)]
    assert sizes(named(*pools)) == [50, 50, 50]


def test_runs_of_equal_ends_become_slices() -> None:
    racks = [f"n{i}.rack-{rack}.example" for rack in ("east", "north") for i in range(50)]
    assert sizes(named(*racks)) == [50, 50]


def test_runs_of_equal_counts_become_slices() -> None:
    found = assignment(*(((f"{i * 7919 % 400:03}",), 8 if i < 200 else 4) for i in range(400)))
    assert sizes(found) == [200, 200]


def test_a_level_that_is_equal_in_a_run_is_said_once_for_it() -> None:
    found = assignment(
        *(((f"block-{i // 60}", f"r{i}"), 1) for i in range(120)),
        levels=2,
    )
    assert sizes(found) == [60, 60]
    assert encode(found)["slices"][1]["valuesPerLevel"][0] == {"universal": "block-1"}


def test_few_domains_stay_in_one_slice() -> None:
    assert sizes(named("a-1", "a-2", "b-1", "b-2")) == [4]


@pytest.mark.requirement("TAS-30")
def test_more_runs_than_slices_are_joined_where_it_costs_least() -> None:
    names = [f"n{i % 32:02}.rack-{i // 32:04}.of-a-site.example" for i in range(35_200)]
    found = sizes(named(*names))
    assert len(found) == MAX_SLICES
    assert sum(found) == len(names)
    assert encoded_size(named(*names)) < 360_000  # 528,000 as one slice


ROOTS = [{"individual": {"roots": ["a", "b"]}}]
ONE = {"universal": 1}


BIG = ["x" * 40, "y" * 40]
REFUSED: list[tuple[Any, str]] = [
    ({}, "levels: nothing: must be a list"),
    ({"levels": "x", "slices": []}, 'levels: "x": must be a list'),
    ({"levels": [], "slices": []}, "levels: 0 levels: must be 1 to 16"),
    ({"levels": ["x", 5], "slices": []}, "levels[1]: 5: must be a string"),
    ({"levels": ["x"] * 17}, "levels: 17 levels"),
    ({"levels": ["x", "x"]}, 'levels[1]: "x" appears twice'),
    ({"levels": ["x" * 318]}, "levels[0]: "),
    ({"levels": ["x"]}, "slices: nothing: must be a list of 1 to 1000 slices"),
    ({"levels": ["x"], "slices": {}}, "slices: an object: must be"),
    (sliced(), "slices: a list of 0: must be"),
    (sliced(*[part(ROOTS, ONE)] * 1001), "slices: a list of 1001: must be"),
    ({"levels": ["x"], "slices": [None]}, "slices[0]: nothing: must be an object"),
    (sliced(part(ROOTS, ONE, 0)), "slices[0].domainCount: 0: must be a whole number from 1 to"),
    (sliced(part(ROOTS, ONE, True)), "slices[0].domainCount: true: "),
    (sliced(part(ROOTS, ONE, 2.0)), "slices[0].domainCount: 2.0: "),
    (sliced(part(ROOTS, ONE, 10**30)), "slices[0].domainCount: a number of 100 bits: "),
    (sliced(part(ROOTS, ONE, 100_001)), "slices[0].domainCount: 100001: "),
    (sliced(part(ROOTS, ONE), levels=2), "slices[0].valuesPerLevel: a list of 1: must be"),
    (sliced(part("a", ONE)), 'slices[0].valuesPerLevel: "a": must be a list'),
    (sliced(part([{}], ONE)), "slices[0].valuesPerLevel[0]: neither is set: "),
    (sliced(part([None], ONE)), "slices[0].valuesPerLevel[0]: nothing: must be an object"),
    (sliced(part([{"universal": 5}], ONE)), "slices[0].valuesPerLevel[0].universal: 5: must"),
    (
        sliced(part([{"universal": "x" * 64}], ONE, 1)),
        "slices[0].valuesPerLevel[0].universal: ",
    ),
    (
        sliced(part([{**ROOTS[0], "universal": 1}], ONE)),
        "slices[0].valuesPerLevel[0]: both are set: ",
    ),
    (
        sliced(part(ROOTS, ONE, 3)),
        "slices[0].valuesPerLevel[0].individual.roots: 2 entries for domainCount 3",
    ),
    (
        sliced(part([{"individual": []}], ONE)),
        "slices[0].valuesPerLevel[0].individual: a list of 0",
    ),
    (
        sliced(part([{"individual": {"prefix": 1, "roots": ["a", "b"]}}], ONE)),
        "slices[0].valuesPerLevel[0].individual.prefix: 1: must be a string",
    ),
    (
        sliced(part([{"individual": {"suffix": "s" * 64, "roots": ["a", "b"]}}], ONE)),
        "slices[0].valuesPerLevel[0].individual.suffix: ",
    ),
    (
        sliced(part([{"individual": {"roots": ["a", None]}}], ONE)),
        "slices[0].valuesPerLevel[0].individual.roots[1]: nothing: must be a string",
    ),
    (
        sliced(part([{"individual": {"prefix": "p" * 24, "roots": ["a", *BIG[1:]]}}], ONE)),
        "slices[0].valuesPerLevel[0].individual.roots[1]: ",
    ),
    (sliced(part(ROOTS, None)), "slices[0].podCounts: nothing: must be an object"),
    (sliced(part(ROOTS, {})), "slices[0].podCounts: neither is set: "),
    (sliced(part(ROOTS, {"universal": 0})), "slices[0].podCounts.universal: 0: must be"),
    (sliced(part(ROOTS, {"universal": "1"})), 'slices[0].podCounts.universal: "1": must be'),
    (sliced(part(ROOTS, {"universal": 2**31})), "slices[0].podCounts.universal: 2147483648: "),
    (sliced(part(ROOTS, {"individual": [1]})), "slices[0].podCounts.individual: 1 entries for"),
    (sliced(part(ROOTS, {"individual": [1, -1]})), "slices[0].podCounts.individual[1]: -1: "),
    (sliced(part(ROOTS, {"individual": [1, True]})), "slices[0].podCounts.individual[1]: true: "),
    (sliced(part(ROOTS, {"universal": 2**30})), "slices: 2147483648 pods in total: "),
    (
        sliced(part([{"universal": "a"}], ONE)),
        "slices[0].valuesPerLevel: one domain, universal at every level, 2 times",
    ),
    (sliced(part(ROOTS, ONE), part(ROOTS, ONE)), 'slices: domain "a" appears twice'),
]


@pytest.mark.requirement("TAS-12")
@pytest.mark.parametrize(("wire", "says"), REFUSED)
def test_malformed_assignments_are_rejected_by_path_and_value(
    wire: dict[str, Any], says: str
) -> None:
    with pytest.raises(AssignmentError) as refused:
        decode(wire)
    assert str(refused.value).startswith(says)
    assert len(str(refused.value)) < 250


def test_prefixes_and_suffixes_may_be_null_or_empty() -> None:
    ends = {"prefix": None, "suffix": "", "roots": ["a", "b"]}
    assert decode(sliced(part([{"individual": ends}], ONE))) == named("a", "b")


def test_a_few_bytes_cannot_ask_for_a_hundred_million_domains() -> None:
    one = part([{"universal": "a"}, {"universal": "b"}], ONE, SLICE_DOMAINS)
    with pytest.raises(AssignmentError, match="universal at every level, 100000 times"):
        decode(sliced(*[one] * MAX_SLICES, levels=2))

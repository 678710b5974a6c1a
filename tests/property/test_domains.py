"""Encoding and decoding an assignment are inverse, whatever the names look like."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackgate.domains import TopologyAssignment, decode, encode

# Names that share beginnings and ends, repeat them inside, or are a part of one another.
pieces = st.sampled_from(["", "a", "aa", "b", "ab", "-", "node-", "node-1", ".x", "x.x", "0", "00"])
names = st.lists(pieces, min_size=0, max_size=4).map("".join) | st.text(
    "ab-.", min_size=0, max_size=63
)


@st.composite
def assignments(draw: st.DrawFn) -> TopologyAssignment:
    width = draw(st.integers(1, 4))
    domains = draw(st.lists(st.tuples(*[names] * width), min_size=1, max_size=12, unique=True))
    counts = draw(
        st.lists(st.integers(1, 3), min_size=len(domains), max_size=len(domains))
        | st.integers(1, 2**31 - 1).map(lambda count: [count] * len(domains))
    )
    levels = tuple(f"level-{i}" for i in range(width))
    return TopologyAssignment(levels, tuple(zip(domains, counts, strict=True)))


@settings(deadline=None)
@given(assignments())
@example(TopologyAssignment(("l",), ((("aa",), 1), (("aaa",), 1))))
@example(TopologyAssignment(("l",), ((("",), 1), (("a",), 1))))
@example(TopologyAssignment(("l", "m"), ((("a", "b"), 1), (("a", "bb"), 2))))
def test_decoding_what_was_encoded_gives_it_back_in_order(found: TopologyAssignment) -> None:
    wire = json.loads(json.dumps(encode(found)))
    assert decode(wire) == found
    assert decode(wire).count == sum(count for _, count in found.domains)


@settings(deadline=None)
@given(assignments())
def test_encoded_assignments_keep_the_rules_of_the_schema(found: TopologyAssignment) -> None:
    for part in encode(found)["slices"]:
        length = part["domainCount"]
        assert len(part["valuesPerLevel"]) == len(found.levels)
        for values in part["valuesPerLevel"]:
            assert len(values) == 1
            individual = values.get("individual")
            if individual is not None:
                assert len(individual["roots"]) == length
                assert all(individual.get(end) != "" for end in ("prefix", "suffix"))
        counts = part["podCounts"]
        assert len(counts) == 1
        assert len(counts.get("individual", [1] * length)) == length


@settings(deadline=None)
@given(assignments(), st.integers(1, 11))
def test_several_slices_mean_their_union_in_order(found: TopologyAssignment, cut: int) -> None:
    heads = [found.domains[:cut], found.domains[cut:]]
    parts = [
        encode(TopologyAssignment(found.levels, domains))["slices"][0]
        for domains in heads
        if domains
    ]
    assert decode({"levels": list(found.levels), "slices": parts}) == found

"""Encoding and decoding an assignment are inverse, whatever the names look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rackgate.topology.assignment import (
    MAX_PODS,
    AssignmentError,
    TopologyAssignment,
    decode,
    encode,
    encoded_size,
)

CRD: Final = Path("deploy/crds/kueue.x-k8s.io_workloads.yaml")
# Names that share beginnings and ends, repeat them inside, or are a part of one another; and
# characters that JSON writes in another length.
pieces = st.sampled_from(
    ["", "a", "aa", "b", "ab", "-", "node-", "node-1", ".x", "x.x", "0", "00", '"', "\\", "é", "\n"]
)
names = (
    st.lists(pieces, min_size=0, max_size=4).map("".join)
    | st.text("ab-.", min_size=0, max_size=63)
    | st.text(max_size=5)
)


def counts_of(size: int) -> st.SearchStrategy[list[int]]:
    """Counts for so many domains, together no more than a PodSet can have."""
    return st.lists(st.integers(1, 3), min_size=size, max_size=size) | st.integers(
        1, MAX_PODS // size
    ).map(lambda count: [count] * size)


@st.composite
def assignments(draw: st.DrawFn) -> TopologyAssignment:
    width = draw(st.integers(1, 4))
    domains = draw(st.lists(st.tuples(*[names] * width), min_size=1, max_size=12, unique=True))
    counts = draw(counts_of(len(domains)))
    levels = tuple(f"level-{i}" for i in range(width))
    return TopologyAssignment(levels, tuple(zip(domains, counts, strict=True)))


@st.composite
def runs(draw: st.DrawFn) -> TopologyAssignment:
    """Long runs of names that have something in common: worth several slices."""
    found: list[tuple[tuple[str, str], int]] = []
    for number in range(draw(st.integers(1, 5))):
        head, tail = draw(names.map(lambda name: name[:20])), draw(st.sampled_from(["", ".rack-a"]))
        pods = draw(st.integers(1, 2))
        for index in range(draw(st.sampled_from([1, 2, 30, 80]))):
            count = pods if draw(st.booleans()) else 1
            found.append(((f"block-{number}", f"{head}-{number}-{index}{tail}"), count))
    if draw(st.booleans()):
        return TopologyAssignment(("b", "h"), tuple(found))
    return TopologyAssignment(("h",), tuple((values[1:], count) for values, count in found))


def single_slice(found: TopologyAssignment) -> dict[str, Any]:
    """The one-slice form, written down as the format says and nothing else."""
    levels = []
    for column in zip(*(values for values, _ in found.domains), strict=True):
        if len(set(column)) == 1:
            levels.append({"universal": column[0]})
            continue
        shortest = min(map(len, column))
        prefix = max(n for n in range(shortest + 1) if len({value[:n] for value in column}) == 1)
        rests = [value[prefix:] for value in column]
        suffix = max(
            n
            for n in range(shortest - prefix + 1)
            if len({rest[len(rest) - n :] for rest in rests}) == 1
        )
        individual: dict[str, Any] = {}
        if prefix:
            individual["prefix"] = column[0][:prefix]
        if suffix:
            individual["suffix"] = rests[0][len(rests[0]) - suffix :]
        individual["roots"] = [rest[: len(rest) - suffix] for rest in rests]
        levels.append({"individual": individual})
    counts = [count for _, count in found.domains]
    one = {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts}
    part = {"domainCount": len(counts), "valuesPerLevel": levels, "podCounts": one}
    return {"levels": list(found.levels), "slices": [part]}


def naive(wire: dict[str, Any]) -> list[tuple[tuple[str, ...], int]]:
    """The domains one by one, each asked for on its own."""
    found = []
    for part in wire["slices"]:
        for index in range(part["domainCount"]):
            values = []
            for level in part["valuesPerLevel"]:
                if "universal" in level:
                    values.append(level["universal"])
                    continue
                own = level["individual"]
                values.append(own.get("prefix", "") + own["roots"][index] + own.get("suffix", ""))
            pods = part["podCounts"]
            count = pods["universal"] if "universal" in pods else pods["individual"][index]
            found.append((tuple(values), count))
    return found


def written(wire: object) -> int:
    return len(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode())


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Any shape the schema lets through: also ones that say less compactly what they mean."""
    width = draw(st.integers(1, 3))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 5))
        levels: list[dict[str, Any]] = []
        for _ in range(width):
            if draw(st.integers(0, 3)) == 0:
                levels.append({"universal": draw(names)})
                continue
            own: dict[str, Any] = {"roots": [draw(names)[:20] for _ in range(size)]}
            for end in ("prefix", "suffix"):
                if draw(st.booleans()):
                    own[end] = draw(names)[:20]
            levels.append({"individual": own})
        counts = draw(counts_of(20))[:size]
        universal = draw(st.booleans())
        pods: dict[str, Any] = {"universal": counts[0]} if universal else {"individual": counts}
        parts.append({"domainCount": size, "valuesPerLevel": levels, "podCounts": pods})
    return {"levels": [f"level-{i}" for i in range(width)], "slices": parts}


def schema() -> jsonschema.Draft202012Validator:
    (version,) = (
        version
        for version in yaml.safe_load(CRD.read_text())["spec"]["versions"]
        if version["name"] == "v1beta2"
    )
    found = version["schema"]["openAPIV3Schema"]
    for name in ("status", "admission", "podSetAssignments"):
        found = found["properties"][name]
    return jsonschema.Draft202012Validator(found["items"]["properties"]["topologyAssignment"])


SCHEMA: Final = schema()


@settings(deadline=None)
@given(assignments() | runs())
@example(TopologyAssignment(("l",), ((("aa",), 1), (("aaa",), 1))))
@example(TopologyAssignment(("l",), ((("",), 1), (("a",), 1))))
@example(TopologyAssignment(("l",), ((("a",), 1), (("a\0",), 1))))
@example(TopologyAssignment(("l", "m"), ((("a", "b"), 1), (("a", "bb"), 2))))
@pytest.mark.requirement("TAS-11")
@pytest.mark.field_note("C23")
def test_decoding_what_was_encoded_gives_it_back_in_order(found: TopologyAssignment) -> None:
    wire = json.loads(json.dumps(encode(found)))
    assert decode(wire) == found
    assert decode(wire).count == sum(count for _, count in found.domains)
    assert naive(wire) == list(found.domains)


@settings(deadline=None)
@given(assignments() | runs())
@pytest.mark.requirement("TAS-12")
def test_encoded_assignments_keep_the_rules_of_the_schema(found: TopologyAssignment) -> None:
    wire = encode(found)
    assert list(SCHEMA.iter_errors(wire)) == []
    for part in wire["slices"]:
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
@given(assignments() | runs())
@pytest.mark.requirement("TAS-30")
def test_slices_never_take_more_than_one_slice_would(found: TopologyAssignment) -> None:
    assert encoded_size(found) == written(encode(found)) <= written(single_slice(found))


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(shapes())
@pytest.mark.requirement("TAS-11")
def test_any_legal_shape_is_read_as_it_is_meant(wire: dict[str, Any]) -> None:
    expected = naive(wire)
    assert list(SCHEMA.iter_errors(wire)) == []
    legal = (
        len({values for values, _ in expected}) == len(expected)
        and max(len(value) for values, _ in expected for value in values) <= 63
        and sum(count for _, count in expected) <= MAX_PODS
    )
    if legal:
        assert list(decode(wire).domains) == expected
    else:
        with pytest.raises(AssignmentError, match=r"^slices"):
            decode(wire)


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["levels", "slices", "domainCount", "valuesPerLevel", "podCounts", "universal"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(shapes(), json_values, st.data())
@pytest.mark.requirement("TAS-12")
def test_a_shape_with_one_field_spoilt_is_read_or_rejected_by_its_path(
    wire: dict[str, Any], value: object, data: st.DataObject
) -> None:
    place: Any = wire
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    try:
        found = decode(wire)
    except AssignmentError as error:
        assert str(error).startswith(("levels", "slices"))  # noqa: PT017 - an error is one of two outcomes
    else:
        assert list(found.domains) == naive(wire)

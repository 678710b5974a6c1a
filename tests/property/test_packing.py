"""What must hold of placements behind gates of ours, whatever is asked."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import PodSetRequest
from tests.unit.assigner.core.clusters import BLOCK, HOST, LEVELS, RACK, ask, capacity, podset

FEWEST = "RackgateFewestDomains"
BOTH = "RackgateRequiredAndPreferred"
PACKING = (FEWEST, BOTH, "RackgateBestFitBelowSlices")
FEW = settings(max_examples=50, deadline=None)


class Case(NamedTuple):
    room: Capacity
    podsets: list[PodSetRequest]


@st.composite
def rooms(draw: st.DrawFn) -> Capacity:
    """Up to 3 blocks of up to 3 racks of up to 3 hosts, some of them in use."""
    hosts: dict[str, int] = {}
    for block in range(draw(st.integers(1, 3))):
        for rack in range(draw(st.integers(1, 3))):
            for _ in range(draw(st.integers(1, 3))):
                hosts[f"b{block}/r{block}{rack}/x{len(hosts):02}"] = draw(st.integers(0, 9))
    room = capacity(hosts)
    for leaf in range(room.tree.leaf_count):
        room.charge(leaf, {"cpu": 1}, draw(st.integers(0, 2)))
    return room


@st.composite
def cases(draw: st.DrawFn, *, led: bool = True) -> Case:
    kind = draw(st.sampled_from(["required", "preferred", "both", "none", "slices"]))
    level = draw(st.integers(0, 2))
    asked: dict[str, Any] = {}
    if kind in ("required", "preferred"):
        asked[kind] = LEVELS[level]
    if kind == "both":
        coarser = draw(st.integers(0, level))
        asked = {"required": LEVELS[coarser], "preferred": LEVELS[level]}
    size = 1
    if kind == "slices" or (kind != "none" and draw(st.integers(0, 3)) == 0):
        size = draw(st.integers(1, 4))
        at = draw(st.integers(level if kind != "slices" else 0, 2))
        asked["slices"] = {LEVELS[at]: size}
    cpu = draw(st.integers(1, 3))
    count = size * draw(st.integers(0, 20 // size))
    workers = podset(count, name="w", cpu=cpu, group="g", **asked)
    if not led or count < 1 or draw(st.booleans()):
        return Case(draw(rooms()), [workers])
    return Case(
        draw(rooms()), [workers, podset(1, name="l", cpu=draw(st.integers(1, 3)), group="g")]
    )


def domains(case: Case, placed: dict[str, dict[str, int]], level: int) -> set[tuple[str, ...]]:
    tree = case.room.tree
    paths = {path[-1]: path[: level + 1] for path in tree.paths[-1]}
    return {paths[host] for spots in placed.values() for host in spots}


def places(case: Case, gates: dict[str, bool]) -> dict[str, dict[str, int]] | None:
    """Pods by PodSet and host, None when refused."""
    answer = ask(case.room, *case.podsets, gates=gates)
    if answer.failure is not None:
        return None
    return {
        name: {values[-1]: count for values, count in found.domains}
        for name, found in answer.assignments.items()
    }


@pytest.mark.parametrize("gate", PACKING)
@FEW
@given(case=cases())
def test_what_fits_by_default_fits_and_what_does_not_does_not(gate: str, case: Case) -> None:
    # By default the preferred level of two is ignored, and forbids nothing.
    default, ours = places(case, {}), places(case, {BOTH: True, gate: True})
    assert (default is None) == (ours is None)


@FEW
@given(case=cases(), gates=st.sets(st.sampled_from(PACKING)))
def test_every_pod_gets_room_within_what_was_asked(case: Case, gates: set[str]) -> None:
    placed = places(case, dict.fromkeys(gates, True))
    if placed is None:
        return
    free = dict(zip((path[-1] for path in case.room.tree.paths[-1]), case.room.free, strict=True))
    taken: Counter[str] = Counter()
    for asked in case.podsets:
        assert sum(placed[asked.name].values()) == asked.count
        for host, count in placed[asked.name].items():
            taken[host] += count * asked.requests["cpu"]
    row = case.room.rows["cpu"]
    assert all(free[host][row] >= amount for host, amount in taken.items())
    request = case.podsets[0].topology
    if request is None:
        return
    if request.required and case.podsets[0].count:
        assert len(domains(case, placed, LEVELS.index(request.required))) == 1
    for layer in request.slices:
        level = LEVELS.index(layer.topology)
        paths = {path[-1]: path[: level + 1] for path in case.room.tree.paths[-1]}
        pods: Counter[tuple[str, ...]] = Counter()
        for host, count in placed["w"].items():
            pods[paths[host]] += count
        assert all(count % layer.size == 0 for count in pods.values())


@FEW
@given(case=cases())
def test_fewest_domains_is_never_worse_than_the_default(case: Case) -> None:
    """Coarsest level that was asked about first; hosts alone for pods without a wish."""
    default, ours = places(case, {BOTH: True}), places(case, {BOTH: True, FEWEST: True})
    if default is None or ours is None:
        return
    first = 2 if case.podsets[0].topology is None else 0
    numbers = [
        [len(domains(case, placed, level)) for level in range(first, 3)]
        for placed in (default, ours)
    ]
    assert numbers[1] <= numbers[0]
    assert places(case, {BOTH: True, FEWEST: True}) == ours


@FEW
@given(room=rooms(), count=st.integers(1, 25), level=st.sampled_from([BLOCK, RACK, HOST]))
def test_no_smaller_set_of_blocks_takes_a_preferred_request(
    room: Capacity, count: int, level: str
) -> None:
    case = Case(room, [podset(count, name="w", preferred=level)])
    ours = places(case, {FEWEST: True})
    if ours is None:
        return
    free = room.free[:, room.rows["cpu"]].clip(0)
    blocks: Counter[str] = Counter()
    for path, cpu in zip(room.tree.paths[-1], free.tolist(), strict=True):
        blocks[path[0]] += cpu
    number = next(
        k
        for k in range(1, 4)
        if any(sum(chosen) >= count for chosen in combinations(blocks.values(), k))
    )
    assert len(domains(case, ours, 0)) == number


@FEW
@given(case=cases(), gates=st.sets(st.sampled_from(PACKING)))
def test_two_levels_keep_the_finer_one_whenever_one_domain_is_enough(
    case: Case, gates: set[str]
) -> None:
    request = case.podsets[0].topology
    if request is None or not request.required or not request.preferred or request.slices:
        return
    placed = places(case, dict.fromkeys(gates | {BOTH}, True))
    alone = [
        PodSetRequest(
            one.name,
            one.count,
            one.requests,
            podset(1, required=request.preferred).topology,
            one.group,
        )
        for one in case.podsets
    ]
    if placed is None or not case.podsets[0].count or places(Case(case.room, alone), {}) is None:
        return
    assert len(domains(case, placed, LEVELS.index(request.preferred))) == 1

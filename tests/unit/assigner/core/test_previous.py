"""Growing and shrinking around a previous assignment, and even spread: both behind gates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.experimental.balanced import entropy
from rackgate_assigner.topology.model import PodSetRequest
from tests.unit.assigner.core.clusters import (
    BLOCK,
    HOST,
    RACK,
    ask,
    capacity,
    podset,
    refusal,
    spots,
)

RESIZE = {"ElasticJobsViaWorkloadSlicesWithTAS": True}
EVEN = {"TASBalancedPlacement": True}
ROOMS = {"b1/r1/x1": 4, "b1/r1/x2": 4, "b1/r2/x3": 4}


def before(**pods: int) -> TopologyAssignment:
    return TopologyAssignment((HOST,), tuple(((host,), count) for host, count in pods.items()))


def workers(count: int, **pods: int) -> PodSetRequest:
    return podset(count, group="g", previous=before(**pods))


def leader(pods: Mapping[str, int] | None = None, cpu: int = 1) -> PodSetRequest:
    previous = None if pods is None else before(**pods)
    return podset(1, cpu=cpu, name="leader", group="g", previous=previous)


def test_growing_places_only_the_difference() -> None:
    answer = ask(capacity(ROOMS), podset(6, previous=before(x2=2, x3=2)), gates=RESIZE)
    assert spots(answer) == {"x2": 4, "x3": 2}


def test_shrinking_keeps_domains_from_the_front() -> None:
    answer = ask(capacity(ROOMS), podset(3, previous=before(x2=2, x3=2)), gates=RESIZE)
    assert spots(answer) == {"x2": 2, "x3": 1}


def test_kept_pods_take_room_from_later_podsets() -> None:
    kept = podset(4, previous=before(x1=4))
    later = podset(4, name="later", required=HOST)
    answer = ask(capacity(ROOMS), kept, later, gates=RESIZE)
    assert spots(answer, "later") == {"x2": 4}


@pytest.mark.field_note("E14")
def test_the_leader_stays_where_it_is() -> None:
    answer = ask(capacity(ROOMS), leader({"x3": 1}), workers(8, x1=2), gates=RESIZE)
    assert spots(answer, "leader") == {"x3": 1}
    assert sum(spots(answer).values()) == 8


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_new_leader_is_placed_also_when_the_workers_do_not_grow(count: int) -> None:
    answer = ask(capacity(ROOMS), leader(), workers(count, x1=2), gates=RESIZE)
    assert sum(spots(answer, "leader").values()) == 1
    assert sum(spots(answer).values()) == count


def test_when_the_difference_has_no_place_only_the_workers_are_rejected() -> None:
    answer = ask(capacity(ROOMS), leader({"x3": 1}), workers(40, x1=2), gates=RESIZE)
    assert refusal(answer) == 'topology "t" allows to fit only 9 out of 38 pod(s)'
    assert answer.failure is not None
    assert answer.failure.members == ("main",)


@pytest.mark.parametrize(
    "podsets",
    [
        [podset(2, previous=before(gone=2))],
        [leader({"gone": 1}), workers(2, x2=2)],
    ],
)
def test_a_previous_assignment_that_is_gone_does_not_bind(podsets: list[PodSetRequest]) -> None:
    assert spots(ask(capacity(ROOMS), *podsets, gates=RESIZE)) != {"x2": 2}


@pytest.mark.field_note("C16")
def test_absurd_previous_counts_do_not_overflow() -> None:
    kept = podset(2**70, previous=before(x1=2**70))
    later = podset(1, name="later", required=HOST)
    answer = ask(capacity(ROOMS), kept, later, gates=RESIZE)
    assert spots(answer, "later") == {"x2": 1}


def test_without_the_gate_a_previous_assignment_is_ignored() -> None:
    assert spots(ask(capacity(ROOMS), podset(2, previous=before(x3=2)))) == {"x1": 2}


def test_even_spread_gives_every_domain_the_same_share() -> None:
    rooms = {"b1/r1/x1": 6, "b1/r1/x2": 5, "b1/r1/x3": 2}
    wants = podset(8, preferred=HOST)
    assert spots(ask(capacity(rooms), wants)) == {"x1": 6, "x3": 2}
    assert spots(ask(capacity(rooms), wants, gates=EVEN)) == {"x1": 4, "x2": 4}


@pytest.mark.field_note("P4")
def test_even_spread_falls_back_to_the_usual_way() -> None:
    rooms = {"b1/r1/x1": 6, "b2/r1/x2": 6}
    wants = podset(9, preferred=RACK, slices={RACK: 3})
    usual = ask(capacity(rooms), wants)
    assert ask(capacity(rooms), wants, gates=EVEN) == usual
    assert ask(capacity({}), podset(1, preferred=BLOCK), gates=EVEN).failure is not None
    assert ask(capacity({}), podset(0, preferred=BLOCK), gates=EVEN).failure is not None


def test_entropy_is_largest_for_an_even_spread() -> None:
    assert entropy(np.array([2, 2, 0])) == 1.0
    assert entropy(np.array([4, 0, 0])) == 0.0
    assert entropy(np.array([0])) == 0.0
    assert 0.0 < entropy(np.array([3, 1])) < 1.0

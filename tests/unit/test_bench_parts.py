"""The pure parts of the benches: what they check, count and read."""

from __future__ import annotations

import math
import re

import pytest

from bench.measuring.flapping import patch
from bench.measuring.load import Outcome, pooled
from bench.measuring.scrape import parse, quantile
from bench.placed import Assigned, Place, misplaced
from bench.ungate_memory import Memory, bytes_per_pod
from bench.ungate_world import OURS, Shape, admission, pod
from rackgate.api import names
from rackgate.topology.assignment import TopologyAssignment, decode
from tests.support.objects import HOST

RACKS = {"a1": "r1", "a2": "r1", "b1": "r2"}
OWNER = {"kind": "ConfigMap", "name": "o", "uid": "u", "controller": True}


def given(*hosts: tuple[str, int], now: tuple[tuple[str, int], ...] | None = None) -> Assigned:
    def made(counts: tuple[tuple[str, int], ...]) -> TopologyAssignment:
        return TopologyAssignment((HOST,), tuple(((host,), count) for host, count in counts))

    return Assigned(made(hosts), made(now or hosts))


def places(*nodes: str) -> list[Place]:
    return [Place("train", rank, node) for rank, node in enumerate(nodes)]


def wrong(found: list[Place], assigned: Assigned | None) -> list[str]:
    known = {"train": assigned} if assigned else {}
    return misplaced(found, RACKS, known, jobs=1, pods=3)


def test_pods_by_rank_in_one_rack_are_in_their_place() -> None:
    assert wrong(places("a1", "a1", "a2"), given(("a1", 2), ("a2", 1))) == []


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (("a1", "a1"), "not every rank of 3 is bound once"),
        (("a1", "a1", ""), "not every rank of 3 is bound once"),
        (("a1", "a1", "b1"), "split over racks r1, r2"),
        (("a1", "a2", "a1"), r"ranks \[1, 2\] are not where the assignment says"),
    ],
)
def test_what_is_not_in_its_place_is_reported(nodes: tuple[str, ...], said: str) -> None:
    lines = wrong(places(*nodes), given(("a1", 2), ("a2", 1)))
    assert re.search(said, "\n".join(lines)), lines


def test_a_job_without_pods_or_assignment_is_reported() -> None:
    assert misplaced([], RACKS, {}, jobs=1, pods=3) == ["0 Jobs have pods, not 1"]
    assert wrong(places("a1", "a1", "a2"), None) == ["train: no assignment"]


def test_after_a_replacement_only_counts_are_held_against_a_job() -> None:
    assigned = given(("a1", 2), ("b1", 1), now=(("a1", 2), ("a2", 1)))
    assert wrong(places("a1", "a2", "a1"), assigned) == []
    lines = wrong(places("a1", "a2", "a2"), assigned)
    assert lines == ["train: more pods than assigned on a2"]


def test_a_workloads_pods_lie_side_by_side_in_the_order_of_ranks() -> None:
    shape = Shape(nodes=3, workloads=2, pods=6)
    assert (shape.each, shape.total, shape.per_node) == (3, 6, 2)
    hosts = [shape.host(number) for number in range(6)]
    assert hosts == [f"bench-n0000{n}" for n in (0, 0, 1, 1, 2, 2)]
    (assigned,) = admission(1, shape)["admission"]["podSetAssignments"]
    domains = decode(assigned["topologyAssignment"]).domains
    assert domains == ((("bench-n00001",), 1), (("bench-n00002",), 2))
    made = pod(OURS, 4, shape, OWNER)
    assert made["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] == "ours-001"
    assert made["metadata"]["labels"][names.COMPLETION_INDEX_LABEL] == "1"


def test_a_quantile_counts_only_what_was_observed_in_between() -> None:
    def seen(first: int, second: int, total: int) -> str:
        counts = zip(("0.01", "0.05", "+Inf"), (first, second, total), strict=True)
        buckets = "".join(f'lag_bucket{{le="{bound}"}} {count}\n' for bound, count in counts)
        return f"# TYPE lag histogram\n{buckets}lag_sum 1\nlag_count {total}\n"

    before, after = parse(seen(50, 90, 100)), parse(seen(148, 189, 200))
    assert quantile(before, after, "lag", 0.98) == 0.01
    assert quantile(before, after, "lag", 0.99) == 0.05
    assert quantile(before, after, "lag", 1.0) == math.inf
    assert math.isnan(quantile(after, after, "lag", 0.5))


def test_outcomes_of_generators_add_up() -> None:
    both = pooled([Outcome([1.0], [0.1], 1, 0, 0.5), Outcome([2.0], [0.2], 0, 2, 0.25)])
    assert both == Outcome([1.0, 2.0], [0.1, 0.2], 1, 2, 0.75)


def test_bytes_of_a_pod_are_what_more_pods_add() -> None:
    few, many = Memory(1000, 60.0, 50.0, 60.0, 1.0), Memory(2000, 61.0, 51.0, 62.0, 1.0)
    assert bytes_per_pod(few, many) == pytest.approx(1048.576)


def test_a_flap_is_taken_back_by_the_same_means() -> None:
    for by_cordon in (True, False):
        away, back = (patch("n", ready=ready, by_cordon=by_cordon) for ready in (False, True))
        assert away[0] == back[0]
        assert away[1] != back[1]

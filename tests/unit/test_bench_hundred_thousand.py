"""What `bench.hundred_thousand` finds wrong with admissions."""

from __future__ import annotations

import pytest

from bench.hundred_thousand import AdmittedPods, elsewhere, faults
from bench.measuring.world import Size

SIZE = Size(nodes=4, rack=2, jobs=2, pods=150)
RACKS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
FIRST = AdmittedPods("large-0000", {"a1": 100, "a2": 50})
SECOND = AdmittedPods("large-0001", {"b1": 100, "b2": 50})


def test_each_job_in_one_rack_and_no_host_too_full_is_right() -> None:
    assert faults([SECOND, FIRST], RACKS, SIZE) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([FIRST], "1 Workloads are admitted"),
        ([FIRST, SECOND, FIRST], "3 Workloads are admitted"),
        ([FIRST, FIRST], "2 Workloads are admitted"),
        ([FIRST, AdmittedPods("large-0001", {"b1": 100})], "100 pods have a place, not 150"),
        ([FIRST, AdmittedPods("large-0001", {"a2": 50, "b1": 100})], "split over racks a, b"),
        ([FIRST, AdmittedPods("large-0001", {"b1": 101, "b2": 49})], "1 hosts have more pods"),
        ([FIRST, AdmittedPods("large-0001", {"a2": 60, "a1": 90})], "2 hosts have more pods"),
    ],
)
def test_what_is_wrong_is_reported(given: list[AdmittedPods], words: str) -> None:
    assert any(words in line for line in faults(given, RACKS, SIZE))


def test_pods_on_other_hosts_than_admitted_are_reported() -> None:
    bound = {("large-0000", "a1"): 100, ("large-0000", "a2"): 50}
    assert elsewhere([FIRST], bound) == []
    words = ["large-0000: its pods are not where it was admitted"]
    for change in ({("large-0000", "a2"): 49}, {("large-0000", "b1"): 1}, {("large-0000", ""): 1}):
        assert elsewhere([FIRST], bound | change) == words
    assert elsewhere([FIRST], {}) == words

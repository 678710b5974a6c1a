"""The phase of a gang group from those of its pods."""

from __future__ import annotations

from collections import Counter

import pytest

from rackgate.gang.forms.expand import expand
from rackgate.gang.topology_requests import GangPodSet
from rackgate.jobframework.generic_job import JobOutcome
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import Admission, Workload, WorkloadStatus
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.status.gang_status import Use, summarize
from rackgate_assigner.gangs.status.phases import PodPhase, gang_phase, least_far, pod_phase


@pytest.mark.requirement("STR-17")
@pytest.mark.parametrize(
    ("pods", "least", "expected"),
    [
        # P: pending, R: running, S: succeeded, F: failed, U: unknown.
        ("", 4, "Pending"),
        ("PPPP", 4, "Pending"),
        ("RRRP", 4, "Pending"),
        ("RRR", 4, "Pending"),
        ("RRRR", 4, "Running"),
        ("RRRRP", 4, "Running"),
        ("SRRR", 4, "Running"),
        ("SSSSR", 4, "Running"),
        ("SSSSP", 4, "Running"),
        ("SSSS", 4, "Succeeded"),
        ("SSSSF", 4, "Succeeded"),
        ("RRRU", 4, "Unknown"),
        ("RRUP", 4, "Pending"),
        ("RRRRU", 4, "Running"),
        ("RRRF", 4, "Failed"),
        ("RRRFP", 4, "Pending"),
        ("FFFF", 4, "Failed"),
        ("RRRRF", 4, "Running"),
        # No gang: each pod counts.
        ("", 0, "Pending"),
        ("RRS", 0, "Running"),
        ("RRP", 0, "Pending"),
        ("RRF", 0, "Failed"),
        ("SS", 0, "Succeeded"),
    ],
)
def test_the_phase_of_a_gang_follows_from_its_least_number_of_pods(
    pods: str, least: int, expected: str
) -> None:
    letters = {phase.value[0]: phase for phase in PodPhase}
    assert gang_phase(Counter(letters[letter] for letter in pods), least) == expected


@pytest.mark.requirement("STR-17")
def test_the_gang_that_is_least_far_stands_for_all() -> None:
    found = list(PodPhase)
    order = []
    while found:
        first = least_far(found)
        assert first is not None
        order.append(str(first))
        found.remove(first)
    assert order == ["Failed", "Unknown", "Pending", "Running", "Succeeded"]
    assert least_far([]) is None


def test_a_phase_that_is_not_known() -> None:
    assert pod_phase("") == "Pending", "the kubelet has not written any"
    assert pod_phase("Paused") == "Unknown"


TWO = {
    "gangGroups": [
        {"name": "a", "minCount": 2, "selector": {"key": "role", "values": ["a"]}},
        {"name": "b", "minCount": 2, "selector": {"key": "role", "values": ["b"]}},
    ]
}
PODSETS = (GangPodSet("one", 2, {"role": "a"}), GangPodSet("two", 2, {"role": "b"}))


def admitted() -> Workload:
    at = Condition("Admitted", "True", last_transition_time="2026-08-01T12:00:00Z")
    status = WorkloadStatus(conditions=(at,), admission=Admission("cq"))
    return Workload(metadata=Meta(name="k", uid="u"), status=status)


def phases(use: Use | None, last: Use | None = None) -> tuple[str | None, dict[str, str]]:
    gang = GangWorkload(Meta(name="w", generation=1), TWO, expand(TWO))
    fields = summarize(gang, use, last=last).fields
    listed = {one["name"]: one["phase"] for one in fields.get("gangGroups", [])}
    return fields.get("podPhase"), listed


@pytest.mark.requirement("STR-17")
def test_the_groups_of_a_job() -> None:
    assert phases(Use("train", None, PODSETS)) == (None, {}), "it has no pods"
    started = Use("train", admitted(), PODSETS)
    assert phases(started) == ("Pending", {"a": "Pending", "b": "Pending"})
    some = {("one", PodPhase.RUNNING): 2, ("two", PodPhase.PENDING): 2}
    pulling = Use("train", admitted(), PODSETS, {"one": 2, "two": 2}, phases=some)
    assert phases(pulling) == ("Pending", {"a": "Running", "b": "Pending"})
    some = {("one", PodPhase.RUNNING): 1, ("two", PodPhase.RUNNING): 2}
    partly = Use("train", admitted(), PODSETS, {"one": 1, "two": 2}, done={"one": 1}, phases=some)
    assert phases(partly) == ("Running", {"a": "Running", "b": "Running"})


@pytest.mark.requirement("STR-17")
def test_the_groups_of_a_job_that_is_over() -> None:
    won = Use("train", admitted(), PODSETS, outcome=JobOutcome(failed=False, message=""))
    assert phases(None, won) == ("Succeeded", {"a": "Succeeded", "b": "Succeeded"})
    failed = JobOutcome(failed=True, message="")
    lost = Use("train", admitted(), PODSETS, done={"one": 2}, outcome=failed)
    assert phases(None, lost) == ("Failed", {"a": "Succeeded", "b": "Failed"})


def test_pods_that_are_done_count_as_bound() -> None:
    use = Use("train", admitted(), PODSETS, {"one": 1, "two": 2}, done={"one": 1})
    gang = GangWorkload(Meta(name="w", generation=1), TWO, expand(TWO))
    found = summarize(gang, use)
    assert found.fields["members"] == "4/4"
    assert found.changes[-1].reason == "Running"

"""Gangs in the ungater: what is decoded, counted and reported, and when."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.gang.forms.expand import expand
from rackgate_ungater.state_machine.child_jobs import decode_job
from rackgate_ungater.state_machine.events import JobSeen, PodGone, PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gang_waits import (
    GANG_WAITING_S,
    MISMATCH_EVERY_S,
    WORKLOAD_MISSING_S,
    GangWaits,
)
from rackgate_ungater.state_machine.gang_workloads import GangWorkload, decode_gang_workload
from rackgate_ungater.state_machine.gangs import GangDecision, HeldPods, progress, run_of
from rackgate_ungater.state_machine.gated_objects import GangPod, WorkloadKey, decode_pod
from rackgate_ungater.state_machine.queue import Backlog
from rackgate_ungater.state_machine.records import Timeouts
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.unit.ungater.builders import (
    OWNER,
    R1,
    PodBuilder,
    gang_pod,
    pod,
    podset,
    where,
    workload,
)

KEY = WorkloadKey("team/train")
FOREIGN = ("example.com/data",)


def gangs(**spec: Any) -> GangWorkload:
    spec = spec or {"gangGroups": [{"name": "gg", "minCount": 3}]}
    return GangWorkload("team", "train", "w", "1", expand(spec))


def machine_with(*pods: GangPod, gang: GangWorkload | None = None) -> StateMachine:
    machine = StateMachine(Timeouts())
    machine.handle(WorkloadSeen(workload(podset((R1, 4)), admitted_at="2026-01-01T00:00:00Z")))
    for one in pods:
        machine.handle(PodSeen(one))
    if gang is not None:
        machine.set_gang_workload("team/train", gang)
    return machine


def member(number: int, **fields: Any) -> GangPod:
    return gang_pod(pod(number).rank(number).build(), **fields)


# What the watches deliver.


def test_a_pod_of_a_gang_as_the_watch_delivers_it() -> None:
    document = {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "labels": {"role": "a", "index": "7"},
            "annotations": {
                names.GANG_LINK_ANNOTATION: "train",
                names.GANG_RUN_ANNOTATION: "0123456789",
            },
        },
        "spec": {"schedulingGates": [{"name": "z/z"}, {"name": names.GANG_GATE}, {"name": "a/a"}]},
        "status": {"phase": "Succeeded"},
    }
    found = decode_pod(msgspec.json.encode(document), gangs=True)
    assert isinstance(found, GangPod)
    assert (found.link_key, found.run, found.succeeded) == ("team/train", "0123456789", True)
    assert found.foreign_gates == ("a/a", "z/z")
    assert found.labels == {"role": "a", "index": "7"}
    assert not isinstance(decode_pod(msgspec.json.encode(document)), GangPod)


@pytest.mark.parametrize(
    ("annotations", "gates", "is_member"),
    [
        ({}, (), False),
        ({names.GANG_LINK_ANNOTATION: "train"}, (), True),
        ({}, (names.GANG_GATE,), True),
    ],
)
def test_a_pod_with_a_link_or_the_gate_is_one_of_a_gang(
    annotations: dict[str, str], gates: tuple[str, ...], is_member: bool
) -> None:
    document = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"schedulingGates": [{"name": gate} for gate in gates]},
    }
    found = decode_pod(msgspec.json.encode(document), gangs=True)
    assert isinstance(found, GangPod) is is_member


def test_a_workload_of_gangs_is_expanded_without_templates_and_requests() -> None:
    spec = {
        "replicaMode": "Unreplicated",
        "topologyRequest": {"required": "rack"},
        "gangGroups": [
            {
                "name": "gg",
                "selector": {"key": "role", "values": ["a"]},
                "reschedulingPolicy": "TerminateAll",
                "eqGroups": [{"name": "big", "count": 3, "template": {"containers": []}}],
            }
        ],
    }
    document = {"metadata": {"name": "w", "namespace": "team", "uid": "u"}, "spec": spec}
    found = decode_gang_workload(msgspec.json.encode(document))
    assert found.key == "team/w"
    assert "topologyRequest" not in found.spec
    (group,) = found.spec["gangGroups"]
    assert group["selector"] == {"key": "role", "values": ["a"]}
    (equal,) = group["rankedGroups"][0]["eqGroups"]
    assert equal == {"name": "big", "minCount": 3, "maxCount": 3}
    spec["topologyRequest"] = {"required": "block"}
    assert found.has_same_gangs(decode_gang_workload(msgspec.json.encode(document)))
    spec["gangGroups"][0]["minCount"] = 2  # type: ignore[index]  # JSON
    assert not found.has_same_gangs(decode_gang_workload(msgspec.json.encode(document)))


@pytest.mark.requirement("GNG-36")
@pytest.mark.parametrize(
    ("labels", "annotations", "rank"),
    [({"r/r": "3"}, {}, 3), ({}, {"r/r": "3"}, 3), ({"r/r": "2"}, {"r/r": "3"}, 2), ({}, {}, None)],
)
def test_the_rank_of_a_pod_of_a_gang_is_in_a_label_or_an_annotation(
    labels: dict[str, str], annotations: dict[str, str], rank: int | None
) -> None:
    annotations = {names.GANG_LINK_ANNOTATION: "train", **annotations}
    document = {"metadata": {"name": "p", "labels": labels, "annotations": annotations}}
    found = decode_pod(msgspec.json.encode(document), gangs=True)
    assert found.indices.get("r/r") == rank
    assert decode_pod(msgspec.json.encode(document)).indices.get("r/r") == (
        rank if labels else None
    ), "other pods have labels only"


# How many events until a gang is complete.


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], (0, 0)),
        ([member(0)], (0, 2)),
        ([member(0), member(1)], (0, 1)),
        ([member(0), member(1), member(2)], (1, 0)),
        ([member(0), member(1), member(2, foreign=FOREIGN)], (0, 1)),
        ([member(0), member(1, foreign=FOREIGN)], (0, 2)),
    ],
)
def test_the_events_until_a_gang_can_be_complete(
    pods: list[GangPod], expected: tuple[int, int]
) -> None:
    machine = machine_with(*pods, gang=gangs())
    assert progress(machine.workload_states[KEY], machine.owners) == expected


def test_of_several_gangs_the_one_that_needs_least_counts() -> None:
    groups = [
        {"name": name, "minCount": least, "selector": {"key": "role", "values": [name]}}
        for name, least in (("a", 4), ("b", 2))
    ]
    machine = machine_with(member(0, role="a"), gang=gangs(gangGroups=groups))
    assert progress(machine.workload_states[KEY], machine.owners) == (0, 2)


def test_another_replica_may_appear_at_any_time() -> None:
    spec: dict[str, Any] = {
        "replicaMode": "ReplicatedGangs",
        "replicaKey": "replica",
        "gangGroups": [{"name": "gg", "minCount": 2}],
    }
    machine = machine_with(member(0, replica="x"), member(1, replica="x"), gang=gangs(**spec))
    assert progress(machine.workload_states[KEY], machine.owners) == (1, 2)


# A JobSet that restarts.


def of_child(job: int, attempt: int) -> PodBuilder:
    """The only pod of a child Job."""
    found = pod(f"pod-{job}-{attempt}").of(owner=f"job-{job}-{attempt}").rank(0)
    return found.label(names.JOB_INDEX_LABEL, job).label(names.RESTART_ATTEMPT_LABEL, attempt)


def jobset_with(*pods: GangPod, done: dict[str, int] | None = None) -> StateMachine:
    """A gang of two child Jobs with one pod each, of which each may be done."""
    machine = StateMachine(Timeouts())
    given = workload(podset((R1, 2)), owned_by_jobset=True, admitted_at="2026-01-01T00:00:00Z")
    given = msgspec.structs.replace(given, done_pods={"main": done} if done else {})
    machine.handle(WorkloadSeen(given))
    for job, attempt in product(range(2), range(2)):
        machine.handle(JobSeen(f"job-{job}-{attempt}", OWNER, attempt))
    for one in pods:
        machine.handle(PodSeen(one))
    machine.set_gang_workload("team/train", gangs(gangGroups=[{"name": "gg", "minCount": 2}]))
    return machine


def run_in(machine: StateMachine) -> str:
    return run_of(machine.workload_states[KEY])


@pytest.mark.requirement("GNG-12")
@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_pods_before_a_restart_of_the_jobset_do_not_start_its_gang(phase: str) -> None:
    """The watch of pods shows a new one before the old ones of another child Job are gone."""
    earlier = gang_pod(of_child(0, 0).ungated(R1).build())
    earlier = msgspec.structs.replace(
        earlier,
        run=run_in(jobset_with()),
        succeeded=phase == "Succeeded",
        terminal=phase == "Succeeded",
    )
    machine = jobset_with(earlier, gang_pod(of_child(1, 1).build()), done={"job-0-0": 1})
    assert machine.propose(KEY, 0.0).ungates == []
    assert progress(machine.workload_states[KEY], machine.owners) == (0, 1)
    machine.handle(PodGone(earlier.uid))
    assert machine.propose(KEY, 0.0).ungates == [], "its child Job exists, and had done one"
    machine.handle(PodSeen(gang_pod(of_child(0, 1).build())))
    assert where(machine.propose(KEY, 0.0).ungates) == {"pod-0-1": R1, "pod-1-1": R1}


def test_what_a_child_job_of_the_same_attempt_has_done_counts() -> None:
    machine = jobset_with(gang_pod(of_child(1, 1).build()), done={"job-0-1": 1})
    assert where(machine.propose(KEY, 0.0).ungates) == {"pod-1-1": R1}


def test_the_attempt_of_a_child_job_is_the_one_that_it_names_now() -> None:
    """A label that its user wrote and took away leaves nothing behind."""
    machine = jobset_with(gang_pod(of_child(1, 0).build()), done={"job-0-0": 1})
    newest = 1
    for attempt, exists in ((5, True), (0, False)):
        machine.handle(JobSeen("job-0-0", OWNER, attempt))
        assert bool(machine.owners.of(OWNER, ["job-0-0"], newest)) is exists


def test_a_child_job_tells_the_restart_that_created_it() -> None:
    labels = {names.RESTART_ATTEMPT_LABEL: "3"}
    document = {"metadata": {"name": "j", "uid": "u", "labels": labels}}
    assert decode_job(msgspec.json.encode(document)).attempt == 3
    document["metadata"]["labels"] = {names.RESTART_ATTEMPT_LABEL: "x"}
    assert decode_job(msgspec.json.encode(document)).attempt == 0


# When an Event is due.


def held(reason: str, message: str = "m", pods: int = 1) -> GangDecision:
    members = tuple(member(number) for number in range(pods))
    return GangDecision([], held=(HeldPods(reason, "gg", message, members, gangs()),))


@pytest.mark.parametrize(
    ("reason", "after_s"),
    [("PodsMissing", GANG_WAITING_S), ("WorkloadMissing", WORKLOAD_MISSING_S)],
)
def test_an_event_is_due_once_when_a_gang_has_waited(reason: str, after_s: float) -> None:
    waits = GangWaits()
    waits.update(KEY, held(reason), 100.0)
    assert waits.due(KEY, 100.0) == []
    assert waits.next_due_at(KEY) == 100.0 + after_s
    waits.update(KEY, held(reason, "another number"), 105.0)
    assert waits.next_due_at(KEY) == 100.0 + after_s, "it is the same wait"
    (found,) = waits.due(KEY, 100.0 + after_s)
    assert found.message == "another number"
    assert waits.next_due_at(KEY) is None
    assert waits.due(KEY, 1e6) == []


def test_a_wait_that_ended_starts_again() -> None:
    waits = GangWaits()
    waits.update(KEY, held("PodsMissing"), 100.0)
    waits.update(KEY, held("ForeignGate"), 109.0)
    assert waits.next_due_at(KEY) == 109.0 + GANG_WAITING_S
    waits.update(KEY, GangDecision([]), 110.0)
    assert waits.next_due_at(KEY) is None
    waits.update(KEY, held("PodsMissing"), 120.0)
    assert waits.next_due_at(KEY) == 120.0 + GANG_WAITING_S
    waits.forget(KEY)
    assert waits.next_due_at(KEY) is None


def test_gangs_of_one_name_in_several_workloads_are_reported_one_by_one() -> None:
    """Child Jobs of a JobSet have Workloads of gangs of their own, made from one template."""
    waits = GangWaits()
    both = [
        msgspec.structs.replace(gangs(), name=name, uid=f"uid-of-{name}") for name in ("one", "two")
    ]
    found = tuple(HeldPods("ForeignGate", "gg", own.name, (member(0),), own) for own in both)
    waits.update(KEY, GangDecision([], held=found), 100.0)
    due = waits.due(KEY, 100.0 + GANG_WAITING_S)
    assert [one.message for one in due] == ["one", "two"]
    assert waits.count("ForeignGate", lambda _: True) == 2


def test_pods_of_no_group_are_reported_at_once_and_others_after_a_minute() -> None:
    waits = GangWaits()
    waits.update(KEY, held("NoPart", "pod-0"), 100.0)
    assert len(waits.due(KEY, 100.0)) == 1
    assert waits.next_due_at(KEY) is None
    waits.update(KEY, held("NoPart", "pod-0 and pod-1", 2), 110.0)
    assert waits.due(KEY, 110.0) == []
    assert waits.next_due_at(KEY) == 100.0 + MISMATCH_EVERY_S
    assert len(waits.due(KEY, 160.0)) == 1
    assert waits.count("NoPart", lambda _: True) == 2
    assert waits.count("NoPart", lambda _: False) == 0


# Pods that wait for their gang are not late.


@pytest.mark.parametrize("gang", [gangs(), None], ids=["pod missing", "Workload missing"])
def test_pods_that_wait_for_their_gang_are_counted_by_themselves(gang: GangWorkload | None) -> None:
    machine, backlog = machine_with(member(0), member(1), gang=gang), Backlog()
    states = machine.workload_states
    for now in (100.0, 1000.0):
        backlog.update(states.values(), machine.owners, now)
        assert len(backlog.since) == 2
        assert backlog.longest_s(now) == 0
    assert backlog.longest_gang_wait_s(1000.0) == 900.0
    machine.set_gang_workload("team/train", gangs())
    machine.handle(PodSeen(member(2)))
    backlog.update(states.values(), machine.owners, 1010.0)
    assert backlog.longest_gang_wait_s(1010.0) == 0
    assert backlog.longest_s(1040.0) == 40.0, "its gang could start since the last look"

"""Pods of a JobSet, by way of its child Jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate_ungater.state_machine.child_jobs import ChildJob, decode_job
from rackgate_ungater.state_machine.events import (
    JobGone,
    JobSeen,
    PodGone,
    PodSeen,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import GatedPodSet, WorkloadKey, decode_workload
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.support.ungater_invariants import check_invariants
from tests.unit.ungater.builders import (
    INDEX,
    OWNER,
    R1,
    R2,
    PodBuilder,
    pod,
    podset,
    where,
    workload,
)

KEY = WorkloadKey("team/train")
JOB_INDEX, ATTEMPT = names.JOB_INDEX_LABEL, names.RESTART_ATTEMPT_LABEL


def child(number: int = 0, *, job: int = 0, attempt: int = 0) -> PodBuilder:
    """A pod of child Job `job`, whose UID tells the attempt, too."""
    found = pod(f"pod-{job}-{number}-{attempt}").of(owner=f"job-{job}-{attempt}")
    return found.rank(number).label(JOB_INDEX, job).label(ATTEMPT, attempt)


def machine_with(given: GatedPodSet, *pods: PodBuilder, jobs: tuple[str, ...] = ()) -> StateMachine:
    machine = StateMachine()
    machine.handle(WorkloadSeen(workload(given, owned_by_jobset=True)))
    for uid in jobs:
        machine.handle(JobSeen(uid, OWNER))
    for builder in pods:
        machine.handle(PodSeen(builder.build()))
    return machine


def released(machine: StateMachine) -> dict[str, Any]:
    check_invariants(machine)
    return where(machine.propose(KEY, 0.0).ungates)


@pytest.mark.requirement("TAS-28", "UNG-02")
def test_pods_that_come_before_their_child_job_wait_and_are_woken() -> None:
    machine = machine_with(podset((R1, 2)), child(0), child(1))
    assert released(machine) == {}
    assert machine.handle(JobSeen("job-0-0", OWNER)) == KEY
    assert released(machine) == {"pod-0-0-0": R1, "pod-0-1-0": R1}


@pytest.mark.requirement("TAS-28")
def test_pods_and_jobs_that_come_before_the_workload_are_released_with_it() -> None:
    machine = StateMachine()
    machine.handle(PodSeen(child(0).build()))
    assert machine.handle(JobSeen("job-0-0", OWNER)) is None
    row = workload(podset((R1, 1)), owned_by_jobset=True)
    assert machine.handle(WorkloadSeen(row)) == KEY
    assert released(machine) == {"pod-0-0-0": R1}


@pytest.mark.requirement("UNG-10", "UNG-13")
def test_a_released_pod_whose_child_job_is_not_seen_holds_its_place() -> None:
    """After a restart pods may be listed before the Jobs: the place is taken all the same."""
    before = child(0).ungated(R1)
    machine = machine_with(podset((R1, 2)), before, child(1), child(2), jobs=())
    machine.handle(JobSeen("job-0-0", "another-jobset"))
    assert released(machine) == {}, "all of them are another's"
    machine = machine_with(podset((R1, 1)), before, child(0, job=1), jobs=("job-1-0",))
    assert released(machine) == {}
    machine.handle(JobSeen("job-0-0", "another-jobset"))
    assert released(machine) == {"pod-1-0-0": R1}


@pytest.mark.requirement("UNG-10", "SLC-17")
def test_pods_of_a_deleted_child_job_hold_their_places_until_they_are_gone() -> None:
    old = child(0, attempt=0).ungated(R1).terminating()
    new = child(0, attempt=1)
    machine = machine_with(podset((R1, 1)), old, new, jobs=("job-0-0", "job-0-1"))
    machine.handle(JobGone("job-0-0"))
    assert released(machine) == {}
    assert machine.handle(PodGone(old.build().uid)) == KEY
    assert released(machine) == {"pod-0-0-1": R1}


@pytest.mark.requirement("UNG-02")
@pytest.mark.field_note("U8")
def test_pods_of_another_jobsets_jobs_neither_count_nor_are_released() -> None:
    machine = machine_with(podset((R1, 1)), child(0).ungated(R1), child(0, job=1), child(0, job=2))
    machine.handle(JobSeen("job-0-0", "another-jobset"))
    machine.handle(JobSeen("job-1-0", ""))
    assert released(machine) == {}
    machine.handle(JobSeen("job-2-0", OWNER))
    assert released(machine) == {"pod-2-0-0": R1}


@pytest.mark.field_note("E16")
def test_the_pods_of_a_plain_job_are_not_looked_for_among_child_jobs() -> None:
    machine = StateMachine()
    machine.handle(WorkloadSeen(workload(podset((R1, 1)))))
    machine.handle(PodSeen(child(0).ungated(R1).build()))
    machine.handle(JobSeen("job-1-0", OWNER))
    machine.handle(PodSeen(child(0, job=1).build()))
    machine.handle(PodSeen(pod(0).build()))
    assert released(machine) == {"pod-0": R1}, "strangers neither count nor are released"


@pytest.mark.requirement("UNG-01")
def test_a_child_job_reported_again_wakes_no_one() -> None:
    machine = machine_with(podset((R1, 1)), child(0))
    assert machine.handle(JobSeen("job-0-0", OWNER)) == KEY
    assert machine.handle(JobSeen("job-0-0", OWNER)) is None
    assert machine.handle(JobSeen("other", "another-jobset")) is None


@pytest.mark.requirement("RNK-02", "RNK-03", "USR-08")
def test_ranks_run_over_job_index_and_completion_index() -> None:
    given = podset(
        (R2, 4),
        (R1, 2),
        requested=True,
        pod_index_label=INDEX,
        sub_group_index_label=JOB_INDEX,
        sub_group_count=3,
    )
    pods = [child(number, job=job) for job in (2, 0, 1) for number in (1, 0)]
    machine = machine_with(given, *pods, jobs=("job-0-0", "job-1-0", "job-2-0"))
    assert released(machine) == {
        **{f"pod-{job}-{number}-0": R2 for job in (0, 1) for number in (0, 1)},
        **{f"pod-2-{number}-0": R1 for number in (0, 1)},
    }


@pytest.mark.requirement("RNK-02", "RNK-03")
def test_where_topology_is_only_implied_the_pods_say_how_many_jobs_there_are() -> None:
    pods = [
        child(number, job=job).label(names.JOB_REPLICAS_LABEL, 2)
        for job in (1, 0)
        for number in (0, 1)
    ]
    machine = machine_with(podset((R2, 2), (R1, 2)), *pods, jobs=("job-0-0", "job-1-0"))
    proposal = machine.propose(KEY, 0.0)
    assert proposal.reports == []
    assert where(proposal.ungates) == {
        "pod-0-0-0": R2,
        "pod-0-1-0": R2,
        "pod-1-0-0": R1,
        "pod-1-1-0": R1,
    }


@pytest.mark.requirement("RNK-06", "UNG-16")
def test_pods_of_an_earlier_attempt_hold_their_places_without_a_rank() -> None:
    """Not even marked for deletion yet, and their successors are there."""
    given = podset((R1, 1), (R2, 1), requested=True, pod_index_label=INDEX)
    old = [child(number, attempt=0).ungated(domain) for number, domain in ((0, R1), (1, R2))]
    new = [child(number, attempt=1) for number in (1, 0)]
    machine = machine_with(given, *old, *new, jobs=("job-0-0", "job-0-1"))
    proposal = machine.propose(KEY, 0.0)
    assert (proposal.ungates, proposal.reports) == ([], [])
    machine.handle(PodGone(old[1].build().uid))
    assert released(machine) == {"pod-0-1-1": R2}


@pytest.mark.requirement("UNG-16")
def test_pods_of_an_earlier_attempt_are_never_released() -> None:
    jobs = ("job-0-0", "job-0-1")
    machine = machine_with(podset((R1, 2)), child(0, attempt=0), child(0, attempt=1), jobs=jobs)
    assert released(machine) == {"pod-0-0-1": R1}


def test_an_attempt_counts_within_its_own_job_only() -> None:
    """One Job was made anew alone: the others are not outdated by it."""
    pods = child(0, job=0, attempt=3), child(0, job=1, attempt=0)
    machine = machine_with(podset((R1, 2)), *pods, jobs=("job-0-3", "job-1-0"))
    assert released(machine) == {"pod-0-0-3": R1, "pod-1-0-0": R1}


def test_nothing_is_kept_of_child_jobs_that_are_gone() -> None:
    machine = machine_with(podset((R1, 1)), child(0), jobs=("job-0-0",))
    machine.handle(JobGone("job-0-0"))
    machine.handle(PodGone(child(0).build().uid))
    machine.handle(WorkloadGone(KEY, "workload-uid"))
    check_invariants(machine)
    assert len(machine.owners) == 0
    assert machine.workload_states == {}


@pytest.mark.requirement("TAS-28")
def test_metadata_alone_tells_whose_job_it_is() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    meta = {
        "name": "train-main-0",
        "namespace": "team",
        "uid": "j",
        "resourceVersion": "7",
        "ownerReferences": [{**owner, "uid": "s", "controller": True}],
    }
    row = ChildJob("team", "train-main-0", "j", "7", "s")
    assert decode_job(msgspec.json.encode({"metadata": meta})) == row
    assert decode_job(b'{"metadata":{"name":"x","uid":"u"},"spec":{"suspend":1}}').owner_uid == ""
    workload_of = {"metadata": {**meta, "name": "jobset-train"}}
    assert decode_workload(msgspec.json.encode(workload_of)).owned_by_jobset


RAY_CLUSTER, SUBMITTER_JOB = "ray-cluster", "submitter-job"


def ray_machine(given: GatedPodSet, *pods: PodBuilder) -> StateMachine:
    machine = StateMachine()
    machine.handle(WorkloadSeen(workload(given, owned_by_ray_job=True)))
    for builder in pods:
        machine.handle(PodSeen(builder.build()))
    return machine


@pytest.mark.requirement("TAS-28", "UNG-02")
def test_pods_of_a_rayjob_belong_to_its_raycluster_and_its_job() -> None:
    pods = [pod("worker").of(owner=RAY_CLUSTER), pod("stranger").of(owner="another-cluster")]
    machine = ray_machine(podset((R1, 2)), *pods)
    assert released(machine) == {}, "before their controllers are seen"
    machine.handle(JobSeen("another-cluster", "another-rayjob"))
    assert released(machine) == {}
    assert machine.handle(JobSeen(RAY_CLUSTER, OWNER)) == KEY
    assert released(machine) == {"worker": R1}
    machine.handle(PodSeen(pod("submitter").of(owner=SUBMITTER_JOB).build()))
    assert machine.handle(JobSeen(SUBMITTER_JOB, OWNER)) == KEY
    assert set(released(machine)) == {"worker", "submitter"}


@pytest.mark.requirement("UNG-10", "UNG-13")
def test_pods_of_a_deleted_raycluster_hold_their_places_until_they_are_gone() -> None:
    """A retry creates another cluster while pods of the one before terminate."""
    old = pod("old").of(owner="cluster-before").ungated(R1).terminating()
    machine = ray_machine(podset((R1, 1)), old, pod("new").of(owner=RAY_CLUSTER))
    machine.handle(JobSeen(RAY_CLUSTER, OWNER))
    assert released(machine) == {}
    assert machine.handle(PodGone(old.build().uid)) == KEY
    assert released(machine) == {"new": R1}


@pytest.mark.requirement("TAS-28")
def test_a_workload_of_a_rayjob_says_so() -> None:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "train", "uid": "r"}
    meta = {"name": "w", "namespace": "team", "ownerReferences": [{**owner, "controller": True}]}
    row = decode_workload(msgspec.json.encode({"metadata": meta}))
    assert row.owned_by_ray_job
    assert row.has_children
    assert not row.owned_by_jobset

"""Ranks read from labels."""

from __future__ import annotations

import pytest

from rackgate.api.names import (
    COMPLETION_INDEX_LABEL,
    RAY_HOST_INDEX_LABEL,
    RAY_REPLICA_INDEX_LABEL,
)
from rackgate.topology.assignment import TopologyAssignment
from rackgate_ungater.state_machine.gated_objects import ELASTIC, GatedPod, GatedPodSet
from rackgate_ungater.state_machine.ranks import RankFault, RankSource, rank_source, read_ranks
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission, plan_ungating
from tests.unit.ungater.builders import INDEX, R1, R2, RANKED, admission, pod, ranked, where

JOB = "jobset.sigs.k8s.io/job-index"
REPLICA = "training.kubeflow.org/replica-index"
SUBGROUPS = RankSource(INDEX, JOB, 3)


def jobset_pod(job: int, index: int) -> GatedPod:
    return pod(f"job-{job}-{index}").label(JOB, job).rank(index).build()


@pytest.mark.requirement("RNK-03")
def test_subgroups_follow_one_another() -> None:
    pods = [jobset_pod(job, index) for job in range(3) for index in range(2)]
    ranks = read_ranks(SUBGROUPS, pods, 6)
    assert ranks == {entry.uid: rank for rank, entry in enumerate(pods)}


@pytest.mark.requirement("RNK-03")
def test_replica_0_precedes_replica_1_in_the_domains() -> None:
    pods = [jobset_pod(job, index) for job in (1, 0) for index in range(2)]
    spot = admission((R1, 2), (R2, 2), ranks=RankSource(INDEX, JOB, 2))
    assert where(plan_ungating(spot, pods).ungates) == {
        "job-0-0": R1,
        "job-0-1": R1,
        "job-1-0": R2,
        "job-1-1": R2,
    }


@pytest.mark.requirement("RNK-06")
@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([pod("x").build()], 'no number in label "batch.kubernetes.io/job-completion-index"'),
        (ranked(2), "index 2 is not in the range 0 to 1"),
        ([*ranked(1), pod("x").rank(1).build()], "both have rank 1"),
        (
            [pod("x").rank(1).offset(2).build()],
            "index 1 less its offset 2 is not in the range 0 to 1",
        ),
        ([pod("x").rank(1).offset(-1).build()], "pod-index-offset"),
    ],
)
def test_one_unknown_rank_spoils_the_order(pods: list[GatedPod], words: str) -> None:
    fault = read_ranks(RANKED, pods, 2)
    assert isinstance(fault, RankFault)
    assert words in fault.message


@pytest.mark.requirement("RNK-06")
@pytest.mark.field_note("U6")
@pytest.mark.parametrize("groups", [None, 0, -1, 4])
def test_an_impossible_subgroup_count_falls_back_instead_of_dividing(groups: int | None) -> None:
    source = RankSource(INDEX, JOB, groups)
    pods = [jobset_pod(0, 0)]
    assert isinstance(read_ranks(source, pods, 6), RankFault)
    assert where(plan_ungating(admission((R1, 6), ranks=source), pods).ungates) == {"job-0-0": R1}


@pytest.mark.requirement("RNK-06")
@pytest.mark.parametrize("entry", [jobset_pod(3, 0), jobset_pod(0, 2), pod("x").rank(0).build()])
def test_a_subgroup_or_index_out_of_range_spoils_the_order(entry: GatedPod) -> None:
    assert isinstance(read_ranks(SUBGROUPS, [entry], 6), RankFault)


@pytest.mark.field_note("U7")
def test_the_offset_annotation_shifts_the_first_rank() -> None:
    workers = [pod(f"w{n}").label(REPLICA, n).offset(1).build() for n in (1, 2)]
    assert read_ranks(RankSource(REPLICA), workers, 2) == {"uid-w1": 0, "uid-w2": 1}


def group_of(leaders: int, label: str) -> list[GatedPodSet]:
    return [
        GatedPodSet("leader", leaders, b"{}", True, label, group_name="g"),
        GatedPodSet("workers", 4, b"{}", True, label, group_name="g"),
    ]


@pytest.mark.field_note("U7")
def test_workers_of_a_podset_group_start_after_their_leader() -> None:
    leader, workers = group_of(1, REPLICA)
    assert rank_source(leader, [leader, workers]) == RankSource(REPLICA)
    assert rank_source(workers, [leader, workers]) == RankSource(REPLICA, offset=1)


@pytest.mark.field_note("U7")
def test_completion_indexes_are_never_shifted_by_a_leader() -> None:
    leader, workers = group_of(1, COMPLETION_INDEX_LABEL)
    assert rank_source(workers, [leader, workers]) == RANKED


@pytest.mark.requirement("RNK-02")
def test_a_podset_without_request_uses_completion_indexes_where_pods_have_them() -> None:
    source = rank_source(GatedPodSet("main", 2, b"{}"), [])
    assert source is not None
    assert read_ranks(source, ranked(1, 0), 2) == {"uid-pod-1": 1, "uid-pod-0": 0}
    assert read_ranks(source, [pod("x").build()], 2) is None


@pytest.mark.requirement("RNK-02")
def test_a_request_without_index_label_has_no_order() -> None:
    assert rank_source(GatedPodSet("main", 2, b"{}", True), []) is None


@pytest.mark.requirement("RNK-08")
def test_any_label_can_carry_the_order() -> None:
    source = rank_source(GatedPodSet("main", 2, b"{}", True, "example.com/order"), [])
    assert source is not None
    second, first = (pod(f"p{n}").label("example.com/order", 1 - n).build() for n in (0, 1))
    spot = admission((R1, 1), (R2, 1), ranks=source)
    assert where(plan_ungating(spot, [second]).ungates) == {"p0": R2}
    assert where(plan_ungating(spot, [second, first]).ungates) == {"p0": R2, "p1": R1}


RAY_REPLICA, RAY_HOST = RAY_REPLICA_INDEX_LABEL, RAY_HOST_INDEX_LABEL


@pytest.mark.requirement("RNK-02", "RNK-03")
def test_ray_pods_are_ordered_by_replica_and_host_where_they_are_labelled() -> None:
    row = GatedPodSet("gpu", 4, b"{}", True, RAY_HOST, RAY_REPLICA, 2)
    source = rank_source(row, [])
    assert source is not None
    pods = [
        pod(f"p{replica}{host}").label(RAY_REPLICA, replica).label(RAY_HOST, host).build()
        for replica in (1, 0)
        for host in (0, 1)
    ]
    spot = admission((R2, 2), (R1, 2), ranks=source)
    assert where(plan_ungating(spot, pods).ungates) == {"p00": R2, "p01": R2, "p10": R1, "p11": R1}


@pytest.mark.requirement("RNK-02", "RNK-06")
@pytest.mark.parametrize("labels", [(RAY_REPLICA, None, None), (RAY_HOST, RAY_REPLICA, 2)])
def test_ray_pods_without_any_index_have_no_order_and_that_is_no_fault(
    labels: tuple[str, str | None, int | None],
) -> None:
    source = rank_source(GatedPodSet("gpu", 2, b"{}", True, *labels), [])
    assert source is not None
    plan = plan_ungating(admission((R1, 2), ranks=source), [pod(n).build() for n in range(2)])
    assert len(plan.ungates) == 2
    assert plan.reports == ()
    mixed = [pod("x").label(labels[0], 0).label(RAY_REPLICA, 0).build(), pod("y").build()]
    assert isinstance(read_ranks(source, mixed, 2), RankFault), "some have it, some have not"


@pytest.mark.requirement("SLC-14")
def test_replicas_of_an_elastic_group_are_released_one_after_the_other() -> None:
    pods = [
        pod(f"p{number}{host}")
        .label(RAY_REPLICA, 9 - number)
        .label(RAY_HOST, 1 - host)
        .gates(ELASTIC)
        .build()
        for number in range(3)
        for host in range(2)
    ]
    spot = PodSetAdmission("gpu", 3, TopologyAssignment((), (((), 3),)), gates=ELASTIC)
    assert [ungate.pod.name for ungate in plan_ungating(spot, pods).ungates] == [
        "p21",
        "p20",
        "p11",
    ]


@pytest.mark.requirement("SLC-36")
def test_the_order_of_an_elastic_group_is_a_request() -> None:
    """Its counts move under the ranks: what does not fit them any more is filled as room is."""
    source = RankSource(RAY_REPLICA, implied=True)
    running = pod("a").label(RAY_REPLICA, 1).ungated(R1).build()
    pods = [running, *(pod(n).label(RAY_REPLICA, n).gates(3).build() for n in (5, 6))]
    spot = PodSetAdmission(
        "gpu", 3, TopologyAssignment(("block", "rack"), ((R1, 1), (R2, 2))), source, gates=3
    )
    plan = plan_ungating(spot, pods)
    assert where(plan.ungates) == {"pod-5": R2, "pod-6": R2}
    assert plan.reports == ()

"""Ranks read from labels."""

from __future__ import annotations

import pytest

from rackgate.api.names import COMPLETION_INDEX_LABEL
from rackgate_ungater.plan import plan_ungating
from rackgate_ungater.ranks import RankFault, RankSource, rank_source, read_ranks
from rackgate_ungater.rows import PodRow, PodSetRow
from tests.unit.ungater.builders import INDEX, R1, R2, RANKED, grant, pod, ranked, where

JOB = "jobset.sigs.k8s.io/job-index"
REPLICA = "training.kubeflow.org/replica-index"
SUBGROUPS = RankSource(INDEX, JOB, 3)


def jobset_pod(job: int, index: int) -> PodRow:
    return pod(f"job-{job}-{index}").label(JOB, job).rank(index).row()


@pytest.mark.requirement("RNK-03")
def test_subgroups_follow_one_another() -> None:
    pods = [jobset_pod(job, index) for job in range(3) for index in range(2)]
    ranks = read_ranks(SUBGROUPS, pods, 6)
    assert ranks == {entry.uid: rank for rank, entry in enumerate(pods)}


@pytest.mark.requirement("RNK-03")
def test_replica_0_precedes_replica_1_in_the_domains() -> None:
    pods = [jobset_pod(job, index) for job in (1, 0) for index in range(2)]
    spot = grant((R1, 2), (R2, 2), ranks=RankSource(INDEX, JOB, 2))
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
        ([pod("x").row()], 'no number in label "batch.kubernetes.io/job-completion-index"'),
        (ranked(2), "index 2 is not one of 0 to 1"),
        ([*ranked(1), pod("x").rank(1).row()], "both have rank 1"),
        ([pod("x").rank(1).offset(2).row()], "index 1 less its offset 2 is not one of 0 to 1"),
        ([pod("x").rank(1).offset(-1).row()], "pod-index-offset"),
    ],
)
def test_one_doubtful_rank_spoils_the_order(pods: list[PodRow], words: str) -> None:
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
    assert where(plan_ungating(grant((R1, 6), ranks=source), pods).ungates) == {"job-0-0": R1}


@pytest.mark.requirement("RNK-06")
@pytest.mark.parametrize("entry", [jobset_pod(3, 0), jobset_pod(0, 2), pod("x").rank(0).row()])
def test_a_subgroup_or_index_out_of_range_spoils_the_order(entry: PodRow) -> None:
    assert isinstance(read_ranks(SUBGROUPS, [entry], 6), RankFault)


@pytest.mark.field_note("U7")
def test_the_offset_annotation_shifts_the_first_rank() -> None:
    workers = [pod(f"w{n}").label(REPLICA, n).offset(1).row() for n in (1, 2)]
    assert read_ranks(RankSource(REPLICA), workers, 2) == {"uid-w1": 0, "uid-w2": 1}


def group_of(leaders: int, label: str) -> list[PodSetRow]:
    return [
        PodSetRow("leader", leaders, b"{}", True, label, group_name="g"),
        PodSetRow("workers", 4, b"{}", True, label, group_name="g"),
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
    source = rank_source(PodSetRow("main", 2, b"{}"), [])
    assert source is not None
    assert read_ranks(source, ranked(1, 0), 2) == {"uid-pod-1": 1, "uid-pod-0": 0}
    assert read_ranks(source, [pod("x").row()], 2) is None


@pytest.mark.requirement("RNK-02")
def test_a_request_without_index_label_has_no_order() -> None:
    assert rank_source(PodSetRow("main", 2, b"{}", True), []) is None


@pytest.mark.requirement("RNK-08")
def test_any_label_can_carry_the_order() -> None:
    source = rank_source(PodSetRow("main", 2, b"{}", True, "example.com/order"), [])
    assert source is not None
    second, first = (pod(f"p{n}").label("example.com/order", 1 - n).row() for n in (0, 1))
    spot = grant((R1, 1), (R2, 1), ranks=source)
    assert where(plan_ungating(spot, [second]).ungates) == {"p0": R2}
    assert where(plan_ungating(spot, [second, first]).ungates) == {"p0": R2, "p1": R1}

"""The ranks in front of the lines of logs."""

from __future__ import annotations

import pytest

from rackgate.jobframework.ranks import rank_of
from rackgate.wire.core import Meta
from rackgate.wire.kueue import PodSet, PodSetTopologyRequest

INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "jobset.sigs.k8s.io/job-index"
REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({}, None),
        ({INDEX: "3"}, 3),
        ({INDEX: "three"}, None),
        ({INDEX: "-1"}, None),
        ({INDEX: "9" * 30}, None),
        ({INDEX: "1", JOB: "2", REPLICAS: "4"}, 5),  # two pods of each of four child Jobs
        ({INDEX: "1", JOB: "2", REPLICAS: "0"}, 1),
        ({"ray.io/worker-group-replica-index": "7"}, 7),
    ],
)
def test_ranks_come_from_labels(labels: dict[str, str], rank: int | None) -> None:
    assert rank_of(Meta(labels=labels), PodSet(name="main", count=8)) == rank


def test_a_label_that_the_job_names_goes_first() -> None:
    request = PodSetTopologyRequest(pod_index_label="example.com/rank")
    podset = PodSet(name="main", count=8, topology_request=request)
    assert rank_of(Meta(labels={"example.com/rank": "2", INDEX: "5"}), podset) == 2
    assert rank_of(Meta(annotations={INDEX: "5"}), podset) == 5

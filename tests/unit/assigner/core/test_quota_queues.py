"""The fields of ClusterQueues and Cohorts that a tree of quota needs."""

from __future__ import annotations

import msgspec
import pytest

from rackgate.wire import kueue
from rackgate_assigner.quota.queues import (
    BorrowWithinCohort,
    ClusterQueueInfo,
    CohortInfo,
    FlavorFungibility,
    ResourceGroupInfo,
    cluster_queue_info,
)
from rackgate_assigner.quota.running import RunningWorkload, RunningWorkloads
from rackgate_assigner.quota.tree import QuotaTree

CPU = ("f", "cpu")


def test_limits_policies_and_weight_are_read_from_a_cluster_queue() -> None:
    resources = [{"name": "cpu", "nominalQuota": "2", "borrowingLimit": 1, "lendingLimit": "0"}]
    flavors = [{"name": "f", "resources": resources}]
    spec = {
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
        "preemption": {
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 7},
        },
        "flavorFungibility": {
            "whenCanBorrow": "TryNextFlavor",
            "whenCanPreempt": "MayStopSearch",
            "preference": "PreemptionOverBorrowing",
        },
        "fairSharing": {"weight": "500m"},
    }
    whole = {"metadata": {"name": "q"}, "spec": spec}
    queue = cluster_queue_info(msgspec.convert(whole, kueue.ClusterQueue))
    (group,) = queue.groups
    assert (group.nominal, group.borrowing_limit, group.lending_limit) == (
        {CPU: 2000},
        {CPU: 1000},
        {CPU: 0},
    )
    assert queue.reclaim_within_cohort == "Any"
    assert queue.borrow_within_cohort == BorrowWithinCohort("LowerPriority", 7)
    assert queue.fungibility == FlavorFungibility(
        "TryNextFlavor", "MayStopSearch", "PreemptionOverBorrowing"
    )
    assert queue.fair_weight == 0.5


def test_a_cluster_queue_without_them_has_the_defaults_of_the_api() -> None:
    queue = cluster_queue_info(kueue.ClusterQueue())
    assert (queue.reclaim_within_cohort, queue.fair_weight) == ("Never", 1.0)
    assert queue.borrow_within_cohort == BorrowWithinCohort("Never", None)
    assert queue.fungibility == FlavorFungibility(
        "MayStopSearch", "TryNextFlavor", "BorrowingOverPreemption"
    )


def test_a_tree_with_a_circle_of_cohorts_is_rejected_and_names_them() -> None:
    cohorts = [CohortInfo("a", "b"), CohortInfo("b", "a"), CohortInfo("c", "a"), CohortInfo("d")]
    with pytest.raises(ValueError, match="Cohorts are above themselves: a, b, c"):
        QuotaTree.build([], cohorts)


def test_a_stopped_cluster_queue_lends_its_quota_and_is_not_below_its_cohort() -> None:
    group = ResourceGroupInfo(("cpu",), ("f",), {CPU: 4})
    queues = [ClusterQueueInfo(name, cohort="c", groups=(group,)) for name in ("q", "stopped")]
    tree = QuotaTree.build(queues, [], stopped={"stopped"})
    assert tree.queues["q"].available(CPU) == 8
    assert [queue.name for queue in tree.cohorts["c"].queues] == ["q"]


def test_running_workloads_are_found_by_pair_and_priority_and_each_once() -> None:
    running = RunningWorkloads()
    for index, priority in enumerate((0, 1, 2)):
        usage = {CPU: 1, ("f", "gpu"): 0}
        evicted = index == 1
        running.add(RunningWorkload(f"w{index}", "u", "q", priority, 0, 0, evicted, usage))
    with pytest.raises(ValueError, match='Workload "w0" holds quota already'):
        running.add(RunningWorkload("w0", "u", "q", 0, 0, 0, False, {}))
    both = (CPU, ("f", "gpu"))
    assert {found.key for found in running.of_lower_priority("q", both, 2)} == {"w0", "w1"}
    assert len(list(running.of_lower_priority("q", both, None))) == 3
    running.remove("w1")
    assert [found.key for found in running.of_lower_priority("q", both, 2)] == ["w0"]
    assert "w1" not in running
    assert list(running.of_lower_priority("other", both, None)) == []

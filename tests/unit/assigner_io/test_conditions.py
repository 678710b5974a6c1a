from __future__ import annotations

import pytest

from rackgate.api.names import EvictionReason, FinishedReason
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.conditions import ADMISSION_TYPES, JOB_TYPES, Change, condition_list
from tests.unit.assigner_io.builders import AT, workload

NOW = "2026-08-02T00:00:00Z"
BOTH = {
    "QuotaReserved": ("True", "QuotaReserved"),
    "Admitted": ("True", "Admitted"),
    "PodsReady": ("True", "Started"),
}


def listed(own: object, changes: list[Change], **options: object) -> dict[str, dict[str, object]]:
    found = condition_list(
        own.status.conditions,  # type: ignore[attr-defined]  # a Workload of any builder
        options.pop("owned", ADMISSION_TYPES),  # type: ignore[arg-type]  # a set of condition types
        changes,
        now=NOW,
        generation=3,
        **options,  # type: ignore[arg-type]  # only `drop` is passed
    )
    return {str(c["type"]): c for c in found}


def test_a_list_is_complete_for_its_manager_and_holds_nothing_of_others() -> None:
    own = workload(admitted=True, conditions=BOTH)
    found = listed(own, conditions.evicted_conditions(own, "JobSuspended", "why"))
    assert list(found) == ["QuotaReserved", "Admitted", "Evicted", "Requeued"]
    assert list(listed(own, [], owned=JOB_TYPES)) == ["PodsReady"]
    assert listed(own, [], owned=JOB_TYPES, drop=("PodsReady",)) == {}


def test_transition_times_move_only_with_the_status() -> None:
    own = workload(conditions={"QuotaReserved": ("False", "WaitingForQuota")})
    found = listed(own, conditions.pending_conditions(own, "TopologyPlacementFailed", "no rack"))
    assert found["QuotaReserved"]["lastTransitionTime"] == AT
    assert found["QuotaReserved"]["reason"] == "TopologyPlacementFailed"
    found = listed(own, conditions.reserved_conditions(own, "cq"))
    assert found["QuotaReserved"]["lastTransitionTime"] == NOW
    assert found["QuotaReserved"]["observedGeneration"] == 3


@pytest.mark.parametrize("reason", list(EvictionReason))
def test_every_eviction_says_whether_it_requeues_by_itself(reason: EvictionReason) -> None:
    own = workload(admitted=True, conditions=BOTH)
    found = listed(own, conditions.evicted_conditions(own, reason, "why"))
    own_fault = ("JobSuspended", "JobChanged", "PodsBeyondAdmission", "GangMemberLost")
    again = reason in ("Preempted", "NodeFailures", *own_fault)
    assert (found["Requeued"]["status"] == "True") is again
    assert found["Requeued"]["reason"] == reason


@pytest.mark.parametrize(
    ("reason", "returned"),
    [
        ("ClusterQueueStopped", "ClusterQueueRestarted"),
        ("LocalQueueStopped", "LocalQueueRestarted"),
        ("Deactivated", "Reactivated"),
        ("DeactivatedDueToInvalidTopology", "Reactivated"),
        ("JobSuspended", None),
    ],
)
def test_an_admission_after_an_eviction_closes_it(reason: str, returned: str | None) -> None:
    own = workload(conditions={"Evicted": ("True", reason)})
    found = listed(own, conditions.reserved_conditions(own, "cq"))
    assert found["Evicted"]["status"] == "False"
    assert found.get("Requeued", {}).get("reason") == returned


@pytest.mark.parametrize("queue", ["ClusterQueue", "LocalQueue"])
def test_a_queue_that_is_restarted_has_its_workloads_again_before_they_fit(queue: str) -> None:
    own = workload(conditions={"Evicted": ("True", f"{queue}Stopped")})
    waiting = listed(own, conditions.pending_conditions(own, "WaitingForQuota", "m"))["Requeued"]
    assert (waiting["status"], waiting["reason"]) == ("True", f"{queue}Restarted")
    for reason in ("Suspended", "Misconfigured"):
        assert "Requeued" not in listed(own, conditions.pending_conditions(own, reason, "m"))


@pytest.mark.requirement("SLC-31")
def test_a_preemption_is_reported_with_its_cause_until_the_next_admission() -> None:
    own = workload(admitted=True, conditions=BOTH)
    found = listed(own, conditions.evicted_conditions(own, "Preempted", "why", "InClusterQueue"))
    assert list(found) == ["QuotaReserved", "Admitted", "Evicted", "Preempted", "Requeued"]
    assert (found["Evicted"]["reason"], found["Preempted"]["reason"]) == (
        "Preempted",
        "InClusterQueue",
    )
    own = workload(
        conditions={"Evicted": ("True", "Preempted"), "Preempted": ("True", "InClusterQueue")}
    )
    found = listed(own, conditions.reserved_conditions(own, "cq"))
    assert (found["Preempted"]["status"], found["Preempted"]["reason"]) == (
        "False",
        "QuotaReserved",
    )


def test_a_deactivation_names_its_cause_once() -> None:
    found = {
        c.type: c
        for c in conditions.deactivated_conditions("DeactivatedDueToInvalidTopology", "why")
    }
    assert found["Evicted"].reason == "DeactivatedDueToInvalidTopology"
    assert found["DeactivationTarget"].reason == "InvalidTopology"
    same = {c.type: c for c in conditions.deactivated_conditions("InvalidTopology", "why")}
    assert same == found


@pytest.mark.requirement("VAL-13")
def test_a_reactivated_workload_that_waits_is_requeued() -> None:
    own = workload(conditions={"Evicted": ("True", "Deactivated")})
    assert {c.reason for c in conditions.pending_conditions(own, "WaitingForQuota", "m")} == {
        "WaitingForQuota",
        "Reactivated",
    }
    inactive = workload(active=False, conditions={"Evicted": ("True", "Deactivated")})
    assert len(conditions.pending_conditions(inactive, "WaitingForQuota", "m")) == 1


@pytest.mark.parametrize(
    ("before", "ready", "reason"),
    [
        (None, False, "WaitForStart"),
        (None, True, "Started"),
        (("False", "WaitForStart"), True, "Started"),
        (("True", "Started"), False, "WaitForRecovery"),
        (("False", "WaitForRecovery"), False, "WaitForRecovery"),
        (("False", "WaitForRecovery"), True, "Recovered"),
        (("True", "Recovered"), True, "Recovered"),
    ],
)
def test_pods_ready_knows_recovery_from_start(
    before: tuple[str, str] | None, ready: bool, reason: str
) -> None:
    own = workload(conditions={"PodsReady": before} if before else {})
    assert conditions.pods_ready_conditions(own, ready=ready)[0].reason == reason


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize(
    ("before", "reason", "told", "dropped"),
    [
        (None, FinishedReason.SUCCEEDED, {"PodsReady": "Started"}, ()),
        (("True", "Started"), FinishedReason.SUCCEEDED, {}, ()),
        (("False", "WaitForRecovery"), FinishedReason.SUCCEEDED, {"PodsReady": "Recovered"}, ()),
        (None, FinishedReason.FAILED, {}, ()),
        (("True", "Started"), FinishedReason.FAILED, {}, ()),
        (("False", "WaitForRecovery"), FinishedReason.FAILED, {}, ("PodsReady",)),
    ],
)
def test_a_finished_workload_waits_for_no_pod(
    before: tuple[str, str] | None,
    reason: FinishedReason,
    told: dict[str, str],
    dropped: tuple[str, ...],
) -> None:
    own = workload(conditions={"PodsReady": before} if before else {})
    found = conditions.finished_conditions(own, reason, "m")
    assert {c.type: c.reason for c in found if c.status == "True"} == {
        "Finished": reason.value,
        **told,
    }
    words = [c.message for c in found if c.type == "PodsReady"]
    assert words == ["the job has succeeded"] * len(told)
    assert conditions.outdated_when_finished(own, reason) == dropped


def test_messages_are_cut() -> None:
    own = workload()
    assert len(conditions.pending_conditions(own, "WaitingForQuota", "x" * 5000)[0].message) == 1024

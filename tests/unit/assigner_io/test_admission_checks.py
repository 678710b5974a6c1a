"""What follows from the answers of admission checks, and what they add to pods."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.api.timestamps import parse_rfc3339
from rackgate.wire.kueue import AdmissionCheckState, PodSetUpdate, ResourceFlavor, Workload
from rackgate_assigner.admission_checks.plan import (
    AdmitAfterChecks,
    RejectWorkload,
    RetryChecks,
    WriteChecks,
    plan_checks,
)
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.patches import start_patch
from rackgate_assigner.jobs.plan import plan_job, plan_ownerless_workload
from rackgate_assigner.jobs.state import read_job_state
from rackgate_assigner.quota.queues import CheckRule
from rackgate_assigner.workload import admission_checks
from rackgate_assigner.workload.status import current_admission, leftover_ops, status_body
from tests.unit.assigner_io.builders import AT, TEMPLATE, facts, job, workload
from tests.unit.assigner_io.kind_builders import cluster, own_workload

RULES = (CheckRule("budget"), CheckRule("licence", frozenset({"other"})))
WAITS = {
    "QuotaReserved": ("True", "QuotaReserved"),
    "Admitted": ("False", "UnsatisfiedAdmissionChecks"),
}
RUNS = {"QuotaReserved": ("True", "QuotaReserved"), "Admitted": ("True", "Admitted")}
LATER = "2026-08-01T13:00:00Z"


def state(name: str = "budget", found: str = "Pending", **more: Any) -> AdmissionCheckState:
    return AdmissionCheckState(name, found, "", AT, **more)


def with_checks(own: Workload, *states: AdmissionCheckState) -> Workload:
    status = msgspec.structs.replace(own.status, admission_checks=states)
    return msgspec.structs.replace(own, status=status)


def reserved(
    *states: AdmissionCheckState,
    conditions: Any = WAITS,
    active: bool = True,
    delayed: str | None = None,
    **more: Any,
) -> Workload:
    own = workload(job(), admitted=True, conditions=conditions, active=active, **more)
    own = with_checks(own, *states)
    admission = own.status.admission
    assert admission is not None
    parts = tuple(
        msgspec.structs.replace(part, delayed_topology_request=delayed)
        for part in admission.pod_set_assignments
    )
    admission = msgspec.structs.replace(admission, pod_set_assignments=parts)
    return msgspec.structs.replace(
        own, status=msgspec.structs.replace(own.status, admission=admission)
    )


def with_message(own: Workload, message: str) -> Workload:
    """The Workload with this message of Admitted."""
    conditions = tuple(
        msgspec.structs.replace(c, message=message) if c.type == "Admitted" else c
        for c in own.status.conditions
    )
    status = msgspec.structs.replace(own.status, conditions=conditions)
    return msgspec.structs.replace(own, status=status)


# The plan.


def test_a_workload_is_admitted_when_all_checks_that_apply_are_ready() -> None:
    ready = state(found="Ready")
    assert plan_checks(reserved(ready), RULES, LATER) == AdmitAfterChecks((ready,))
    two = (*RULES, CheckRule("other", frozenset({"tas"})))
    told = "The workload has not all checks ready"
    waits = with_message(reserved(ready, state("other")), told)
    assert plan_checks(waits, two, LATER) is None
    added = plan_checks(reserved(ready), two, LATER)
    assert isinstance(added, WriteChecks)
    assert added.states == (ready, AdmissionCheckState("other", "Pending", "", LATER))
    assert isinstance(plan_checks(reserved(), (), LATER), AdmitAfterChecks)


def test_a_check_that_the_queue_no_longer_names_does_not_hold_a_workload_back() -> None:
    found = plan_checks(reserved(state("gone"), state(found="Ready")), RULES, LATER)
    assert found == AdmitAfterChecks((state(found="Ready"),))
    for answer in ("Retry", "Rejected"):
        left = reserved(state("gone", answer), state(found="Ready"))
        assert isinstance(plan_checks(left, RULES, LATER), AdmitAfterChecks)


def test_without_its_queue_a_workload_is_not_admitted_but_answers_count() -> None:
    assert plan_checks(reserved(state(found="Ready")), None, LATER) is None
    assert plan_checks(reserved(), None, LATER) is None
    assert isinstance(plan_checks(reserved(state(found="Retry")), None, LATER), RetryChecks)


@pytest.mark.parametrize("conditions", [WAITS, RUNS], ids=["waiting", "running"])
def test_a_retry_evicts_and_a_rejection_deactivates(conditions: Any) -> None:
    retry = reserved(state(found="Retry"), conditions=conditions)
    assert plan_checks(retry, RULES, LATER) == RetryChecks("At least one admission check is false")
    no = reserved(state(found="Rejected"), conditions=conditions)
    found = plan_checks(no, RULES, LATER)
    assert isinstance(found, RejectWorkload)
    assert found.message == 'AdmissionCheck in Rejected state: "budget"'
    assert plan_checks(reserved(state(found="Rejected"), active=False), RULES, LATER) is None


def test_a_rejection_counts_more_than_a_retry() -> None:
    both = reserved(state(found="Retry"), state("other", "Rejected"))
    rules = (*RULES, CheckRule("other"))
    assert isinstance(plan_checks(both, rules, LATER), RejectWorkload)


def test_a_new_check_does_not_evict_a_running_workload_and_an_old_one_stays_listed() -> None:
    runs = reserved(state("gone", "Ready"), conditions=RUNS)
    found = plan_checks(runs, RULES, LATER)
    assert found == WriteChecks(
        (state("gone", "Ready"), AdmissionCheckState("budget", "Pending", "", LATER))
    )
    assert plan_checks(reserved(state(), conditions=RUNS), RULES, LATER) is None


def test_a_workload_that_is_to_be_placed_waits_for_the_scheduler() -> None:
    ready = state(found="Ready")
    found = plan_checks(reserved(ready, delayed="Pending"), RULES, LATER)
    assert isinstance(found, WriteChecks)
    assert [change.reason for change in found.changes] == ["PendingDelayedTopologyRequests"]
    told = {**WAITS, "Admitted": ("False", "PendingDelayedTopologyRequests")}
    shown = reserved(ready, conditions=told, delayed="Pending")
    shown = with_message(shown, "There are pending delayed topology requests")
    assert plan_checks(shown, RULES, LATER) is None
    back = plan_checks(with_checks(shown, state()), RULES, LATER)
    assert isinstance(back, WriteChecks), "an answer that was taken back holds it again"
    assert [change.reason for change in back.changes] == ["UnsatisfiedAdmissionChecks"]
    placed = reserved(ready, delayed="Ready")
    assert isinstance(plan_checks(placed, RULES, LATER), AdmitAfterChecks)


@pytest.mark.parametrize(
    "conditions",
    [
        {**WAITS, "Evicted": ("True", "Preempted")},
        {**WAITS, "Finished": ("True", "Failed")},
        {"QuotaReserved": ("False", "Suspended"), "Admitted": ("False", "NoReservation")},
    ],
)
def test_answers_of_a_workload_that_leaves_do_not_count(conditions: Any) -> None:
    for answer in ("Ready", "Retry", "Rejected"):
        own = reserved(state(found=answer), conditions=conditions)
        assert plan_checks(own, RULES, LATER) is None
    own = reserved(state(found="Ready"), deleted=True)
    assert plan_checks(own, RULES, LATER) is None
    assert plan_checks(with_checks(workload(job()), state(found="Ready")), RULES, LATER) is None


# States.


def test_states_start_again_after_an_eviction_and_at_a_reservation() -> None:
    update = (PodSetUpdate("main", {"a": "b"}),)
    before = (
        state("a", "Retry", requeue_after_seconds=60, retry_count=2, pod_set_updates=update),
        state("b", "Ready", pod_set_updates=update),
        state("c"),
    )
    reset = admission_checks.reset(before, LATER)
    assert [(s.state, s.message, s.retry_count) for s in reset] == [
        ("Pending", "Reset to Pending after eviction. Previously: Retry", 3),
        ("Pending", "Reset to Pending after eviction. Previously: Ready", None),
        ("Pending", "", None),
    ]
    assert [s.last_transition_time for s in reset] == [LATER, LATER, AT]
    assert [s.pod_set_updates for s in reset] == [update, update, ()], "the job is not restored yet"
    assert reset[0].requeue_after_seconds is None
    assert all(s.pod_set_updates == () for s in admission_checks.released(reset))
    assert admission_checks.reset(reset, "later still") == reset
    late = (state("a", "Ready", pod_set_updates=update, retry_count=3), state("gone", "Rejected"))
    assert admission_checks.seeded(late, ["a", "b"], LATER) == (
        AdmissionCheckState("a", "Pending", "", LATER, retry_count=3),
        AdmissionCheckState("b", "Pending", "", LATER),
    )


def test_the_longest_delay_counts_from_the_answer() -> None:
    now = parse_rfc3339("2026-08-01T12:00:30Z")
    found = admission_checks.requeue_time(
        (
            state("a", "Retry", requeue_after_seconds=60),
            state("b", "Retry", requeue_after_seconds=90),
            state("c", "Ready", requeue_after_seconds=900),
        ),
        now,
    )
    assert found == now + timedelta(seconds=60)
    unnamed = state(found="Retry")  # its delay counts from now, whenever it answered
    assert admission_checks.requeue_time((unnamed,), now) == now + timedelta(seconds=1)
    over = state(found="Retry", requeue_after_seconds=10)
    assert admission_checks.requeue_time((over,), now) == now
    for moment in ("9999-12-31T23:59:59Z", "soon", ""):
        odd = msgspec.structs.replace(
            state(found="Retry", requeue_after_seconds=2**31 - 1), last_transition_time=moment
        )
        assert admission_checks.requeue_time((odd,), now) == now + timedelta(seconds=2**31 - 1)


def test_states_are_written_whole_and_leftovers_of_others_are_removed() -> None:
    update = PodSetUpdate("main", {"a": "b"}, tolerations=({"key": "k", "operator": "Exists"},))
    own = reserved(state(pod_set_updates=(update,), requeue_after_seconds=5), state("gone"))
    body = json.loads(status_body(own, [], current_admission(own)))["status"]
    assert body["admissionChecks"][0] == {
        "name": "budget",
        "state": "Pending",
        "message": "",
        "lastTransitionTime": AT,
        "requeueAfterSeconds": 5,
        "podSetUpdates": [
            {
                "name": "main",
                "labels": {"a": "b"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
            }
        ],
    }
    assert "delayedTopologyRequest" not in body["admission"]["podSetAssignments"][0]
    kept = (state(),)
    body = json.loads(status_body(own, [], None, checks=kept))["status"]
    assert [found["name"] for found in body["admissionChecks"]] == ["budget"]
    assert "admissionChecks" not in json.loads(status_body(own, [], None, checks=()))["status"]
    found = leftover_ops(own, (), (), admission=True, requeue=None, checks=kept)
    assert [op["path"] for op in found] == [
        "/status/admissionChecks/1",
        "/status/admissionChecks/0/podSetUpdates",
        "/status/admissionChecks/0/requeueAfterSeconds",
    ]


# Jobs.


def test_a_job_does_not_start_before_its_checks_are_ready() -> None:
    waits = job()
    own = workload(waits, admitted=True, conditions=WAITS)
    found = plan_job(waits, [own], facts(waits, own))
    assert found == actions.NoAction("it waits for its admission checks")
    runs = job(suspend=False, active=4)
    own = workload(runs, admitted=True, conditions=WAITS)
    assert isinstance(plan_job(runs, [own], facts(runs, own)), actions.StopJob)
    moved = job(queue="another")
    own = workload(job(), admitted=True, conditions=WAITS)
    assert isinstance(plan_job(moved, [own], facts(moved, own)), actions.EvictWorkload)


def test_while_checks_are_asked_no_condition_of_an_earlier_run_stays() -> None:
    waits = job()
    lost = {**WAITS, "PodsReady": ("False", "WaitForRecovery")}
    own = workload(waits, admitted=True, conditions=lost)
    assert plan_job(waits, [own], facts(waits, own)) == actions.RemovePodsReady(own)


def test_a_workload_without_a_job_is_queued_again_after_its_delay() -> None:
    own = workload()
    assert plan_ownerless_workload(own, requeue_in_s=0.0) == actions.RequeueWorkload(own)
    assert isinstance(plan_ownerless_workload(own, requeue_in_s=5.0), actions.NoAction)
    assert isinstance(plan_ownerless_workload(own), actions.NoAction)


FLAVOR = msgspec.convert(
    {"metadata": {"name": "tas"}, "spec": {"nodeLabels": {"pool": "gpu"}}}, ResourceFlavor
)
UPDATE = PodSetUpdate(
    "main",
    {"paid": "yes"},
    {"request": "1"},
    {"zone": "z"},
    ({"key": "k", "operator": "Exists"},),
)


def started_job(*updates: PodSetUpdate, **more: Any) -> Any:
    waits = job(**more)
    own = workload(waits, admitted=True, **({"pod": more["pod"]} if "pod" in more else {}))
    own = with_checks(own, state(found="Ready", pod_set_updates=updates))
    return start_patch(waits, own, {"tas": FLAVOR})


def test_a_start_adds_what_the_checks_add_to_their_podset() -> None:
    ops = started_job(UPDATE, PodSetUpdate("other", {"no": "no"}))
    assert isinstance(ops, list)
    written = {op["path"]: op.get("value") for op in ops}
    template = "/spec/template"
    assert written[f"{template}/metadata/labels/paid"] == "yes"
    assert written[f"{template}/metadata/annotations"]["request"] == "1"
    assert written[f"{template}/spec/nodeSelector"] == {"pool": "gpu", "zone": "z"}
    assert written[f"{template}/spec/tolerations"] == [{"key": "k", "operator": "Exists"}]
    assert f"{template}/metadata/labels/no" not in written


@pytest.mark.parametrize(
    ("update", "path"),
    [
        (PodSetUpdate("main", {"app": "other"}), "spec.template.metadata.labels"),
        (PodSetUpdate("main", node_selector={"pool": "cpu"}), "spec.template.spec.nodeSelector"),
        (PodSetUpdate("main", {names.PODSET_LABEL: "x"}), "spec.template.metadata.labels"),
        (
            PodSetUpdate("main", {}, {names.WORKLOAD_ANNOTATION: "x"}),
            "spec.template.metadata.annotations",
        ),
    ],
)
def test_a_check_that_contradicts_the_user_the_flavor_or_rackgate_fails_the_start(
    update: PodSetUpdate, path: str
) -> None:
    conflict = started_job(update)
    assert not isinstance(conflict, list)
    assert (conflict.path, conflict.check) == (path, "budget")
    assert 'AdmissionCheck "budget" sets ' in str(conflict)


def test_two_checks_may_agree_but_not_contradict_each_other() -> None:
    assert isinstance(started_job(UPDATE, PodSetUpdate("main", {"paid": "yes"})), list)
    assert not isinstance(started_job(UPDATE, PodSetUpdate("main", {"paid": "no"})), list)
    assert isinstance(started_job(PodSetUpdate("main", {"app": "train"})), list)


def test_the_selector_of_the_user_wins_over_that_of_a_check() -> None:
    pod = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "nodeSelector": {"zone": "y"}}}
    conflict = started_job(UPDATE, pod=pod)
    assert not isinstance(conflict, list)
    assert conflict.key == "zone"


def test_a_stop_removes_what_checks_added_and_keeps_what_the_user_wrote() -> None:
    of = cluster(suspend=True, started=True)
    own = own_workload(of, conditions={"Evicted": "AdmissionCheck"})
    own = with_checks(own, state(pod_set_updates=(PodSetUpdate("head", {"paid": "yes"}),)))
    marked = cluster(suspend=True, started=True)
    spec = msgspec.json.decode(marked.spec.head_group_spec)
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels |= {"paid": "yes", "mine": "yes"}
    raw = msgspec.Raw(msgspec.json.encode(spec))
    marked = msgspec.structs.replace(
        marked, spec=msgspec.structs.replace(marked.spec, head_group_spec=raw)
    )
    found = read_job_state(marked, own, facts(job()).priority)
    paths = [op["path"] for op in found.stop.operations]
    assert any(path.endswith("/labels/paid") for path in paths), paths
    assert not any(path.endswith("/labels/mine") for path in paths)


def test_labels_of_checks_are_no_change_of_a_running_cluster() -> None:
    of = cluster(suspend=False, started=True)
    own = own_workload(of)
    marked = cluster(suspend=False, started=True)
    spec = msgspec.json.decode(marked.spec.head_group_spec)
    spec["template"].setdefault("metadata", {}).setdefault("labels", {})["paid"] = "yes"
    raw = msgspec.Raw(msgspec.json.encode(spec))
    marked = msgspec.structs.replace(
        marked, spec=msgspec.structs.replace(marked.spec, head_group_spec=raw)
    )
    priority = facts(job()).priority
    assert read_job_state(marked, own, priority).change is not None
    known = with_checks(own, state(pod_set_updates=(PodSetUpdate("head", {"paid": "yes"}),)))
    assert read_job_state(marked, known, priority).change is None


@pytest.mark.parametrize(("retries", "delay_s"), [(0, 1), (1, 2), (3, 8), (2**31 - 1, 300)])
def test_a_check_that_names_no_delay_gets_a_longer_one_with_each_retry(
    retries: int, delay_s: int
) -> None:
    text = "2026-08-01T12:00:00Z"
    now = parse_rfc3339(text)
    found = msgspec.structs.replace(
        state(found="Retry"), last_transition_time=text, retry_count=retries
    )
    assert admission_checks.requeue_time((found,), now) == now + timedelta(seconds=delay_s)

"""When a job is evicted because of its gangs, as a function of data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate.api.names import (
    GANG_LINK_ANNOTATION,
    GANG_RUN_ANNOTATION,
    PODSET_LABEL,
    WORKLOAD_ANNOTATION,
    EvictionReason,
)
from rackgate.api.timestamps import parse_rfc3339
from rackgate.gang.forms.expand import expand
from rackgate.gang.readiness import Member
from rackgate.wire.core import Condition, Meta, OwnerReference, Pod, PodSpec, PodStatus
from rackgate.wire.kueue import RequeueState, Workload, WorkloadStatus
from rackgate_assigner.gangs.reactions import (
    MAX_S,
    GangCheck,
    GangEviction,
    GangPod,
    admission_run,
    decide,
    gang_pod,
    next_timeout,
    pods_of,
    requeue_state,
)
from rackgate_assigner.workload.elapsed import ElapsedTimes, Moment

RUN = "0123456789"
ADMITTED_AT = "2026-08-01T12:00:00Z"
TWO: dict[str, Any] = expand(
    {
        "gangGroups": [
            {
                "name": "a",
                "minCount": 2,
                "scheduleTimeoutSeconds": 10,
                "selector": {"key": "role", "values": ["a"]},
            },
            {
                "name": "b",
                "minCount": 1,
                "scheduleTimeoutSeconds": 30,
                "reschedulingPolicy": "TerminateAll",
                "selector": {"key": "role", "values": ["b"]},
            },
        ]
    }
)


def admitted(*more: Condition, state: RequeueState | None = None) -> Workload:
    condition = Condition("Admitted", "True", last_transition_time=ADMITTED_AT)
    status = WorkloadStatus(conditions=(condition, *more), requeue_state=state)
    return Workload(metadata=Meta(name="w", uid="uid"), status=status)


def due(seconds: float, workload: Workload, *, checked_s: float = 0.0) -> tuple[float, float]:
    wall = datetime.fromtimestamp(parse_rfc3339(ADMITTED_AT).timestamp() + seconds, UTC)
    elapsed = ElapsedTimes().at("w", Moment(wall, 0.0))
    return next_timeout(TWO, workload, elapsed, checked_s=checked_s)


def member(name: str, role: str, **fields: Any) -> GangPod:
    lost = fields.pop("lost", False)
    given_ = {"gated": False, "run": RUN, "bound": True, **fields}
    return GangPod(Member(name, name, {"role": role}, **given_), lost)


def reason(pods: list[GangPod], due_s: float = 0.0, **facts: Any) -> EvictionReason | None:
    suspects = facts.pop("suspects", {})
    ready_before = facts.get("ready_before", False)
    found = decide(GangCheck(RUN, TWO, "w", due_s, suspects), pods, ready_before=ready_before)
    return None if found is None else found.reason


@pytest.mark.requirement("GNG-11")
def test_each_gang_has_its_own_time() -> None:
    assert due(0, admitted()) == (0.0, 10.0)
    assert due(10, admitted()) == (10.0, 20.0)
    assert due(10, admitted(), checked_s=10.0) == (0.0, 20.0)
    assert due(31, admitted()) == (30.0, 0.0)
    assert due(31, admitted(), checked_s=30.0) == (0.0, 0.0)


def test_the_time_ends_when_all_pods_were_ready_once() -> None:
    ready = Condition("PodsReady", "True", "Started")
    lost = Condition("PodsReady", "False", "WaitForRecovery")
    never = Condition("PodsReady", "False", "WaitForStart")
    assert due(100, admitted(ready)) == due(100, admitted(lost)) == (0.0, 0.0)
    assert due(100, admitted(never)) == (30.0, 0.0)


def test_race_21_a_time_of_a_clock_that_is_ahead_starts_with_the_first_look() -> None:
    assert due(-3600, admitted()) == (0.0, 10.0)


@pytest.mark.requirement("GNG-11")
def test_pods_that_are_done_count_as_bound_when_they_are_gone() -> None:
    spec = expand({"gangGroups": [{"name": "gg", "minCount": 3}]})
    check = GangCheck(RUN, spec, "w", 600.0, done={"main": 2})
    pods = [member("p0", "a")]
    assert decide(check, pods, ready_before=False) is None
    labels = {PODSET_LABEL: "main"}
    done = GangPod(Member("p1", "p1", labels, gated=False, succeeded=True), lost=False)
    assert decide(check, [done, *pods], ready_before=False) is None
    less = replace(check, done={"main": 1})
    assert decide(less, pods, ready_before=False) == GangEviction(
        EvictionReason.GANG_TIMEOUT,
        "2 of 3 pods of gang gg are bound, 1 exist 60 s after the admission",
    )
    everything = replace(check, done={"main": 3})
    assert decide(everything, [], ready_before=False) is None


@pytest.mark.requirement("GNG-11")
def test_only_gangs_whose_time_is_over_are_looked_at() -> None:
    pods = [member("a0", "a")]
    assert reason(pods, 0.0) is None
    assert reason(pods, 10.0) == EvictionReason.GANG_TIMEOUT
    both = [member("a0", "a"), member("a1", "a")]
    assert reason(both, 10.0) is None
    assert reason(both, 30.0) == EvictionReason.GANG_TIMEOUT, "gang b has no pod"
    assert reason([*both, member("b0", "b")], 30.0) is None


def test_pods_that_have_failed_or_are_being_deleted_are_not_bound() -> None:
    pods = [member("a0", "a"), member("a1", "a", lost=True)]
    assert reason(pods, 10.0) == EvictionReason.GANG_TIMEOUT
    done = [member("a0", "a"), member("a1", "a", succeeded=True, bound=False)]
    assert reason(done, 10.0) is None


@pytest.mark.requirement("STR-12")
@pytest.mark.parametrize(
    ("spec", "status", "bound"),
    [
        (PodSpec(), PodStatus(phase="Pending"), False),
        (PodSpec(node_name="n"), PodStatus(phase="Pending"), True),
        (PodSpec(node_name="n"), PodStatus(phase="Running"), True),
    ],
)
def test_a_node_stops_the_clock_and_neither_a_nomination_nor_a_start(
    spec: PodSpec, status: PodStatus, bound: bool
) -> None:
    assert gang_pod(Pod(Meta(name="p"), spec, status)).member.bound is bound


def test_race_2_a_pod_that_was_never_held_counts_as_bound() -> None:
    pods = [member("a0", "a", run=""), member("a1", "a", run="")]
    assert reason(pods, 10.0) is None


@pytest.mark.requirement("GNG-35")
def test_a_lost_pod_counts_only_where_the_policy_is_and_in_this_run() -> None:
    lost = EvictionReason.GANG_MEMBER_LOST
    assert reason([member("b0", "b", lost=True)]) == lost
    assert reason([member("a0", "a", lost=True)]) is None
    assert reason([member("b0", "b", lost=True, run="")]) is None, "it never started"
    assert reason([member("b0", "b", lost=True, run="earlier")]) is None
    assert reason([], suspects={"b0": "b0"}) == lost
    assert reason([member("b0", "b", succeeded=True)], suspects={"b0": "b0"}) is None


@pytest.mark.requirement("GNG-35")
def test_a_replacement_of_a_pod_that_was_lost_while_no_one_acted_shows_the_loss() -> None:
    replaced = [member("b1", "b", run="", bound=False, gated=True)]
    assert reason(replaced, ready_before=True) == EvictionReason.GANG_MEMBER_LOST
    assert reason(replaced, ready_before=False) is None
    assert reason([member("b0", "b")], ready_before=True) is None


@given(st.integers(0, 2**31), st.integers(0, 50), st.text(max_size=8))
def test_the_backoff_doubles_up_to_an_hour_with_a_jitter(count: int, limit: int, uid: str) -> None:
    now = datetime(2026, 8, 1, tzinfo=UTC)
    workload = Workload(
        metadata=Meta(uid=uid), status=WorkloadStatus(requeue_state=RequeueState(count))
    )
    found = requeue_state(workload, EvictionReason.GANG_TIMEOUT, now, limit=None)
    assert found is not None
    assert found.requeue_at is not None
    pause_s = (parse_rfc3339(found.requeue_at) - now).total_seconds()
    full = min(60.0 * 2 ** min(count, 32), MAX_S)
    assert 0.8 * full - 1 <= pause_s <= full + 1
    assert found == requeue_state(workload, EvictionReason.GANG_TIMEOUT, now, limit=None)
    lost = requeue_state(workload, EvictionReason.GANG_MEMBER_LOST, now, limit=None)
    assert lost == RequeueState(found.count)
    limited = requeue_state(workload, EvictionReason.GANG_TIMEOUT, now, limit=limit)
    assert (limited is None) == (found.count > limit)


def test_only_pods_of_the_job_that_name_its_gangs_are_members() -> None:
    def pod(name: str, owner: str = "job", link: str = "w", workload: str = "k") -> Pod:
        annotations = {
            GANG_LINK_ANNOTATION: link,
            WORKLOAD_ANNOTATION: workload,
            GANG_RUN_ANNOTATION: RUN,
        }
        owners = (OwnerReference(uid=owner, controller=True),)
        meta = Meta(name=name, uid=name, annotations=annotations, owner_references=owners)
        return Pod(meta, PodSpec(node_name="n"), PodStatus("Running"))

    pods = [
        pod("a"),
        pod("b", owner="child"),
        pod("c", owner="x"),
        pod("d", link="y"),
        pod("e", workload="z"),
    ]
    found = pods_of(pods, controllers={"job", "child"}, workload="k", gang="w")
    assert [one.member.name for one in found] == ["a", "b"]
    assert all(one.member.bound and one.member.run == RUN for one in found)


def test_the_run_is_that_of_the_ungater() -> None:
    assert admission_run(Workload()) == ""
    assert len(admission_run(admitted())) == 10

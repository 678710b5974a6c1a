"""Decisions about Workloads of gangs, as functions of data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api.names import GANG_RUN_SPEC_ANNOTATION
from rackgate.gang.forms.expand import expand
from rackgate.gang.lifecycle import GangChoice
from rackgate.gang.runs.run_spec import decode_run_spec, encode_run_spec
from rackgate.gang.topology_requests import GangPodSet
from rackgate.wire.core import Meta, OwnerReference
from rackgate_assigner.gangs.gang_workload import GangWorkload, decode_gang_workload
from rackgate_assigner.gangs.holds import HoldReason, find_hold, unsatisfiable
from rackgate_assigner.gangs.plan import (
    AdoptGangWorkload,
    CreateGangWorkload,
    DeleteGangWorkload,
    GangJob,
    plan_gang,
)

JOB = "uid-of-the-job"
SPEC: dict[str, Any] = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 60}]}
OWN = GangChoice("own", {"main": "own"}, SPEC)
BY_USER = GangChoice("mine", {"main": "mine"})
FOUR = (GangPodSet("main", 4, {}),)


def gang(
    name: str = "own", spec: Any = SPEC, *, owner: str = JOB, generation: int = 1, **meta: Any
) -> GangWorkload:
    owners = (OwnerReference(uid=owner, controller=True),) if owner else ()
    found = Meta(name=name, uid="g", generation=generation, owner_references=owners, **meta)
    return GangWorkload(found, spec, expand(spec))


@pytest.mark.requirement("GNG-26")
def test_a_default_is_made_whether_or_not_the_job_is_suspended() -> None:
    for inactive in (True, False):
        job = GangJob(JOB, OWN, inactive=inactive)
        assert plan_gang(job, None, None) == CreateGangWorkload(OWN)
    assert plan_gang(GangJob(JOB, OWN, over=True), None, None) is None
    assert plan_gang(GangJob(JOB, OWN), gang(), gang()) is None


def test_a_default_of_another_owner_is_left_alone() -> None:
    foreign = gang(owner="x", spec={"gangGroups": [{"name": "gg", "minCount": 1}]})
    assert plan_gang(GangJob(JOB, OWN), foreign, foreign) is None
    assert plan_gang(GangJob(JOB, BY_USER), foreign, None) is None


def test_race_16_only_a_default_that_no_pod_names_is_deleted() -> None:
    own, named = gang(), gang("mine", owner="")
    found = plan_gang(GangJob(JOB, BY_USER), own, named)
    assert found == DeleteGangWorkload(own, "the job does not use it")
    assert plan_gang(GangJob(JOB, BY_USER, inactive=False), own, named) is None
    assert plan_gang(GangJob(JOB, BY_USER), gang(deletion_timestamp="now"), named) is None


def test_a_default_that_a_user_has_edited_is_kept() -> None:
    larger = {"gangGroups": [{"name": "gg", "minCount": 8, "scheduleTimeoutSeconds": 60}]}
    job = GangJob(JOB, GangChoice("own", {"main": "own"}, larger))
    assert isinstance(plan_gang(job, gang(), gang()), DeleteGangWorkload)
    assert plan_gang(job, gang(generation=2), gang(generation=2)) is None


@pytest.mark.requirement("GNG-20")
def test_the_workload_of_a_user_is_adopted_if_that_is_due() -> None:
    named = gang("mine", owner="")
    assert plan_gang(GangJob(JOB, BY_USER, adopts=True), None, named) == AdoptGangWorkload(named)
    assert plan_gang(GangJob(JOB, BY_USER), None, named) is None
    assert plan_gang(GangJob(JOB, BY_USER, adopts=True), None, None) is None


def reason(choice: GangChoice, found: GangWorkload | None, **facts: Any) -> HoldReason | None:
    podsets = facts.pop("podsets", FOUR)
    hold = find_hold(choice, found, podsets, job_uid=JOB, holder=facts.get("holder", ""))
    return None if hold is None else hold.reason


@pytest.mark.requirement("GNG-24", "GNG-26")
def test_each_reason_that_holds_a_job() -> None:
    assert reason(GangChoice(), None) is None
    assert reason(GangChoice(problem="p"), None) is HoldReason.INVALID_TEMPLATE
    assert reason(OWN, None) is HoldReason.WORKLOAD_MISSING
    assert reason(OWN, gang(deletion_timestamp="now")) is HoldReason.WORKLOAD_MISSING
    assert reason(OWN, gang(owner="x")) is HoldReason.NAME_TAKEN
    assert reason(OWN, gang()) is None
    assert reason(BY_USER, gang("mine", owner="")) is None
    assert reason(BY_USER, gang("mine", owner=""), holder="other") is HoldReason.SHARED
    three = (GangPodSet("main", 3, {}),)
    assert reason(OWN, gang(), podsets=three) is HoldReason.UNSATISFIABLE


def test_pods_count_for_each_gang_that_they_may_be_in() -> None:
    spec = expand(
        {
            "gangGroups": [
                {"name": "a", "minCount": 2, "selector": {"key": "role", "values": ["a"]}},
                {"name": "b", "minCount": 2, "selector": {"key": "role", "values": ["b"]}},
            ]
        }
    )
    known = [GangPodSet("one", 2, {"role": "a"}), GangPodSet("two", 1, {"role": "b"})]
    assert "gang b needs 2 pods, and the job has 1" in unsatisfiable(spec, known)
    unknown = [GangPodSet("main", 2, {})]  # the controller may add the label
    assert unsatisfiable(spec, unknown) == ""
    by_name = expand({"gangGroups": [{"name": "a", "minCount": 2}, {"name": "b", "minCount": 2}]})
    label = {"jobset.sigs.k8s.io/replicatedjob-name": "a"}
    assert "gang b" in unsatisfiable(by_name, [GangPodSet("a", 2, label)])
    assert unsatisfiable(by_name, unknown) == ""


def test_race_12_the_run_keeps_the_numbers_that_it_was_started_with() -> None:
    spec = expand(
        {
            "replicaMode": "Unreplicated",
            "gangGroups": [
                {
                    "name": "a",
                    "minCount": 3,
                    "scheduleTimeoutSeconds": 7,
                    "reschedulingPolicy": "TerminateAll",
                    "selector": {"key": "k", "values": ["v"]},
                },
                {"name": "rest"},
            ],
        }
    )
    text = encode_run_spec({"main": "w", "other": "w"}, spec)
    found = decode_run_spec({GANG_RUN_SPEC_ANNOTATION: text})
    assert found is not None
    assert found.links == {"main": "w", "other": "w"}
    assert found.spec == spec


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"workload": "w", "podSets": [], "spec": {"gangGroups": [1]}}']
)
def test_an_annotation_that_is_no_run_is_none(text: str) -> None:
    assert decode_run_spec({GANG_RUN_SPEC_ANNOTATION: text}) is None


def test_the_watch_keeps_no_templates() -> None:
    spec = {
        "gangGroups": [{"name": "gg", "minCount": 2}],
        "replicaMode": "Unreplicated",
    }
    inner = {"eqGroups": [{"name": "e", "count": 2, "template": {"spec": {"x": "y" * 10_000}}}]}
    spec["gangGroups"][0].update(inner)  # type: ignore[attr-defined]  # JSON
    raw = json.dumps({"metadata": {"name": "w"}, "spec": spec}).encode()
    found = decode_gang_workload(raw)
    assert found.readable
    assert found.has_gangs
    assert "yyy" not in str(found)


@pytest.mark.parametrize(
    "spec", [{"gangGroups": 3}, {"gangGroups": [3]}, {"gangGroups": [{"minCount": "x"}]}]
)
def test_a_spec_that_cannot_be_read_holds_its_jobs(spec: Any) -> None:
    found = decode_gang_workload(json.dumps({"metadata": {"name": "w"}, "spec": spec}).encode())
    assert not found.readable
    assert reason(BY_USER, found) is HoldReason.UNREADABLE

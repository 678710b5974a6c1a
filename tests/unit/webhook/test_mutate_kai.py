"""Jobs for KAI at the webhook: behind its gate, Jobs alone, refused before they are let go."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rackgate.api import names
from rackgate.features import RENDER_FOR_KAI
from rackgate.jobframework.kai import KAI_QUEUE, KAI_REQUIRED, KAI_SCHEDULER, RenderOptions
from rackgate.runtime.settings import SettingsError
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import jobset, replicated_job
from tests.support.objects import RACK, Object, job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review
from tests.unit.webhook.test_settings import load

JOB = "batch/Job"
KNOWN = RenderOptions(topology="racks", jobs_grouped=True)


def kai_job(**more: Any) -> Object:
    return job("train", 2, required=RACK, pod={"schedulerName": KAI_SCHEDULER}, **more)


def handed_over(found: Object, stored: Object | None = None) -> Object:
    admission_response = mutate(review(JOB, found, stored), kai=KNOWN)
    assert admission_response.allowed
    after: Object = apply_patch(found, admission_response.operations)
    return after


@pytest.mark.requirement("HOOK-06")
def test_a_job_for_kai_is_neither_suspended_nor_marked() -> None:
    found = kai_job()
    after = handed_over(found)
    assert after["spec"] == found["spec"]
    assert after["metadata"]["labels"] == {KAI_QUEUE: "queue"}
    assert mutate(review(JOB, after), kai=KNOWN).operations == []
    assert validate(review(JOB, after)).allowed


def test_without_the_gate_it_is_managed_like_any_other() -> None:
    after = apply_patch(kai_job(), mutate(review(JOB, kai_job())).operations)
    assert after["spec"]["suspend"] is True
    assert names.QUEUE_LABEL in after["metadata"]["labels"]


def test_a_jobset_whose_pods_name_kai_stays_ours() -> None:
    pod = {"schedulerName": KAI_SCHEDULER}
    found = jobset("train", [replicated_job("workers", 2)])
    found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"] |= pod
    asked = review("jobset.x-k8s.io/JobSet", found)
    assert mutate(asked, kai=KNOWN) == mutate(asked)


def test_what_cannot_be_said_is_rejected_and_never_half_rendered() -> None:
    found = kai_job(annotations={names.POD_INDEX_OFFSET: "1"})
    admission_response = mutate(review(JOB, found), kai=KNOWN)
    assert not admission_response.allowed
    assert admission_response.operations == []


def test_a_queue_that_can_have_no_object_is_rejected() -> None:
    (error,) = mutate(review(JOB, kai_job(queue="No_Name")), kai=KNOWN).errors
    assert (error.path, error.help) == (
        f"metadata.labels[{names.QUEUE_LABEL}]",
        "name an existing Queue of KAI",
    )


def test_annotations_where_no_one_reads_them_are_warned_about() -> None:
    found = kai_job()
    found["metadata"]["annotations"] = {names.REQUIRED_TOPOLOGY: RACK}
    found["spec"]["suspend"] = True
    misplaced, suspended = mutate(review(JOB, found), kai=KNOWN).warnings
    assert "is ignored" in misplaced
    assert suspended.startswith("spec.suspend is true")


@pytest.mark.requirement("HOOK-06")
def test_the_same_manifest_again_changes_nothing() -> None:
    stored = handed_over(kai_job())
    again = copy.deepcopy(stored)
    again["metadata"]["labels"][names.QUEUE_LABEL] = "queue"
    assert handed_over(again, stored) == stored
    # A client that writes the whole object brings none of KAI's words.
    assert handed_over(kai_job(), stored) == stored


def test_other_writes_of_a_job_that_was_handed_over_are_its_users_own() -> None:
    stored = handed_over(kai_job())
    edited = copy.deepcopy(stored)
    edited["metadata"]["annotations"][KAI_REQUIRED] = "other"
    edited["spec"]["suspend"] = True
    assert mutate(review(JOB, edited, stored), kai=KNOWN) == mutate(review("x/Y", {}))


def test_other_kinds_statuses_and_jobs_that_run_are_not_touched() -> None:
    assert not mutate(review("apps/Deployment", kai_job()), kai=KNOWN).operations
    assert not mutate(review(JOB, kai_job(), sub_resource="status"), kai=KNOWN).operations
    running = kai_job(queue=None)
    assert not mutate(review(JOB, kai_job(), running), kai=KNOWN).operations


def test_the_gate_and_the_operators_words_become_a_rendering(tmp_path: Path) -> None:
    kai = "kai: {topology: racks, jobsGrouped: true}\n"
    assert load(tmp_path, kai).rendering is None
    assert load(tmp_path, kai + f"featureGates: {{{RENDER_FOR_KAI}: true}}\n").rendering == KNOWN
    both = f"featureGates: {{{RENDER_FOR_KAI}: true, RackgateRequiredAndPreferred: true}}\n"
    assert load(tmp_path, both).rendering == RenderOptions(both_levels=True)


def test_a_topology_that_can_be_no_object_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "kai: {topology: No_Name}\n")
    assert any("kai.topology" in line for line in caught.value.lines)

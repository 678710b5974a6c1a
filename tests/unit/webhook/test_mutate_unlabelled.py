"""Jobs without a queue label: the default LocalQueue, or suspended until they have one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import Review
from rackgate_webhook.admission.unlabelled import concerns_unlabelled_job, place_unlabelled_job
from tests.support.objects import RACK, job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

JOB = "batch/Job"


def unlabelled(**more: Any) -> dict[str, Any]:
    """A Job as its user writes it, without labels."""
    found = job("train", 2, queue=None, required=RACK, **more)
    found["metadata"].pop("labels", None)
    return found


def suspended(found: dict[str, Any], suspend: bool = True) -> dict[str, Any]:
    changed = copy.deepcopy(found)
    changed["spec"]["suspend"] = suspend
    return changed


def placed(asked: Review, **options: Any) -> dict[str, Any]:
    """The object after the answer."""
    given = {"has_default_queue": False, "manage_all": False, **options}
    found: dict[str, Any] = apply_patch(
        dict(asked.object), place_unlabelled_job(asked, **given).operations
    )
    return found


@pytest.mark.parametrize("labels", [None, {}, {"app": "train"}])
def test_a_job_gets_the_default_queue_and_is_injected_as_if_it_had_named_it(
    labels: dict[str, str] | None,
) -> None:
    plain = unlabelled()
    if labels is not None:
        plain["metadata"]["labels"] = labels
    named = copy.deepcopy(plain)
    named["metadata"]["labels"] = {**(labels or {}), names.QUEUE_LABEL: "default"}
    wanted = apply_patch(named, mutate(review(JOB, named)).operations)
    assert placed(review(JOB, plain), has_default_queue=True) == wanted
    assert wanted["spec"]["suspend"] is True


def test_without_a_default_queue_a_job_waits_if_all_are_managed_and_else_runs() -> None:
    plain = unlabelled()
    assert placed(review(JOB, plain)) == plain
    assert placed(review(JOB, plain), manage_all=True) == suspended(plain)
    answer = place_unlabelled_job(review(JOB, plain), has_default_queue=False, manage_all=True)
    (warning,) = answer.warnings
    assert "suspended until it has the label kueue.x-k8s.io/queue-name" in warning
    asleep = suspended(plain)
    assert placed(review(JOB, asleep), manage_all=True) == asleep


def test_a_job_that_waits_cannot_be_unsuspended_without_a_queue() -> None:
    plain = unlabelled()
    asked = review(JOB, suspended(plain, False), suspended(plain))
    assert concerns_unlabelled_job(asked)
    assert placed(asked, manage_all=True) == suspended(plain)
    found = placed(asked, has_default_queue=True)
    assert found["metadata"]["labels"] == {names.QUEUE_LABEL: "default"}
    assert found["spec"]["suspend"] is True


def child_of(kind: str, api_version: str) -> dict[str, Any]:
    found = unlabelled()
    owner = {"kind": kind, "apiVersion": api_version, "name": "x", "uid": "u", "controller": True}
    found["metadata"]["ownerReferences"] = [owner]
    return found


@pytest.mark.parametrize(
    ("asked", "concerned"),
    [
        (review(JOB, unlabelled()), True),
        (review(JOB, job("train", 2)), False),
        (review(JOB, child_of("JobSet", "jobset.x-k8s.io/v1alpha2")), False),
        (review(JOB, child_of("CronJob", "batch/v1")), True),
        (review("/Pod", unlabelled()), False),
        (review(JOB, unlabelled(), sub_resource="status"), False),
        (review(JOB, suspended(unlabelled()), suspended(unlabelled(), False)), False),
        (review(JOB, suspended(unlabelled(), False), suspended(unlabelled(), False)), False),
        (Review("u", JOB, "DELETE", {}, unlabelled()), False),
    ],
)
def test_children_running_jobs_and_jobs_with_a_queue_are_left_alone(
    asked: Review, concerned: bool
) -> None:
    assert concerns_unlabelled_job(asked) is concerned


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    gone = suspended(unlabelled(), False)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not concerns_unlabelled_job(review(JOB, gone, suspended(unlabelled())))

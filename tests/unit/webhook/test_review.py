"""The AdmissionReview codec: uid echoed, patches encoded, everything unreadable answered 400."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.jobframework.errors import FieldError
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import (
    AdmissionResponse,
    ReviewError,
    answer_review,
    decode_review,
    encode_response,
)
from rackgate_webhook.admission.validate import validate
from tests.support.objects import RACK, job
from tests.unit.webhook.reviews import body, patch_of

JOB = "batch/Job"


@pytest.mark.requirement("HOOK-01")
def test_the_answer_echoes_the_uid_and_carries_the_patch() -> None:
    asked = json.dumps(body(JOB, job("train", 2, required=RACK))).encode()
    answer = answer_review(asked, mutate)
    assert answer.status == 200
    response = json.loads(answer.body)
    assert (response["apiVersion"], response["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert response["response"]["uid"] == "uid-1"
    assert response["response"]["allowed"] is True
    assert patch_of(answer.body)[0]["path"] == "/spec/suspend"


@pytest.mark.requirement("HOOK-01")
def test_a_rejection_says_path_reason_and_help() -> None:
    asked = job("train", 2, required=RACK, preferred=RACK)
    answer = answer_review(json.dumps(body(JOB, asked)).encode(), validate)
    response = json.loads(answer.body)["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    assert response["status"]["code"] == 422
    assert response["status"]["reason"] == "Invalid"
    assert response["status"]["message"].startswith("spec.template.metadata.annotations: ")
    (cause,) = response["status"]["details"]["causes"]
    assert cause["field"] == "spec.template.metadata.annotations"


def changed(**changes: Any) -> bytes:
    return json.dumps({**body(JOB, job("train", 1)), **changes}).encode()


def requested(**changes: Any) -> bytes:
    found = body(JOB, job("train", 1))
    return json.dumps({**found, "request": {**found["request"], **changes}}).encode()


@pytest.mark.requirement("HOOK-01")
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "not an AdmissionReview"),
        (b"{", "not an AdmissionReview"),
        (b"\xff\xfe", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"{}", 'expected "admission.k8s.io/v1"'),
        (changed(apiVersion="admission.k8s.io/v1beta1"), 'found "admission.k8s.io/v1beta1"'),
        (changed(kind="Review"), 'found "admission.k8s.io/v1" "Review"'),
        (changed(request=None), "not an AdmissionReview"),
        (changed(request={}), "not an AdmissionReview"),
        (requested(uid=""), "request.uid is empty"),
        (requested(uid=7), "not an AdmissionReview"),
        (requested(operation="WRITE"), 'unknown operation "WRITE"'),
        (requested(object=None), "request.object is missing"),
        (requested(object=[]), "not an AdmissionReview"),
        (requested(object={"metadata": {"labels": []}}), "metadata.labels: expected an object"),
        (requested(object={"metadata": 3}), "metadata: expected an object, found int"),
    ],
)
def test_what_cannot_be_read_is_answered_400_with_the_reason(sent: bytes, says: str) -> None:
    answer = answer_review(sent, mutate)
    assert answer.status == 400
    assert says in answer.body.decode()


@pytest.mark.requirement("HOOK-01")
@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("decide", [mutate, validate])
def test_deep_nesting_is_answered_not_crashed_on(depth: int, decide: Any) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    template = b'{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"}},"spec":{"template":%s}}'
    sent = json.dumps(body(JOB, {"X": 1})).encode().replace(b'{"X": 1}', template % nested)
    assert answer_review(sent, decide).status in (200, 400)


def test_a_deeply_nested_review_is_rejected_as_such() -> None:
    with pytest.raises(ReviewError, match="nested too deeply"):
        decode_review(b'{"request":' + b"[" * 100_000)


def test_long_rejections_are_cut_for_the_message_only() -> None:
    errors = [FieldError(f"spec.a[{index}]", "x" * 200) for index in range(10)]
    status = json.loads(encode_response("u", AdmissionResponse(errors=errors)))["response"][
        "status"
    ]
    assert len(status["message"]) == 1024
    assert len(status["details"]["causes"]) == 10


@pytest.mark.requirement("HOOK-12")
def test_a_dry_run_gets_the_same_patch() -> None:
    asked = body(JOB, job("train", 1, required=RACK))
    plain = answer_review(json.dumps(asked).encode(), mutate)
    asked["request"]["dryRun"] = True
    assert patch_of(answer_review(json.dumps(asked).encode(), mutate).body) == patch_of(plain.body)


@pytest.mark.parametrize("kind", ["/Secret", "apps/Deployment", "batch/CronJob", "x/Job"])
@pytest.mark.requirement("HOOK-05")
@pytest.mark.parametrize("decide", [mutate, validate])
def test_foreign_kinds_pass_unchanged(kind: str, decide: Any) -> None:
    answer = answer_review(json.dumps(body(kind, {"metadata": 1})).encode(), decide)
    assert answer.allowed
    assert patch_of(answer.body) == []


def test_a_deletion_carries_no_object_and_is_allowed() -> None:
    sent = requested(operation="DELETE", object=None)
    assert answer_review(sent, validate).allowed
    assert answer_review(sent, mutate).allowed

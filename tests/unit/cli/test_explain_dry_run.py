"""What the answer of a server-side dry run means for a manifest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.jobframework.errors import FieldError
from rackgate.kube.errors import KubeError, error_for
from rackgate_cli.explain.dry_run import outcome, unknown_fields


def answer(code: int, reason: str, message: str, details: Any = None) -> KubeError:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    if details is not None:
        body["details"] = details
    return error_for("POST", "/apis/batch/v1/namespaces/team/jobs", code, json.dumps(body).encode())


def test_an_invalid_object_is_reported_field_by_field() -> None:
    causes = [
        {
            "reason": "FieldValueRequired",
            "message": 'Required value: valid values: "OnFailure", "Never"',
            "field": "spec.template.spec.restartPolicy",
        },
        {
            "reason": "FieldValueInvalid",
            "message": "Invalid value: -1: must be greater than or equal to 0",
            "field": "spec.parallelism",
        },
    ]
    found = outcome(answer(422, "Invalid", "Job is invalid", {"causes": causes}), "Job")
    assert list(found.errors) == [
        FieldError(
            "spec.template.spec.restartPolicy",
            'Required value: valid values: "OnFailure", "Never"',
        ),
        FieldError("spec.parallelism", "Invalid value: -1: must be greater than or equal to 0"),
    ]
    assert found.warnings == ()


QUOTA = 'jobs.batch "train" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1'
RIGHTS = (
    'jobs.batch is forbidden: User "ann" cannot create resource "jobs" in API group "batch" '
    'in the namespace "team"'
)


@pytest.mark.parametrize(
    ("error", "path", "words"),
    [
        (answer(403, "Forbidden", QUOTA), "", "exceeded quota"),
        (answer(400, "BadRequest", "json: cannot unmarshal string"), "", "cannot unmarshal"),
        (answer(422, "Invalid", "denied by policy", {"causes": None}), "", "denied by policy"),
        (
            answer(404, "NotFound", 'namespaces "team" not found'),
            "metadata.namespace",
            'namespaces "team" not found',
        ),
        (
            error_for("POST", "/x", 404, b"404 page not found"),
            "apiVersion",
            "the cluster has no Job of this version",
        ),
    ],
)
def test_what_the_api_server_rejects_is_an_error(error: KubeError, path: str, words: str) -> None:
    found = outcome(error, "Job")
    (problem,) = found.errors
    assert problem.path == path
    assert words in problem.problem
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answer(403, "Forbidden", RIGHTS), "did not check the manifest: jobs.batch is forbidden"),
        (answer(500, "InternalError", "failed calling webhook"), "failed calling webhook"),
        (answer(400, "BadRequest", 'webhook "x" does not support dry run'), "did not check"),
        (answer(409, "AlreadyExists", 'jobs.batch "train" already exists'), "exists already"),
    ],
)
def test_what_says_nothing_against_the_manifest_is_a_warning(error: KubeError, words: str) -> None:
    found = outcome(error, "Job")
    (warning,) = found.warnings
    assert words in warning
    assert not found.errors


def test_unknown_fields_are_named_by_path_once_each() -> None:
    message = (
        'Job in version "v1" cannot be handled as a Job: strict decoding error: '
        'unknown field "spec.parallel", unknown field "spec.template.spec.containers[0].img", '
        'unknown field "spec.parallel"'
    )
    assert unknown_fields(answer(400, "BadRequest", message)) == [
        "spec.parallel",
        "spec.template.spec.containers[0].img",
    ]
    assert unknown_fields(answer(400, "BadRequest", "json: cannot unmarshal string")) == []
    assert unknown_fields(answer(422, "Invalid", message)) == []

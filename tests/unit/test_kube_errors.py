"""What the API server answers, as one family of errors."""

from __future__ import annotations

import json

import pytest

from rackgate.kube.errors import KubeError, PayloadTooLargeError, ServerError, error_for


def refused(status: int, message: str) -> KubeError:
    body = json.dumps({"kind": "Status", "code": status, "message": message}).encode()
    return error_for("PATCH", "/x", status, body)


@pytest.mark.field_note("C23")
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (413, "the request is too large"),
        (500, "etcdserver: request is too large"),
        (500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max"),
    ],
)
def test_an_object_beyond_the_store_is_not_a_passing_failure(status: int, message: str) -> None:
    assert isinstance(refused(status, message), PayloadTooLargeError)


def test_other_failures_of_the_server_may_pass() -> None:
    assert isinstance(refused(500, "etcdserver: leader changed"), ServerError)
    assert isinstance(refused(503, "request is too large, try later"), ServerError)

"""AdmissionReviews for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from rackgate_webhook.admission.review import Review

Object = Mapping[str, Any]


def review(kind: str, found: Object, stored: Object | None = None, **more: Any) -> Review:
    """A review of a CREATE, or of an UPDATE when there is a stored object."""
    operation = "UPDATE" if stored is not None else "CREATE"
    return Review("uid-1", kind, operation, found, stored or {}, **more)


def body(
    kind: str, found: Object | None, stored: Object | None = None, **request: Any
) -> dict[str, Any]:
    """The AdmissionReview that an API server posts; `kind` is `group/kind`."""
    group, _, name = kind.rpartition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "uid-1",
            "kind": {"group": group, "version": "v1", "kind": name},
            "operation": "UPDATE" if stored is not None else "CREATE",
            "object": found,
            "oldObject": stored,
            "userInfo": {"username": "user"},
            **request,
        },
    }


def patch_of(answer: bytes) -> list[dict[str, Any]]:
    """The JSON patch in an answer; empty without one."""
    response = json.loads(answer)["response"]
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    return operations

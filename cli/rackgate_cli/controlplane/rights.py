"""What roles grant to service accounts, as questions that an API server answers. Pure.

An API server knows a role a moment after it took it, and later still when it is busy: it refuses
what a service asks for in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rackgate_cli.controlplane.defaults import Document

REVIEWS_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def access_reviews(rbac: Iterable[Document]) -> list[Document]:
    """Return a SubjectAccessReview for each right that `rbac` binds to a service account."""
    documents = list(rbac)
    rules = {
        (entry["kind"], entry["metadata"].get("namespace"), entry["metadata"]["name"]): entry[
            "rules"
        ]
        for entry in documents
        if entry["kind"] in ("ClusterRole", "Role")
    }
    found = []
    for entry in documents:
        if entry["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        role, namespace = entry["roleRef"], entry["metadata"].get("namespace")
        where = namespace if role["kind"] == "Role" else None
        for subject in entry["subjects"]:
            if subject["kind"] == "ServiceAccount":
                user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
                # A role of the cluster's own is there from its beginning.
                for rule in rules.get((role["kind"], where, role["name"]), ()):
                    found += [_review(user, asked) for asked in _attributes_of(rule, namespace)]
    return found


def _attributes_of(rule: dict[str, Any], namespace: str | None) -> Iterator[dict[str, str]]:
    for group, full, name, verb in itertools.product(
        rule["apiGroups"], rule["resources"], rule.get("resourceNames", ("",)), rule["verbs"]
    ):
        resource, _, subresource = full.partition("/")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        yield asked | {"name": name, "namespace": namespace or ""}


def _review(user: str, asked: dict[str, str]) -> Document:
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }

"""Requests and answers of the API `visibility.kueue.x-k8s.io`.

In addition to what Kueue serves, `workloads/explanation` says why a Workload is pending. Both
versions have the same form. Limits are those of Kueue: `limit` is 1000 by default and 4000 at
most; a negative number counts as 0.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rackgate.api.names import VISIBILITY_GROUP, VISIBILITY_VERSIONS
from rackgate.wire.core import Meta
from rackgate_assigner.explain.explanation import KIND as EXPLANATION
from rackgate_assigner.visibility.front_proxy import User
from rackgate_assigner.visibility.pending_order import STEP, PendingOrder, Position

DEFAULT_LIMIT: Final = 1000
MAX_LIMIT: Final = 4000
_MAX_DIGITS: Final = 19
CLUSTER_QUEUES: Final = "clusterqueues"
LOCAL_QUEUES: Final = "localqueues"
WORKLOADS: Final = "workloads"
KIND: Final = "PendingWorkloadsSummary"
# By resource.
SUBRESOURCES: Final = {
    CLUSTER_QUEUES: "pendingworkloads",
    LOCAL_QUEUES: "pendingworkloads",
    WORKLOADS: "explanation",
}
_NAMESPACED: Final = (LOCAL_QUEUES, WORKLOADS)
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}

_encode = msgspec.json.Encoder().encode


class RejectedError(Exception):
    """The answer is a Status of failure.

    Attributes:
        status: HTTP status.
        message: why, for people.
        retry_after_s: when the caller may try again; 0 if that is not said.
    """

    def __init__(self, status: int, message: str, *, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request for the pending Workloads of one queue, or for the explanation of a Workload.

    Attributes:
        version: of the API.
        resource: `clusterqueues`, `localqueues` or `workloads`.
        namespace: of the LocalQueue or Workload; "" for a ClusterQueue.
        name: of the queue or Workload.
    """

    version: str
    resource: str
    namespace: str
    name: str

    @property
    def subresource(self) -> str:
        """What is requested of it."""
        return SUBRESOURCES[self.resource]


@dataclass(frozen=True, slots=True)
class PageRange:
    """Which part of the list is requested; both at least 0."""

    limit: int = DEFAULT_LIMIT
    offset: int = 0


def parse_path(path: str) -> PendingRequest | None:
    """What a path asks for; None if it is the path of nothing that is served."""
    match path.strip("/").split("/"):
        case ["apis", group, version, resource, name, sub]:
            namespace = ""
        case ["apis", group, version, "namespaces", namespace, resource, name, sub]:
            pass
        case _:
            return None
    known = group == VISIBILITY_GROUP and version in VISIBILITY_VERSIONS
    if not known or SUBRESOURCES.get(resource) != sub or not name:
        return None
    if bool(namespace) != (resource in _NAMESPACED):
        return None
    return PendingRequest(version, resource, namespace, name)


def parse_range(query: Mapping[str, str]) -> PageRange:
    """`limit` and `offset` of a query, within bounds.

    Raises:
        RejectedError: one of them is not an integer.
    """
    limit = _integer(query, "limit") or DEFAULT_LIMIT
    offset = _integer(query, "offset")
    return PageRange(min(max(limit, 0), MAX_LIMIT), max(offset, 0))


def _integer(query: Mapping[str, str], key: str) -> int:
    text = query.get(key, "")
    digits = text.removeprefix("-")
    if not text:
        return 0
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise RejectedError(400, f'query parameter {key}: expected an integer, found "{text[:40]}"')
    return int(text)


def discovery(path: str) -> bytes | None:
    """The discovery document of a path; None if the path has none."""
    match path.strip("/").split("/"):
        case ["apis"]:
            return _encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})
        case ["apis", group] if group == VISIBILITY_GROUP:
            return _encode({"kind": "APIGroup", "apiVersion": "v1", **_group()})
        case ["apis", group, version] if group == VISIBILITY_GROUP:
            if version in VISIBILITY_VERSIONS:
                return _encode(_resources(version))
    return None


def _group() -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{VISIBILITY_GROUP}/{version}", "version": version}
        for version in VISIBILITY_VERSIONS
    ]
    return {"name": VISIBILITY_GROUP, "versions": versions, "preferredVersion": versions[0]}


def _resources(version: str) -> dict[str, Any]:
    # As in Kueue, the queues themselves are not served by this group, so they are not listed.
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{VISIBILITY_GROUP}/{version}",
        "resources": [
            {
                "name": f"{resource}/{subresource}",
                "singularName": "",
                "namespaced": resource in _NAMESPACED,
                "kind": EXPLANATION if resource == WORKLOADS else KIND,
                "verbs": ["get"],
            }
            for resource, subresource in SUBRESOURCES.items()
        ],
    }


def positions_of(order: PendingOrder, asked: PendingRequest) -> Sequence[Position]:
    """The order of a queue; empty if no Workload is pending in it."""
    if asked.resource == LOCAL_QUEUES:
        return order.local_queues.get(f"{asked.namespace}/{asked.name}", ())
    return order.cluster_queues.get(asked.name, ())


def within(part: PageRange, count: int) -> PageRange:
    """The same part of a list of `count` entries, without what lies beyond its end."""
    offset = min(part.offset, count)
    return PageRange(min(part.limit, count - offset), offset)


def encoded_items(
    positions: Sequence[Position], metadata: Mapping[str, Meta | None]
) -> Generator[None, None, list[bytes]]:
    """The items of a PendingWorkloadsSummary; yields after each `STEP` of them.

    Args:
        positions: of the Workloads in it.
        metadata: by key of the Workload. A Workload without metadata was deleted meanwhile, and is
            left out.
    """
    items = []
    for number, found in enumerate(positions, 1):
        if (meta := metadata.get(found.key)) is not None:
            item = {
                "metadata": _item_metadata(meta),
                "priority": found.priority,
                "localQueueName": found.queue.partition("/")[2],
                "positionInClusterQueue": found.in_cluster_queue,
                "positionInLocalQueue": found.in_local_queue,
            }
            items.append(_encode(item))
        if number % STEP == 0:
            yield
    return items


def summary(version: str, items: Sequence[bytes]) -> bytes:
    """A PendingWorkloadsSummary in a version of the API, with these encoded items."""
    return _encode(
        {
            "kind": KIND,
            "apiVersion": f"{VISIBILITY_GROUP}/{version}",
            "metadata": {},
            "items": [msgspec.Raw(item) for item in items],
        }
    )


def _item_metadata(meta: Meta) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": meta.name,
        "namespace": meta.namespace,
        "creationTimestamp": meta.creation_timestamp,
    }
    if meta.owner_references:
        found["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
            }
            for owner in meta.owner_references
        ]
    return found


def status_of(rejected: RejectedError) -> bytes:
    """The Status object of a failure."""
    return _encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": rejected.message,
            "reason": _REASONS.get(rejected.status, "InternalError"),
            "code": rejected.status,
        }
    )


def forbidden(user: User, asked: PendingRequest) -> RejectedError:
    """The failure of a user without the right."""
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    return RejectedError(
        403,
        f'{asked.resource}.{VISIBILITY_GROUP} "{asked.name}" is forbidden: User "{user.name}" '
        f'cannot get resource "{asked.resource}/{asked.subresource}" in API group '
        f'"{VISIBILITY_GROUP}" {where}',
    )


def not_found(asked: PendingRequest) -> RejectedError:
    """The failure for a queue or Workload that does not exist."""
    return RejectedError(404, f'{asked.resource}.{VISIBILITY_GROUP} "{asked.name}" not found')


def access_review(user: User, asked: PendingRequest) -> bytes:
    """A SubjectAccessReview: does the user have the right to what is requested?"""
    attributes = {
        "verb": "get",
        "group": VISIBILITY_GROUP,
        "version": asked.version,
        "resource": asked.resource,
        "subresource": asked.subresource,
        "name": asked.name,
    }
    if asked.namespace:
        attributes["namespace"] = asked.namespace
    return review_of(user, attributes)


def review_of(user: User, attributes: Mapping[str, str]) -> bytes:
    """A SubjectAccessReview: does the user have the right with these `resourceAttributes`?"""
    return _encode(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": user.groups,
                "extra": dict(user.extra),
                "resourceAttributes": attributes,
            },
        }
    )

"""Asks the API server which rights the service itself lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rackgate.api.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource
from rackgate.kube.client import Client
from rackgate.wire.core import View


class _ReviewStatus(View, frozen=True):
    allowed: bool = False


class _Review(View, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


_decode: Final = msgspec.json.Decoder(_Review).decode
_encode: Final = msgspec.json.Encoder().encode


async def missing_rights(client: Client, verb: str, resources: Iterable[Resource]) -> list[str]:
    """The resources for which the service lacks the verb in all namespaces, as `plural.group`.

    Raises:
        KubeError: the API server rejected the question, or did not answer.
    """
    missing = []
    for resource in resources:
        asked = {"verb": verb, "group": resource.group, "resource": resource.plural}
        review = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": asked},
        }
        answer = await client.create(SELF_SUBJECT_ACCESS_REVIEWS.path(), _encode(review))
        if not _decode(answer).status.allowed:
            missing.append(resource.full_name)
    return missing

"""Which rights a verb needs, and which of them its user lacks, all at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rackgate.api.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError
from rackgate_cli.cluster.roles import BATCH_USER, ask_for
from rackgate_cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class Right:
    """One right in a namespace."""

    verb: str
    resource: Resource
    sub: str = ""

    def __str__(self) -> str:
        name = self.resource.full_name
        return f"{self.verb} {f'{self.resource.plural}/{self.sub}' if self.sub else name}"


async def missing(client: Client, namespace: str, rights: Sequence[Right]) -> list[Right]:
    """Those of the rights that the user lacks; everyone may ask.

    Raises:
        KubeError: the API server rejected the question, or did not answer.
    """
    lacking = []
    for right in rights:
        asked = {
            "namespace": namespace,
            "verb": right.verb,
            "group": right.resource.group,
            "resource": right.resource.plural,
            "subresource": right.sub,
        }
        review = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": asked},
        }
        path = SELF_SUBJECT_ACCESS_REVIEWS.path()
        answer = json.loads(await client.create(path, json.dumps(review).encode()))
        if not (answer.get("status") or {}).get("allowed"):
            lacking.append(right)
    return lacking


async def explain(
    client: Client, namespace: str, rights: Sequence[Right], error: ForbiddenError
) -> CommandError:
    """The error for a user without some of these rights.

    Args:
        client: of the user.
        namespace: of the job.
        rights: all that the verb needs.
        error: what the API server said.
    """
    try:
        lacking = await missing(client, namespace, rights)
    except KubeError:
        lacking = []
    if not lacking:
        # A policy or a webhook rejected it, not RBAC.
        return CommandError(error.message or str(error))
    *first, last = (str(right) for right in lacking)
    named = f"{', '.join(first)} and {last}" if first else last
    return CommandError(
        f'you may not {named} in namespace "{namespace}"; '
        + ask_for(BATCH_USER, "there with a RoleBinding")
    )

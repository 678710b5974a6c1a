"""Asks the API server whether a user may see the pending Workloads of a queue."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import SUBJECT_ACCESS_REVIEWS
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock
from rackgate.wire.core import View
from rackgate_assigner.visibility.answers import (
    PendingRequest,
    RejectedError,
    access_review,
    forbidden,
)
from rackgate_assigner.visibility.front_proxy import User

# As long as an API server keeps the answers of its own delegated authorization.
KEPT_S: Final = 10.0
MAX_KEPT: Final = 2048

log = structlog.get_logger()


class _ReviewStatus(View, frozen=True):
    allowed: bool = False


class _Review(View, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


_decode = msgspec.json.Decoder(_Review).decode


class Authorizer:
    """Sends SubjectAccessReviews, and keeps each answer for a short time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # Answers and when they were asked for, the oldest first.
        self._kept: OrderedDict[tuple[User, PendingRequest], tuple[bool, float]] = OrderedDict()

    async def check(self, user: User, asked: PendingRequest) -> None:
        """Return if the user has the right.

        Raises:
            RejectedError: the user does not have it (403), or that is not known (503).
        """
        key, now = (user, asked), clock.monotonic()
        kept = self._kept.get(key)
        if kept is None or now - kept[1] > KEPT_S:
            kept = (await self._review(user, asked), now)
            self._kept.pop(key, None)
            self._kept[key] = kept
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        if not kept[0]:
            raise forbidden(user, asked)

    async def _review(self, user: User, asked: PendingRequest) -> bool:
        path = SUBJECT_ACCESS_REVIEWS.path()
        try:
            return _decode(
                await self._client.create(path, access_review(user, asked))
            ).status.allowed
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("access_not_reviewed", error=str(error)[:500])
            raise RejectedError(503, "the API server did not review the access") from error

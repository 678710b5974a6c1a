"""Reviews of jobs without a queue label: reads whether their namespace has a default LocalQueue.

Nothing is cached between reviews, so one `kubectl apply` may create the LocalQueue and then a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from rackgate.api.resources import LOCAL_QUEUES
from rackgate.jobframework.kai import RenderOptions
from rackgate.jobframework.templates import section
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.review import AdmissionResponse, Review
from rackgate_webhook.admission.unlabelled import (
    DEFAULT_QUEUE,
    concerns_unlabelled_job,
    place_unlabelled_job,
)
from rackgate_webhook.serving.bodies import RequestRejectedError

# The webhook configuration of deploy/unlabelled sets timeoutSeconds: 5.
READ_TIMEOUT_S: Final = 2.0
QPS: Final = 200.0
BURST: Final = 400
MAX_CONCURRENT_READS: Final = 32

log = structlog.get_logger()


class UnlabelledJobReviews:
    """Decides about jobs without a queue label."""

    def __init__(
        self,
        *,
        default_queues: bool,
        manage_all: bool,
        elastic_kinds: Collection[str] = (),
        kai: RenderOptions | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """Prepare; `connect` must be called before the first review.

        Args:
            default_queues: gate LocalQueueDefaulting.
            manage_all: `manageJobsWithoutQueueName`.
            elastic_kinds: see `mutate`.
            kai: see `mutate`.
            timeout_s: longest time that reading for one review may take.
        """
        self._default_queues, self._manage_all = default_queues, manage_all
        self._elastic_kinds, self._kai = elastic_kinds, kai
        self._timeout_s = timeout_s
        self._client: Client | None = None

    def connect(self, client: Client) -> None:
        """Connect to the API server, with a rate limit of its own."""
        self._client = client.budget(QPS, BURST, MAX_CONCURRENT_READS)

    async def decide(self, review: Review) -> AdmissionResponse:
        """The response to one review.

        Raises:
            MalformedError: the object has a shape that the API server never sends.
            RequestRejectedError: the LocalQueue cannot be read; the failurePolicy decides.
        """
        if not concerns_unlabelled_job(review):
            return AdmissionResponse()
        namespace = str(section(review.object, "metadata").get("namespace", ""))
        return place_unlabelled_job(
            review,
            has_default_queue=self._default_queues and await self._has_default_queue(namespace),
            manage_all=self._manage_all,
            elastic_kinds=self._elastic_kinds,
            kai=self._kai,
        )

    async def _has_default_queue(self, namespace: str) -> bool:
        if name_errors(namespace, "", ""):
            return False  # it must not become part of a URL path
        if self._client is None:
            raise RequestRejectedError(503, "unread", "not connected yet")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.get(LOCAL_QUEUES.path(namespace, DEFAULT_QUEUE))
        except NotFoundError:
            return False
        except (KubeError, TimeoutError) as error:
            cause = str(error) or f"no answer within {self._timeout_s:g} s"
            log.warning("default_queue_not_read", namespace=namespace, error=cause[:300])
            message = (
                f'LocalQueue "{DEFAULT_QUEUE}" of namespace "{namespace}" cannot be read now, try '
                f"again ({cause[:300]})"
            )
            raise RequestRejectedError(503, "unread", message) from error
        return True

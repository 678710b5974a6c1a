"""Jobs without a queue label: they get the LocalQueue `default`, or are suspended and wait.

As Kueue's LocalQueueDefaulting and `manageJobsWithoutQueueName`. Pure; `unlabelled_webhook` finds
out whether the LocalQueue exists.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from rackgate.api.names import QUEUE_LABEL
from rackgate.jobframework.generic_job import SUSPEND
from rackgate.jobframework.kai import RenderOptions
from rackgate.jobframework.managed import is_child, queue_of
from rackgate.jobframework.templates import (
    is_suspended,
    section,
    template_patch,
    with_entries,
)
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse, Review, kind_of_review

DEFAULT_QUEUE: Final = "default"


def concerns_unlabelled_job(review: Review) -> bool:
    """Whether a job without a queue label is created or unsuspended.

    Children of other jobs start and stop with their owner. A job that runs already goes on.
    """
    if kind_of_review(review) is None or review.sub_resource:
        return False
    job, stored = review.object, review.old_object
    if queue_of(job) is not None or is_child(job):
        return False
    if review.operation == "UPDATE":
        deleted = section(job, "metadata").get("deletionTimestamp")
        return not deleted and is_suspended(stored) and not is_suspended(job)
    return review.operation == "CREATE"


def place_unlabelled_job(
    review: Review,
    *,
    has_default_queue: bool,
    manage_all: bool,
    elastic_kinds: Collection[str] = (),
    kai: RenderOptions | None = None,
) -> AdmissionResponse:
    """The patch for a job without a queue label.

    Args:
        review: for which `concerns_unlabelled_job` is true.
        has_default_queue: the namespace has the LocalQueue `default`.
        manage_all: `manageJobsWithoutQueueName`.
        elastic_kinds: see `mutate`.
        kai: see `mutate`.
    """
    job = review.object
    if has_default_queue:
        labelled = with_entries(job, "metadata", "labels", {QUEUE_LABEL: DEFAULT_QUEUE})
        # A job that gets a queue is injected like one that is created with it.
        created = replace(review, operation="CREATE", object=labelled, old_object={})
        injected = mutate(created, elastic_kinds=elastic_kinds, kai=kai)
        label = template_patch(job, labelled, "")
        return replace(injected, operations=[*label, *injected.operations])
    if not manage_all or is_suspended(job):
        return AdmissionResponse()
    warning = (
        f"the job has no queue: it is suspended until it has the label {QUEUE_LABEL} with the name "
        "of a LocalQueue"
    )
    return AdmissionResponse(operations=[dict(SUSPEND)], warnings=[warning])

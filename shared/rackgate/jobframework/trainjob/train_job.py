"""TrainJobs: the pods of the trainer are one gang.

A TrainJob has no pod template. Its controller copies `spec.annotations` to the JobSet that it
creates, and the webhook writes the link from there into the templates of the JobSet.
"""

from __future__ import annotations

from collections.abc import Iterator

from rackgate.api.resources import TRAIN_JOBS
from rackgate.jobframework.linked_kind import (
    LinkedGang,
    LinkedKind,
    LinkHolder,
    Manifest,
    count_at,
)
from rackgate.jobframework.templates import items, section


class TrainJobKind(LinkedKind):
    """`trainer.kubeflow.org/v1alpha1` TrainJob."""

    resource = TRAIN_JOBS
    rank_path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    # A JobSet with the queue label would be queued as a job of its own.
    takes_queue = False

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """None."""
        yield from ()

    def holders(self, manifest: Manifest) -> list[LinkHolder]:
        """`spec`, whose annotations the JobSet gets."""
        return [LinkHolder(("spec",), section(manifest, "spec"), None)]

    def gang(self, manifest: Manifest) -> LinkedGang:
        """All pods of the trainer."""
        spec = section(manifest, "spec")
        if spec.get("initializer") is not None:
            why = "spec.initializer runs before the trainer; name a Workload of gangs in"
            return LinkedGang(alone=f"{why} spec.annotations with a gang for each step")
        size = count_at(manifest, "spec", "trainer", "numNodes")
        if not size:
            why = "spec.trainer.numNodes is not set, so the number of pods is that of the runtime"
            return LinkedGang(alone=f"{why}; set it to make them a gang")
        return LinkedGang(size)

    def has_pods(self, manifest: Manifest) -> bool:
        """Whether one of its Jobs is active."""
        jobs = items(section(manifest, "status"), "jobsStatus", "status")
        return any(job.get("active") or job.get("ready") for job in jobs)

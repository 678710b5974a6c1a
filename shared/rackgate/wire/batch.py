"""Partial msgspec view of batch/v1 Job. The pod template stays raw: it is decoded on demand."""

from __future__ import annotations

import msgspec

from rackgate.wire.core import Condition, Meta, View


class JobSpec(View, frozen=True):
    """The part of a JobSpec that queueing reads.

    `template` is the JSON of the pod template exactly as stored by the API server.
    """

    suspend: bool = False
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    managed_by: str | None = None
    pod_replacement_policy: str | None = None
    ttl_seconds_after_finished: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")


class UncountedPods(View, frozen=True):
    """UIDs of pods that ended and are not yet counted."""

    succeeded: tuple[str, ...] = ()


class JobStatus(View, frozen=True):
    """The part of a JobStatus that queueing reads."""

    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""
    uncounted_terminated_pods: UncountedPods = UncountedPods()
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, if present."""
        return next((c for c in self.conditions if c.type == type_), None)


class Job(View, frozen=True):
    """A batch/v1 Job."""

    metadata: Meta = Meta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def pod_count(self) -> int:
        """Pods that run at once: min(parallelism, completions)."""
        if self.spec.completions is None:
            return self.spec.parallelism
        return min(self.spec.parallelism, self.spec.completions)

    @property
    def indexed(self) -> bool:
        """Whether pods carry a completion index."""
        return self.spec.completion_mode == "Indexed"

    @property
    def finished(self) -> Condition | None:
        """The condition Complete or Failed that is True, if any."""
        ended = (c for c in self.status.conditions if c.type in ("Complete", "Failed"))
        return next((c for c in ended if c.status == "True"), None)

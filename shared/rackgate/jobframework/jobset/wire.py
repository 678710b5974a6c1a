"""Partial msgspec view of jobset.x-k8s.io/v1alpha2 JobSet. Its pod templates stay raw."""

from __future__ import annotations

import msgspec

from rackgate.wire.core import Condition, Meta, View


class FailurePolicyRule(View, frozen=True):
    """The action after a failure of child Jobs."""

    action: str = ""


class FailurePolicy(View, frozen=True):
    """Whether a JobSet restarts after a child Job failed."""

    max_restarts: int = 0
    rules: tuple[FailurePolicyRule, ...] | None = None


class StartupPolicy(View, frozen=True):
    """Whether replicatedJobs start one after the other."""

    startup_policy_order: str = ""


class JobSetSpec(View, frozen=True):
    """The part of a JobSetSpec that queueing reads.

    `replicated_jobs` is the JSON of the list exactly as stored by the API server.
    """

    suspend: bool | None = None
    managed_by: str | None = None
    failure_policy: FailurePolicy | None = None
    startup_policy: StartupPolicy | None = None
    ttl_seconds_after_finished: int | None = None
    replicated_jobs: msgspec.Raw = msgspec.Raw(b"[]")


class ReplicatedJobStatus(View, frozen=True):
    """Numbers of child Jobs of one replicatedJob, by state."""

    name: str = ""
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    suspended: int = 0

    @property
    def ever_ready(self) -> int:
        """Child Jobs that were ready at some time, as JobSet counts them for `dependsOn`."""
        return self.ready + self.succeeded + self.failed


class JobSetStatus(View, frozen=True):
    """The part of a JobSetStatus that queueing reads."""

    conditions: tuple[Condition, ...] = ()
    restarts_count_towards_max: int = 0
    replicated_jobs_status: tuple[ReplicatedJobStatus, ...] = ()


class JobSet(View, frozen=True):
    """A JobSet."""

    metadata: Meta = Meta()
    spec: JobSetSpec = JobSetSpec()
    status: JobSetStatus = JobSetStatus()

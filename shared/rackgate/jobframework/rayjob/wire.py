"""Partial msgspec view of ray.io/v1 RayJob. Its pod templates stay raw."""

from __future__ import annotations

import msgspec

from rackgate.wire.core import Meta, View

_NULL = msgspec.Raw(b"null")


class RayJobSpec(View, frozen=True):
    """The part of a RayJobSpec that queueing reads.

    The cluster and the template of the submitter are JSON exactly as stored by the API server.
    """

    suspend: bool | None = None
    managed_by: str | None = None
    submission_mode: str | None = None
    deletion_policy: str | None = None
    ray_cluster_spec: msgspec.Raw = _NULL
    submitter_pod_template: msgspec.Raw = _NULL


class RayJobStatus(View, frozen=True):
    """The part of a RayJobStatus that queueing reads."""

    job_deployment_status: str = ""
    job_status: str = ""
    message: str = ""


class RayJob(View, frozen=True):
    """A RayJob."""

    metadata: Meta = Meta()
    spec: RayJobSpec = RayJobSpec()
    status: RayJobStatus = RayJobStatus()

"""Partial msgspec view of ray.io/v1 RayCluster. Its pod templates stay raw."""

from __future__ import annotations

import msgspec

from rackgate.wire.core import Condition, Meta, View

_NULL = msgspec.Raw(b"null")


class RayClusterSpec(View, frozen=True):
    """The part of a RayClusterSpec that queueing reads.

    The groups and the options of the autoscaler are JSON exactly as stored by the API server.
    """

    suspend: bool | None = None
    managed_by: str | None = None
    enable_in_tree_autoscaling: bool | None = None
    autoscaler_options: msgspec.Raw = _NULL
    head_group_spec: msgspec.Raw = _NULL
    worker_group_specs: msgspec.Raw = _NULL


class RayClusterStatus(View, frozen=True):
    """The part of a RayClusterStatus that queueing reads."""

    state: str = ""
    conditions: tuple[Condition, ...] = ()
    ready_worker_replicas: int = 0


class RayCluster(View, frozen=True):
    """A RayCluster."""

    metadata: Meta = Meta()
    spec: RayClusterSpec = RayClusterSpec()
    status: RayClusterStatus = RayClusterStatus()

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, if present."""
        return next((c for c in self.status.conditions if c.type == type_), None)

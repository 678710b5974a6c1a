"""Converts the JSON of flavors, topologies, queues and Cohorts to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from rackgate.resources.quantity import QuantityError, quota_amount
from rackgate.wire import core, kueue
from rackgate.wire.core import View
from rackgate.wire.depth import tolerant
from rackgate_invariants.rows import rows
from rackgate_invariants.rows.projections import seconds

DRAINED: Final = "HoldAndDrain"
STOPPED: Final = ("Hold", DRAINED)
_flavor = tolerant(msgspec.json.Decoder(kueue.ResourceFlavor).decode)
_topology = tolerant(msgspec.json.Decoder(kueue.Topology).decode)


def flavor_row(raw: bytes | msgspec.Raw) -> rows.FlavorRow:
    """A ResourceFlavor."""
    flavor = _flavor(raw)
    meta, spec = flavor.metadata, flavor.spec
    topology = spec.topology_name or ""
    return rows.FlavorRow(meta.name, spec.node_labels, topology, meta.resource_version, meta.uid)


def topology_row(raw: bytes | msgspec.Raw) -> rows.TopologyRow:
    """A Topology."""
    topology = _topology(raw)
    levels = tuple(level.node_label for level in topology.spec.levels)
    meta = topology.metadata
    return rows.TopologyRow(meta.name, levels, meta.resource_version, meta.uid)


class _Fields(View, frozen=True):
    spec: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="f:spec")


class _Written(View, frozen=True):
    time: str | None = None
    fields_v1: _Fields = msgspec.field(default=_Fields(), name="fieldsV1")


class _QueueMeta(core.Meta, frozen=True):
    managed_fields: tuple[_Written, ...] = ()


class _ClusterQueue(kueue.ClusterQueue, frozen=True):
    metadata: _QueueMeta = _QueueMeta()


class _LocalQueue(kueue.LocalQueue, frozen=True):
    metadata: _QueueMeta = _QueueMeta()


class _Cohort(kueue.Cohort, frozen=True):
    metadata: _QueueMeta = _QueueMeta()


_cohort = tolerant(msgspec.json.Decoder(_Cohort).decode)
_cluster_queue = tolerant(msgspec.json.Decoder(_ClusterQueue).decode)
_local_queue = tolerant(msgspec.json.Decoder(_LocalQueue).decode)


def cluster_queue_row(raw: bytes | msgspec.Raw) -> rows.QueueRow:
    """A ClusterQueue."""
    queue = _cluster_queue(raw)
    meta = queue.metadata
    return rows.QueueRow(
        key=meta.name,
        cohort=queue.spec.cohort_name or "",
        nominal=_limits(queue.spec, lambda quota: quota.nominal_quota),
        borrowing_limit=_limits(queue.spec, lambda quota: quota.borrowing_limit),
        lending_limit=_limits(queue.spec, lambda quota: quota.lending_limit),
        stopped=queue.spec.stop_policy in STOPPED,
        drained=queue.spec.stop_policy == DRAINED,
        counts=_counts(queue.status),
        deleting=meta.deletion_timestamp is not None,
        created_at=seconds(meta.creation_timestamp),
        spec_at=_spec_at(meta),
        version=meta.resource_version,
        uid=meta.uid,
    )


def local_queue_row(raw: bytes | msgspec.Raw) -> rows.QueueRow:
    """A LocalQueue."""
    queue = _local_queue(raw)
    meta = queue.metadata
    return rows.QueueRow(
        key=meta.key,
        cluster_queue=queue.spec.cluster_queue,
        stopped=queue.spec.stop_policy in STOPPED,
        drained=queue.spec.stop_policy == DRAINED,
        counts=_counts(queue.status),
        deleting=meta.deletion_timestamp is not None,
        created_at=seconds(meta.creation_timestamp),
        spec_at=_spec_at(meta),
        version=meta.resource_version,
        uid=meta.uid,
    )


def cohort_row(raw: bytes | msgspec.Raw) -> rows.QueueRow:
    """A Cohort."""
    cohort = _cohort(raw)
    meta = cohort.metadata
    return rows.QueueRow(
        key=meta.name,
        cohort=cohort.spec.parent_name or "",
        nominal=_limits(cohort.spec, lambda quota: quota.nominal_quota),
        borrowing_limit=_limits(cohort.spec, lambda quota: quota.borrowing_limit),
        lending_limit=_limits(cohort.spec, lambda quota: quota.lending_limit),
        deleting=meta.deletion_timestamp is not None,
        created_at=seconds(meta.creation_timestamp),
        spec_at=_spec_at(meta),
        version=meta.resource_version,
        uid=meta.uid,
    )


def _limits(
    spec: kueue.ClusterQueueSpec | kueue.CohortSpec,
    limit: Callable[[kueue.ResourceQuota], kueue.Amount | None],
) -> dict[tuple[str, str], int]:
    """A limit of each flavor and resource that has one."""
    values = (
        (flavor.name, quota.name, limit(quota))
        for group in spec.resource_groups
        for flavor in group.flavors
        for quota in flavor.resources
    )
    return {
        (flavor, name): _quota(name, value) for flavor, name, value in values if value is not None
    }


def _spec_at(meta: _QueueMeta) -> float:
    written = [entry.time for entry in meta.managed_fields if bytes(entry.fields_v1.spec)]
    return max(map(seconds, [meta.creation_timestamp, *written]))


def _quota(resource: str, value: kueue.Amount) -> int:
    try:
        return quota_amount(resource, value)
    except QuantityError:  # the schema of the CRD rejects such quotas
        return 0


def _counts(status: kueue.QueueStatus) -> rows.Counts:
    return rows.Counts(
        status.pending_workloads,
        status.reserving_workloads,
        status.admitted_workloads,
        _totals(status.flavors_reservation),
        _totals(status.flavors_usage),
    )


def _totals(listed: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    return {
        (flavor.get("name", ""), one.get("name", "")): _quota(
            one.get("name", ""), one.get("total", "0")
        )
        for flavor in listed
        for one in flavor.get("resources") or ()
    }

"""Converts the JSON of nodes and pods to rows; fields that no rule reads are not decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final, TypeVar

import msgspec

from rackgate.api import names
from rackgate.resources.pod_requests import pod_requests
from rackgate.resources.quantity import QuantityError, amount
from rackgate.wire import core
from rackgate.wire.core import View
from rackgate.wire.depth import tolerant
from rackgate_invariants.rows import rows

R = TypeVar("R")
Decode = Callable[[bytes | msgspec.Raw], R]

# The Job controller's label on pods; it remains when a pod loses its controller.
CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
# KubeRay's node type of a head, which is also the name of its PodSet.
RAY_HEAD: Final = "head"
UNGATER: Final = "rackgate-ungater"
ADMISSION_MANAGERS: Final = (str(names.FieldManager.ADMISSION), "kueue-admission")
SHARED_LIMIT: Final = 65536


@lru_cache(maxsize=65536)
def seconds(moment: str | None) -> float:
    """Unix time of a timestamp; 0 if it is missing or malformed."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else 0.0
    except ValueError:
        return 0.0


class Managed(View, frozen=True):
    """One entry of the managed fields: who wrote, and when."""

    manager: str = ""
    subresource: str = ""
    time: str | None = None


class ManagedMeta(core.Meta, frozen=True):
    """Metadata with its writers."""

    managed_fields: tuple[Managed, ...] = ()


def written_at(meta: ManagedMeta, managers: Iterable[str], subresource: str) -> float:
    """When one of these managers wrote last; 0 if none did."""
    return max(
        (
            seconds(entry.time)
            for entry in meta.managed_fields
            if entry.manager in managers and entry.subresource == subresource
        ),
        default=0.0,
    )


def _amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Amounts by resource; malformed ones are left out."""
    found: dict[str, int] = {}
    for resource, value in quantities.items():
        try:
            found[resource] = amount(resource, value)
        except QuantityError:
            continue
    return found


# Nodes.

_node = tolerant(msgspec.json.Decoder(core.Node).decode)


def node_row(raw: bytes | msgspec.Raw) -> rows.NodeRow:
    """A node's labels and allocatable amounts."""
    node = _node(raw)
    return rows.NodeRow(
        name=node.metadata.name,
        labels={intern(key): intern(value) for key, value in node.metadata.labels.items()},
        allocatable=_amounts(node.status.allocatable),
        version=node.metadata.resource_version,
        uid=node.metadata.uid,
        ready=node.ready,
    )


# Pods.


class _Container(View, frozen=True):
    """Resources stay raw JSON: pods of one Job share them, and they are the key of a cache."""

    name: str = ""
    resources: msgspec.Raw = msgspec.Raw(b"{}")
    restart_policy: str | None = None


class _ContainerStatus(View, frozen=True):
    """Resources allocated to a container; also raw JSON."""

    name: str = ""
    resources: msgspec.Raw = msgspec.Raw(b"")
    allocated_resources: msgspec.Raw = msgspec.Raw(b"")


class _PodSpec(View, frozen=True):
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    scheduling_gates: tuple[core.SchedulingGate, ...] = ()
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: msgspec.Raw = msgspec.Raw(b"{}")
    resources: msgspec.Raw = msgspec.Raw(b"{}")


class _PodCondition(View, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _PodStatus(View, frozen=True):
    conditions: tuple[_PodCondition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


class _Pod(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


_pod = tolerant(msgspec.json.Decoder(_Pod).decode)
_requests_by_raw: dict[Any, rows.Amounts] = {}
_shared: dict[Any, Any] = {}


def one(key: Any, value: R) -> R:
    """An equal value that is cached already, else this one."""
    found: R = _shared.setdefault((type(value), key), value)
    if len(_shared) > SHARED_LIMIT:
        _shared.clear()  # rows keep the values that they use
    return found


def _containers(found: Iterable[_Container]) -> tuple[tuple[str, bytes, str | None], ...]:
    return tuple([(one.name, bytes(one.resources), one.restart_policy) for one in found])


def _allocated(status: _PodStatus) -> tuple[tuple[str, bytes, bytes], ...]:
    if not (status.container_statuses or status.init_container_statuses):
        return ()
    return tuple(
        [
            (one.name, bytes(one.resources), bytes(one.allocated_resources))
            for one in (*status.container_statuses, *status.init_container_statuses)
            if one.resources or one.allocated_resources
        ]
    )


def _requests(spec: _PodSpec, status: _PodStatus) -> rows.Amounts:
    """What a pod uses of its node; during a resize, the larger of requested and allocated."""
    running, starting = _containers(spec.containers), _containers(spec.init_containers)
    allocated = _allocated(status)
    key = (running, starting, bytes(spec.overhead), bytes(spec.resources), allocated)
    known = _requests_by_raw.get(key)
    if known is None:
        whole = core.PodSpec(
            containers=_resources(running),
            init_containers=_resources(starting),
            overhead=msgspec.json.decode(spec.overhead, type=dict[str, str | int | float]),
            resources=msgspec.json.decode(spec.resources, type=core.Resources),
        )
        if len(_requests_by_raw) >= SHARED_LIMIT:
            _requests_by_raw.clear()
        statuses = tuple(_status(*one) for one in allocated)
        known = _requests_by_raw[key] = amounts_of(whole, statuses)
    return known


def _resources(containers: Iterable[tuple[str, bytes, str | None]]) -> tuple[core.Container, ...]:
    return tuple(
        core.Container(
            name=name,
            resources=msgspec.json.decode(raw, type=core.Resources),
            restart_policy=policy,
        )
        for name, raw, policy in containers
    )


def _status(name: str, resources: bytes, allocated: bytes) -> core.ContainerStatus:
    return core.ContainerStatus(
        name=name,
        resources=msgspec.json.decode(resources or b"{}", type=core.Resources),
        allocated_resources=msgspec.json.decode(
            allocated or b"{}", type=dict[str, str | int | float]
        ),
    )


def amounts_of(spec: core.PodSpec, statuses: tuple[core.ContainerStatus, ...] = ()) -> rows.Amounts:
    """A pod's requests, sorted; none if they cannot be read."""
    try:
        return tuple(sorted(pod_requests(spec, statuses).items()))
    except QuantityError:  # the API server rejects such pods
        return ()


def pod_row(raw: bytes | msgspec.Raw) -> rows.PodRow:
    """A pod, whatever its phase."""
    pod = _pod(raw)
    meta, spec = pod.metadata, pod.spec
    owner = meta.controller
    labels = meta.labels
    node_type = labels.get(names.RAY_NODE_TYPE_LABEL, "")
    former_owner = "" if owner is not None else labels.get(CONTROLLER_UID, "")
    group = RAY_HEAD if node_type == RAY_HEAD else ""
    selector = spec.node_selector
    created_at = seconds(meta.creation_timestamp)
    bound = next(
        (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"), None
    )
    return rows.PodRow(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        owner=intern(owner.uid) if owner else "",
        owner_kind=intern(owner.kind) if owner else "",
        owner_name=intern(owner.name) if owner else "",
        former_owner=intern(former_owner),
        workload=intern(meta.annotations.get(names.WORKLOAD_ANNOTATION, "")),
        podset=intern(labels.get(names.PODSET_LABEL, "")),
        group=intern(group or labels.get(names.RAY_GROUP_LABEL, "").lower()),
        tas=names.TAS_LABEL in labels,
        cleanup=node_type == names.RAY_CLEANUP_TYPE,
        gates=tuple(intern(gate.name) for gate in spec.scheduling_gates),
        selector=one(tuple(selector.items()), selector),
        node=intern(spec.node_name),
        requests=_requests(spec, pod.status),
        index=_index(meta),
        subindex=_number(meta.labels.get(names.JOB_INDEX_LABEL, "")),
        terminating=meta.deletion_timestamp is not None,
        ends_at=seconds(meta.deletion_timestamp),
        created_at=created_at,
        # By the clock of kube-scheduler, which may be behind that of the API server.
        scheduled_at=max(created_at, seconds(bound.last_transition_time) if bound else 0.0),
        ungater_wrote_at=written_at(meta, (UNGATER,), ""),
    )


def _index(meta: core.Meta) -> int:
    if names.POD_INDEX_OFFSET in meta.annotations:
        return -1
    return _number(meta.labels.get(names.COMPLETION_INDEX_LABEL, ""))


def _number(text: str) -> int:
    """The number in a label; -1 if it is missing or malformed."""
    return int(text) if text.isdecimal() and len(text) <= 9 else -1

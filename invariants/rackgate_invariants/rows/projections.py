"""Converts the JSON of nodes and pods to rows; fields that no rule reads are not decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final, TypeVar

import msgspec

from rackgate.api import names
from rackgate.gang.link import link_of
from rackgate.jobframework.pod_group.membership import group_uid, is_gang_id
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
_JOB_KINDS: Final = frozenset({"Job", "JobSet", "RayCluster", "RayJob"})
# What owns a plain pod that is managed: the group that its labels name, or the pod itself.
POD_GROUP: Final = "PodGroup"
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


class _Pod(core.Pod, frozen=True):
    metadata: ManagedMeta = ManagedMeta()


_pod = tolerant(msgspec.json.Decoder(_Pod).decode)
_shared: dict[Any, Any] = {}


def one(key: Any, value: R) -> R:
    """An equal value that is cached already, else this one."""
    found: R = _shared.setdefault((type(value), key), value)
    if len(_shared) > SHARED_LIMIT:
        _shared.clear()  # rows keep the values that they use
    return found


def amounts_of(spec: core.PodSpec, statuses: tuple[core.ContainerStatus, ...] = ()) -> rows.Amounts:
    """A pod's requests, sorted; none if they cannot be read.

    During a resize, the larger of what is requested and what is allocated.
    """
    try:
        found = tuple(sorted(pod_requests(spec, statuses).items()))
    except QuantityError:  # the API server rejects such pods
        return ()
    return one(found, found)


def pod_row(raw: bytes | msgspec.Raw) -> rows.PodRow:
    """A pod, whatever its phase."""
    pod = _pod(raw)
    meta, spec = pod.metadata, pod.spec
    owner = meta.controller
    labels = meta.labels
    node_type = labels.get(names.RAY_NODE_TYPE_LABEL, "")
    of_job = owner is not None and owner.kind in _JOB_KINDS
    plain = group_uid(meta.uid, meta.namespace, labels)
    if of_job and not is_gang_id(plain):
        plain = ""
    former_owner = "" if owner is not None else labels.get(CONTROLLER_UID, "")
    group = RAY_HEAD if node_type == RAY_HEAD else ""
    selector = spec.node_selector
    created_at = seconds(meta.creation_timestamp)
    link = link_of(meta.annotations)
    bound = next(
        (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"), None
    )
    return rows.PodRow(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        owner=plain or (intern(owner.uid) if owner else ""),
        owner_kind=POD_GROUP if plain else intern(owner.kind) if owner else "",
        owner_name=intern(owner.name) if owner else "",
        former_owner=intern(former_owner),
        workload=intern(
            meta.annotations.get(names.WORKLOAD_ANNOTATION)
            or meta.annotations.get(names.KUEUE_SLICE_CHAIN_ANNOTATION, "")
        ),
        podset=intern(labels.get(names.PODSET_LABEL, "")),
        group=intern(group or labels.get(names.RAY_GROUP_LABEL, "").lower()),
        tas=names.TAS_LABEL in labels,
        cleanup=node_type == names.RAY_CLEANUP_TYPE,
        gates=tuple(intern(gate.name) for gate in spec.scheduling_gates),
        selector=one(tuple(selector.items()), selector),
        node=intern(spec.node_name or ""),
        requests=amounts_of(
            spec, (*pod.status.container_statuses, *pod.status.init_container_statuses)
        ),
        index=_index(meta),
        subindex=_number(meta.labels.get(names.JOB_INDEX_LABEL, "")),
        terminating=meta.deletion_timestamp is not None,
        ends_at=seconds(meta.deletion_timestamp),
        created_at=created_at,
        # By the clock of kube-scheduler, which may be behind that of the API server.
        scheduled_at=max(created_at, seconds(bound.last_transition_time) if bound else 0.0),
        ungater_wrote_at=written_at(meta, (UNGATER,), ""),
        link=intern(link),
        run=intern(meta.annotations.get(names.GANG_RUN_ANNOTATION, "")),
        labels=one(tuple(labels.items()), labels) if link else {},
    )


def _index(meta: core.Meta) -> int:
    if names.POD_INDEX_OFFSET in meta.annotations:
        return -1
    return _number(meta.labels.get(names.COMPLETION_INDEX_LABEL, ""))


def _number(text: str) -> int:
    """The number in a label; -1 if it is missing or malformed."""
    return int(text) if text.isdecimal() and len(text) <= 9 else -1

"""The next action for a Pool of OSMO and its Topology for KAI, from the watches. Pure.

A Topology is ours if a Pool of the matching name controls it, or if it has no controller and our
label names that Pool. A user who sets the label on a Topology hands it over to Rackgate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rackgate.api.names import OSMO_GROUP, OSMO_POOL_LABEL, OSMO_VERSION, PoolReason
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer, with_preconditions
from rackgate.wire.core import Meta
from rackgate.wire.osmo import KaiTopology, Pool
from rackgate_osmo import Pool as OsmoPool
from rackgate_osmo import RejectedError, read_pool, topology_of

_PREFIX: Final = "osmo-pool-"
_SUFFIX: Final = "-topology"
_MAX_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class PoolState:
    """Input from the watches.

    Attributes:
        name: of the Pool.
        pool: None if there is none.
        topology: the Topology with the name for the Pool, whoever created it.
        pools_served: the API server knows Pools.
        topologies_served: the API server knows KAI's Topologies.
    """

    name: str
    pool: Pool | None
    topology: KaiTopology | None
    pools_served: bool = True
    topologies_served: bool = True


@dataclass(frozen=True, slots=True)
class SyncedCondition:
    """The desired Synced condition, and the name of the Topology for workflows."""

    synced: bool
    reason: PoolReason
    message: str
    topology: str = ""


@dataclass(frozen=True, slots=True)
class CreateTopology:
    """No Topology of that name exists."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplaceTopology:
    """Levels are immutable: this Topology is deleted, then the new one is created."""

    old: Meta
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AdoptTopology:
    """Only label or owner is missing."""

    old: Meta
    operations: list[JsonPatchOp]


@dataclass(frozen=True, slots=True)
class DeleteTopology:
    """The Pool has no keys any more, or is deleted.

    Attributes:
        orphan: no Pool was seen: the API server must confirm that before the deletion.
    """

    old: Meta
    orphan: bool = False


Action: TypeAlias = CreateTopology | ReplaceTopology | AdoptTopology | DeleteTopology


@dataclass(frozen=True, slots=True)
class Plan:
    """One action, or the condition if no action is due."""

    action: Action | None = None
    condition: SyncedCondition | None = None


def topology_name(pool: str) -> str:
    """Name of the Topology of a Pool."""
    return OsmoPool(name=pool).topology_name


def pool_name(topology: str) -> str | None:
    """Name of the Pool that a Topology of this name belongs to; None for any other."""
    name = topology.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return name if name and topology_name(name) == topology else None


def plan_pool(state: PoolState) -> Plan:
    """The next action for one Pool, or its condition."""
    pool = state.pool
    if pool is None or pool.metadata.deletion_timestamp is not None:
        found = state.topology
        keep = found is None or not is_ours(found, state.name) or not state.pools_served
        if found is None or keep or found.metadata.deletion_timestamp is not None:
            return Plan()
        return Plan(DeleteTopology(found.metadata, orphan=pool is None))
    try:
        desired = topology_of(read_pool({**pool.spec, "name": state.name}))
    except RejectedError as error:
        return Plan(condition=_invalid_pool(pool, error))
    if desired is None:
        return _plan_without_topology(state)
    name = str(desired["metadata"]["name"])
    if not state.topologies_served:
        message = "topologies.kai.scheduler is not installed: install KAI 0.12 or newer"
        return Plan(
            condition=SyncedCondition(False, PoolReason.TOPOLOGY_KIND_MISSING, message, name)
        )
    return _plan_with_topology(state, pool, desired)


def _plan_without_topology(state: PoolState) -> Plan:
    found = state.topology
    if found is None or not is_ours(found, state.name):
        message = "the pool has no topology keys: its workflows cannot request topology"
        return Plan(condition=SyncedCondition(True, PoolReason.NO_TOPOLOGY_KEYS, message))
    if found.metadata.deletion_timestamp is not None:
        return Plan(condition=_waiting_for_deletion(found))
    return Plan(DeleteTopology(found.metadata))


def _plan_with_topology(state: PoolState, pool: Pool, desired: dict[str, Any]) -> Plan:
    found = state.topology
    body = _with_owner(desired, pool.metadata)
    if found is None:
        return Plan(CreateTopology(body))
    name, levels = found.metadata.name, _levels(desired)
    if not is_ours(found, state.name):
        return Plan(
            condition=SyncedCondition(
                False, PoolReason.FOREIGN_TOPOLOGY, _foreign_message(state, found), name
            )
        )
    if found.metadata.deletion_timestamp is not None:
        return Plan(condition=_waiting_for_deletion(found))
    if found.labels != levels:
        return Plan(ReplaceTopology(found.metadata, body))
    operations = _adoption_operations(found.metadata, pool.metadata)
    if operations:
        return Plan(AdoptTopology(found.metadata, operations))
    message = f'Topology "{name}" has the levels {", ".join(levels)}'
    return Plan(condition=SyncedCondition(True, PoolReason.IN_STEP, message, name))


def _foreign_message(state: PoolState, found: KaiTopology) -> str:
    owner = found.metadata.controller
    if owner is None:
        advice = f"delete it, or set the label {OSMO_POOL_LABEL}={state.name} on it"
    else:
        advice = f'{owner.kind} "{owner.name}" controls it: delete that, or rename the pool'
    return (
        f'Topology "{found.metadata.name}" is not this pool\'s and is not changed (levels: '
        f"{', '.join(found.labels)}): {advice}"
    )


def is_ours(topology: KaiTopology, pool: str) -> bool:
    """Whether a Topology belongs to the Pool of this name, see the module."""
    owner = topology.metadata.controller
    if owner is None:
        return topology.metadata.labels.get(OSMO_POOL_LABEL) == pool
    group = owner.api_version.partition("/")[0]
    return (group, owner.kind, owner.name) == (OSMO_GROUP, "Pool", pool)


def _invalid_pool(pool: Pool, error: RejectedError) -> SyncedCondition:
    problems = "; ".join(map(str, error.rejections[:_MAX_SHOWN]))
    left = len(error.rejections) - _MAX_SHOWN
    message = (
        f"spec: {problems}{f' and {left} more' if left > 0 else ''} (its Topology is not changed)"
    )
    return SyncedCondition(False, PoolReason.INVALID_POOL, message, pool.status.topology)


def _waiting_for_deletion(topology: KaiTopology) -> SyncedCondition:
    meta = topology.metadata
    holders = ", ".join(meta.finalizers) or "none"
    message = f'Topology "{meta.name}" is being deleted (finalizers: {holders})'
    return SyncedCondition(False, PoolReason.WAITING_FOR_DELETION, message, meta.name)


def _levels(desired: dict[str, Any]) -> tuple[str, ...]:
    entries: Sequence[dict[str, str]] = desired["spec"]["levels"]
    return tuple(entry["nodeLabel"] for entry in entries)


def _owner(pool: Meta) -> dict[str, Any]:
    return {
        "apiVersion": f"{OSMO_GROUP}/{OSMO_VERSION}",
        "kind": "Pool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }


def _with_owner(desired: dict[str, Any], pool: Meta) -> dict[str, Any]:
    labels = {**desired["metadata"].get("labels", {}), OSMO_POOL_LABEL: pool.name}
    metadata = {**desired["metadata"], "labels": labels, "ownerReferences": [_owner(pool)]}
    return {**desired, "metadata": metadata}


def _adoption_operations(meta: Meta, pool: Meta) -> list[JsonPatchOp]:
    """Operations that set label and owner; bound to the version that was read."""
    operations: list[JsonPatchOp] = []
    if meta.labels.get(OSMO_POOL_LABEL) != pool.name:
        if meta.labels:
            path, value = pointer("metadata", "labels", OSMO_POOL_LABEL), pool.name
            operations.append({"op": "add", "path": path, "value": value})
        else:
            labels = {OSMO_POOL_LABEL: pool.name}
            operations.append({"op": "add", "path": pointer("metadata", "labels"), "value": labels})
    owner = meta.controller
    if owner is None:
        path = pointer("metadata", "ownerReferences", *(["-"] if meta.owner_references else []))
        value_of = _owner(pool) if meta.owner_references else [_owner(pool)]
        operations.append({"op": "add", "path": path, "value": value_of})
    elif owner.uid != pool.uid:
        # An earlier Pool of that name: the garbage collector would delete the Topology with it.
        at = str(meta.owner_references.index(owner))
        path = pointer("metadata", "ownerReferences", at)
        operations.append({"op": "replace", "path": path, "value": _owner(pool)})
    if not operations:
        return []
    return with_preconditions(operations, uid=meta.uid, resource_version=meta.resource_version)

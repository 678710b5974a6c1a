"""What to do about a Pool of OSMO and its Topology for KAI, from what the watches show. Pure.

A Topology is ours when a Pool of the fitting name controls it, or when nobody does and our label
names that Pool: whoever sets the label on a Topology of their own hands it over.
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
class Facts:
    """What the watches show.

    Attributes:
        name: of the Pool.
        pool: None when there is none.
        topology: the Topology with the name that belongs to the Pool, whoever made it.
        pools_served: the API server knows Pools.
        topologies_served: the API server knows KAI's Topologies.
    """

    name: str
    pool: Pool | None
    topology: KaiTopology | None
    pools_served: bool = True
    topologies_served: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """The wanted Synced condition, and the name of the Topology that workflows are to name."""

    synced: bool
    reason: PoolReason
    message: str
    topology: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Topology of that name."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replace:
    """Levels cannot change: this very Topology goes, then the new one is made."""

    old: Meta
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """Only label or owner is missing."""

    old: Meta
    operations: list[JsonPatchOp]


@dataclass(frozen=True, slots=True)
class Remove:
    """The Pool has no keys any more, or is gone.

    Attributes:
        orphan: no Pool was seen: the API server has to say so, too, before anything goes.
    """

    old: Meta
    orphan: bool = False


Step: TypeAlias = Create | Replace | Mark | Remove


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, or what to say when none is due."""

    step: Step | None = None
    said: Said | None = None


def topology_name(pool: str) -> str:
    """Name of the Topology of a Pool."""
    return OsmoPool(name=pool).topology_name


def pool_name(topology: str) -> str | None:
    """Name of the Pool that a Topology of this name belongs to; None for any other."""
    name = topology.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return name if name and topology_name(name) == topology else None


def plan_pool(facts: Facts) -> Plan:
    """The next step about one Pool, or what its condition is to say."""
    pool = facts.pool
    if pool is None or pool.metadata.deletion_timestamp is not None:
        return _plan_gone(facts)
    try:
        wanted = topology_of(read_pool({**pool.spec, "name": facts.name}))
    except RejectedError as error:
        return Plan(said=_invalid(pool, error))
    if wanted is None:
        return _plan_none(facts)
    name = str(wanted["metadata"]["name"])
    if not facts.topologies_served:
        message = "topologies.kai.scheduler is not installed: install KAI 0.12 or newer"
        return Plan(said=Said(False, PoolReason.TOPOLOGY_KIND_MISSING, message, name))
    return _plan_wanted(facts, pool, wanted)


def _plan_gone(facts: Facts) -> Plan:
    found = _removable(facts)
    if found is None or not facts.pools_served:
        return Plan()
    return Plan(Remove(found.metadata, orphan=facts.pool is None))


def _plan_none(facts: Facts) -> Plan:
    found = facts.topology
    if found is None or not is_ours(found, facts.name):
        message = "the pool has no topology keys: its workflows cannot ask for topology"
        return Plan(said=Said(True, PoolReason.NO_TOPOLOGY_KEYS, message))
    if found.metadata.deletion_timestamp is not None:
        return Plan(said=_waiting(found))
    return Plan(Remove(found.metadata))


def _plan_wanted(facts: Facts, pool: Pool, wanted: dict[str, Any]) -> Plan:
    found = facts.topology
    body = _owned(wanted, pool.metadata)
    if found is None:
        return Plan(Create(body))
    name, levels = found.metadata.name, _levels(wanted)
    if not is_ours(found, facts.name):
        return Plan(said=Said(False, PoolReason.FOREIGN_TOPOLOGY, _foreign(facts, found), name))
    if found.metadata.deletion_timestamp is not None:
        return Plan(said=_waiting(found))
    if found.labels != levels:
        return Plan(Replace(found.metadata, body))
    operations = _marks(found.metadata, pool.metadata)
    if operations:
        return Plan(Mark(found.metadata, operations))
    message = f'Topology "{name}" has the levels {", ".join(levels)}'
    return Plan(said=Said(True, PoolReason.IN_STEP, message, name))


def _foreign(facts: Facts, found: KaiTopology) -> str:
    owner = found.metadata.controller
    if owner is None:
        advice = f"delete it, or hand it over by the label {OSMO_POOL_LABEL}={facts.name}"
    else:
        advice = f'{owner.kind} "{owner.name}" controls it: delete that, or name the pool otherwise'
    return (
        f'Topology "{found.metadata.name}" is not this pool\'s and is left alone (levels: '
        f"{', '.join(found.labels)}): {advice}"
    )


def is_ours(topology: KaiTopology, pool: str) -> bool:
    """Whether a Topology belongs to the Pool of this name, see the module."""
    owner = topology.metadata.controller
    if owner is None:
        return topology.metadata.labels.get(OSMO_POOL_LABEL) == pool
    group = owner.api_version.partition("/")[0]
    return (group, owner.kind, owner.name) == (OSMO_GROUP, "Pool", pool)


def _removable(facts: Facts) -> KaiTopology | None:
    """The Topology, when it is ours and nobody removes it yet."""
    found = facts.topology
    if found is None or not is_ours(found, facts.name):
        return None
    return found if found.metadata.deletion_timestamp is None else None


def _invalid(pool: Pool, error: RejectedError) -> Said:
    told = "; ".join(map(str, error.rejections[:_MAX_SHOWN]))
    left = len(error.rejections) - _MAX_SHOWN
    message = f"spec: {told}{f' and {left} more' if left > 0 else ''} (its Topology is left alone)"
    return Said(False, PoolReason.INVALID_POOL, message, pool.status.topology)


def _waiting(topology: KaiTopology) -> Said:
    meta = topology.metadata
    holders = ", ".join(meta.finalizers) or "none"
    message = f'Topology "{meta.name}" is being deleted (finalizers: {holders})'
    return Said(False, PoolReason.WAITING_FOR_DELETION, message, meta.name)


def _levels(wanted: dict[str, Any]) -> tuple[str, ...]:
    entries: Sequence[dict[str, str]] = wanted["spec"]["levels"]
    return tuple(entry["nodeLabel"] for entry in entries)


def _owner(pool: Meta) -> dict[str, Any]:
    return {
        "apiVersion": f"{OSMO_GROUP}/{OSMO_VERSION}",
        "kind": "Pool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }


def _owned(wanted: dict[str, Any], pool: Meta) -> dict[str, Any]:
    labels = {**wanted["metadata"].get("labels", {}), OSMO_POOL_LABEL: pool.name}
    metadata = {**wanted["metadata"], "labels": labels, "ownerReferences": [_owner(pool)]}
    return {**wanted, "metadata": metadata}


def _marks(meta: Meta, pool: Meta) -> list[JsonPatchOp]:
    """What puts label and owner right; bound to the version that was looked at."""
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
        # An earlier Pool of that name: the garbage collector would take the Topology with it.
        at = str(meta.owner_references.index(owner))
        path = pointer("metadata", "ownerReferences", at)
        operations.append({"op": "replace", "path": path, "value": _owner(pool)})
    if not operations:
        return []
    return with_preconditions(operations, uid=meta.uid, resource_version=meta.resource_version)

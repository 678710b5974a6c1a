"""Checks that a cluster meets the preconditions for writing a workflow's objects."""

from __future__ import annotations

import json
from typing import Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply.plan import Object
from rackgate_cli.osmo.inputs import find_pool
from rackgate_cli.tables import clean
from rackgate_osmo import Pool

_NAMED: Final = 5  # pools in a warning

# KAI's releases before 0.12 read the Topology of Kueue, in a version that Rackgate does not serve.
OLD_TOPOLOGIES: Final = Resource(names.GROUP, "v1alpha1", "topologies", False, "Topology")
_TOPOLOGIES: Final = {kind.api_version: kind for kind in (kinds.KAI_TOPOLOGIES, OLD_TOPOLOGIES)}


def topologies_of(api_version: str) -> Resource:
    """The Topology resource of an `apiVersion`."""
    return _TOPOLOGIES[api_version]


async def check_served(client: Client, kind: Resource) -> None:
    """Check that the cluster serves all kinds that will be written.

    Raises:
        CommandError: it does not; the message has the CustomResourceDefinition and its source.
        KubeError: the cluster cannot be read.
    """
    try:
        found = json.loads(await client.get(f"/apis/{kind.api_version}"))
    except NotFoundError:
        found = {}
    if any(entry["name"] == kind.plural for entry in found.get("resources", ())):
        return
    try:
        group = json.loads(await client.get(f"/apis/{kind.group}"))
    except NotFoundError:
        group = {}
    served = ", ".join(version["version"] for version in group.get("versions", ()))
    instead = f" (of {kind.group} it serves {clean(served)})" if served else ""
    remedy = (
        f'install the KAI scheduler with the CustomResourceDefinition "{kind.full_name}" '
        '(on a playground: "rackgate up --with kai-crds")'
    )
    if kind is OLD_TOPOLOGIES:
        remedy = (
            "only KAI 0.10 uses this version, which is part of an old release of Kueue; for a "
            "newer KAI set --kai"
        )
    raise CommandError(
        f"the cluster does not serve {kind.full_name} in version {kind.version}{instead}: {remedy}"
    )


async def has_pool(client: Client, pool: Pool) -> bool:
    """Whether the cluster has a pool of this name, with the same keys.

    Other keys are an error: the Topology follows the pool in the cluster, so its controller would
    undo the write.

    Raises:
        CommandError: the cluster's pool has other keys.
        KubeError: the cluster cannot be read.
    """
    try:
        saved = await find_pool(client, pool.name)
    except ForbiddenError:
        return False
    if saved is not None and saved.topology_keys != pool.topology_keys:
        keys = ", ".join(key.key for key in saved.topology_keys) or "none"
        raise CommandError(
            f'pool "{pool.name}" of the cluster has other topology keys ({keys}), and its Topology '
            f"follows them: change that pool, or use it with --pool {pool.name}"
        )
    return saved is not None


async def nodes_outside_pool_warning(client: Client, pool: Pool) -> str | None:
    """A warning if pods of a pool may run on nodes outside the pool."""
    try:
        pools = await list_objects(client, kinds.OSMO_POOLS)
    except (ForbiddenError, NotFoundError):
        return None
    saved = {item["metadata"]["name"]: item for item in pools}
    same = saved.pop(pool.name, None)
    if same is not None:
        selector = (same.get("spec") or {}).get("node_selector") or {}
        if selector != pool.node_selector:
            return (
                f'pool "{pool.name}" of the cluster has another node_selector '
                f"({json.dumps(selector)}): its pods may run on other nodes"
            )
    if pool.node_selector or not saved:
        return None
    others = ", ".join(sorted(saved)[:_NAMED]) + (", ..." if len(saved) > _NAMED else "")
    return (
        f'pool "{pool.name}" has no node_selector: its pods may run on nodes of other pools '
        f"({others})"
    )


def of_pool(topology: Object, pool: Pool) -> Object:
    """A Topology with the label of a pool in the cluster, whose controller then manages it.

    Without such a pool the label must be absent: the controller would remove the Topology.
    """
    labels = {**topology["metadata"].get("labels", {}), names.OSMO_POOL_LABEL: pool.name}
    return {**topology, "metadata": {**topology["metadata"], "labels": labels}}


async def missing_queue(client: Client, pool: Pool) -> str | None:
    """A warning if the pool's queue does not exist (KAI: queue-missing)."""
    try:
        await client.get(kinds.KAI_QUEUES.path(None, pool.osmo_name))
    except NotFoundError:
        return (
            f'queue "{pool.osmo_name}" does not exist: KAI schedules no pod of this pool until it '
            "does"
        )
    except ForbiddenError:
        pass
    return None

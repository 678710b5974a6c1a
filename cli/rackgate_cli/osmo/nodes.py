"""The nodes of a pool: from a file (short form or kubectl output), or from a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from rackgate.api import resources as kinds
from rackgate.api.names import HOSTNAME_LABEL
from rackgate.kube.errors import ForbiddenError
from rackgate.resources.quantity import QuantityError, amount
from rackgate.wire import core
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.watches import BOUND, decoder
from rackgate_assigner.workload.info import node_info, pod_info
from rackgate_cli.cluster import interruptible
from rackgate_cli.cluster.lists import Progress, list_decoded
from rackgate_cli.cluster.target import ClusterTarget, target_of
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.osmo.inputs import read_documents
from rackgate_osmo import Pool
from rackgate_osmo.explain.room import BoundPod, Nodes
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION

MAX_NODES: Final = 50_000
# The default of the kubelet, used if the short form omits it.
DEFAULT_PODS: Final = 110
_KINDS: Final = ("List", "NodeList", "PodList", "Node", "Pod")
_SHORT: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "gpu": "nvidia.com/gpu",
    "storage": "ephemeral-storage",
    "pods": "pods",
}


def nodes_of(arguments: argparse.Namespace, pool: Pool | None = None) -> Nodes:
    """The pool's nodes: from the file that is named, else from the cluster.

    Args:
        arguments: name the file or the cluster, and may select nodes by labels.
        pool: also selects nodes; None if only the arguments do.

    Raises:
        CommandError: nodes or pods cannot be listed.
        KubeError: the cluster cannot be read.
        UsageError: the file is invalid, or no cluster is chosen.
    """
    if arguments.nodes is not None:
        found = _nodes_of_file(arguments.nodes)
    else:
        found = interruptible.run(_nodes_of_cluster(target_of(arguments, "osmo")))
    chosen = {**(pool.node_selector if pool is not None else {}), **arguments.selector}.items()
    mine = tuple(node for node in found.nodes if chosen <= node.labels.items())
    others = tuple(node for node in found.nodes if not chosen <= node.labels.items())
    return replace(found, nodes=mine, others=others)


def _nodes_of_file(path: str) -> Nodes:
    """Nodes of a file: `{count, cpu, labels}` each, or the output of `kubectl get nodes -o yaml`.

    That output may include pods, too (`kubectl get nodes,pods -A -o yaml`).
    """
    documents = read_documents(path)
    if len(documents) == 1 and isinstance(documents[0], dict) and set(documents[0]) == {"nodes"}:
        listed = documents[0]["nodes"]
        documents = listed if isinstance(listed, list) else [listed]
    kubectl = any(isinstance(one, dict) and "kind" in one for one in documents)
    return (_printed if kubectl else short_nodes)(path, documents)


async def _nodes_of_cluster(target: ClusterTarget) -> Nodes:
    """Nodes and bound pods of a cluster."""
    progress = Progress()
    async with target.client() as client:
        try:
            nodes = await list_decoded(client, kinds.NODES, decoder(core.Node), progress=progress)
            pods = await list_decoded(
                client, kinds.PODS, decoder(core.Pod), params=BOUND, progress=progress
            )
        except ForbiddenError as error:
            raise CommandError(
                f"nodes and pods cannot be listed ({error.message}); name a file of nodes with "
                "--nodes FILE"
            ) from error
        finally:
            progress.done()
    return _nodes([node_info(node) for node in nodes], pods, "the cluster", ())


def _printed(path: str, documents: list[Any]) -> Nodes:
    """The objects in kubectl output, alone or in lists."""
    nodes: list[NodeInfo] = []
    pods: list[core.Pod] = []
    seen_pods = False
    for where, item in _objects(path, documents):
        seen_pods = seen_pods or item["kind"] == "Pod"
        if item["kind"] == "Node":
            node = _converted(item, core.Node, where)
            if not node.metadata.name:
                raise UsageError(f"{where}.metadata.name is missing")
            nodes.append(node_info(node))
        else:
            pods.append(_converted(item, core.Pod, where))
    warning = "the file contains no pods: all allocatable capacity of the nodes counts as free"
    return _nodes(nodes, pods, f'"{path}"', () if seen_pods else (warning,))


def _objects(path: str, documents: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for number, document in enumerate(documents):
        where = f'"{path}": document {number + 1}'
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind not in _KINDS:
            raise UsageError(f"{where} is not a Node, a Pod or a list of them (kind: {kind})")
        if not str(kind).endswith("List"):
            found.append((where, document))
            continue
        items = document.get("items")
        if not isinstance(items, list):
            raise UsageError(f"{where}.items is not a list")
        implied = str(kind).removesuffix("List")
        for index, item in enumerate(items):
            finer_domain = f"{where}.items[{index}]"
            if not isinstance(item, dict) or item.get("kind", implied) not in ("Node", "Pod"):
                raise UsageError(f"{finer_domain} is neither a Node nor a Pod")
            found.append((finer_domain, {"kind": implied, **item}))
    return found


def _converted(item: Mapping[str, Any], view: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(item, view)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error


def short_nodes(path: str, documents: list[Any]) -> Nodes:
    """Nodes in the short form; one entry may describe several equal nodes.

    Args:
        path: name of the list in errors.
        documents: objects with `count`, sizes (`cpu`, `memory`, ...) and `labels`.

    Raises:
        UsageError: an entry is not such an object.
    """
    nodes: list[NodeInfo] = []
    for index, entry in enumerate(documents):
        where = f'"{path}": nodes[{index}]'
        if not isinstance(entry, dict):
            raise UsageError(f"{where} is not an object with count, cpu and labels")
        known = {"count", "name", "labels", *_SHORT}
        for name in entry:
            if name not in known:
                raise UsageError(
                    f'{where}: unknown field "{name}" (fields: {", ".join(sorted(known))})'
                )
        nodes += _alike(entry, where, len(nodes))
    return _nodes(nodes, (), f'"{path}"', ())


def _alike(entry: Mapping[str, Any], where: str, before: int) -> list[NodeInfo]:
    count = entry.get("count", 1)
    if type(count) is not int or not 0 <= count <= MAX_NODES - before:
        raise UsageError(
            f"{where}.count: {count!r:.60}: must be a whole number; "
            f"at most {MAX_NODES} nodes are supported"
        )
    labels = entry.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise UsageError(
            f"{where}.labels: must be an object with string values (put numbers in quotes)"
        )
    name = entry.get("name")
    if name is not None and (not isinstance(name, str) or not name or count > 1):
        raise UsageError(f"{where}.name: must be a string, for a single node")
    offers = {"cpu": 1, "pods": DEFAULT_PODS}
    offers |= {key: entry[key] for key in _SHORT if key in entry}
    allocatable = {
        _SHORT[key]: _size(_SHORT[key], size, f"{where}.{key}") for key, size in offers.items()
    }
    names = [name or f"node-{before + number + 1}" for number in range(count)]
    # A kubelet labels its node with the host's name.
    return [NodeInfo(name, {HOSTNAME_LABEL: name, **labels}, allocatable) for name in names]


def _size(resource: str, value: Any, where: str) -> int:
    try:
        found = amount(resource, value)
    except (QuantityError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}") from error
    if found < 0:
        raise UsageError(f"{where}: {value!r:.60}: must not be negative")
    return found


def _nodes(nodes: list[NodeInfo], pods: Any, source: str, warnings: tuple[str, ...]) -> Nodes:
    if len(nodes) > MAX_NODES:
        raise UsageError(f"{source} has {len(nodes)} nodes, more than {MAX_NODES}")
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise UsageError(f'{source} has two nodes with the name "{node.name}"')
        names.add(node.name)
    rows = tuple(row for row in map(_bound, pods) if row is not None)
    return Nodes(tuple(nodes), rows, warnings)


def _bound(pod: core.Pod) -> BoundPod | None:
    row, meta = pod_info(pod), pod.metadata
    if row is None:
        return None
    group = meta.annotations.get(POD_GROUP_ANNOTATION, "")
    return BoundPod(row.node, dict(row.requests), meta.namespace, group, row.terminating)

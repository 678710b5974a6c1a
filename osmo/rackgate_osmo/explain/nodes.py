"""The nodes of a pool: which of them pods may use, and which of them KAI counts all the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS
from rackgate_osmo import Pool, Toleration, tolerates
from rackgate_osmo.explain import explanation
from rackgate_osmo.explain.requests import ExcludedNodes
from rackgate_osmo.explain.room import BoundPod, Nodes, Room

_LISTED: Final = 3  # names of nodes of a kind


@dataclass(frozen=True, slots=True)
class KaiView:
    """The nodes as KAI sees them; nothing of it is charged with what the workflow asks for.

    Attributes:
        room: of the nodes that pods may use.
        settled: the same once the pods that terminate are gone; KAI counts their room as free.
        labelled: of those of them that carry every label of the Topology, likewise.
        wide: of every node with all labels that KAI counts, whether or not pods may use it; pods
            that terminate take no room there.
        counted: label values of the nodes that KAI counts for certain, cordoned ones too.
        untied: nodes outside the pool that no node selector keeps the pods from.
        alike: two domains that read alike once KAI has joined their values with dots.
        leaving: pods that terminate on nodes that pods may use.
    """

    room: Room
    after_terminations: Room
    labelled: Room
    all_labelled: Room
    counted: Sequence[tuple[str, ...]]
    outside_pool: int = 0
    ambiguous_domains: tuple[str, str] | None = None
    terminating: int = 0

    @property
    def unlabelled(self) -> int:
        """Nodes that pods may use, but no constraint."""
        return len(self.room.nodes) - len(self.labelled.nodes)


def kai_view_of(pool: Pool, usable: Sequence[NodeInfo], nodes: Nodes) -> KaiView:
    """The nodes as KAI sees them, with the room of bound pods taken."""
    labels = [key.label for key in pool.topology_keys]

    def labelled(some: Iterable[NodeInfo]) -> list[NodeInfo]:
        return [node for node in some if all(label in node.labels for label in labels)]

    def room(some: Sequence[NodeInfo], pods: Iterable[BoundPod]) -> Room:
        found = Room(labels, some)
        found.charge_pods(pods)
        return found

    names = {node.name for node in usable}
    leaving = sum(pod.terminating and pod.node in names for pod in nodes.pods)
    staying = [pod for pod in nodes.pods if not pod.terminating]
    everything = room(usable, nodes.pods)
    settled = room(usable, staying) if leaving else everything
    carrying = labelled(usable)
    narrow = settled if len(carrying) == len(usable) else room(carrying, staying)
    wide = room(labelled((*nodes.nodes, *nodes.others)), staying)
    counted = [
        tuple(node.labels[label] for label in labels)
        for node in labelled((*nodes.nodes, *nodes.others))
        if node.name in names or (node.unschedulable and node.ready)
    ]
    tied = pool.node_selector.items()
    outside_pool = sum(tied <= node.labels.items() for node in nodes.others)
    return KaiView(everything, settled, narrow, wide, counted, outside_pool, _alike(wide), leaving)


def split_usable_nodes(
    nodes: Iterable[NodeInfo], tolerations: Collection[tuple[Toleration, ...]]
) -> tuple[list[NodeInfo], tuple[explanation.LeftOut, ...], ExcludedNodes]:
    """Tell nodes that pods may use from those that none may, these by reason.

    Args:
        nodes: of the pool.
        tolerations: those of each kind of task.

    Returns:
        Nodes that the pods of some tasks may use; the others; and which nodes of the first the
        pods of each kind may not use.
    """
    usable: list[NodeInfo] = []
    left: dict[str, list[str]] = {}
    kept: dict[tuple[Toleration, ...], set[str]] = {kind: set() for kind in tolerations}
    for node in nodes:
        whys = {kind: _why_not(node, kind) for kind in tolerations}
        if not all(whys.values()):
            usable.append(node)
            for kind in (kind for kind, why in whys.items() if why):
                kept[kind].add(node.name)
        else:
            left.setdefault(sorted(str(why) for why in whys.values())[0], []).append(node.name)
    left_out = tuple(
        explanation.LeftOut(why=why, nodes=len(names), names=tuple(sorted(names)[:_LISTED]))
        for why, names in sorted(left.items())
    )
    return usable, left_out, {kind: frozenset(names) for kind, names in kept.items()}


def _why_not(node: NodeInfo, tolerations: Sequence[Toleration]) -> str | None:
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "unschedulable"
    for taint in node.taints:
        blocks = taint.effect in BLOCKING_EFFECTS
        if blocks and not tolerates(tolerations, taint.key, taint.value, taint.effect):
            return f"taint {taint.key}"
    return None


def _alike(room: Room) -> tuple[str, str] | None:
    """Two domains whose values read alike once they are joined with dots."""
    seen: dict[str, tuple[str, ...]] = {}
    for values in {path[:-1] for path in room.tree.paths[-1]}:
        for depth in range(1, len(values) + 1):
            found = seen.setdefault(".".join(values[:depth]), values[:depth])
            if found != values[:depth]:
                one, other = sorted(["/".join(found), "/".join(values[:depth])])
                return one, other
    return None

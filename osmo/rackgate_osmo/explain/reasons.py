"""Messages that say why KAI leaves a task group pending, or why this cannot be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rackgate_assigner.topology.model import NodeInfo
from rackgate_osmo.explain.explanation import Deviation
from rackgate_osmo.render.subgroups import SubGroup

_NAMED: Final = 5  # subgroups named in a message


def unlabelled(bare: int, nodes: Sequence[NodeInfo], levels: Sequence[str]) -> Deviation:
    """Nodes without a label, which KAI ignores."""
    lacking = {label: sum(label not in node.labels for node in nodes) for label in levels}
    shown = ", ".join(f"{label} on {count}" for label, count in lacking.items() if count)
    return Deviation(
        name="unlabelled nodes",
        text=f"{bare} of {len(nodes)} nodes lack a label of the Topology ({shown}); "
        "for any constraint, also a mere preference, KAI counts only nodes that carry all of its "
        "labels, also those of keys that the workflow does not use",
        help="label these nodes, or take the keys that they lack out of the pool",
    )


def one_domain(levels: Sequence[str], level: int) -> Deviation:
    """A level whose domains KAI does not find."""
    return Deviation(
        name="one-domain defect",
        text="the nodes that KAI chooses from, cordoned ones among them, all lie in one domain of "
        f"a finer level, and then it does not see the level that is asked for ({levels[level]})",
        help="require the pool's finest key instead, or add nodes in a second domain of "
        f"{levels[-1]}",
    )


def mixed(subgroup: SubGroup, what: str) -> Deviation:
    """Pods of several sizes, each counted as large as the largest, and the effect."""
    who = f'subgroup "{subgroup.name}"' if subgroup.name else "the PodGroup"
    return Deviation(
        name="mixed sizes",
        text=f"the pods of {who} are of several sizes, and KAI counts each as large as the "
        f"largest, resource by resource: {what}",
        help="give its tasks one size, or put tasks of another size into a task group of their own",
    )


def packing() -> Deviation:
    """Pods of several sizes that share nodes."""
    return Deviation(
        name="mixed sizes",
        text="pods of several sizes share nodes, and KAI puts one pod after another on a node "
        "without going back",
        help="give the tasks one size",
    )


def groups_before() -> Deviation:
    """Task groups that KAI may schedule earlier, in domains that are not known."""
    return Deviation(
        name="task groups before",
        text="KAI takes the workflow's task groups one after another, older ones first. Their ages "
        "are not known here, so any other group may come first, and what is left for this one "
        "depends on where KAI puts it",
        help="submit this group before the others, or wait until their pods run",
    )


def siblings(subgroup: SubGroup, pod_group: str) -> Deviation:
    """Subgroups that are placed one after another."""
    names = [below.name for below in subgroup.order()]
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return Deviation(
        name="sibling order",
        text="KAI places subgroups one after another in the order of their names "
        f"({shown or pod_group}) and does not go back: where it puts the first decides whether "
        "the others find room",
        help="rename groups so that larger ones sort first",
    )


def dots(one: str, other: str) -> Deviation:
    """Two domains whose joined label values are equal."""
    return Deviation(
        name="dots in label values",
        text=f"KAI joins label values with dots and takes {one} and {other} for one domain: it may "
        "place a group over both although one is required",
        help="take the dots out of the node labels' values, or make the values of the finer key "
        "unique in the cluster",
    )


def outside_pool(nodes: int) -> Deviation:
    """Pods that may run outside the pool."""
    return Deviation(
        name="nodes outside the pool",
        text=f"{nodes} other nodes of the cluster are not among those that -l chooses, and "
        "the pods carry no node selector that keeps them away from there",
        help="name the labels of the pool's nodes in the pool's node_selector",
    )


def search_limit() -> Deviation:
    """The exact search ended undecided."""
    return Deviation(
        name="search cut off",
        text="whether there is a place was not decided",
        help="give the search more --steps",
    )


def unsized(tasks: int) -> Deviation:
    """Tasks whose pods request nothing, although one cpu is counted for each."""
    who = "1 task has" if tasks == 1 else f"{tasks} tasks have"
    return Deviation(
        name="unsized tasks",
        text=f"{who} no size: counted as one cpu each, but the pods that apply makes of them "
        "request nothing, and KAI may find room for them where none is counted",
        help="give the tasks' resources a size",
    )


def terminating(pods: int) -> Deviation:
    """Pods that are being deleted, whose capacity still counts as used."""
    who = "1 pod terminates" if pods == 1 else f"{pods} pods terminate"
    return Deviation(
        name="terminating pods",
        text=f"{who} on these nodes: their room is counted as taken, but KAI counts it as free",
        help="ask again once they are gone",
    )


def partly(running: int, pods: int) -> Deviation:
    """Some pods run, and the others are added to them."""
    return Deviation(
        name="partly running",
        text=f"{running} of {pods} pods are on nodes, and KAI adds the others to them",
        help="delete the running pods so that KAI assigns the whole group again, or wait",
    )

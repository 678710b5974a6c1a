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
        text=f"{bare} of {len(nodes)} nodes lack a label of the Topology ({shown}). For any "
        "constraint, also a preference, KAI uses only nodes that carry all labels of the Topology, "
        "also those of keys that the workflow does not use",
        help="label these nodes, or remove the keys that they lack from the pool",
    )


def one_domain(levels: Sequence[str], level: int) -> Deviation:
    """A level whose domains KAI does not find."""
    return Deviation(
        name="one-domain defect",
        text="all nodes that KAI can choose from, also cordoned ones, are in one domain of a finer "
        f"level. Then KAI does not find the requested level ({levels[level]})",
        help="require the pool's finest key instead, or add nodes in a second domain of "
        f"{levels[-1]}",
    )


def mixed(subgroup: SubGroup, what: str) -> Deviation:
    """Pods of several sizes, each counted as large as the largest, and the effect."""
    who = f'subgroup "{subgroup.name}"' if subgroup.name else "the PodGroup"
    return Deviation(
        name="mixed sizes",
        text=f"the pods of {who} have several sizes, and KAI counts each as large as the largest, "
        f"resource by resource: {what}",
        help="give its tasks one size, or move tasks of another size to a task group of their own",
    )


def packing() -> Deviation:
    """Pods of several sizes that share nodes."""
    return Deviation(
        name="mixed sizes",
        text="pods of several sizes share nodes, and KAI assigns nodes to one pod after another "
        "without backtracking",
        help="give the tasks one size",
    )


def groups_before() -> Deviation:
    """Task groups that KAI may schedule earlier, in domains that are not known."""
    return Deviation(
        name="task groups before",
        text="KAI schedules the workflow's task groups one after another, older ones first. Their "
        "ages are not known here, so any other group may come first. The capacity that is left for "
        "this one depends on where KAI places the others",
        help="submit this group before the others, or wait until their pods run",
    )


def siblings(subgroup: SubGroup, pod_group: str) -> Deviation:
    """Subgroups that are placed one after another."""
    names = [below.name for below in subgroup.order()]
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return Deviation(
        name="sibling order",
        text=f"KAI places subgroups one after another, by name ({shown or pod_group}), and does "
        "not backtrack. Whether the others fit depends on where it places the first",
        help="rename groups so that larger ones sort first",
    )


def dots(one: str, other: str) -> Deviation:
    """Two domains whose joined label values are equal."""
    return Deviation(
        name="dots in label values",
        text=f"KAI joins label values with dots, and so {one} and {other} are one domain for it. "
        "It may place a group across both although one is required",
        help="remove the dots from the values of the node labels, or make the values of the finer "
        "key unique in the cluster",
    )


def outside_pool(nodes: int) -> Deviation:
    """Pods that may run outside the pool."""
    return Deviation(
        name="nodes outside the pool",
        text=f"{nodes} other nodes of the cluster are not selected by -l, and the pods have no "
        "node selector that excludes them",
        help="set the labels of the pool's nodes in the pool's node_selector",
    )


def search_limit() -> Deviation:
    """The exact search ended undecided."""
    return Deviation(
        name="search cut off",
        text="the search did not decide whether it fits",
        help="increase --steps",
    )


def unsized(tasks: int) -> Deviation:
    """Tasks whose pods request nothing, although one cpu is counted for each."""
    who = "1 task has" if tasks == 1 else f"{tasks} tasks have"
    return Deviation(
        name="unsized tasks",
        text=f"{who} no size. Each counts as one cpu here, but the pods that apply creates request "
        "nothing, so KAI may place them on nodes without a free cpu",
        help="give the tasks' resources a size",
    )


def terminating(pods: int) -> Deviation:
    """Pods that are being deleted, whose capacity still counts as used."""
    who = "1 pod terminates" if pods == 1 else f"{pods} pods terminate"
    return Deviation(
        name="terminating pods",
        text=f"{who} on these nodes. Their requests count as used here, but as free for KAI",
        help="run the command again when they are gone",
    )


def partly(running: int, pods: int) -> Deviation:
    """Some pods run, and the others are added to them."""
    return Deviation(
        name="partly running",
        text=f"{running} of {pods} pods are bound, and KAI adds the others to them",
        help="delete the running pods so that KAI places the whole group again, or wait",
    )

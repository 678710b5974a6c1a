"""The pods of one Workload: where each runs, and where its rank was assigned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from rackgate.jobframework.ranks import rank_of
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.explain.running import pods_of, reason_not_running
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.info import WorkloadInfo

MOST_PODS: Final = 2000


def pod_rows(
    workload: Workload, info: WorkloadInfo, pods: Iterable[Pod], nodes: Mapping[str, NodeInfo]
) -> tuple[list[dict[str, Any]], int]:
    """Rows of the pods of a Workload, by PodSet and rank; and how many there are.

    Args:
        workload: the object.
        info: what the assigner knows of it.
        pods: of its namespace.
        nodes: by name.
    """
    parts = {} if info.reserved is None else {part.name: part for part in info.reserved.podsets}
    podsets = {podset.name: podset for podset in workload.spec.pod_sets}
    rows = []
    for podset, found in pods_of(workload.metadata, pods).items():
        topology = parts[podset].topology if podset in parts else None
        ends, by_end = _by_rank(topology)
        assigned = frozenset(by_end)
        for pod in found:
            rank = rank_of(pod.metadata, podsets.get(podset))
            place = nodes.get(pod.spec.node_name or "")
            rows.append(
                {
                    "name": pod.metadata.name,
                    "podset": podset,
                    "rank": rank,
                    "host": pod.spec.node_name or "",
                    "assigned": _assigned(ends, by_end, rank),
                    "phase": pod.status.phase or "Pending",
                    "gated": bool(pod.spec.scheduling_gates),
                    "why": None if pod.terminal else reason_not_running(pod),
                    "misplaced": topology is not None
                    and place is not None
                    and not pod.terminal
                    and _domain_of(place, topology) not in assigned,
                }
            )
    rows.sort(key=_order)
    return rows[:MOST_PODS], len(rows)


def _order(row: Mapping[str, Any]) -> tuple[str, int, str]:
    rank = row["rank"]
    return row["podset"], 2**31 if rank is None else rank, row["name"]


def _domain_of(node: NodeInfo, topology: TopologyAssignment) -> Domain:
    return tuple(node.labels.get(level, "") for level in topology.levels)


def _by_rank(topology: TopologyAssignment | None) -> tuple[list[int], list[Domain]]:
    """The first rank behind each domain, and the domains."""
    if topology is None:
        return [], []
    ends = list(accumulate(count for _, count in topology.domains))
    return ends, [values for values, _ in topology.domains]


def _assigned(ends: Sequence[int], domains: Sequence[Domain], rank: int | None) -> Domain:
    """The domain of a rank; empty if it has none."""
    if rank is None:
        return ()
    at = bisect_right(ends, rank)
    return domains[at] if at < len(domains) else ()

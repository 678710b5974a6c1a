"""Pods that end and whose Workload holds no quota any more, as Workloads that are being evicted.

Their usage ends without anyone's help. So a preemptor that needs it chooses it before all others,
and waits, instead of preempting a Workload that runs.

Only pods that are being deleted count. Pods that run on without their job may do so for ever: who
waited for them would never be admitted.

Invariant: a function of pods, nodes and usage beyond admission; it is computed for each cycle.
Complexity: linear in the pods of such jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.cache.pods.live_pods import ExcessUsageTracker, LivePods
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.nodes import hostname
from rackgate_assigner.workload.info import HOST_LEVELS, Charge, PodShape

# Below all priorities, which have 32 bits: whoever may preempt anything may wait for these pods.
LOWEST_PRIORITY: Final = -(2**31) - 1


def ending_workloads(
    excess_usage: ExcessUsageTracker,
    live_pods: LivePods,
    nodes: Mapping[str, NodeInfo],
    hosts: Hosts,
) -> Iterator[RunningWorkload]:
    """One for each job without quota all of whose live pods are being deleted.

    Its key names the job, as no Workload's key can: the Workload may be pending again, or gone.

    Args:
        excess_usage: usage beyond admission, by job.
        live_pods: pods by job.
        nodes: by name.
        hosts: nodes by hostname label.
    """
    for root, excess in excess_usage.found.items():
        if live_pods.count(root).running or excess_usage.holds_quota(root):
            continue
        yield RunningWorkload(
            key=f"uid:{root}",
            uid=root,
            cluster_queue=excess.cluster_queue,
            priority=LOWEST_PRIORITY,
            queue_timestamp=0.0,
            reserved_at=0.0,
            evicted=True,
            usage=excess.amounts,
            charges=tuple(_charges(root, live_pods, nodes, hosts)),
        )


def _charges(
    root: str, live_pods: LivePods, nodes: Mapping[str, NodeInfo], hosts: Hosts
) -> Iterator[Charge]:
    """What the pods use of their nodes. Nodes that share a hostname are left out."""
    by_shape: dict[PodShape, dict[str, int]] = {}
    for row in live_pods.rows_of(root):
        node = nodes.get(row.node)
        host = hostname(node) if node is not None else None
        if host is not None and set(hosts.node_names(host)) == {row.node}:
            counts = by_shape.setdefault(row.requests, {})
            counts[host] = counts.get(host, 0) + 1
    for shape, counts in sorted(by_shape.items()):
        domains = tuple(((host,), count) for host, count in sorted(counts.items()))
        yield Charge("", dict(shape), TopologyAssignment(HOST_LEVELS, domains))

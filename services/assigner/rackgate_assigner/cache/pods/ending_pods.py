"""Pods that end and whose Workload holds no quota any more, as Workloads that are being evicted.

Their usage ends without anyone's help. So a preemptor that needs it chooses it before all others,
and waits, instead of preempting a Workload that runs.

Only pods that are being deleted count. Pods that run on without their job may do so for ever: who
waited for them would never be admitted.

Invariant: a function of pods, nodes and usage beyond admission, read in each cycle.
Complexity: linear in such jobs, and in the pods of those whose pods have changed; if a node came,
went or has another hostname, in the pods of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.cache.pods.live_pods import ExcessUsageTracker, LivePods
from rackgate_assigner.cache.usage import ExcessUsage
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.nodes import hostname
from rackgate_assigner.workload.info import HOST_LEVELS, Charge, PodShape

# Below all priorities, which have 32 bits: whoever may preempt anything may wait for these pods.
LOWEST_PRIORITY: Final = -(2**31) - 1


class EndingWorkloads:
    """One for each job without quota all of whose live pods are being deleted.

    Its key names the job, as no Workload's key can: the Workload may be pending again, or gone.
    """

    def __init__(
        self,
        excess_usage: ExcessUsageTracker,
        live_pods: LivePods,
        nodes: Mapping[str, NodeInfo],
        hosts: Hosts,
    ) -> None:
        """Start empty.

        Args:
            excess_usage: usage beyond admission, by job.
            live_pods: pods by job.
            nodes: by name.
            hosts: nodes by hostname label.
        """
        self._excess_usage, self._live_pods = excess_usage, live_pods
        self._nodes, self._hosts = nodes, hosts
        # By job: what its Workload was made from, and the Workload.
        self._made: dict[str, tuple[_Source, RunningWorkload]] = {}

    def read(self) -> list[RunningWorkload]:
        """All of them; the same object as at the last call if nothing of its job has changed."""
        made, self._made = self._made, {}
        for root, excess in self._excess_usage.found.items():
            if self._live_pods.count(root).running or self._excess_usage.holds_quota(root):
                continue
            source = _Source(excess, self._live_pods.version(root), self._hosts.version)
            before = made.get(root)
            is_same = before is not None and before[0] == source
            self._made[root] = before if before and is_same else (source, self._make(root, excess))
        return [workload for _, workload in self._made.values()]

    def _make(self, root: str, excess: ExcessUsage) -> RunningWorkload:
        return RunningWorkload(
            key=f"uid:{root}",
            uid=root,
            cluster_queue=excess.cluster_queue,
            priority=LOWEST_PRIORITY,
            queue_timestamp=0.0,
            reserved_at=0.0,
            evicted=True,
            usage=excess.amounts,
            charges=tuple(_charges(root, self._live_pods, self._nodes, self._hosts)),
        )


class _Source(NamedTuple):
    """All that the Workload of a job depends on: usage, version of its pods, of the hosts."""

    excess: ExcessUsage
    pods: int
    hosts: int


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

"""The pods of an admitted Workload: which run, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rackgate.api.names import ELASTIC_GATE, GANG_GATE, TOPOLOGY_GATE
from rackgate.jobframework.managed import is_pod_of, podset_of_pod
from rackgate.wire.core import Meta, Pod
from rackgate_assigner.explain.explanation import NotRunningPods, PodSetStatus
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.info import HOST_LEVELS, WorkloadInfo


def pods_of(workload: Meta, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Pods of a Workload, by PodSet; `workload` is its metadata, in the namespace of the pods."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        meta = pod.metadata
        claim = podset_of_pod(meta.annotations, meta.labels)
        if claim and is_pod_of(meta.annotations, workload.name, workload.annotations):
            found.setdefault(claim[1], []).append(pod)
    return found


def with_pod_status(run: PodSetStatus, pods: Sequence[Pod], top: int) -> PodSetStatus:
    """Add the status of the pods.

    Args:
        run: what was admitted.
        pods: those of this PodSet.
        top: names per reason.
    """
    alive = [pod for pod in pods if not pod.terminal]
    not_running: dict[str, list[str]] = {}
    running = 0
    for pod in alive:
        why = reason_not_running(pod)
        if why is None:
            running += 1
        else:
            not_running.setdefault(why, []).append(pod.metadata.name)
    missing = max(0, run.granted - len(pods))
    return msgspec.structs.replace(
        run,
        running=running,
        ended=len(pods) - len(alive),
        held=tuple(
            NotRunningPods(why=why, pods=len(names), names=tuple(sorted(names)[:top]))
            for why, names in sorted(not_running.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        missing=missing,
    )


def reason_not_running(pod: Pod) -> str | None:
    """Why a pod that has not ended does not run, as text; None if it runs."""
    if pod.metadata.deletion_timestamp is not None:
        return "being deleted"
    if pod.has_gate(GANG_GATE):
        return "gated: its gang has not started; `kubectl get swl` says what it waits for"
    if pod.has_gate(ELASTIC_GATE):
        return "gated: not admitted yet, or the ungater has not released it"
    if pod.has_gate(TOPOLOGY_GATE):
        return "gated: the ungater has not released it"
    if pod.spec.scheduling_gates:
        others = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return f"has scheduling gates of others: {others}"
    if not pod.spec.node_name:
        condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        if condition is not None and condition.message:
            return f"not scheduled: {condition.message}"
        group = pod.spec.scheduling_group
        if group is not None and group.pod_group_name:
            # kube-scheduler says nothing about a pod whose PodGroup it waits for.
            return f"not scheduled yet: it waits with PodGroup {group.pod_group_name}"
        return "not scheduled yet"
    if pod.status.phase != "Running":
        return f"bound to its node, phase {pod.status.phase or 'unknown'}"
    return None


def find_unhealthy_nodes(
    row: WorkloadInfo, podset: str, nodes: Mapping[str, NodeInfo], unhealthy: Iterable[str]
) -> tuple[str, ...]:
    """Assigned hosts that are gone, not ready, or unhealthy; with the reason.

    Only where the assignment names hosts: a rack is healthy although one of its nodes is not.
    """
    parts = row.reserved.podsets if row.reserved is not None else ()
    topology = next((part.topology for part in parts if part.name == podset), None)
    if topology is None or topology.levels != HOST_LEVELS:
        return ()
    marked = set(unhealthy)
    by_host = {node.labels.get(HOST_LEVELS[0], ""): node for node in nodes.values()}
    found = []
    for values, _ in topology.domains:
        node = by_host.get(values[-1])
        if node is None:
            found.append(f"{values[-1]} (gone)")
        elif values[-1] in marked or node.name in marked:
            found.append(f"{values[-1]} (marked unhealthy)")
        elif not node.ready:
            found.append(f"{values[-1]} (not ready)")
    return tuple(found)

"""Which assigned hosts are unhealthy for a Workload, by nodes and a live list of its pods.

A host is unhealthy if no pod of the Workload can run there any more: its node is gone, or it is
not ready or tainted and the Workload's pods there have ended or are ending (N1). An
empty list of pods proves nothing before all pods exist (N2). Only hosts of the current assignment
are assessed, so pods of an older one have no influence (N3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS, tolerates
from rackgate_assigner.workload.decisions import PodSetAssignment
from rackgate_assigner.workload.info import HOST_LEVELS, WorkloadInfo

MAX_UNHEALTHY: Final = 8  # entries of status.unhealthyNodes
_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class HostState(Enum):
    """State of a node for pods with given tolerations."""

    HEALTHY = "healthy"
    DRAINING = "leaving"  # a NoExecute taint that is tolerated for some seconds only
    CLOSED = "closed"  # cordoned, or a taint that is not tolerated
    NOT_READY = "not ready"
    GONE = "gone"


class PodState(Enum):
    """State of a pod of a Workload."""

    GATED = "gated"
    PINNED = "pinned"  # released to its host, not bound
    LIVE = "live"  # bound
    ENDING = "ending"  # bound or not, a deletion is under way
    FAILED = "failed"
    SUCCEEDED = "succeeded"


_PRESENT: Final = tuple(state for state in PodState if state is not PodState.FAILED)


@dataclass(frozen=True, slots=True)
class JobPod:
    """One pod of the Workload's own job, as listed.

    Attributes:
        podset: the PodSet its label names.
        host: its nodeSelector's hostname, "" while it is gated.
        unschedulable: the scheduler has reported that no node fits.
        node: the Node it is bound to, "" if it is not bound.
    """

    name: str
    namespace: str
    uid: str
    resource_version: str
    podset: str
    host: str
    state: PodState
    unschedulable: bool = False
    node: str = ""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class HostAssessment:
    """Result of one assessment.

    Attributes:
        unhealthy: hosts to add to `status.unhealthyNodes`, as many as it may list.
        stranded_pods: pods pinned to a host where they can never run, which blocks replacement
            (N6); only if a successor goes elsewhere (U3).
        recovered: outdated names there: the node accepts pods again, or none is assigned to it.
        requested: healthy hosts that a user named there: they are replaced as well.
        stable: nothing is unhealthy or in transit; nothing to do until something changes.
        fully_bound: as many bound pods as are assigned, and nothing else: the next change is an
            event.
    """

    unhealthy: tuple[str, ...] = ()
    stranded_pods: tuple[JobPod, ...] = ()
    recovered: tuple[str, ...] = ()
    requested: frozenset[str] = frozenset()
    stable: bool = True
    fully_bound: bool = True


@dataclass(slots=True)
class _HostPods:
    """Pods of one PodSet on one host, by state.

    Attributes:
        stranded: pinned pods that can never run there.
        on_existing_node: live pods whose Node exists, possibly under another hostname label.
    """

    count: int = 0
    states: dict[PodState, int] = field(default_factory=dict)
    stranded: int = 0
    on_existing_node: int = 0

    def of(self, *states: PodState) -> int:
        return sum(self.states.get(state, 0) for state in states)

    @property
    def progressing(self) -> int:
        """Pods that run there, or still may."""
        return self.of(PodState.LIVE, PodState.PINNED) - self.stranded


def host_state(node: NodeInfo | None, tolerations: Sequence[Toleration]) -> HostState:
    """State of a node for pods with these tolerations; None is a node that is gone (N5)."""
    if node is None:
        return HostState.GONE
    if not node.ready:
        return HostState.NOT_READY
    taints = [*node.taints, *([_CORDON] if node.unschedulable else [])]
    leaving = False
    for taint in taints:
        if taint.effect not in BLOCKING_EFFECTS:
            continue
        matching = [found for found in tolerations if tolerates(found, taint)]
        if not matching:
            return HostState.CLOSED
        limited = all(found.toleration_seconds is not None for found in matching)
        leaving |= limited and taint.effect == "NoExecute"
    return HostState.DRAINING if leaving else HostState.HEALTHY


def host_assignments(info: WorkloadInfo) -> Iterator[PodSetAssignment]:
    """Admitted PodSets whose domains are hosts; others have no unhealthy nodes."""
    if info.reserved is None:
        return
    for part in info.reserved.podsets:
        if part.topology is not None and part.topology.levels == HOST_LEVELS:
            yield part


def supports_node_replacement(info: WorkloadInfo) -> bool:
    """Whether unhealthy nodes of this Workload may be replaced now."""
    idle = info.finished or info.evicted or info.deleting or not info.active
    return info.admitted and not idle and any(True for _ in host_assignments(info))


def tolerations_of(
    info: WorkloadInfo, part: PodSetAssignment, flavors: Mapping[str, FlavorInfo]
) -> tuple[Toleration, ...]:
    """Tolerations of a PodSet's template and of its flavors."""
    own = next((p.request.tolerations for p in info.podsets if p.request.name == part.name), ())
    names = sorted(set(part.flavors.values()))
    added = [flavors[name].tolerations for name in names if name in flavors]
    return (*own, *(toleration for more in added for toleration in more))


def suspect_hosts(
    info: WorkloadInfo, hosts: Hosts, flavors: Mapping[str, FlavorInfo]
) -> frozenset[str]:
    """Assigned hosts that are not healthy: a reason to list the pods."""
    return frozenset(
        values[-1]
        for part in host_assignments(info)
        for tolerations in (tolerations_of(info, part, flavors),)
        for values, _ in _domains(part)
        if not hosts.is_healthy(values[-1])
        and host_state(hosts.node(values[-1]), tolerations) is not HostState.HEALTHY
    )


def named_hosts(info: WorkloadInfo, hosts: Hosts) -> dict[str, str]:
    """The host of each name in `status.unhealthyNodes`.

    Rackgate writes hosts. Others may write Node names, which can differ from their hostname labels.
    """
    assigned = {values[-1] for part in host_assignments(info) for values, _ in _domains(part)}
    return {
        name: name if name in assigned else hosts.host_of(name) or name for name in info.unhealthy
    }


def assess_hosts(
    info: WorkloadInfo, pods: Iterable[JobPod], hosts: Hosts, flavors: Mapping[str, FlavorInfo]
) -> HostAssessment:
    """Assess every host assigned to a Workload.

    Args:
        info: of a Workload for which `supports_node_replacement` is true.
        pods: all pods of its job that name it, ended ones included.
        hosts: nodes as known now.
        flavors: for the tolerations they add.
    """
    return _HostAssessor(info, list(pods), hosts, flavors).assess()


def _domains(part: PodSetAssignment) -> tuple[tuple[tuple[str, ...], int], ...]:
    return part.topology.domains if part.topology is not None else ()


class _HostAssessor:
    def __init__(
        self,
        info: WorkloadInfo,
        pods: list[JobPod],
        hosts: Hosts,
        flavors: Mapping[str, FlavorInfo],
    ) -> None:
        self.info, self.pods, self.hosts = info, pods, hosts
        self.parts = {part.name: part for part in host_assignments(info)}
        self.tolerations = {
            name: (*tolerations_of(info, part, flavors), *_tolerations_of_pods(pods, name))
            for name, part in self.parts.items()
        }
        self.host_pods: dict[tuple[str, str], _HostPods] = {
            (name, values[-1]): _HostPods(count)
            for name, part in self.parts.items()
            for values, count in _domains(part)
        }
        self.stranded: list[JobPod] = []
        self.totals = Counter((pod.podset, pod.state) for pod in pods)
        for pod in pods:
            self._count(pod)

    def assess(self) -> HostAssessment:
        marked_hosts = named_hosts(self.info, self.hosts)
        assigned = sorted({host for _, host in self.host_pods})
        unhealthy = [
            host
            for host in assigned
            if host not in marked_hosts.values() and self._is_unhealthy(host)
        ]
        recovered, requested = self._recovered_and_requested(marked_hosts)
        room = MAX_UNHEALTHY - len(self.info.unhealthy)
        named = tuple(unhealthy[: max(room, 0)])
        closed = {*marked_hosts.values(), *named}
        stranded = tuple(
            pod
            for pod in self.stranded
            if (pod.podset, pod.host) not in self.host_pods or pod.host in closed
        )
        idle = not any(self._is_in_transit(pod) for pod in self.pods)
        whole = all(
            pods_here.of(PodState.LIVE, PodState.SUCCEEDED) >= pods_here.count
            for pods_here in self.host_pods.values()
        )
        healthy = all(self._state(*key) is HostState.HEALTHY for key in self.host_pods)
        quiet = healthy and not (marked_hosts or unhealthy or self.stranded)
        return HostAssessment(
            unhealthy=named,
            stranded_pods=stranded,
            recovered=recovered,
            requested=requested,
            stable=quiet and idle,
            fully_bound=idle and whole and not (marked_hosts or unhealthy or self.stranded),
        )

    def _state(self, podset: str, host: str) -> HostState:
        return host_state(self.hosts.node(host), self.tolerations[podset])

    def _count(self, pod: JobPod) -> None:
        if pod.podset not in self.parts:
            return
        pods_here = self.host_pods.get((pod.podset, pod.host))
        if pods_here is not None:
            pods_here.states[pod.state] = pods_here.states.get(pod.state, 0) + 1
            pods_here.on_existing_node += pod.state is PodState.LIVE and self.hosts.has_node(
                pod.node
            )
        if pod.state is not PodState.PINNED or not pod.unschedulable or not pod.host:
            return
        usable = (HostState.HEALTHY, HostState.DRAINING)
        if pods_here is None or self._state(pod.podset, pod.host) not in usable:
            self.stranded.append(pod)
            if pods_here is not None:
                pods_here.stranded += 1

    def _is_unhealthy(self, host: str) -> bool:
        """Whether no pod progresses there, and some PodSet has lost pods there."""
        shares = [(name, self.host_pods[name, host]) for name in self._podsets_on(host)]
        # A label that changed under a running pod changes nothing (TAS-23).
        gone = self.hosts.node(host) is None and not any(
            pods_here.on_existing_node for _, pods_here in shares
        )
        if not gone and any(pods_here.progressing for _, pods_here in shares):
            return False
        return any(self._has_lost_pods(name, host, pods_here) for name, pods_here in shares)

    def _has_lost_pods(self, podset: str, host: str, pods_here: _HostPods) -> bool:
        state = self._state(podset, host)
        if state is HostState.HEALTHY:
            return False
        waiting = self._all(podset, PodState.GATED)
        ending = pods_here.of(PodState.ENDING) + pods_here.stranded
        done = pods_here.of(PodState.SUCCEEDED) >= pods_here.count
        if done and not waiting and not ending:
            return False  # its pod has succeeded: the host is not needed again
        if ending or pods_here.of(PodState.FAILED):
            return True
        if state is HostState.GONE:
            return waiting > 0 or pods_here.progressing > 0
        # No pod was ever seen there. A taint that is tolerated for some time does not prevent pods,
        # and before all pods exist they may be anywhere.
        expected = sum(count for _, count in _domains(self.parts[podset]))
        present = self._all(podset, *_PRESENT)
        return state is not HostState.DRAINING and waiting > 0 and present >= expected

    def _recovered_and_requested(
        self, marked_hosts: Mapping[str, str]
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        """Outdated names, and healthy hosts whose replacement a user requests."""
        recovered, requested = [], set()
        begun = any(pod.state is not PodState.GATED for pod in self.pods)
        for name, host in marked_hosts.items():
            podsets = self._podsets_on(host)
            if any(self._state(podset, host) is not HostState.HEALTHY for podset in podsets):
                continue
            runs = any(self.host_pods[podset, host].progressing for podset in podsets)
            if podsets and (runs or not begun):
                requested.add(name)
            else:
                recovered.append(name)
        return tuple(recovered), frozenset(requested)

    def _podsets_on(self, host: str) -> list[str]:
        return [name for name in self.parts if (name, host) in self.host_pods]

    def _all(self, podset: str, *states: PodState) -> int:
        return sum(self.totals[podset, state] for state in states)

    def _is_in_transit(self, pod: JobPod) -> bool:
        """Whether a pod may still arrive at a host, or leave an assigned one."""
        if pod.state is PodState.ENDING:
            return (pod.podset, pod.host) in self.host_pods
        return pod.state in (PodState.GATED, PodState.PINNED)


def _tolerations_of_pods(pods: Iterable[JobPod], podset: str) -> tuple[Toleration, ...]:
    """Tolerations of the pods themselves: admission checks and the API server may add some."""
    found = (pod.tolerations for pod in pods if pod.podset == podset)
    return tuple(dict.fromkeys(toleration for carried in found for toleration in carried))

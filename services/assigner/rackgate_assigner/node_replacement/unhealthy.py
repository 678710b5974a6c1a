"""Which assigned hosts are broken for a Workload, judged from nodes and a live list of its pods.

A host is broken when nothing of the Workload can run there any more: its node is gone, or it is
not ready or closed by a taint and the Workload's pods there have ended or are ending (N1). An
empty list of pods proves nothing before all pods exist (N2). Only hosts of the current assignment
are judged, so pods of an older one neither break nor heal anything (N3). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.node_replacement.hosts import Hosts
from rackgate_assigner.quota.queues import FlavorRow
from rackgate_assigner.topology.model import NodeFacts
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS, tolerates
from rackgate_assigner.workload.decisions import PodSetGrant
from rackgate_assigner.workload.info import HOST_LEVELS, WorkloadRow

MAX_UNHEALTHY: Final = 8  # entries of status.unhealthyNodes
_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class HostState(Enum):
    """What a node is to pods of one shape."""

    HEALTHY = "healthy"
    LEAVING = "leaving"  # a NoExecute taint that is tolerated for some seconds only
    CLOSED = "closed"  # cordoned, or a taint that is not tolerated
    NOT_READY = "not ready"
    GONE = "gone"


class PodState(Enum):
    """Where a pod of a Workload stands."""

    GATED = "gated"
    PINNED = "pinned"  # released to its host, not bound
    LIVE = "live"  # bound
    ENDING = "ending"  # bound or not, a deletion is under way
    FAILED = "failed"
    SUCCEEDED = "succeeded"


_PRESENT: Final = tuple(state for state in PodState if state is not PodState.FAILED)


@dataclass(frozen=True, slots=True)
class PodFact:
    """One pod of the Workload's own job, as listed.

    Attributes:
        podset: the PodSet its label names.
        host: its nodeSelector's hostname, "" while it is gated.
        unschedulable: the scheduler has said that it finds no node for it.
        node: the Node it is bound to, "" while it is not.
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
class Judgement:
    """What follows from one look.

    Attributes:
        broken: hosts to be named in `status.unhealthyNodes`, as many as there is room for.
        doomed: pods that wait for a host they can never run on, and block their replacement (N6).
            Only where a successor goes elsewhere: else one after another would be ended (U3).
        recovered: names there that say nothing any more: the node is back and takes the
            Workload's pods again, or no pod is assigned to it.
        asked: hosts named there by somebody although they are healthy: to be replaced all the same.
        settled: nothing is broken or on its way; the next look is due when something changes.
        steady: as many bound pods as are assigned, and nothing else: what comes next is an event.
    """

    broken: tuple[str, ...] = ()
    doomed: tuple[PodFact, ...] = ()
    recovered: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()
    settled: bool = True
    steady: bool = True


@dataclass(slots=True)
class _Tally:
    """Pods of one PodSet on one host, by state.

    Attributes:
        doomed: pinned pods that can never run there.
        anchored: live pods whose Node exists, though perhaps under another hostname label.
    """

    count: int = 0
    states: dict[PodState, int] = field(default_factory=dict)
    doomed: int = 0
    anchored: int = 0

    def of(self, *states: PodState) -> int:
        return sum(self.states.get(state, 0) for state in states)

    @property
    def progressing(self) -> int:
        """Pods that run there, or still may."""
        return self.of(PodState.LIVE, PodState.PINNED) - self.doomed


def host_state(node: NodeFacts | None, tolerations: Sequence[Toleration]) -> HostState:
    """What a node is to pods with these tolerations; None stands for a node that is gone (N5)."""
    if node is None:
        return HostState.GONE
    if not node.ready:
        return HostState.NOT_READY
    taints = [*node.taints, *([_CORDON] if node.unschedulable else [])]
    leaving = False
    for taint in taints:
        if taint.effect not in BLOCKING_EFFECTS:
            continue
        matching = [given for given in tolerations if tolerates(given, taint)]
        if not matching:
            return HostState.CLOSED
        limited = all(given.toleration_seconds is not None for given in matching)
        leaving |= limited and taint.effect == "NoExecute"
    return HostState.LEAVING if leaving else HostState.HEALTHY


def hosted(row: WorkloadRow) -> Iterator[PodSetGrant]:
    """The granted PodSets whose domains are hosts; of others no broken node can be told."""
    if row.reserved is None:
        return
    for part in row.reserved.podsets:
        if part.topology is not None and part.topology.levels == HOST_LEVELS:
            yield part


def minded(row: WorkloadRow) -> bool:
    """Whether broken nodes of this Workload are anybody's business now."""
    idle = row.finished or row.evicted or row.deleting or not row.active
    return row.admitted and not idle and any(True for _ in hosted(row))


def tolerations_of(
    row: WorkloadRow, part: PodSetGrant, flavors: Mapping[str, FlavorRow]
) -> tuple[Toleration, ...]:
    """Tolerations of a PodSet's template and of the flavors it was given."""
    own = next((p.request.tolerations for p in row.podsets if p.request.name == part.name), ())
    names = sorted(set(part.flavors.values()))
    added = [flavors[name].tolerations for name in names if name in flavors]
    return (*own, *(toleration for more in added for toleration in more))


def suspects(row: WorkloadRow, hosts: Hosts, flavors: Mapping[str, FlavorRow]) -> frozenset[str]:
    """Assigned hosts that are not healthy: a reason to look at the pods."""
    return frozenset(
        values[-1]
        for part in hosted(row)
        for given in (tolerations_of(row, part, flavors),)
        for values, _ in _domains(part)
        if not hosts.sound(values[-1])
        and host_state(hosts.node(values[-1]), given) is not HostState.HEALTHY
    )


def named_hosts(row: WorkloadRow, hosts: Hosts) -> dict[str, str]:
    """The host that each name in `status.unhealthyNodes` stands for.

    We write hosts. Others may write Node names, which can differ from their hostname labels.
    """
    assigned = {values[-1] for part in hosted(row) for values, _ in _domains(part)}
    return {
        name: name if name in assigned else hosts.host_of(name) or name for name in row.unhealthy
    }


def judge(
    row: WorkloadRow, pods: Iterable[PodFact], hosts: Hosts, flavors: Mapping[str, FlavorRow]
) -> Judgement:
    """Judge every host assigned to a Workload.

    Args:
        row: of a Workload that `minded` holds for.
        pods: all pods of its job that name it, ended ones included.
        hosts: nodes as known now.
        flavors: for the tolerations they add.
    """
    return _Look(row, list(pods), hosts, flavors).judgement()


def _domains(part: PodSetGrant) -> tuple[tuple[tuple[str, ...], int], ...]:
    return part.topology.domains if part.topology is not None else ()


class _Look:
    """One judgement in the making."""

    def __init__(
        self,
        row: WorkloadRow,
        pods: list[PodFact],
        hosts: Hosts,
        flavors: Mapping[str, FlavorRow],
    ) -> None:
        self.row, self.pods, self.hosts = row, pods, hosts
        self.parts = {part.name: part for part in hosted(row)}
        self.tolerations = {
            name: (*tolerations_of(row, part, flavors), *_carried(pods, name))
            for name, part in self.parts.items()
        }
        self.tallies: dict[tuple[str, str], _Tally] = {
            (name, values[-1]): _Tally(count)
            for name, part in self.parts.items()
            for values, count in _domains(part)
        }
        self.doomed: list[PodFact] = []
        self.totals = Counter((pod.podset, pod.state) for pod in pods)
        for pod in pods:
            self._count(pod)

    def judgement(self) -> Judgement:
        marked = named_hosts(self.row, self.hosts)
        assigned = sorted({host for _, host in self.tallies})
        broken = [host for host in assigned if host not in marked.values() and self._broken(host)]
        recovered, asked = self._marks(marked)
        room = MAX_UNHEALTHY - len(self.row.unhealthy)
        named = tuple(broken[: max(room, 0)])
        closed = {*marked.values(), *named}
        doomed = tuple(
            pod
            for pod in self.doomed
            if (pod.podset, pod.host) not in self.tallies or pod.host in closed
        )
        idle = not any(self._on_its_way(pod) for pod in self.pods)
        whole = all(
            tally.of(PodState.LIVE, PodState.SUCCEEDED) >= tally.count
            for tally in self.tallies.values()
        )
        healthy = all(self._state(*key) is HostState.HEALTHY for key in self.tallies)
        quiet = healthy and not (marked or broken or self.doomed)
        return Judgement(
            broken=named,
            doomed=doomed,
            recovered=recovered,
            asked=asked,
            settled=quiet and idle,
            steady=idle and whole and not (marked or broken or self.doomed),
        )

    def _state(self, podset: str, host: str) -> HostState:
        return host_state(self.hosts.node(host), self.tolerations[podset])

    def _count(self, pod: PodFact) -> None:
        if pod.podset not in self.parts:
            return
        tally = self.tallies.get((pod.podset, pod.host))
        if tally is not None:
            tally.states[pod.state] = tally.states.get(pod.state, 0) + 1
            tally.anchored += pod.state is PodState.LIVE and self.hosts.knows(pod.node)
        if pod.state is not PodState.PINNED or not pod.unschedulable or not pod.host:
            return
        usable = (HostState.HEALTHY, HostState.LEAVING)
        if tally is None or self._state(pod.podset, pod.host) not in usable:
            self.doomed.append(pod)
            if tally is not None:
                tally.doomed += 1

    def _broken(self, host: str) -> bool:
        """Whether no pod progresses there, and some PodSet has lost pods there."""
        shares = [(name, self.tallies[name, host]) for name in self._podsets_on(host)]
        # A label that changed under a running pod changes nothing (TAS-23).
        gone = self.hosts.node(host) is None and not any(tally.anchored for _, tally in shares)
        if not gone and any(tally.progressing for _, tally in shares):
            return False
        return any(self._lost(name, host, tally) for name, tally in shares)

    def _lost(self, podset: str, host: str, tally: _Tally) -> bool:
        state = self._state(podset, host)
        if state is HostState.HEALTHY:
            return False
        waiting = self._all(podset, PodState.GATED)
        ending = tally.of(PodState.ENDING) + tally.doomed
        done = tally.of(PodState.SUCCEEDED) >= tally.count
        if done and not waiting and not ending:
            return False  # what ran there has succeeded: nobody needs the place again
        if ending or tally.of(PodState.FAILED):
            return True
        if state is HostState.GONE:
            return waiting > 0 or tally.progressing > 0
        # Nothing was ever seen there. A taint that is tolerated for a while does not forbid it,
        # and before all pods exist they may be anywhere.
        expected = sum(count for _, count in _domains(self.parts[podset]))
        present = self._all(podset, *_PRESENT)
        return state is not HostState.LEAVING and waiting > 0 and present >= expected

    def _marks(self, marked: Mapping[str, str]) -> tuple[tuple[str, ...], frozenset[str]]:
        """Names that say nothing any more, and healthy hosts that somebody wants replaced."""
        recovered, asked = [], set()
        begun = any(pod.state is not PodState.GATED for pod in self.pods)
        for name, host in marked.items():
            podsets = self._podsets_on(host)
            if any(self._state(podset, host) is not HostState.HEALTHY for podset in podsets):
                continue
            runs = any(self.tallies[podset, host].progressing for podset in podsets)
            if podsets and (runs or not begun):
                asked.add(name)
            else:
                recovered.append(name)
        return tuple(recovered), frozenset(asked)

    def _podsets_on(self, host: str) -> list[str]:
        return [name for name in self.parts if (name, host) in self.tallies]

    def _all(self, podset: str, *states: PodState) -> int:
        return sum(self.totals[podset, state] for state in states)

    def _on_its_way(self, pod: PodFact) -> bool:
        """Whether a pod may yet come to a host, or leave one that is assigned."""
        if pod.state is PodState.ENDING:
            return (pod.podset, pod.host) in self.tallies
        return pod.state in (PodState.GATED, PodState.PINNED)


def _carried(pods: Iterable[PodFact], podset: str) -> tuple[Toleration, ...]:
    """What pods themselves tolerate: also what admission checks and the API server added."""
    found = (pod.tolerations for pod in pods if pod.podset == podset)
    return tuple(dict.fromkeys(toleration for given in found for toleration in given))

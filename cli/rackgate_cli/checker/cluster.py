"""One reading of a cluster, and how its objects belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rackgate.api import names
from rackgate.domains import Domain
from rackgate_cli.checker.rows import (
    FlavorRow,
    JobRow,
    NodeRow,
    PodRow,
    PodSetRow,
    QueueRow,
    TopologyRow,
    WorkloadRow,
)

# A deletion so many seconds after its grace period is one that its node cannot finish.
OVERDUE_S = 30.0
HOST_LEVELS = (names.HOSTNAME_LABEL,)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One reading of a cluster.

    The lists are read one after another, so a breach of a moving cluster counts only when it
    shows in two readings in a row (`lasting`).

    Attributes:
        pods: those that have not ended.
        read_at: Unix time of the reading; 0 counts no deletion as overdue.
        unread: what could not be read, plural to reason.
        whole: all namespaces were read.
    """

    nodes: Collection[NodeRow] = ()
    pods: Collection[PodRow] = ()
    jobs: Collection[JobRow] = ()
    workloads: Collection[WorkloadRow] = ()
    flavors: Collection[FlavorRow] = ()
    topologies: Collection[TopologyRow] = ()
    cluster_queues: Collection[QueueRow] = ()
    local_queues: Collection[QueueRow] = ()
    read_at: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


class Places:
    """Nodes by name and host, and the levels of flavors."""

    def __init__(
        self,
        nodes: Iterable[NodeRow],
        flavors: Iterable[FlavorRow],
        topologies: Iterable[TopologyRow],
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.hosts: dict[str, NodeRow] = {}
        for node in self.nodes.values():
            host = node.labels.get(names.HOSTNAME_LABEL)
            if host:
                self.hosts[host] = node
        self.flavors = {flavor.name: flavor for flavor in flavors}
        levels = {topology.name: topology.levels for topology in topologies}
        self._levels = {
            flavor.name: levels.get(flavor.topology, ()) for flavor in self.flavors.values()
        }

    def levels_of(self, podset: PodSetRow) -> tuple[str, ...]:
        """All levels of the topology that a PodSet was placed in, coarsest first."""
        return self._levels.get(flavor_of(podset), ())

    def path(self, levels: tuple[str, ...], domain: Domain, upto: tuple[str, ...]) -> Domain | None:
        """The domain of coarser levels that a domain lies in.

        Args:
            levels: of `domain`.
            domain: one value per level.
            upto: the levels asked for.

        Returns:
            One value per level of `upto`; None when it cannot be told.
        """
        if levels[: len(upto)] == upto:
            return domain[: len(upto)]
        node = self.hosts.get(domain[-1]) if levels == HOST_LEVELS else None
        if node is None:
            return None
        found = tuple([node.labels.get(level, "") for level in upto])
        return found if all(found) else None


def flavor_of(podset: PodSetRow) -> str:
    """The flavor whose topology a PodSet is placed in: the first by name (they share one)."""
    return min(podset.flavors.values(), default="")


@dataclass(slots=True)
class Placed:
    """A PodSet with an assignment, and its pods."""

    workload: WorkloadRow
    podset: PodSetRow
    levels: tuple[str, ...]
    counts: dict[Domain, int]
    live: list[PodRow] = field(default_factory=list)
    gated: list[PodRow] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """Workload and PodSet."""
        return f"{self.workload.key}/{self.podset.name}"

    @property
    def cap(self) -> int:
        """Most pods that may be ungated at once."""
        return min(self.podset.granted, sum(self.counts.values()))

    def earlier(self, pod: PodRow) -> bool:
        """Whether a pod got its place before the assignment was written as it is now."""
        return 0 < pod.sent_at < self.workload.placed_at

    def given_up(self, pod: PodRow, now: float) -> bool:
        """Whether nobody waits for this pod: its host was given up and cannot end it."""
        overdue = 0 < pod.ends_at <= now - OVERDUE_S
        return overdue and pod.domain(self.levels) not in self.counts


@dataclass(slots=True)
class Group:
    """What belongs to one owner: a Job, its Workloads and its pods."""

    job: JobRow | None = None
    workloads: dict[str, WorkloadRow] = field(default_factory=dict)
    pods: dict[str, PodRow] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it."""
        return self.job is None and not self.workloads and not self.pods

    def placed(self) -> list[Placed]:
        """PodSets that hold an assignment, with their pods."""
        found: dict[str, list[Placed]] = {}
        for workload in self.workloads.values():
            for podset in workload.podsets if workload.holds else ():
                if podset.assignment is not None:
                    counts = dict(podset.assignment.domains)
                    one = Placed(workload, podset, podset.assignment.levels, counts)
                    found.setdefault(podset.name, []).append(one)
        every = [one for several in found.values() for one in several]
        for pod in self.pods.values() if found else ():
            # Pods without a controller are nobody's, whatever they claim.
            several = (found.get(pod.podset, ()) if pod.podset else every[:1]) if pod.owner else ()
            if several:
                belongs = several[0]
                if len(several) > 1:
                    named = (one for one in several if one.workload.name == pod.workload)
                    belongs = next(named, belongs)
                gated = names.TOPOLOGY_GATE in pod.gates
                (belongs.gated if gated else belongs.live).append(pod)
        return every


def groups_of(cluster: Cluster) -> dict[str, Group]:
    """Objects by the uid of their owner; "" gathers what has none."""
    found: dict[str, Group] = {job.uid: Group(job) for job in cluster.jobs}
    for workload in cluster.workloads:
        found.setdefault(workload.owner, Group()).workloads[workload.key] = workload
    for pod in cluster.pods:
        found.setdefault(pod.owner, Group()).pods[pod.key] = pod
    return found


def shown(domain: Domain | None) -> str:
    """A domain in words."""
    return "/".join(domain) if domain else "none"


def listed(keys: Iterable[str], most: int = 3) -> str:
    """Some names, and how many more there are."""
    every = sorted(keys)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")

"""The invariants every cluster must keep, checked on the API server's own objects.

Pure: takes decoded objects, gives breaches. It shares no code with the assigner's accounting, so
that a mistake there cannot hide itself here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from rackgate.api import names
from rackgate.domains import Domain, TopologyAssignment, decode
from rackgate.quantity import amount
from rackgate.resources import pod_requests
from rackgate.runtime.clock import parse_rfc3339
from rackgate.wire.batch import Job
from rackgate.wire.core import Node, Pod, PodTemplate
from rackgate.wire.kueue import PodSetAssignment, ResourceFlavor, Workload

# A deletion so many seconds after its grace period is one that its node cannot finish.
OVERDUE_S = 30.0


@dataclass(frozen=True, slots=True, order=True)
class Breach:
    """One broken invariant: its rule, the object, and what was found."""

    rule: str
    subject: str
    found: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """One reading of a cluster.

    The lists are read one after another, so a breach of a moving cluster counts only when it
    shows in two readings in a row (`lasting`).

    Attributes:
        read_at: Unix time of the reading; 0 counts no deletion as overdue.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    jobs: tuple[Job, ...] = ()
    workloads: tuple[Workload, ...] = ()
    flavors: tuple[ResourceFlavor, ...] = ()
    read_at: float = 0.0


@dataclass(slots=True)
class _Granted:
    """An admitted PodSet: what it was given, and the live ungated pods seen of it."""

    workload: Workload
    assignment: PodSetAssignment
    topology: TopologyAssignment | None
    live: list[Pod] = field(default_factory=list)

    @property
    def subject(self) -> str:
        return f"{self.workload.metadata.key}/{self.assignment.name}"


def breaches(cluster: Cluster) -> list[Breach]:
    """All breaches of one reading, sorted."""
    granted = _granted(cluster.workloads)
    found = [
        *_ungated_before_admission(cluster, granted),
        *_over_count(cluster, granted.values()),
        *_misplaced(cluster, granted.values()),
        *_assignment_shape(granted.values()),
        *_over_capacity(cluster, granted),
    ]
    return sorted(found)


def lasting(first: Iterable[Breach], second: Iterable[Breach]) -> list[Breach]:
    """Breaches that both readings show, whatever the figures in them."""
    again = {(breach.rule, breach.subject) for breach in second}
    return [breach for breach in first if (breach.rule, breach.subject) in again]


def _granted(workloads: Iterable[Workload]) -> dict[tuple[str, str], _Granted]:
    """PodSets that hold quota, by (owner uid, podset name)."""
    found: dict[tuple[str, str], _Granted] = {}
    for workload in workloads:
        owner = workload.metadata.controller
        admission = workload.status.admission
        if owner is None or admission is None or workload.is_true("Finished"):
            continue
        for assignment in admission.pod_set_assignments:
            raw = assignment.topology_assignment
            topology = decode(raw) if raw else None
            found[(owner.uid, assignment.name)] = _Granted(workload, assignment, topology)
    return found


def _ungated_before_admission(
    cluster: Cluster, granted: Mapping[tuple[str, str], _Granted]
) -> Iterator[Breach]:
    """Rule 2: pods of governed Jobs wait for admission. Fills `live` of the granted PodSets."""
    governed = {job.metadata.uid: job for job in cluster.jobs if _is_governed(job)}
    for pod in cluster.pods:
        owner = pod.metadata.controller
        if owner is None or owner.uid not in governed or pod.terminal:
            continue
        if pod.has_gate(names.TOPOLOGY_GATE):
            continue
        podset = granted.get((owner.uid, pod.metadata.labels.get(names.PODSET_LABEL, "main")))
        if podset is not None:
            podset.live.append(pod)
        elif pod.metadata.deletion_timestamp is None and not governed[owner.uid].finished:
            yield Breach(
                "ungated-before-admission",
                pod.metadata.key,
                f'pod of governed Job "{owner.name}" is ungated, its Workload is not admitted',
            )


def _is_governed(job: Job) -> bool:
    return names.QUEUE_LABEL in job.metadata.labels


def _domain_of(pod: Pod, levels: tuple[str, ...]) -> Domain | None:
    values = tuple(pod.spec.node_selector.get(level, "") for level in levels)
    return values if all(values) else None


def _over_count(cluster: Cluster, granted: Iterable[_Granted]) -> Iterator[Breach]:
    """Rule 1: live ungated pods never exceed what was granted, in total and per domain."""
    for podset in granted:
        if podset.topology is None:
            continue
        # Nobody waits for a node that cannot say that its pod ended, once it was given up.
        assigned = {domain for domain, _ in podset.topology.domains}
        live = [
            pod
            for pod in podset.live
            if _domain_of(pod, podset.topology.levels) in assigned or not _overdue(pod, cluster)
        ]
        if len(live) > podset.assignment.count:
            yield Breach(
                "over-granted",
                podset.subject,
                f"{len(live)} live ungated pods, {podset.assignment.count} granted",
            )
        counts = Counter(_domain_of(pod, podset.topology.levels) for pod in live)
        room = dict(podset.topology.domains)
        # Pods of an earlier admission may still be on their way out of domains it had.
        leaving = {_domain_of(p, podset.topology.levels) for p in live if _terminating(p)}
        for domain, count in counts.items():
            places = room.get(domain or (), 0)
            if count > places and not (places == 0 and domain in leaving):
                yield Breach(
                    "over-domain",
                    f"{podset.subject} {'/'.join(domain or ('none',))}",
                    f"{count} live ungated pods, {places} assigned",
                )


def _terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _overdue(pod: Pod, cluster: Cluster) -> bool:
    ends = pod.metadata.deletion_timestamp
    return ends is not None and parse_rfc3339(ends).timestamp() <= cluster.read_at - OVERDUE_S


def _misplaced(cluster: Cluster, granted: Iterable[_Granted]) -> Iterator[Breach]:
    """A bound pod sits on a node of its assigned domain."""
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    for podset in granted:
        if podset.topology is None:
            continue
        assigned = {domain for domain, _ in podset.topology.domains}
        for pod in podset.live:
            node = labels.get(pod.spec.node_name or "")
            if node is None or pod.metadata.deletion_timestamp is not None:
                continue
            sits = tuple(node.get(level, "") for level in podset.topology.levels)
            if sits not in assigned:
                yield Breach(
                    "outside-assignment",
                    pod.metadata.key,
                    f"bound to {'/'.join(sits)}, which is not assigned",
                )


def _assignment_shape(granted: Iterable[_Granted]) -> Iterator[Breach]:
    """An assignment covers exactly its count, each domain once."""
    for podset in granted:
        if podset.topology is None:
            continue
        if podset.topology.count != podset.assignment.count:
            yield Breach(
                "assignment-sum",
                podset.subject,
                f"domains sum to {podset.topology.count}, count is {podset.assignment.count}",
            )
        twice = [d for d, n in Counter(d for d, _ in podset.topology.domains).items() if n > 1]
        for domain in twice:
            yield Breach("assignment-twice", podset.subject, f"{'/'.join(domain)} is listed twice")


def _over_capacity(
    cluster: Cluster, granted: Mapping[tuple[str, str], _Granted]
) -> Iterator[Breach]:
    """Rule 3: what is assigned to a host, with all other bound pods, fits its allocatable."""
    used: dict[str, Counter[str]] = defaultdict(Counter)
    node_of_host: dict[str, str] = {}
    for node in cluster.nodes:
        host = node.metadata.labels.get(names.HOSTNAME_LABEL, "")
        node_of_host[host] = node.metadata.name
    for (_, name), podset in granted.items():
        if podset.topology is None or podset.topology.levels != (names.HOSTNAME_LABEL,):
            continue
        request = _requests_of(podset.workload, name)
        for (host,), count in podset.topology.domains:
            _charge(used[node_of_host.get(host, "")], request, count)
    counted = set(_covered(cluster, granted.values()))
    for pod in cluster.pods:
        if pod.spec.node_name and not pod.terminal and pod.metadata.uid not in counted:
            _charge(used[pod.spec.node_name], pod_requests(pod.spec), 1)
    for node in cluster.nodes:
        for resource, total in sorted(used[node.metadata.name].items()):
            room = amount(resource, node.status.allocatable.get(resource, 0))
            if total > room:
                yield Breach(
                    "over-capacity",
                    f"{node.metadata.name} {resource}",
                    f"{total} charged, {room} allocatable",
                )


def _covered(cluster: Cluster, granted: Iterable[_Granted]) -> Iterator[str]:
    """Pods on hosts assigned to them; one on a host that was given up takes room of its own."""
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    for podset in granted:
        if podset.topology is None or podset.topology.levels != (names.HOSTNAME_LABEL,):
            continue
        assigned = {host for (host,), _ in podset.topology.domains}
        for pod in podset.live:
            node = labels.get(pod.spec.node_name or "", {})
            if node.get(names.HOSTNAME_LABEL) in assigned:
                yield pod.metadata.uid


def _requests_of(workload: Workload, podset: str) -> dict[str, int]:
    raw = next(entry.template for entry in workload.spec.pod_sets if entry.name == podset)
    return pod_requests(msgspec.json.decode(raw, type=PodTemplate).spec)


def _charge(used: Counter[str], request: Mapping[str, int], count: int) -> None:
    for resource, quantity in request.items():
        used[resource] += quantity * count
    used["pods"] += count

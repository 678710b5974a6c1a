"""Whether every pod of a round is where it belongs: the checks after `bench.jobs_to_bound`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from bench.measuring.world import NAMESPACE
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.topology.assignment import TopologyAssignment, decode
from rackgate.wire.core import Meta, View
from tests.support.objects import RACK


@dataclass(frozen=True, slots=True)
class Place:
    """Where one pod is.

    Attributes:
        rank: its completion index.
        node: empty while it is not bound.
    """

    job: str
    rank: int
    node: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one Job was given.

    Attributes:
        first: at its admission.
        now: at the end; another one when a broken node was replaced meanwhile.
    """

    first: TopologyAssignment
    now: TopologyAssignment

    @property
    def replaced(self) -> bool:
        """Whether a node was replaced: ranks of pods that run stay where they are then."""
        return self.first != self.now


def misplaced(
    places: Iterable[Place],
    racks: Mapping[str, str],
    assigned: Mapping[str, Assigned],
    *,
    jobs: int,
    pods: int,
) -> list[str]:
    """What is wrong, as lines: pods missing or not bound, Jobs split, pods out of their rank.

    Args:
        places: of all pods.
        racks: by node.
        assigned: by Job; hostnames are the lowest level, and equal the nodes' names.
        jobs: how many there must be.
        pods: how many each must have.
    """
    is_job_pod: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        is_job_pod[place.job].append(place)
    lines = [] if len(is_job_pod) == jobs else [f"{len(is_job_pod)} Jobs have pods, not {jobs}"]
    for job, found in sorted(is_job_pod.items()):
        bound = [place for place in found if place.node]
        if sorted(place.rank for place in bound) != list(range(pods)):
            lines.append(f"{job}: not every rank of {pods} is bound once, {len(bound)} pods are")
        within = sorted({racks[place.node] for place in bound})
        if len(within) > 1:
            lines.append(f"{job}: split over racks {', '.join(within)}")
        lines += _out_of_place(job, bound, assigned.get(job))
    return lines


def _out_of_place(job: str, bound: list[Place], given: Assigned | None) -> list[str]:
    if given is None:
        return [f"{job}: no assignment"]
    if given.replaced:
        here = Counter(place.node for place in bound)
        counts = {domain[-1]: count for domain, count in given.now.domains}
        over = sorted(node for node, count in here.items() if count > counts.get(node, 0))
        return [f"{job}: more pods than assigned on {', '.join(over)}"] if over else []
    hosts = [domain[-1] for domain, count in given.now.domains for _ in range(count)]
    wrong = [
        place.rank for place in bound if place.rank >= len(hosts) or hosts[place.rank] != place.node
    ]
    return [f"{job}: ranks {wrong[:5]} are not where the assignment says"] if wrong else []


class _PodSpec(View, frozen=True):
    node_name: str = ""


class _Pod(View, frozen=True):
    metadata: Meta = Meta()
    spec: _PodSpec = _PodSpec()


class _PodSetAssignment(View, frozen=True):
    topology_assignment: msgspec.Raw = msgspec.Raw()


class _Admission(View, frozen=True):
    pod_set_assignments: tuple[_PodSetAssignment, ...] = ()


class _Status(View, frozen=True):
    admission: _Admission | None = None


class _Workload(View, frozen=True):
    metadata: Meta = Meta()
    status: _Status = _Status()


class _Node(View, frozen=True):
    metadata: Meta = Meta()


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] = []


async def _all(client: Client, kind: kinds.Resource) -> list[msgspec.Raw]:
    decoder = msgspec.json.Decoder(_Items)
    path = kind.path(NAMESPACE if kind.namespaced else None)
    return [raw async for page in client.list_pages(path) for raw in decoder.decode(page).items]


def assignment(raw: bytes) -> TopologyAssignment:
    """An assignment from its JSON."""
    return decode(msgspec.json.decode(raw))


async def look(
    client: Client, first: Mapping[str, bytes], *, jobs: int, pods: int
) -> tuple[list[str], int]:
    """Read everything live; returns what is wrong, and how many Jobs had a node replaced.

    Args:
        first: assignments at admission, by Job.
        jobs: how many there must be.
        pods: how many each must have.
    """
    nodes = [msgspec.json.decode(raw, type=_Node) for raw in await _all(client, kinds.NODES)]
    racks = {node.metadata.name: node.metadata.labels.get(RACK, "") for node in nodes}
    places = []
    for raw in await _all(client, kinds.PODS):
        pod = msgspec.json.decode(raw, type=_Pod)
        owner = pod.metadata.controller
        rank = int(pod.metadata.labels.get(names.COMPLETION_INDEX_LABEL, -1))
        places.append(Place(owner.name if owner else "", rank, pod.spec.node_name))
    assigned = {}
    for raw in await _all(client, kinds.WORKLOADS):
        workload = msgspec.json.decode(raw, type=_Workload)
        owner, admission = workload.metadata.controller, workload.status.admission
        if owner is not None and admission is not None and owner.name in first:
            now = assignment(bytes(admission.pod_set_assignments[0].topology_assignment))
            assigned[owner.name] = Assigned(assignment(first[owner.name]), now)
    wrong = misplaced(places, racks, assigned, jobs=jobs, pods=pods)
    return wrong, sum(one.replaced for one in assigned.values())

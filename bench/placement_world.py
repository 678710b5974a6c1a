"""Clusters, states and requests that the placement bench asks about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, SliceLayer, TopologyRequest
from rackgate_assigner.topology.tree import TopologyTree

BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
LEVELS: Final = (BLOCK, RACK, HOST)
HOSTS_PER_RACK, RACKS_PER_BLOCK = 16, 16
GPU: Final = "nvidia.com/gpu"
GPUS: Final = 8
PER_RACK: Final = HOSTS_PER_RACK * GPUS
PER_BLOCK: Final = PER_RACK * RACKS_PER_BLOCK
REQUESTS: Final = {"cpu": 4_000, "memory": 16 * 2**30, GPU: 1}
LEADER: Final = {"cpu": 8_000, "memory": 32 * 2**30}
SEED: Final = 7
# GPUs in use per host, drawn evenly from these.
STATES: Final = {"empty": (0, 0), "half full": (0, 8), "fragmented": (6, 8)}
# Free room of a fragmented cluster lies in ones and twos: smaller requests fit there.
SHRINK: Final = {"empty": 1, "half full": 1, "fragmented": 4}
RULES: Final = ("none", "taints", "selector", "affinity", "all")
POOL, ZONE = "example.com/pool", "example.com/zone"
_AFFINITY: Final[dict[str, Any]] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z0", "z1"]}]}
        ]
    }
}


def nodes(count: int, *, tainted: bool = False) -> list[NodeInfo]:
    """Hosts of 8 GPUs, 16 to a rack, 16 racks to a block; one of a rack may be tainted."""
    taint = (Taint(key="example.com/reserved", value="yes", effect="NoSchedule"),)
    made = []
    for number in range(count):
        rack = number // HOSTS_PER_RACK
        labels = {
            BLOCK: f"b{rack // RACKS_PER_BLOCK:04}",
            RACK: f"r{rack:05}",
            HOST: f"n{number:06}",
            POOL: "batch" if rack % 4 else "other",
            ZONE: f"z{rack % 3}",
        }
        offers = {"cpu": 96_000, "memory": 2**40, GPU: GPUS, "pods": 110}
        taints = taint if tainted and number % HOSTS_PER_RACK == 0 else ()
        made.append(NodeInfo(f"n{number:06}", labels, offers, taints))
    return made


def loaded(tree: TopologyTree, state: str) -> Capacity:
    """Capacity with some GPUs of every host in use."""
    capacity = Capacity(tree)
    low, high = STATES[state]
    used = np.random.default_rng(SEED).integers(low, high + 1, tree.leaf_count).tolist()
    capacity.charge_leaves(range(tree.leaf_count), REQUESTS, used)
    return capacity


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of request.

    Attributes:
        topology: what is asked; slices of 16 pods stay within a rack.
        pods: that fit into an empty or half full cluster, by number of nodes.
        too_many: that do not fit even when everything is free.
        led: one leader pod goes with them.
    """

    topology: TopologyRequest | None
    pods: Callable[[int], int]
    too_many: Callable[[int], int]
    led: bool = False


def _of_all(count: int) -> int:
    return count * GPUS // 16 * 16 + 16


KINDS: Final = {
    "required rack": Kind(
        TopologyRequest(required=RACK), lambda count: 64, lambda count: PER_RACK + 1
    ),
    "preferred block": Kind(
        TopologyRequest(preferred=BLOCK), lambda count: min(1024, count), _of_all
    ),
    "unconstrained": Kind(None, lambda count: 64, _of_all),
    "slices in a block": Kind(
        TopologyRequest(required=BLOCK, slices=(SliceLayer(RACK, 16),)),
        lambda count: 256,
        lambda count: PER_BLOCK + 16,
    ),
    "slices only": Kind(
        TopologyRequest(slices=(SliceLayer(RACK, 16),)), lambda count: 256, _of_all
    ),
    "leader + workers": Kind(
        TopologyRequest(required=RACK), lambda count: 63, lambda count: PER_RACK + 1, led=True
    ),
}


def podsets(
    kind: str, *, count: int, state: str = "half full", rules: str = "none", fits: bool = True
) -> list[PodSetRequest]:
    """The request of one cell of the matrix, on a cluster of `count` nodes."""
    asked = KINDS[kind]
    pods = asked.pods(count) if fits else asked.too_many(count)
    topology = asked.topology
    if fits:
        pods //= SHRINK[state]
    if topology is not None and topology.slices:
        size = 16 // (SHRINK[state] if fits else 1)
        topology = replace(topology, slices=(SliceLayer(RACK, size),))
        pods = pods // size * size
    group = "g" if asked.led else None
    workers = with_rules(PodSetRequest("workers", pods, REQUESTS, topology, group), rules)
    if not asked.led:
        return [workers]
    leader = replace(workers, name="leader", count=1, requests=LEADER)
    return [leader, workers]


def with_rules(podset: PodSetRequest, rules: str) -> PodSetRequest:
    """Add what limits the nodes; taints are a matter of the cluster, but for a toleration."""
    every = rules == "all"
    if rules == "taints" or every:
        unrelated = Toleration(key="example.com/other", operator="Exists")
        podset = replace(podset, tolerations=(unrelated,))
    if rules == "selector" or every:
        podset = replace(podset, node_selector={POOL: "batch"})
    if rules == "affinity" or every:
        podset = replace(podset, node_affinity=_AFFINITY)
    return podset


def sketch(
    tree: TopologyTree, capacity: Capacity, asked: Sequence[PodSetRequest]
) -> list[tuple[int, int]]:
    """A required rack without any of the rules: fit, sum per rack, smallest rack, fill hosts."""
    pods = asked[0].count
    rows = capacity.free.T
    fits: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
    for resource, amount in (*REQUESTS.items(), ("pods", 1)):
        one = rows[capacity.rows[resource]] // amount
        fits = one if fits is None else np.minimum(fits, one)
    assert fits is not None
    sums = np.add.reduceat(fits, tree.children[1][:-1])
    rack = int(np.where(sums >= pods, sums, 2**62).argmin())
    start, end = tree.children[1][rack : rack + 2]
    hosts = fits[start:end]
    order = np.argsort(-hosts, kind="stable")
    before = np.cumsum(hosts[order]) - hosts[order]
    given = np.clip(pods - before, 0, hosts[order])
    return [(int(start + at), int(n)) for at, n in zip(order, given, strict=True) if n]

"""Drawn `quota-scenario/1` questions: small trees of queues under pressure.

Every scenario is valid. What runs need not fit the quota: quota may have shrunk. `created` and
conditions have times that no two workloads share, and running workloads are reserved at such times:
among equals the order would be random.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.support.oracle.nodes import HOST
from tests.support.quota_oracle import answer

Json = dict[str, Any]
RACK = "example.com/rack"
COHORTS = ("root", "left", "right")
GROUPS = (
    [["cpu"]],
    [["cpu"]],
    [["cpu", "memory"]],
    [["cpu", "example.com/gpu"]],
    [["cpu"], ["example.com/gpu"]],
    [["cpu", "memory"], ["example.com/gpu"]],
    [["cpu", "pods"]],
)
WIDE_GROUPS = (
    [["cpu"]],
    [["cpu", "memory"]],
    [["cpu"], ["memory"], ["example.com/gpu"]],
    [["cpu", "memory"], ["example.com/gpu"]],
    [["cpu"], ["pods"]],
    [["cpu"], ["memory"], ["example.com/gpu", "pods"]],
)
MORE_REQUESTS = {"memory": ("1Gi", "1Gi", "2Gi"), "example.com/gpu": ("1", "1", "2")}
WITHIN = ("Never", "LowerPriority", "LowerPriority", "LowerOrNewerEqualPriority")
RECLAIM = ("Never", "LowerPriority", "Any", "Any", "Any")
STRATEGIES = (
    None,
    ["LessThanOrEqualToFinalShare", "LessThanInitialShare"],
    ["LessThanOrEqualToFinalShare"],
    ["LessThanInitialShare"],
    ["LessThanInitialShare", "LessThanOrEqualToFinalShare"],
)
SEARCH = ("MayStopSearch", "TryNextFlavor")
EVICTED = ("Preempted", "PodsReadyTimeout", "AdmissionCheck")


def settled(scenario: Json) -> bool:
    """Whether the order of lists that mean a set does not show in the answer."""
    turned = {**scenario}
    for name in ("cohorts", "clusterQueues", "workloads"):
        turned[name] = scenario[name][::-1]
    return answer(turned) == answer(scenario)


@st.composite
def quota_scenarios(
    draw: st.DrawFn, *, fair: bool | None = None, nodes: bool | None = None
) -> Json:
    """Any scenario; with `fair` or `nodes` given, with or without fair sharing or a topology."""
    return _Drawing(lambda size: draw(st.integers(0, size - 1)), fair, nodes).scenario()


def quota_scenario(seed: int, *, fair: bool | None = None, nodes: bool | None = None) -> Json:
    """The same for the same seed: for long runs, which need no smallest example."""
    return _Drawing(random.Random(seed).randrange, fair, nodes).scenario()


def wide_quota_scenario(seed: int) -> Json:
    """Deep trees with limits at all levels, and more queues, resource groups and work."""
    return _WideDrawing(random.Random(seed).randrange).scenario()


class _Drawing:
    """The parts of a scenario, in the order in which they refer to one another.

    `pick` gives a number below the one it is given.
    """

    def __init__(self, pick: Callable[[int], int], fair: bool | None, nodes: bool | None) -> None:
        self.pick = pick
        self.fair = self.rarely(2) if fair is None else fair
        self.has_nodes = self.rarely(4) if nodes is None else nodes
        self.hosts: list[str] = []
        self.times: list[int] = self.shuffled(list(range(1, 40)))

    def of(self, *values: Any) -> Any:
        return values[self.pick(len(values))]

    def upto(self, least: int, most: int) -> int:
        return least + self.pick(most - least + 1)

    def shuffled(self, values: list[Any]) -> list[Any]:
        left = list(values)
        return [left.pop(self.pick(len(left))) for _ in values]

    def rarely(self, one_in: int) -> bool:
        return self.pick(one_in) == one_in - 1

    def time(self) -> int:
        return -10 * self.times.pop()

    def scenario(self) -> Json:
        found: Json = {"id": "drawn", "tags": []}
        if self.fair:
            strategies = self.of(*STRATEGIES)
            found["fairSharing"] = {} if strategies is None else {"strategies": strategies}
        self.groups = self.of(*GROUPS)
        # A pod set cannot be in two topologies.
        self.groups = self.groups[:1] if self.has_nodes and not self.rarely(8) else self.groups
        flavors = max(len(self.groups), self.of(1, 1, 1, 2, 3))
        found["flavors"] = self.flavors = [self._flavor(f"f{number}") for number in range(flavors)]
        if self.has_nodes:
            found |= self._cluster()
        found["cohorts"] = self._cohorts()
        self.cohorts = [cohort["name"] for cohort in found["cohorts"]]
        self.queues = [self._queue(f"cq{number}") for number in range(self.of(1, 2, 2, 3, 3, 4))]
        found["clusterQueues"] = self.queues
        found["localQueues"] = [
            {"namespace": "ns", "name": queue["name"], "clusterQueue": queue["name"]}
            for queue in self.queues
        ]
        found["namespaces"] = [{"name": "ns", "labels": {"team": "a"}}]
        uids = self.shuffled(list(range(8)))
        running = self.of(0, 1, 2, 3, 4, 4, 5, 5, 5, 5)
        pending = self.upto(1, 3)
        found["workloads"] = [
            self._workload(number, uids[number], running=number < running)
            for number in range(running + pending)
        ]
        if pending > 1 and self.rarely(5):
            # Equal work of one queue is parked together.
            first, second = found["workloads"][-2:]
            second |= {name: first[name] for name in ("queue", "priority", "podSets")}
            second.pop("reclaimable", None)
        return found

    def _flavor(self, name: str) -> Json:
        found: Json = {"name": name}
        if self.has_nodes and not self.rarely(6):
            return {**found, "topology": "topo"}
        if self.rarely(4):
            found["nodeLabels"] = {"pool": name}
        if self.rarely(8):
            effect = self.of("NoSchedule", "NoSchedule", "PreferNoSchedule")
            found["taints"] = [{"key": "spot", "value": name, "effect": effect}]
        if self.rarely(8):
            found["tolerations"] = [{"key": "spot", "operator": "Exists"}]
        return found

    def _cluster(self) -> Json:
        nodes = []
        for rack in range(self.upto(2, 4)):
            for host in range(self.upto(1, 2)):
                name = f"h{rack}{host}"
                self.hosts.append(name)
                nodes.append(
                    {
                        "name": name,
                        "labels": {RACK: f"r{rack}", HOST: name},
                        "allocatable": {
                            "cpu": self.of("2", "4", "8"),
                            "memory": "16Gi",
                            "example.com/gpu": self.of("2", "8"),
                            "pods": self.of("110", "110", "3"),
                        },
                    }
                )
        return {"topologies": [{"name": "topo", "levels": [RACK, HOST]}], "nodes": nodes}

    def _cohorts(self) -> list[Json]:
        found: list[Json] = []
        for name in COHORTS[: self.of(0, 1, 1, 1, 2, 3)]:
            cohort: Json = {"name": name}
            if found and not self.rarely(6):
                cohort["parent"] = self.of(*[other["name"] for other in found])
            if self.rarely(3):
                cohort["resourceGroups"] = self._quotas(limits="parent" in cohort)
            if self.fair and self.rarely(3):
                cohort["fairWeight"] = self.of("0", "0.5", "2", "3")
            found.append(cohort)
        return found

    def _quotas(self, limits: bool) -> list[Json]:
        """Resource groups: every flavor in one of them."""
        names = [flavor["name"] for flavor in self.flavors]
        names = self.shuffled(names)
        found = []
        for at, resources in enumerate(self.groups):
            mine = names[at :: len(self.groups)]
            if len(mine) > 1 and self.rarely(4):
                mine = mine[:-1]
            flavors = [
                {"name": name, "quotas": {r: self._quota(r, limits) for r in resources}}
                for name in mine
            ]
            found.append({"resources": resources, "flavors": flavors})
        return found

    def _quota(self, resource: str, limits: bool) -> Json:
        unit = "Gi" if resource == "memory" else ""
        found = {"nominal": f"{self.of(0, 1, 2, 3, 3, 4, 4, 6)}{unit}"}
        if limits and self.rarely(4):
            found["borrowingLimit"] = f"{self.of(0, 2, 4)}{unit}"
        if limits and self.rarely(4):
            found["lendingLimit"] = f"{self.of(0, 2, 4)}{unit}"
        return found

    def _queue(self, name: str) -> Json:
        found: Json = {"name": name}
        if self.cohorts and not self.rarely(12):
            found["cohort"] = self.of(*self.cohorts)
        found["resourceGroups"] = self._quotas(limits="cohort" in found)
        found["queueingStrategy"] = self.of("BestEffortFIFO", "StrictFIFO")
        found["preemption"] = preemption = {
            "withinClusterQueue": self.of(*WITHIN),
            "reclaimWithinCohort": self.of(*RECLAIM),
        }
        # Rejected by validation where nothing is reclaimed.
        if preemption["reclaimWithinCohort"] != "Never" and not self.fair and self.rarely(3):
            borrow: Json = {"policy": self.of("LowerPriority", "LowerPriority", "Never")}
            if borrow["policy"] != "Never" and self.rarely(2):
                borrow["maxPriorityThreshold"] = self.of(-1, 0, 1)
            preemption["borrowWithinCohort"] = borrow
        found["flavorFungibility"] = {
            "whenCanBorrow": self.of(*SEARCH),
            "whenCanPreempt": self.of(*SEARCH),
        }
        if self.rarely(6):
            found["flavorFungibility"]["preference"] = "PreemptionOverBorrowing"
        if self.fair and self.rarely(2):
            found["fairWeight"] = self.of("0", "0.5", "1", "2", "3")
        if self.rarely(20):
            found["stopPolicy"] = self.of("Hold", "HoldAndDrain")
        if self.rarely(40):
            found["namespaceSelector"] = {"matchLabels": {"team": self.of("a", "b")}}
        return found

    def _workload(self, number: int, uid: int, *, running: bool) -> Json:
        # Several heads meet in a cycle if they are of several queues.
        queue = self.queues[number % len(self.queues)]
        if running or self.rarely(4):
            queue = self.of(*self.queues)
        found: Json = {
            "namespace": "ns",
            "name": f"{'a' if running else 'p'}{number}",
            "uid": f"u{uid}",
            "queue": queue["name"],
            "priority": self.of(-1, 0, 0, 1) if running else self.of(0, 0, 1, 2),
            "created": self.time(),
        }
        found["podSets"] = [self._podset("main", running)]
        if running:
            self._run(found, queue)
        elif self.rarely(4):
            found["podSets"].append(self._podset("more", running))
            self._group(found["podSets"])
        if self.rarely(5 if running else 8):
            reason = self.of(*EVICTED)
            time = self.time()
            found["conditions"] = [
                {"type": "Evicted", "status": True, "reason": reason, "at": time}
            ]
        elif not running and self.rarely(12):
            found["conditions"] = [self._parked()]
        if not running and self.rarely(12):
            main = found["podSets"][0]
            # A part of a slice is another question.
            if main["count"] > 1 and not {"group", "minCount"} & set(main) and not _sliced(main):
                found["reclaimable"] = {"main": 1}
        return found

    def _parked(self) -> Json:
        kind, status, reason = self.of(
            ("Requeued", False, "Preempted"),
            ("QuotaReserved", False, "OnHold"),
            ("WaitingForReplacementPods", True, "Waiting"),
            ("Finished", True, "Succeeded"),
        )
        return {"type": kind, "status": status, "reason": reason, "at": self.time()}

    def _podset(self, name: str, running: bool) -> Json:
        count = self.of(1, 1, 2, 2, 3, 4) if running else self.of(1, 1, 1, 2, 2, 3)
        requests = {"cpu": self.of("500m", "1", "1", "1", "1", "2")}
        for resource, amounts in MORE_REQUESTS.items():
            if any(resource in group for group in self.groups) and not self.rarely(3):
                requests[resource] = self.of(*amounts)
        found: Json = {"name": name, "count": count, "requests": requests}
        if running:
            return found
        if self.has_nodes and not self.rarely(5):
            found["topologyRequest"] = self._request(count)
        if count > 1 and not _sliced(found) and self.rarely(3):
            found["minCount"] = self.upto(1, count - 1)
        if not self.rarely(3):
            found["tolerations"] = [{"key": "spot", "operator": "Exists"}]
        if self.rarely(10):
            found["nodeSelector"] = {"pool": self.of("f0", "f1")}
        if self.rarely(10):
            operator = self.of("In", "NotIn", "Exists", "DoesNotExist")
            expression: Json = {"key": "pool", "operator": operator}
            if operator in ("In", "NotIn"):
                expression["values"] = ["f0"]
            terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        return found

    def _request(self, count: int) -> Json:
        kind = self.of("required", "required", "preferred", "unconstrained")
        found: Json = {kind: True if kind == "unconstrained" else self.of(RACK, HOST)}
        if found.get(kind) == RACK and count % 2 == 0 and self.rarely(4):
            found["slices"] = [{"topology": self.of(RACK, HOST), "size": 2}]
        return found

    def _group(self, podsets: list[Json]) -> None:
        """Make a leader of the second one, now and then."""
        workers, leader = podsets
        if self.rarely(4) and not any("minCount" in podset for podset in podsets):
            workers["group"] = leader["group"] = "gang"
            leader["count"] = 1
            leader.pop("topologyRequest", None)
            if "topologyRequest" in workers:
                leader["topologyRequest"] = {
                    name: value
                    for name, value in workers["topologyRequest"].items()
                    if name != "slices"
                }

    def _run(self, workload: Json, queue: Json) -> None:
        (podset,) = workload["podSets"]
        flavors, usage = {}, {}
        for group in queue["resourceGroups"]:
            flavor = self.of(*[given["name"] for given in group["flavors"]])
            for resource in group["resources"]:
                if resource in podset["requests"] or resource == "pods":
                    flavors[resource] = flavor
                    usage[resource] = _times(podset["requests"].get(resource, "1"), podset["count"])
        admitted: Json = {"name": "main", "count": podset["count"], "flavors": flavors}
        admitted["usage"] = usage
        topology = {given["name"] for given in self.flavors if given.get("topology")}
        if topology & set(flavors.values()):
            counts: dict[str, int] = {}
            for _ in range(podset["count"]):
                host = self.of(*self.hosts)
                counts[host] = counts.get(host, 0) + 1
            domains = [{"values": [name], "count": counts[name]} for name in sorted(counts)]
            admitted["topology"] = {"levels": [HOST], "domains": domains}
            podset["topologyRequest"] = {"unconstrained": True}
        elif podset["count"] > 1 and self.rarely(12):
            workload["reclaimable"] = {"main": 1}
        workload["admission"] = {"clusterQueue": queue["name"], "podSets": [admitted]}
        workload["reservedAt"] = workload["created"]


class _WideDrawing(_Drawing):
    """What `_Drawing` draws seldom or never.

    With nodes there is one flavor, and no fair sharing: how plans of several flavors meet on one
    node, and which of two trees is first, is not in the rules.
    """

    def __init__(self, pick: Callable[[int], int]) -> None:
        nodes = pick(6) == 0
        super().__init__(pick, False if nodes else None, nodes)
        self.times = self.shuffled(list(range(1, 120)))

    def scenario(self) -> Json:
        found: Json = {"id": "wide", "tags": []}
        if self.fair:
            strategies = self.of(*STRATEGIES)
            found["fairSharing"] = {} if strategies is None else {"strategies": strategies}
        self.groups = self.of(*WIDE_GROUPS)[: 1 if self.has_nodes else None]
        count = 1 if self.has_nodes else max(len(self.groups), self.upto(1, 4))
        found["flavors"] = self.flavors = [self._flavor(f"f{number}") for number in range(count)]
        if self.has_nodes:
            found |= self._cluster()
        found["cohorts"] = self._cohorts()
        self.cohorts = [cohort["name"] for cohort in found["cohorts"]]
        self.queues = [self._queue(f"cq{number}") for number in range(self.upto(2, 6))]
        found["clusterQueues"] = self.queues
        found["localQueues"] = [
            {"namespace": "ns", "name": queue["name"], "clusterQueue": queue["name"]}
            for queue in self.queues
        ]
        found["namespaces"] = [{"name": "ns", "labels": {"team": "a"}}]
        running, pending = self.upto(0, 12), self.upto(1, 6)
        uids = self.shuffled(list(range(running + pending)))
        found["workloads"] = [
            self._workload(number, uid, running=number < running) for number, uid in enumerate(uids)
        ]
        return found

    def _cohorts(self) -> list[Json]:
        """A tree of up to six levels."""
        found: list[Json] = []
        for number in range(self.upto(2, 6)):
            cohort: Json = {"name": f"c{number}"}
            if found:
                cohort["parent"] = self.of(*found[-2:])["name"]
            if self.rarely(2):
                cohort["resourceGroups"] = self._quotas(limits="parent" in cohort)
            if self.fair and self.rarely(2):
                cohort["fairWeight"] = self.of("0", "1m", "0.5", "2")
            found.append(cohort)
        return found

    def _quota(self, resource: str, limits: bool) -> Json:
        unit = "Gi" if resource == "memory" else ""
        found = {"nominal": f"{self.of(0, 0, 1, 2, 3, 4, 4, 6, 8)}{unit}"}
        for limit in ("borrowingLimit", "lendingLimit"):
            if limits and self.rarely(2):
                found[limit] = f"{self.of(0, 1, 2, 4)}{unit}"
        return found

    def _queue(self, name: str) -> Json:
        found = super()._queue(name)
        preemption = found["preemption"]
        if self.rarely(8):
            preemption["reclaimWithinCohort"] = "LowerOrNewerEqualPriority"
        if self.fair and preemption["reclaimWithinCohort"] != "Never" and self.rarely(3):
            preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
        if self.rarely(2):
            found["flavorFungibility"]["preference"] = "PreemptionOverBorrowing"
        return found

    def _podset(self, name: str, running: bool) -> Json:
        found = super()._podset(name, running)
        if not running and self.rarely(6):
            found["requests"][self.of(*sorted(found["requests"]))] = "0"
        return found


def _sliced(podset: Json) -> bool:
    return "slices" in podset.get("topologyRequest", {})


def _times(quantity: str, count: int) -> str:
    number = quantity.rstrip("mGi")
    return f"{int(number) * count}{quantity[len(number) :]}"

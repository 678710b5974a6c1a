"""A scenario, read: queues, running work and what waits (sections 1, 4 and 5)."""

from __future__ import annotations

from fractions import Fraction

from tests.support.oracle.amounts import SUFFIXES, read, whole
from tests.support.quota_oracle.tree import Fr, Held, Json, Node, Placed, State, quotas_of

AGED_BY = ("PodsReadyTimeout", "AdmissionCheck")


class World:
    """What stays the same during a cycle."""

    def __init__(self, scenario: Json) -> None:
        self.scenario = scenario
        self.flavors: dict[str, Json] = {flavor["name"]: flavor for flavor in scenario["flavors"]}
        self.topologies = {
            topology["name"]: topology for topology in listed(scenario, "topologies")
        }
        fair = scenario.get("fairSharing")
        self.fair = fair is not None
        self.strategies: list[str] = (fair or {}).get("strategies") or [
            "LessThanOrEqualToFinalShare",
            "LessThanInitialShare",
        ]
        self.cohorts: dict[str, Node] = {}
        self.queues = {given["name"]: self._queue(given) for given in scenario["clusterQueues"]}
        for given in listed(scenario, "cohorts"):
            self._cohort(given)
        self.local_queues = {
            (given["namespace"], given["name"]): given["clusterQueue"]
            for given in scenario["localQueues"]
        }
        self.labels = {given["name"]: given.get("labels") or {} for given in scenario["namespaces"]}

    def _named(self, name: str) -> Node:
        return self.cohorts.setdefault(name, Node(name))

    def _attach(self, node: Node, parent: str | None) -> None:
        if parent:
            node.parent = self._named(parent)
            node.parent.children.append(node)

    def _queue(self, given: Json) -> Node:
        groups = given.get("resourceGroups") or []
        named = {flavor["name"] for group in groups for flavor in group["flavors"]}
        stopped = given.get("stopPolicy") not in (None, "None") or not named <= set(self.flavors)
        node = Node(given["name"], given, None, stopped, weight_of(given), quotas_of(groups))
        self._attach(node, given.get("cohort"))
        return node

    def _cohort(self, given: Json) -> None:
        node = self._named(given["name"])
        node.weight = weight_of(given)
        node.quotas = quotas_of(given.get("resourceGroups") or [])
        self._attach(node, given.get("parent"))

    def topology_of(self, flavor: str) -> Json | None:
        """The topology of a flavor, if it is a topology flavor."""
        return self.topologies.get(self.flavors.get(flavor, {}).get("topology") or "")

    def all_topology(self, queue: Node) -> bool:
        names = [flavor["name"] for group in queue.groups for flavor in group["flavors"]]
        return bool(names) and all(self.topology_of(name) is not None for name in names)

    def queue_of(self, workload: Json) -> Node | None:
        name = self.local_queues.get((workload["namespace"], workload.get("queue") or ""))
        return self.queues.get(name or "")

    def state(self) -> State:
        """What the running workloads hold."""
        return State(
            tuple(
                self._held(workload)
                for workload in self.scenario["workloads"]
                if running(workload)
                and not workload.get("inactive")
                and not condition(workload, "Finished")
                and workload["admission"]["clusterQueue"] in self.queues
            )
        )

    def _held(self, workload: Json) -> Held:
        usage: dict[Fr, int] = {}
        placed: list[Placed] = []
        counts = {podset["name"]: podset["count"] for podset in workload["podSets"]}
        done = workload.get("reclaimable") or {}
        for podset in workload["admission"]["podSets"]:
            name, admitted = podset["name"], podset["count"]
            left = counts.get(name, admitted) - done.get(name, 0)
            amounts = read(podset.get("usage"))
            for resource, flavor in podset["flavors"].items():
                amount = amounts.get(resource, 0)
                if left < admitted:
                    amount = amount // admitted * left
                usage[flavor, resource] = usage.get((flavor, resource), 0) + amount
            placed += self._placed(podset, amounts)
        queue = self.queues[workload["admission"]["clusterQueue"]]
        return Held(key_of(workload), queue, usage, tuple(placed), workload)

    def _placed(self, podset: Json, amounts: dict[str, int]) -> list[Placed]:
        flavors = [name for name in podset["flavors"].values() if self.topology_of(name)]
        if not flavors or not podset.get("topology"):
            return []
        size = {
            resource: amount // podset["count"]
            for resource, amount in amounts.items()
            if resource != "pods"
        }
        return placed_at(flavors[0], podset["topology"], size)


def placed_at(flavor: str, assignment: Json, size: dict[str, int]) -> list[Placed]:
    return [
        Placed(flavor, tuple(domain["values"]), size, domain["count"])
        for domain in assignment["domains"]
    ]


def listed(scenario: Json, name: str) -> list[Json]:
    return list(scenario.get(name) or [])


def weight_of(given: Json) -> float:
    text = str(given.get("fairWeight") or "1")
    if given.get("fairWeight") == 0:
        text = "0"
    number = text.rstrip("".join(SUFFIXES))
    return float(Fraction(number) * SUFFIXES[text[len(number) :]])


def key_of(workload: Json) -> str:
    return f"{workload['namespace']}/{workload['name']}"


def uid_of(workload: Json) -> str:
    return str(workload.get("uid") or workload["name"])


def priority_of(workload: Json) -> int:
    return int(workload.get("priority") or 0)


def running(workload: Json) -> bool:
    return workload.get("reservedAt") is not None


def condition(workload: Json, kind: str, status: bool = True) -> Json | None:
    """The condition of that type, if it has that status (a Boolean in the data)."""
    for given in listed(workload, "conditions"):
        if given["type"] == kind and given["status"] is status:
            return given
    return None


def age_of(workload: Json) -> float:
    """Since when it waits."""
    evicted = condition(workload, "Evicted")
    if evicted is not None and evicted["reason"] in AGED_BY:
        return float(evicted["at"])
    return float(workload.get("created") or 0)


def per_pod(podset: Json) -> dict[str, int]:
    """Requests of one pod."""
    return {
        resource: whole(resource, quantity)
        for resource, quantity in (podset.get("requests") or {}).items()
    }

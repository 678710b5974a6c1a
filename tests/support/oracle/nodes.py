"""Which nodes take part, how they form domains, and which are closed to a pod set (4 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.oracle.amounts import Amounts, per_pod, read, subtract

HOST = "kubernetes.io/hostname"
Path = tuple[str, ...]
Json = dict[str, Any]


@dataclass
class Domain:
    """A domain of some level; the numbers are those of section 7."""

    path: Path
    children: list[Domain] = field(default_factory=list)
    nodes: list[Json] = field(default_factory=list)
    free: Amounts = field(default_factory=dict)
    pods: int = 0
    slices: int = 0
    pods_led: int = 0
    slices_led: int = 0
    lead: int = 0
    score: int = 0

    def clear(self) -> None:
        self.pods = self.slices = self.pods_led = self.slices_led = self.lead = self.score = 0

    @property
    def key(self) -> tuple[bytes, ...]:
        """Paths are compared value by value as byte strings."""
        return tuple(value.encode() for value in self.path)


class Hierarchy:
    """All domains by level, leaves last, with the capacity that is left in each leaf."""

    def __init__(self, scenario: Json) -> None:
        self.levels: list[str] = list(scenario["levels"])
        self.hosts = self.levels[-1] == HOST
        self.domains: list[list[Domain]] = [[] for _ in self.levels]
        flavor = scenario["flavor"]
        wanted = flavor.get("nodeLabels") or {}
        nodes = [node for node in scenario["nodes"] if self._takes_part(node, wanted)]
        leaf_of_node = self._grow(nodes)
        for pod in scenario.get("pods") or []:
            leaf = leaf_of_node.get(pod.get("node") or "")
            if leaf is not None and pod.get("phase") not in ("Succeeded", "Failed"):
                subtract(leaf.free, per_pod(read(pod.get("requests"))))
        if not scenario.get("simulateEmpty") or _replacing(scenario):
            self._charge(scenario.get("usage") or [])

    @property
    def leaves(self) -> list[Domain]:
        return self.domains[-1]

    def _takes_part(self, node: Json, wanted: Json) -> bool:
        labels = node.get("labels") or {}
        if not node.get("ready", True) or node.get("unschedulable", False):
            return False
        if any(labels.get(name) != value for name, value in wanted.items()):
            return False
        return all(level in labels for level in self.levels)

    def _grow(self, nodes: list[Json]) -> dict[str, Domain]:
        known: dict[Path, Domain] = {}
        leaf_of_node = {}
        for node in nodes:
            parent: Domain | None = None
            for depth in range(len(self.levels)):
                path = tuple(node["labels"][level] for level in self.levels[: depth + 1])
                domain = known.get(path)
                if domain is None:
                    domain = known[path] = Domain(path)
                    self.domains[depth].append(domain)
                    if parent is not None:
                        parent.children.append(domain)
                parent = domain
            assert parent is not None
            parent.nodes.append(node)
            subtract(parent.free, read(node.get("allocatable")), -1)
            leaf_of_node[node["name"]] = parent
        return leaf_of_node

    def _charge(self, usage: list[Json]) -> None:
        for entry in usage:
            leaf = self.leaf(entry["values"])
            if leaf is not None:
                subtract(leaf.free, per_pod(read(entry.get("requests"))), entry["count"])

    def values(self, leaf: Domain) -> Path:
        """As written in an assignment."""
        return leaf.path[-1:] if self.hosts else leaf.path

    def leaf(self, values: list[str] | Path) -> Domain | None:
        for leaf in self.leaves:
            if self.values(leaf) == tuple(values):
                return leaf
        return None


def _replacing(scenario: Json) -> bool:
    return bool((scenario.get("replacement") or {}).get("unhealthyNodes"))


def closed(node: Json, workers: Json, flavor: Json) -> str | None:
    """Why a host takes no pod of a pod set, whatever room it has."""
    tolerations = (workers.get("tolerations") or []) + (flavor.get("tolerations") or [])
    for taint in node.get("taints") or []:
        if taint["effect"] not in ("NoSchedule", "NoExecute"):
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f'taint "{taint["key"]}{value}:{taint["effect"]}"'
    selector = workers.get("nodeSelector") or {}
    if any(node["labels"].get(name) != value for name, value in selector.items()):
        return "nodeSelector"
    affinity = workers.get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(
        _matches(term, node["labels"]) for term in required["nodeSelectorTerms"]
    ):
        return "affinity"
    return None


def soft_score(node: Json, workers: Json) -> int:
    """Sum of the weights of the preferred affinity terms that match."""
    preferred = (workers.get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    )
    return sum(
        int(term["weight"])
        for term in preferred or []
        if _matches(term["preference"], node["labels"])
    )


def tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    mine, other = toleration.get("value") or "", taint.get("value") or ""
    if operator == "Exists":
        return True
    if operator == "Equal":
        return bool(mine == other)
    return _compare(operator, other, mine)


def _compare(operator: str, left: str, right: str) -> bool:
    """Integers on both sides, or no."""
    try:
        one, two = int(left), int(right)
    except ValueError:
        return False
    if operator == "Gt":
        return one > two
    assert operator == "Lt", operator
    return one < two


def _matches(term: Json, labels: dict[str, str]) -> bool:
    return all(holds(expression, labels) for expression in term.get("matchExpressions") or [])


def holds(expression: Json, labels: dict[str, str]) -> bool:
    label = labels.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return label is not None and label in values
        case "NotIn":
            return label is None or label not in values
        case "Exists":
            return label is not None
        case "DoesNotExist":
            return label is None
        case operator:
            return label is not None and _compare(operator, label, values[0])

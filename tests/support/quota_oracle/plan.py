"""What is planned for a head: flavors, amounts, nodes and victims (sections 6, 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.quota_oracle.tree import Fr, Held, Json, Node, Placed
from tests.support.quota_oracle.world import age_of, key_of, per_pod, placed_at, priority_of

NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)
# Reasons of a plan that does not fit, the least severe first.
SEVERITY = ("", "TopologyPlacementFailed", "WaitingForQuota", "ExceedsMaxQuota", "NoMatchingFlavor")


@dataclass(frozen=True)
class Head:
    """The first of a queue."""

    workload: Json
    queue: Node

    @property
    def key(self) -> str:
        return key_of(self.workload)

    @property
    def priority(self) -> int:
        return priority_of(self.workload)

    @property
    def age(self) -> float:
        return age_of(self.workload)


@dataclass
class Choice:
    """A flavor of a resource; `mode` is FIT, PREEMPT or, without a place on empty nodes, NO_FIT."""

    flavor: str
    mode: int
    tried: int


@dataclass
class PodSetPlan:
    """One pod set; `attempts` has the kind and the reason of each flavor that was looked at."""

    given: Json
    count: int
    amounts: dict[str, int]
    choices: dict[str, Choice] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    attempts: dict[str, tuple[int, str]] = field(default_factory=dict)
    error: str = ""
    topology: Json | None = None
    topology_flavor: str = ""

    @property
    def name(self) -> str:
        return str(self.given["name"])

    @property
    def mode(self) -> int:
        if self.error:
            return NO_FIT
        if not self.texts:
            return FIT
        if not self.choices:
            return NO_FIT
        return min(choice.mode for choice in self.choices.values())

    @property
    def message(self) -> str:
        if self.error:
            return f"failed to assign flavors to pod set {self.name}: {self.error}"
        return f"couldn't assign flavors to pod set {self.name}: {', '.join(sorted(self.texts))}"


@dataclass(frozen=True)
class Victim:
    """Who leaves, and why."""

    held: Held
    reason: str


@dataclass
class Plan:
    """All pod sets that were looked at; `level` is the highest that is borrowed from."""

    podsets: list[PodSetPlan] = field(default_factory=list)
    level: int = 0
    not_placed: bool = False
    victims: list[Victim] = field(default_factory=list)

    @property
    def mode(self) -> int:
        if self.not_placed:
            return NO_FIT
        return min((podset.mode for podset in self.podsets), default=FIT)

    @property
    def usage(self) -> dict[Fr, int]:
        sums: dict[Fr, int] = {}
        for podset in self.podsets:
            for resource, choice in podset.choices.items():
                fr = (choice.flavor, resource)
                sums[fr] = sums.get(fr, 0) + podset.amounts[resource]
        return sums

    @property
    def need(self) -> set[Fr]:
        return {
            (choice.flavor, resource)
            for podset in self.podsets
            for resource, choice in podset.choices.items()
            if choice.mode == PREEMPT
        }

    @property
    def placed(self) -> tuple[Placed, ...]:
        return tuple(
            placed
            for podset in self.podsets
            if podset.topology is not None
            for placed in placed_at(podset.topology_flavor, podset.topology, per_pod(podset.given))
        )

    @property
    def message(self) -> str:
        return "; ".join(podset.message for podset in self.podsets if podset.texts or podset.error)

    @property
    def flavors(self) -> dict[str, dict[str, str]]:
        """Pod set name to resource to flavor."""
        return {
            podset.name: {name: choice.flavor for name, choice in podset.choices.items()}
            for podset in self.podsets
        }

    @property
    def flavors_left(self) -> bool:
        return any(
            choice.tried != -1 for podset in self.podsets for choice in podset.choices.values()
        )

    def reason(self, queue: Node) -> str:
        """Why nothing fits."""
        reasons = [_reason(podset, queue) for podset in self.podsets if podset.mode == NO_FIT]
        return max(reasons, key=SEVERITY.index, default="")


def _reason(podset: PodSetPlan, queue: Node) -> str:
    if not podset.attempts:
        return "NoMatchingFlavor"
    groups = []
    for group in queue.groups:
        names = {flavor["name"] for flavor in group["flavors"]}
        reasons = [
            reason
            for flavor, (kind, reason) in podset.attempts.items()
            if flavor in names and kind == NO_FIT
        ]
        groups += [min(reasons, key=SEVERITY.index)] if reasons else []
    return max(groups, key=SEVERITY.index, default="")

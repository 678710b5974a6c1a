"""The smallest disruption that makes room in a domain (feature gate RackgateSmallestDisruption).

Kueue takes candidates in one order for all domains, and gives back those that are not needed. So
its targets may be larger than necessary. Here each domain is tried by itself:

1. `DomainNeeds.missing` says what a domain lacks now. With what its candidates free, this is a
   lower bound of the pods that must end there. Domains are tried in this order, until the bound is
   above the best.
2. In a domain, its candidates come first, by priority, then once more by pods; the others follow
   for quota. The search of the policy removes them one after another, and gives back what is not
   needed.
3. Sets of candidates of the domain with fewer pods than the best are tried, the smallest first.

Each set is found by the search of the policy itself, restricted to some candidates. So every
result is one that Kueue's policies allow, after which the preemptor fits.

Inputs: the targets that Kueue chooses, and a search that leaves the state as it was.
Invariant: the result never costs more than Kueue's targets.
Complexity: at most `MOST_SEARCHES` searches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from rackgate_assigner.preemption.targets import DomainNeeds, Target
from rackgate_assigner.quota.running import RunningWorkload

MOST_SEARCHES: Final = 128
# Of these, sets of candidates of one domain; and sets that are looked at for them.
MOST_SETS: Final = 32
MOST_LOOKS: Final = 1024

# Pods that are stopped; minus the sum of pods times reservation; priorities, highest first.
Cost: TypeAlias = tuple[int, float, tuple[int, ...]]
Search: TypeAlias = Callable[[Sequence[RunningWorkload]], tuple[Target, ...]]


@dataclass(frozen=True, slots=True)
class _Domain:
    """A domain and its candidates.

    Attributes:
        missing: what it lacks for certain, by resource.
        freed: candidates, and what the end of each frees there.
        bound: pods that must end there at least.
    """

    missing: Mapping[str, int]
    freed: tuple[tuple[RunningWorkload, Mapping[str, int]], ...]
    bound: float

    def may_be_enough(self, chosen: Iterable[int]) -> bool:
        """Whether some candidates, by position, free what is missing."""
        parts = [self.freed[index][1] for index in chosen]
        return all(
            sum(part.get(name, 0) for part in parts) >= amount
            for name, amount in self.missing.items()
        )


def smallest_disruption(
    targets: tuple[Target, ...],
    candidates: Sequence[RunningWorkload],
    needs: DomainNeeds,
    search: Search,
) -> tuple[Target, ...]:
    """The targets with the fewest pods, then the least run time lost, then the lowest priorities.

    Args:
        targets: as Kueue chooses them.
        candidates: all Workloads that may be preempted, in Kueue's order.
        needs: what domains lack.
        search: targets among these candidates, in this order; empty if they are not enough.
    """
    newest = max((one.reserved_at for one in candidates if one.reserved_at < math.inf), default=0.0)
    tries = _Tries(targets, search, newest)
    for domain in sorted(_domains(candidates, needs), key=lambda found: found.bound):
        if domain.bound > tries.cost[0] or not tries.left:
            break
        there = [workload for workload, _ in domain.freed]
        keys = {one.key for one in there}
        others = [one for one in candidates if one.key not in keys]
        for order in (_by_priority, _by_pods):
            tries.add([*sorted(there, key=order), *others])
        last = max(0, tries.left - MOST_SETS)
        for chosen in islice(_sets_by_pods(there), MOST_LOOKS):
            pods = sum(stopped_pods(there[index]) for index in chosen)
            if pods > tries.cost[0] or tries.left <= last:
                break
            if domain.may_be_enough(chosen):
                tries.add([there[index] for index in chosen])
    return tries.best


class _Tries:
    """The best targets so far.

    Attributes:
        left: searches that may still be made.
    """

    def __init__(self, targets: tuple[Target, ...], search: Search, newest: float) -> None:
        self.best, self.left = targets, MOST_SEARCHES
        self._search, self._newest = search, newest
        self.cost = cost_of(targets, newest)

    def add(self, candidates: Sequence[RunningWorkload]) -> None:
        """Try the targets among some candidates."""
        self.left -= 1
        found = self._search(candidates)
        if found and (cost := cost_of(found, self._newest)) < self.cost:
            self.best, self.cost = found, cost


def cost_of(targets: Sequence[Target], newest: float) -> Cost:
    """What is lost with these targets; Workloads that are being stopped already cost nothing.

    For equal numbers of pods, a larger sum of pods times reservation means less run time lost,
    whatever the time is now.

    Args:
        targets: Workloads to preempt.
        newest: stands for reservations that the watch does not show yet, in seconds.
    """
    running = [target.workload for target in targets if not target.workload.evicted]
    return (
        sum(map(stopped_pods, running)),
        -sum(one.pods * min(one.reserved_at, newest) for one in running),
        tuple(sorted((one.priority for one in running), reverse=True)),
    )


def stopped_pods(workload: RunningWorkload) -> int:
    """Pods that preempting it stops."""
    return 0 if workload.evicted else workload.pods


def _by_priority(workload: RunningWorkload) -> tuple[bool, int, int, float, str]:
    newest = -workload.reserved_at
    return not workload.evicted, workload.priority, workload.pods, newest, workload.key


def _by_pods(workload: RunningWorkload) -> tuple[int, float, int, str]:
    return stopped_pods(workload), -workload.reserved_at, workload.priority, workload.key


def _domains(candidates: Sequence[RunningWorkload], needs: DomainNeeds) -> Iterator[_Domain]:
    """The domains in which candidates free what is missing."""
    found: dict[int, list[tuple[RunningWorkload, Mapping[str, int]]]] = {}
    for workload in candidates:
        for domain, freed in needs.used_by(workload.charges).items():
            found.setdefault(domain, []).append((workload, freed))
    for domain, there in found.items():
        missing = needs.missing(domain)
        bounds = (
            _fewest_pods(amount, [(stopped_pods(one), freed.get(name, 0)) for one, freed in there])
            for name, amount in missing.items()
        )
        bound = max(bounds, default=0.0)
        if bound < math.inf:
            yield _Domain(missing, tuple(there), bound)


def _fewest_pods(missing: int, parts: Sequence[tuple[int, int]]) -> float:
    """A lower bound of the pods that must end to free an amount; infinite if nothing is enough.

    Args:
        missing: the amount.
        parts: pods of each candidate, and what its end frees. Parts of candidates count.
    """
    pods = 0.0
    useful = [part for part in parts if part[1] > 0]
    for stopped, freed in sorted(useful, key=lambda part: part[0] / part[1]):
        if missing <= 0:
            break
        pods += stopped * min(1.0, missing / freed)
        missing -= freed
    # A little less, as the sum of fractions is not exact.
    return pods - 1e-6 if missing <= 0 else math.inf


def _sets_by_pods(workloads: Sequence[RunningWorkload]) -> Iterator[list[int]]:
    """All sets of these Workloads but the empty one, by position; those with few pods first."""
    order = sorted(range(len(workloads)), key=lambda index: _by_pods(workloads[index]))
    pods = [stopped_pods(workloads[index]) for index in order]
    # Pods, then positions in the order. Each set is made once: from the one whose last position
    # is one less, or that has one position less.
    waiting: list[tuple[int, tuple[int, ...]]] = [(pods[0], (0,))]
    while waiting:
        total, chosen = heapq.heappop(waiting)
        yield [order[index] for index in chosen]
        last, following = chosen[-1], chosen[-1] + 1
        if following < len(order):
            heapq.heappush(waiting, (total + pods[following], (*chosen, following)))
            moved = total - pods[last] + pods[following]
            heapq.heappush(waiting, (moved, (*chosen[:-1], following)))

"""A slow second opinion on nested placement: first fit by brute force.

Every domain is tried, in best-fit order, and everything that was tried is undone. PodSets alone are
placed by the walk of `tests.support.oracle`, restricted to a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rackgate_assigner.topology.model import PodSetRequest, SharedDomain
from tests.support.oracle.request import DoesNotFitError, unit_of
from tests.support.oracle.walk import Walk
from tests.support.placement_oracle import Cluster, scenario_of

Path = tuple[str, ...]
Domains = list[tuple[Path, int]]


def nested_answer(
    cluster: Cluster, podsets: Sequence[PodSetRequest]
) -> tuple[dict[str, Domains], tuple[str, ...]]:
    """Domains by PodSet, and the PodSets of the unit that does not fit."""
    return _Nested(cluster, podsets).answer()


class _Nested:
    def __init__(self, cluster: Cluster, podsets: Sequence[PodSetRequest]) -> None:
        self.podsets = list(podsets)
        # Of a leader and workers with one pod each, the first counts as workers.
        self.scenario = scenario_of(cluster, sorted(podsets, key=lambda podset: podset.turn))
        self.walk = Walk(self.scenario)
        self.levels = list(cluster.levels)
        self.asked = {podset["name"]: podset for podset in self.scenario["podSets"]}

    def answer(self) -> tuple[dict[str, Domains], tuple[str, ...]]:
        found: dict[str, Domains] = {}
        for shared, names in self.units([podset.name for podset in self.podsets], 0):
            if shared is not None:
                if not self.sound(names):
                    return found, tuple(names)
                turn = {podset.name: podset.turn for podset in self.podsets}
                names_in_turn = sorted(names, key=turn.__getitem__)
                part = self.together(shared, names_in_turn, 0, ())
            else:
                part = self.alone(names, ())
            if part is None:
                return found, tuple(names)
            found |= part
        return found, ()

    def units(
        self, names: Sequence[str], depth: int
    ) -> list[tuple[SharedDomain | None, list[str]]]:
        found: dict[Any, tuple[SharedDomain | None, list[str]]] = {}
        for name in names:
            podset = next(podset for podset in self.podsets if podset.name == name)
            shared = podset.shared[depth] if depth < len(podset.shared) else None
            key = ("podset", podset.group, "" if podset.group else name)
            found.setdefault(shared.group if shared else key, (shared, []))[1].append(name)
        return list(found.values())

    def sound(self, names: Sequence[str]) -> bool:
        """Whether all levels exist, and become finer."""
        for podset in self.podsets:
            if podset.name not in names:
                continue
            chain = [shared.level for shared in podset.shared]
            if any(level not in self.levels for level in chain):
                return False
            places = [self.levels.index(level) for level in chain]
            if places != sorted(set(places)):
                return False
            own = (podset.topology.required or podset.topology.preferred) if podset.topology else ""
            if own in self.levels and self.levels.index(own) < places[-1]:
                return False
        return True

    def all_of(self, names: Sequence[str], depth: int, path: Path) -> dict[str, Domains] | None:
        before = [dict(leaf.free) for leaf in self.walk.hierarchy.leaves], set(self.walk.done)
        found: dict[str, Domains] = {}
        for shared, members in self.units(names, depth):
            part = (
                self.alone(members, path)
                if shared is None
                else self.together(shared, members, depth, path)
            )
            if part is None:
                for leaf, free in zip(self.walk.hierarchy.leaves, before[0], strict=True):
                    leaf.free = free
                self.walk.done = before[1]
                return None
            found |= part
        return found

    def alone(self, names: Sequence[str], path: Path) -> dict[str, Domains] | None:
        written: dict[str, Any] = {}
        if not self.walk.take(self.asked[names[0]], written, path):
            return None
        return {
            name: [
                (tuple(domain["values"]), domain["count"])
                for domain in entry["assignment"]["domains"]
            ]
            for name, entry in written.items()
        }

    def together(
        self, shared: SharedDomain, names: Sequence[str], depth: int, path: Path
    ) -> dict[str, Domains] | None:
        requested = self.levels.index(shared.level)
        coarsest = requested if shared.required else len(path)
        for level in range(requested, coarsest - 1, -1):
            for domain in self.in_best_fit_order(names, level, path):
                found = self.all_of(names, depth + 1, domain)
                if found is not None:
                    return found
        return None if shared.required else self.all_of(names, depth + 1, path)

    def in_best_fit_order(self, names: Sequence[str], level: int, path: Path) -> list[Path]:
        """All domains in a path; those first in which the fewest pods of the largest PodSet fit."""
        inside = [
            domain.path
            for domain in self.walk.hierarchy.domains[level]
            if domain.path[: len(path)] == path
        ]
        inside.sort(key=lambda found: [value.encode() for value in found])
        workers = [unit_of(self.walk.podsets, self.asked[name])[0] for name in names]
        first = max(workers, key=lambda podset: podset["count"])["name"]
        try:
            slices = self.walk.slices(self.asked[first], level, path)
        except DoesNotFitError:
            return []
        return sorted(inside, key=slices.__getitem__)

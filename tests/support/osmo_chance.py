"""A KAI that keeps to the facts that `osmo explain` relies on; all else is left to chance.

Which domain of a level comes first and which node a pod gets is drawn. What is said of KAI for
certain must be true for every draw. Shares no code with the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

GPU: Final = "nvidia.com/gpu"

Object = Mapping[str, Any]
Sizes = Mapping[str, int]


@dataclass
class Machine:
    """A node: `open` unless pods may not use it; KAI counts it in any case."""

    labels: Mapping[str, str]
    free: dict[str, int]
    open: bool = True


@dataclass
class ChanceKai:
    """KAI v0.13 on some machines; places PodGroups one after another."""

    machines: list[Machine]
    levels: Sequence[str]
    random: Random
    log: list[tuple[Machine, Sizes]] = field(default_factory=list)

    def schedule(self, pod_group: Object, pods: Mapping[str, Sequence[Sizes]]) -> bool:
        """Whether all pods of a PodGroup, given by the label of their subgroup, are placed."""
        spec = pod_group["spec"]
        tree: dict[str, list[Object]] = {}
        for sub in spec.get("subGroups", ()):
            tree.setdefault(sub.get("parent", ""), []).append(sub)
        placed = self._part({**spec, "name": ""}, tree, pods, self.machines)
        self.log.clear()
        return placed

    def beside(self, pods: Sequence[Sizes]) -> None:
        """Pods of a PodGroup of which others run: no fact tells what becomes of each."""
        for pod in pods:
            if self.random.random() < 0.8:
                self._pods([pod], self.machines)
        self.log.clear()

    def _part(
        self,
        part: Object,
        tree: Mapping[str, list[Object]],
        pods: Mapping[str, Sequence[Sizes]],
        candidates: Sequence[Machine],
    ) -> bool:
        mine = self._below(part["name"], tree, pods)
        for some in self._sets(part.get("topologyConstraint"), mine, candidates):
            before = len(self.log)
            children = tree.get(part["name"], [])
            children = sorted(children, key=lambda one: (one["name"] not in tree, one["name"]))
            if children and all(self._part(one, tree, pods, some) for one in children):
                return True
            if not children and self._pods(mine, some):
                return True
            while len(self.log) > before:
                machine, sizes = self.log.pop()
                for name, amount in sizes.items():
                    machine.free[name] += amount
        return False

    def _below(
        self, name: str, tree: Mapping[str, list[Object]], pods: Mapping[str, Sequence[Sizes]]
    ) -> list[Sizes]:
        found = list(pods.get(name, ()))
        for child in tree.get(name, ()):
            found += self._below(child["name"], tree, pods)
        return found

    def _sets(
        self, constraint: Object | None, pods: Sequence[Sizes], candidates: Sequence[Machine]
    ) -> list[list[Machine]]:
        if not constraint:
            return [list(candidates)]
        known = [one for one in candidates if all(level in one.labels for level in self.levels)]
        required, preferred = (
            None if name not in constraint else self.levels.index(constraint[name]) + 1
            for name in ("requiredTopologyLevel", "preferredTopologyLevel")
        )
        lowest = 0
        deepest = preferred if preferred is not None else len(self.levels)
        while known and lowest < deepest and len(self._split(known, lowest + 1)) == 1:
            lowest += 1
        if not known or not self._counts(pods, known):
            return []
        top = required if required is not None else 0
        bottom = preferred if preferred is not None else top
        found = []
        for depth in range(max(top, lowest), bottom + 1):
            found += [some for some in self._split(known, depth) if self._counts(pods, some)]
        self.random.shuffle(found)
        return found

    def _split(self, machines: Sequence[Machine], depth: int) -> list[list[Machine]]:
        found: dict[tuple[str, ...], list[Machine]] = {}
        for one in machines:
            found.setdefault(tuple(one.labels[level] for level in self.levels[:depth]), []).append(
                one
            )
        return list(found.values())

    def _counts(self, pods: Sequence[Sizes], machines: Sequence[Machine]) -> bool:
        names = {name for pod in pods for name in pod}
        using = sum(bool(pod.get(GPU)) for pod in pods)
        if 0 < using < len(pods):
            return all(
                sum(pod.get(name, 0) for pod in pods) <= sum(one.free[name] for one in machines)
                for name in names
            )
        big = {name: max(pod.get(name, 0) for pod in pods) for name in names}
        room = sum(
            min((one.free[name] // need for name, need in big.items() if need), default=len(pods))
            for one in machines
        )
        return room >= len(pods)

    def _pods(self, pods: Sequence[Sizes], machines: Sequence[Machine]) -> bool:
        order = list(pods)
        self.random.shuffle(order)
        for pod in order:
            fitting = [
                one
                for one in machines
                if one.open and all(one.free[name] >= amount for name, amount in pod.items())
            ]
            if not fitting:
                return False
            machine = self.random.choice(fitting)
            for name, amount in pod.items():
                machine.free[name] -= amount
            self.log.append((machine, pod))
        return True

"""The second pass: admitted Workloads whose nodes broke get another place for those pods alone.

Each name in `status.unhealthyNodes` is one question to `replace`, answered as the field does, one
after another. Where an answer needs several at once (a slice lost more than one host), they are
asked as one. What cannot be looked at, because the node of a kept pod is not ready or gone, stays
where it is and does not make the whole assignment stale (N7). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Final, TypeAlias

from rackgate.api.names import EvictionReason
from rackgate.features import Features
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import Grove
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.node_replacement.hosts import Hosts
from rackgate_assigner.node_replacement.restricted import fenced, lost_of, path_of, split
from rackgate_assigner.node_replacement.unhealthy import (
    HostState,
    host_state,
    hosted,
    minded,
    named_hosts,
    tolerations_of,
)
from rackgate_assigner.scheduler.evictions import evictions
from rackgate_assigner.topology.model import PodSetRequest, Replacement
from rackgate_assigner.topology.placement import place as placement
from rackgate_assigner.topology.tree import AMOUNT_LIMIT, PODS
from rackgate_assigner.workload.decisions import Evict, PodSetGrant, Reassign, Repair, Stuck, Unmark
from rackgate_assigner.workload.info import Charge, WorkloadRow, granted_per_pod, replacing_requests

# Groups of broken hosts that are tried together before a Workload counts as beyond repair: fewer
# for one with many domains, as each try looks at all of them and nothing else happens meanwhile.
_TRIES: Final = 64
_LOOKS: Final = 2**17

# A broken host: its rack by its labels, whether the tree shows it, and pods lost by PodSet.
_Kind: TypeAlias = tuple[Domain, bool, tuple[int, ...]]
_FULL: Final = {PODS: AMOUNT_LIMIT}


def second_pass(
    snapshot: Snapshot,
    hosts: Hosts,
    asked: Mapping[str, frozenset[str]],
    features: Features,
) -> list[Repair]:
    """Decide about every Workload with names in `status.unhealthyNodes`, by key.

    Args:
        snapshot: new places are charged to it, so that nobody else is given them.
        hosts: nodes as known now.
        asked: by Workload, names to be replaced although their nodes are healthy.
        features: feature gates.
    """
    leaving = {
        found.workload
        for found in evictions(snapshot.holding, snapshot.local_queues, snapshot.cluster_queues)
    }
    repairs: list[Repair] = []
    for row in sorted(snapshot.failing, key=lambda row: row.key):
        if minded(row) and row.key not in leaving:
            wanted = asked.get(row.key, frozenset())
            mending: _Mending | None = None
            try:
                mending = _Mending(row, snapshot, hosts, wanted, features)
                repairs += mending.decide()
            except Exception as error:  # noqa: BLE001 - a defect of ours stops this Workload alone
                if mending is not None:
                    mending.undo()
                text = f"internal error: {type(error).__name__}: {error}"
                repairs.append(Stuck(row.key, text))
    return repairs


@dataclass(frozen=True, slots=True)
class _Moved:
    """The assignments of one flavor's PodSets after one step."""

    assignments: Mapping[str, TopologyAssignment]
    charges: tuple[tuple[Charge, int], ...]


class _Mending:
    """One Workload being mended on the snapshot."""

    def __init__(
        self,
        row: WorkloadRow,
        snapshot: Snapshot,
        hosts: Hosts,
        asked: frozenset[str],
        features: Features,
    ) -> None:
        self.row, self.snapshot, self.hosts = row, snapshot, hosts
        self.features = features
        self.fail_fast = features.failed_node_replacement_fail_fast
        self.requests = replacing_requests(row)
        self.parts = {part.name: part for part in hosted(row) if part.name in self.requests}
        podsets = {podset.request.name: podset for podset in row.podsets}
        self.granted = {
            name: granted_per_pod(part, podsets.get(name)) for name, part in self.parts.items()
        }
        self.now = {
            name: part.topology for name, part in self.parts.items() if part.topology is not None
        }
        self.healthy: set[str] = set()
        self.todo = self._todo(asked)
        self.charges: list[tuple[Charge, int]] = []
        # Without its tree a flavor has no answer: that is no reason to stop what runs (C2, C22).
        self.blind = False

    def decide(self) -> list[Repair]:
        """One write at most, and a word about what found no place."""
        if not self.todo or (self.row.owned_by_pod and self._stays()):
            return []
        done: list[str] = []
        with_room = self._closed(self.todo.values())
        try:
            left, refusal = self._mend_all(done)
        finally:
            for grove, leaf in with_room:
                grove.capacity.charge_other(leaf, _FULL, -1)
        return self._verdict(done, left, refusal)

    def _stays(self) -> bool:
        return self.features.skip_reassignment_for_pod_owned

    def _todo(self, asked: frozenset[str]) -> dict[str, str]:
        """Host by name, for the names that are to be replaced now."""
        todo: dict[str, str] = {}
        for name, host in named_hosts(self.row, self.hosts).items():
            states = [
                host_state(
                    self.hosts.node(host),
                    tolerations_of(self.row, part, self.snapshot.flavors),
                )
                for part in self.parts.values()
                if lost_of(self.now[part.name], {host})
            ]
            sound = all(state is HostState.HEALTHY for state in states)
            if not states or host in todo.values() or (sound and name not in asked):
                continue
            todo[name] = host
            if sound:
                self.healthy.add(name)
        return todo

    def _closed(self, closing: Iterable[str]) -> list[tuple[Grove, int]]:
        """Fill up the hosts that are given up, so that none of them is chosen again."""
        found = []
        for host in closing:
            for grove in self.snapshot.forest.groves.values():
                leaf = grove.tree.leaf_of_host(host)
                if leaf is not None:
                    grove.capacity.charge_other(leaf, _FULL, 1)
                    found.append((grove, leaf))
        return found

    def _mend_all(self, done: list[str]) -> tuple[list[str], str]:
        """Mend what can be mended; returns the names that are left, and why the first one is.

        One after another may run into a dead end, when the first new place decides about the
        rack of all others: then all of them are asked for at once.
        """
        before = dict(self.now)
        left, refusal = self._mend_in_turn(done)
        if not (left and done):
            return left, refusal
        self.undo()
        self.now = before
        done.clear()
        if self._mend(list(self.todo.values())) is None:
            done += self.todo
            return [], ""
        return self._mend_in_turn(done)

    def _mend_in_turn(self, done: list[str]) -> tuple[list[str], str]:
        left, refusal = list(self.todo), ""
        while left:
            mended: tuple[str, ...] = ()
            refusal = ""
            for group in self._groups(left):
                problem = self._mend([self.todo[name] for name in group])
                if problem is None:
                    mended = group
                    break
                refusal = refusal or problem
            if not mended:
                break
            done += mended
            left = [name for name in left if name not in mended]
        return left, refusal

    def _groups(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Single names, then several that may only fit together, and at last all of them.

        Hosts of one rack, or all gone, that lost as many pods are as good as each other.
        """
        kinds = {name: self._kind(name) for name in names}
        tried: set[tuple[_Kind, ...]] = set()
        yield from _unlike([(name,) for name in names], kinds, tried)
        requests = (self.requests[name].topology for name in self.parts)
        if any(asked is not None and asked.slices for asked in requests):
            domains = sum(len(assignment.domains) for assignment in self.now.values())
            tries = min(_TRIES, _LOOKS // max(domains, 1)) - len(tried)
            groups = (group for size in range(2, len(names)) for group in combinations(names, size))
            yield from islice(_unlike(groups, kinds, tried), max(tries, 0))
            racks: dict[Domain, list[str]] = {}
            for name in names:
                racks.setdefault(kinds[name][0], []).append(name)
            yield from _unlike(map(tuple, racks.values()), kinds, tried)
        yield from _unlike([tuple(names)], kinds, tried)

    def _kind(self, name: str) -> _Kind:
        host, seen = self.todo[name], False
        path: Domain = ()
        for grove in self.snapshot.forest.groves.values():
            seen |= grove.tree.leaf_of_host(host) is not None
            if len(grove.tree.levels) > 1:
                path = path or path_of(grove.tree, self.hosts, host, grove.tree.levels[-2])
        return path, seen, tuple(lost_of(given, {host}) for given in self.now.values())

    def _mend(self, group: Sequence[str]) -> str | None:
        """Move the pods of these hosts; None when all of them have a place now, charged."""
        before, charged = dict(self.now), len(self.charges)
        flavors: dict[str, list[PodSetGrant]] = {}
        for part in self.parts.values():
            if lost_of(self.now[part.name], set(group)):
                flavors.setdefault(min(part.flavors.values(), default=""), []).append(part)
        for flavor in sorted(flavors):
            moved = self._move(flavor, flavors[flavor], group)
            if isinstance(moved, str):
                self._uncharge(charged)
                self.now = before
                return moved
            self.now |= moved.assignments
            for charge, sign in moved.charges:
                self._charge(charge, sign)
        return None

    def _move(
        self, flavor: str, parts: Sequence[PodSetGrant], group: Sequence[str]
    ) -> _Moved | str:
        grove = self.snapshot.forest.groves.get(flavor)
        if grove is None or not grove.tree.hosts:
            self.blind = True
            return f'flavor "{flavor}" has no topology with hosts now'
        current: dict[str, TopologyAssignment] = {}
        absent: dict[str, tuple[tuple[Domain, int], ...]] = {}
        requests: list[PodSetRequest] = []
        for part in parts:
            known, away = split(self.now[part.name], grove.tree, group)
            current[part.name], absent[part.name] = known, away
            request = self.requests[part.name]
            requests.append(fenced(request, grove.tree, known, away, self.hosts))
        answer = placement.replace(
            grove.tree,
            grove.capacity,
            requests,
            Replacement((group[0],), current, self.row.owned_by_pod),
            topology_name=grove.flavor.topology or "",
            flavor_tolerations=grove.flavor.tolerations,
            features=self.features,
        )
        if answer.refused is not None:
            return f"pod set {answer.refused.podset}: {answer.refused.message}"
        after = {
            name: TopologyAssignment(found.levels, (*found.domains, *absent[name]))
            for name, found in answer.assignments.items()
        }
        charges: list[tuple[Charge, int]] = []
        for name, assignment in after.items():
            amounts = self.granted[name]
            charges.append((Charge(flavor, amounts, self.now[name]), -1))
            charges.append((Charge(flavor, amounts, assignment), 1))
        return _Moved(after, tuple(charges))

    def _charge(self, charge: Charge, sign: int) -> None:
        self.snapshot.forest.charge(charge, sign)
        self.charges.append((charge, sign))

    def undo(self) -> None:
        """Give back every place that was charged."""
        self._uncharge(0)

    def _uncharge(self, kept: int) -> None:
        """Undo all charges but the first `kept`."""
        while len(self.charges) > kept:
            charge, sign = self.charges.pop()
            self.snapshot.forest.charge(charge, -sign)

    def _verdict(self, done: Sequence[str], left: Sequence[str], refusal: str) -> list[Repair]:
        row = self.row
        lost = [name for name in left if name not in self.healthy]
        if lost and self.fail_fast and not self.blind:
            self.undo()
            nodes = ", ".join(lost)
            word = "a failed node" if len(lost) == 1 else "failed nodes"
            text = f"Workload was evicted as there was no replacement for {word}: {nodes}"
            return [Evict(row.key, EvictionReason.NODE_FAILURES, f"{text}; {refusal}")]
        repairs: list[Repair] = []
        if lost:
            names = ", ".join(lost)
            repairs.append(Stuck(row.key, f"no replacement found for {names}: {refusal}"))
        if done and row.reserved is not None:
            podsets = tuple(
                replace(part, topology=self.now.get(part.name, part.topology))
                for part in row.reserved.podsets
            )
            grant = replace(row.reserved, podsets=podsets)
            self._hold_old_places({self.todo[name] for name in done})
            repairs.append(Reassign(row.key, grant, tuple(done)))
        elif sound := tuple(name for name in left if name in self.healthy):
            text = f"no replacement found for {', '.join(sound)}, which runs: its pods stay"
            repairs.append(Unmark(row.key, sound, f"{text}; {refusal}"))
        return repairs

    def _hold_old_places(self, hosts: set[str]) -> None:
        """Until the cycle is over: whether pods still sit there is known only after it (C4)."""
        for part in self.parts.values():
            if part.topology is None:
                continue
            left = tuple(pair for pair in part.topology.domains if pair[0][-1] in hosts)
            if left:
                place = TopologyAssignment(part.topology.levels, left)
                flavor = min(part.flavors.values(), default="")
                self._charge(Charge(flavor, self.granted[part.name], place), 1)


def _unlike(
    groups: Iterable[tuple[str, ...]], kinds: Mapping[str, _Kind], tried: set[tuple[_Kind, ...]]
) -> Iterator[tuple[str, ...]]:
    """Groups of which none like it was tried yet."""
    for group in groups:
        kind = tuple(sorted(kinds[name] for name in group))
        if kind not in tried:
            tried.add(kind)
            yield group

"""The walk through the pod sets: placing, resizing and replacing (sections 5, 9, 11 and 12)."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.oracle.amounts import per_pod, read, subtract
from tests.support.oracle.choosing import choose
from tests.support.oracle.counting import count
from tests.support.oracle.nodes import Domain, Hierarchy, Json, Path
from tests.support.oracle.request import DoesNotFitError, ParsedRequest, parse_request, unit_of

Share = list[tuple[Domain, int]]
RESIZE = "ElasticJobsViaWorkloadSlicesWithTAS"


def expected(scenario: Json) -> Json:
    """The `expected` of a scenario in the format `tas-scenario/1`."""
    walk = Walk(scenario)
    replacement = scenario.get("replacement") or {}
    if replacement.get("unhealthyNodes"):
        return walk.replace(replacement)
    return walk.place()


def prepared(scenario: Json) -> Callable[[list[Json]], Json]:
    """Answers for any pod sets on the nodes of a scenario, which are read once: for benches."""
    walk = Walk(scenario)
    leaves = walk.hierarchy.leaves

    def request(podsets: list[Json]) -> Json:
        before = [dict(leaf.free) for leaf in leaves]
        walk.podsets, walk.done = podsets, set()
        answer = walk.place()
        for leaf, free in zip(leaves, before, strict=True):
            leaf.free = free
        return answer

    return request


class Walk:
    """A walk over the pod sets of one scenario; `done` are the names of those that are placed."""

    def __init__(self, scenario: Json) -> None:
        self.flavor: Json = scenario["flavor"]
        self.podsets: list[Json] = scenario["podSets"]
        self.gates: Json = scenario.get("gates") or {}
        self.hierarchy = Hierarchy(scenario)
        self.done: set[str] = set()

    def place(self) -> Json:
        result: Json = {}
        for podset in self.podsets:
            if podset["name"] not in self.done and not self.take(podset, result):
                break
        return result

    def slices(self, first: Json, depth: int, restricted_to: Path = ()) -> dict[Path, int]:
        """Slices of a unit's workers that fit into each domain of a level."""
        workers, _ = unit_of(self.podsets, first)
        request = parse_request(self.hierarchy.levels, self.gates, workers, None, workers["count"])
        request.restricted_to = restricted_to
        count(self.hierarchy, request, self.flavor)
        return {domain.path: domain.slices for domain in self.hierarchy.domains[depth]}

    def take(self, first: Json, result: Json, restricted_to: Path = ()) -> bool:
        """Place one unit; False where the walk ends."""
        workers, leader = unit_of(self.podsets, first)
        members = [workers] if leader is None else [workers, leader]
        self.done |= {member["name"] for member in members}
        if self.gates.get(RESIZE) and self._resizable(members):
            return self._resize(workers, leader, result)
        try:
            placed, led = self._place(workers, leader, workers["count"], restricted_to)
        except DoesNotFitError as refused:
            for member in members:
                result[member["name"]] = {"failure": str(refused)}
            return False
        result[workers["name"]] = self._written(placed)
        self._assume(workers, placed)
        if leader is not None:
            result[leader["name"]] = self._written(led)
            self._assume(leader, led)
        return True

    def _place(
        self, workers: Json, leader: Json | None, pods: int, restricted_to: Path = ()
    ) -> tuple[Share, Share]:
        request = parse_request(self.hierarchy.levels, self.gates, workers, leader, pods)
        request.restricted_to = restricted_to
        return self._place_ask(request)

    def _place_ask(self, request: ParsedRequest) -> tuple[Share, Share]:
        count(self.hierarchy, request, self.flavor)
        balanced = bool(self.gates.get("TASBalancedPlacement"))
        used = choose(self.hierarchy, self.flavor["topology"], request, balanced=balanced)
        # Even spread works on copies; shares name the hierarchy's own leaves.
        own = {leaf.path: leaf for leaf in self.hierarchy.leaves}
        used = sorted(used, key=lambda leaf: leaf.key)
        return (
            [(own[leaf.path], leaf.pods) for leaf in used if leaf.pods > 0],
            [(own[leaf.path], leaf.lead) for leaf in used if leaf.lead > 0],
        )

    def _assume(self, podset: Json, share: Share) -> None:
        for leaf, pods in share:
            subtract(leaf.free, per_pod(read(podset.get("requests"))), pods)

    def _written(self, share: Share) -> Json:
        levels = self.hierarchy.levels[-1:] if self.hierarchy.hosts else self.hierarchy.levels
        domains = [
            {"values": list(self.hierarchy.values(leaf)), "count": pods} for leaf, pods in share
        ]
        return {"assignment": {"levels": list(levels), "domains": domains}}

    def _shares(self, assignment: Json) -> list[tuple[Domain | None, int]]:
        return [
            (self.hierarchy.leaf(domain["values"]), domain["count"])
            for domain in assignment["domains"]
        ]

    def _known(self, assignment: Json) -> Share:
        return [(leaf, pods) for leaf, pods in self._shares(assignment) if leaf is not None]

    # Resizing, section 12.

    def _resizable(self, members: list[Json]) -> bool:
        if not members[0].get("previousAssignment"):
            return False
        return all(
            leaf is not None
            for member in members
            for leaf, _ in self._shares(member.get("previousAssignment") or {"domains": []})
        )

    def _resize(self, workers: Json, leader: Json | None, result: Json) -> bool:
        before = self._known(workers["previousAssignment"])
        stays = None if leader is None else leader.get("previousAssignment")
        new_leader = None if stays else leader
        kept = _first_pods(before, workers["count"])
        more = workers["count"] - sum(pods for _, pods in kept)
        if leader is not None and stays:
            result[leader["name"]] = {"assignment": stays}
            self._assume(leader, self._known(stays))
        self._assume(workers, kept)
        if more == 0:
            result[workers["name"]] = self._written(kept)
            # The text is silent on a new leader of workers that stay: it is placed alone.
            if new_leader is None:
                return True
        try:
            placed, led = self._place(workers, new_leader, more)
        except DoesNotFitError as refused:
            if leader is not None:
                result.pop(leader["name"], None)
            result[workers["name"]] = {"failure": str(refused)}
            return False
        self._assume(workers, placed)
        if more:
            result[workers["name"]] = self._written(_added_up(kept + placed))
        if new_leader is not None:
            result[new_leader["name"]] = self._written(led)
            self._assume(new_leader, led)
        return True

    # Replacing a broken node, section 11.

    def replace(self, replacement: Json) -> Json:
        unhealthy = replacement["unhealthyNodes"][0]
        assignments = replacement.get("assignments") or {}
        skip = self.gates.get("SkipReassignmentForPodOwnedWorkloads", True)
        result: Json = {}
        for podset in _together(self.podsets):
            current = assignments.get(podset["name"])
            if current is None:
                continue
            if replacement.get("ownedBySinglePod") and skip:
                result[podset["name"]] = {"assignment": current}
                continue
            try:
                answer = self._replaced(podset, current, unhealthy)
            except DoesNotFitError as refused:
                result[podset["name"]] = {"failure": str(refused)}
                break
            result[podset["name"]] = answer
        return result

    def _replaced(self, podset: Json, current: Json, unhealthy: str) -> Json:
        domains = current["domains"]
        lost_pods = sum(domain["count"] for domain in domains if domain["values"][-1] == unhealthy)
        remaining = [domain for domain in domains if domain["values"][-1] != unhealthy]
        for domain in remaining:
            if self.hierarchy.leaf(domain["values"]) is None:
                raise DoesNotFitError(
                    "Cannot replace the node, because the existing topologyAssignment is invalid, "
                    f"as it contains the stale domain {domain['values'][0]}"
                )
        kept = self._known({"domains": remaining})
        restricted_to, request = self._restricted_domain(podset, kept, lost_pods)
        asked = podset if request is None else {**podset, "topologyRequest": request}
        placed, _ = self._place(asked, None, lost_pods, restricted_to)
        if not placed:
            raise DoesNotFitError(
                f"cannot find replacement assignment for unhealthy node: {unhealthy}"
            )
        self._assume(podset, placed)
        return self._written(_added_up(kept + placed))

    def _restricted_domain(
        self, podset: Json, kept: Share, lost_pods: int
    ) -> tuple[Path, Json | None]:
        """Where the new pods must be, and the request with its slices replaced, if they are."""
        levels = self.hierarchy.levels
        request = podset.get("topologyRequest") or {}
        slices: list[Json] = request.get("slices") or []
        if not kept:
            return (), None
        if any(layer.get("size", 0) <= 0 for layer in slices):
            return (), None  # refused when the request is read
        if not slices or lost_pods % slices[0]["size"] == 0:
            if request.get("required") not in levels:
                return (), None
            return kept[0][0].path[: levels.index(request["required"]) + 1], None
        entry = [layer for layer in slices if lost_pods % layer["size"]][-1]
        restricted_to = _incomplete(
            kept, lost_pods, entry["size"], levels.index(entry["topology"]) + 1
        )
        if not restricted_to:
            return (), None
        dividing = [layer for layer in slices if lost_pods % layer["size"] == 0]
        return restricted_to, {**request, "slices": dividing[-1:]}


def _incomplete(kept: Share, lost_pods: int, size: int, depth: int) -> Path:
    """The domain that the lost pods make whole again."""
    sums: dict[Path, int] = {}
    for leaf, pods in kept:
        sums[leaf.path[:depth]] = sums.get(leaf.path[:depth], 0) + pods
    for path, pods in sums.items():
        if (pods + lost_pods) % size == 0:
            return path
    return ()


def _first_pods(share: Share, pods: int) -> Share:
    kept = []
    for leaf, own in share:
        if pods > 0:
            kept.append((leaf, min(own, pods)))
        pods -= own
    return kept


def _added_up(share: Share) -> Share:
    sums: dict[Path, tuple[Domain, int]] = {}
    for leaf, pods in share:
        sums[leaf.path] = (leaf, sums.get(leaf.path, (leaf, 0))[1] + pods)
    return [
        sums[path] for path in sorted(sums, key=lambda path: [value.encode() for value in path])
    ]


def _together(podsets: list[Json]) -> list[Json]:
    """Pod sets in the order of their units: members of a group where its first one stands."""
    firsts: dict[str, int] = {}
    places = []
    for at, podset in enumerate(podsets):
        group = podset.get("group")
        places.append(at if group is None else firsts.setdefault(group, at))
    return [podsets[at] for at in sorted(range(len(podsets)), key=lambda at: (places[at], at))]

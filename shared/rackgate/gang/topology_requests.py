"""From the topology requests of a gang Workload to those of a Workload of Kueue.

A group asks for its pods: for those PodSets whose pods lie in it, or for equal parts of one PodSet.

1. `_read` collects what is asked for each PodSet, outer groups first.
2. `_narrow` drops what an inner request implies: a required level implies every coarser level for
   the same pods, and a preferred level every coarser preferred one, because placement falls back to
   coarser levels.
3. What is left is expressed as the request of the PodSet if that is possible: its own level, slices
   for equal parts, a PodSet group for a leader with its workers. All else is nested: domains that
   several PodSets share, or a preferred level inside a required one.

Inputs: an expanded spec without errors; PodSets as the job has them. Levels are compared only if
the topologies are known.
Source: GNG-38.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from rackgate.api.names import COMPLETION_INDEX_LABEL, JOB_INDEX_LABEL
from rackgate.features import GANG_NESTED_PLACEMENT
from rackgate.gang.levels import Object, groups_of
from rackgate.gang.membership import Mismatch, part_of, replica_key
from rackgate.gang.nesting import Enclosing, NestedPodSet

WHOLE: Final = "spec"
MAX_LAYERS: Final = 3  # of slices
# Labels that tell apart pods of one PodSet, by rank.
_INDEX_LABELS: Final = (COMPLETION_INDEX_LABEL, JOB_INDEX_LABEL)
# Fields of a PodSet's request that say where its pods go.
_PLACES: Final = (
    "required",
    "preferred",
    "unconstrained",
    "podSetGroupName",
    "podSetSliceRequiredTopology",
    "podSetSliceSize",
    "podsetSliceRequiredTopologyConstraints",
)


class RejectedReason(StrEnum):
    """Why the requests cannot be met: reasons of TopologyRequestValid and TopologyEnforced."""

    UNKNOWN_LEVEL = "UnknownLevel"
    NOT_NARROWER = "NotNarrower"
    CONFLICTS_WITH_TEMPLATE = "ConflictsWithTemplate"
    NOT_SUPPORTED = "NotSupported"


@dataclass(frozen=True, slots=True)
class GangPodSet:
    """A PodSet of the job.

    Attributes:
        labels: of its template, and those that its controller gives to all of its pods.
        request: the `topologyRequest` that its template asks for; None: none.
        parts: equal parts that its pods have by rank, for example the Jobs of a replicated Job.
        copies: how many child Jobs have this Workload of gangs, each with equally many pods.
    """

    name: str
    count: int
    labels: Mapping[str, str]
    request: Mapping[str, Any] | None = None
    parts: int = 1
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Requests:
    """What the Workload of Kueue gets.

    Attributes:
        by_podset: fields of `topologyRequest` for the PodSets for which something is asked.
        nesting: domains that PodSets share, in the order of placement; for `encode_nesting`. Empty
            if the fields say everything.
        not_enforced: paths of requests without an effect, for the condition TopologyEnforced.
    """

    by_podset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    nesting: tuple[NestedPodSet, ...] = ()
    not_enforced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """The job must not be admitted.

    Attributes:
        path: of the request in the spec.
    """

    reason: RejectedReason
    message: str
    path: str


class _RejectedError(Exception):
    def __init__(self, reason: RejectedReason, path: str, message: str) -> None:
        super().__init__(message)
        self.rejected = Rejected(reason, message, path)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One level for the pods of a group.

    Attributes:
        part: size of the parts of the PodSet that it is asked for; None: for all its pods.
    """

    group: str
    path: str
    level: str
    required: bool
    part: int | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    """Resource claims that the pods of a group share.

    Attributes:
        shared: all of them are claims by name. Of a template, each pod gets a claim of its own.
    """

    group: str
    path: str
    shared: bool


@dataclass(slots=True)
class _Asked:
    """What is asked for one PodSet.

    Attributes:
        asks: outer groups first.
        claims: resource claims that groups share, outer groups first.
        unconstrained: path of a request for no domain, "" without one.
        index_label: label or annotation with the ranks of its pods, "" if none is named.
        position: of its groups in their lists; orders the placement.
        not_enforced: paths of requests without an effect.
    """

    podset: GangPodSet
    asks: list[_Ask] = field(default_factory=list)
    claims: list[_Claim] = field(default_factory=list)
    unconstrained: str = ""
    index_label: str = ""
    position: tuple[int, ...] = ()
    not_enforced: list[str] = field(default_factory=list)


def topology_requests(
    canonical: Object,
    podsets: Sequence[GangPodSet],
    *,
    workload: str,
    topologies: Sequence[Sequence[str]] | None = None,
    nested: bool,
    across: bool = False,
) -> Requests | Rejected:
    """What a job has to request for the groups of its gang Workload.

    Args:
        canonical: an expanded spec.
        podsets: of the job, in its order.
        workload: name of the gang Workload, for PodSet groups.
        topologies: level keys, coarsest first, of each Topology that the job may be placed in;
            None: not known, so levels are not checked.
        nested: whether the feature gate GangNestedPlacement is on.
        across: these are the PodSets of one of several gangs, each of which has a Workload of
            Kueue of its own. So what the whole asks for holds for all of them.
    """
    if asks_nothing(canonical):
        return Requests()
    not_enforced = ["spec.topologySpread"] if "topologySpread" in canonical else []
    if across and "required" not in canonical.get("topologyRequest", {"required": ""}):
        canonical = {key: canonical[key] for key in canonical if key != "topologyRequest"}
        not_enforced.append(f"{WHOLE}.topologyRequest")
    try:
        rows = [_read(canonical, podset, podsets) for podset in podsets]
        _place_claims(rows, topologies, nested=nested)
        for row in rows:
            _check_levels(row, topologies)
        by_podset, nesting = _combine(rows, workload, across=across)
        if not nested:
            _check_gate(rows, nesting)
        for row in rows:
            _check_template(row, by_podset, nesting)
    except _RejectedError as error:
        return error.rejected
    not_enforced += [path for row in rows for path in row.not_enforced]
    return Requests(by_podset, nesting, tuple(dict.fromkeys(not_enforced)))


def asks_nothing(canonical: Object) -> bool:
    """Whether no group requests anything, or says which ranks its pods have: most do not."""
    return "topologySpread" not in canonical and not any(
        "topologyRequest" in group.value or "podRank" in group.value
        for group in groups_of(canonical)
    )


# What is asked for a PodSet.


def _read(canonical: Object, podset: GangPodSet, podsets: Sequence[GangPodSet]) -> _Asked:
    asked = _Asked(podset)
    of_child = _child_size(canonical, podset)
    _add(asked, canonical, "spec", WHOLE, of_child)
    key = replica_key(canonical)
    labels = {**podset.labels, key: podset.labels.get(key, "-")} if key else podset.labels
    part = part_of(canonical, labels)
    if isinstance(part, Mismatch):
        return asked  # its pods are held, and PodsMatched says why
    groups = canonical["gangGroups"]
    at = _index(groups, part.gang.group)
    gang, path, group = groups[at], f"spec.gangGroups[{at}]", part.gang.group
    size = of_child
    if size is None and key:
        size = _replica_size(gang, path, podsets)
    _add(asked, gang, path, group, size)
    at_ranked, at_equal = 0, 0
    if part.ranked_group is None:
        _add_parts(asked, gang["rankedGroups"], f"{path}.rankedGroups", group, size)
    else:
        at_ranked = _index(gang["rankedGroups"], part.ranked_group)
        ranked, path = gang["rankedGroups"][at_ranked], f"{path}.rankedGroups[{at_ranked}]"
        group = f"{group}/{part.ranked_group}"
        _add(asked, ranked, path, group, size)
        if "podRank" in ranked and ranked.get("rankMode") != "Off":
            asked.index_label = _key_of(ranked["podRank"]["valueFrom"]["fieldRef"]["fieldPath"])
        if part.eq_group is None:
            _add_parts(asked, ranked["eqGroups"], f"{path}.eqGroups", group, size)
        else:
            at_equal = _index(ranked["eqGroups"], part.eq_group)
            equal, path = ranked["eqGroups"][at_equal], f"{path}.eqGroups[{at_equal}]"
            _add(asked, equal, path, f"{group}/{part.eq_group}", size)
    asked.position = (at, at_ranked, at_equal)
    return asked


def _key_of(field_path: str) -> str:
    """The label or annotation that it names. Pods may have either: both are read (CF-19)."""
    return field_path.partition("'")[2].partition("'")[0]


def _index(groups: Sequence[Object], name: str) -> int:
    return next(index for index, group in enumerate(groups) if group["name"] == name)


def _asks(group: Object) -> Iterator[Object]:
    """All requests of a gang group and of the groups in it."""
    levels = [group, *group["rankedGroups"]]
    levels += [equal for ranked in group["rankedGroups"] for equal in ranked["eqGroups"]]
    return (level["topologyRequest"] for level in levels if "topologyRequest" in level)


def _add(asked: _Asked, holder: Object, path: str, group: str, part: int | None = None) -> None:
    """Add the request of one group."""
    request = holder.get("topologyRequest")
    if request is None:
        return
    path = f"{path}.topologyRequest"
    if request.get("unconstrained"):
        asked.unconstrained = path
    elif not request.keys() & {"required", "preferred"}:
        claims = request.get("resourceClaims") or ()
        shared = part is None and bool(claims) and all("resourceClaim" in one for one in claims)
        asked.claims.append(_Claim(group, path, shared))
    else:
        required = "required" in request
        level = str(request["required" if required else "preferred"])
        if part is not None and not required:
            raise _RejectedError(
                RejectedReason.NOT_SUPPORTED,
                path,
                "parts of a PodSet can only require a level, not prefer it",
            )
        asked.asks.append(_Ask(group, path, level, required, part))


def _child_size(canonical: Object, podset: GangPodSet) -> int | None:
    """Pods of a child Job, if the PodSet has several."""
    if podset.copies <= 1 or not podset.count:
        return None
    asks = [*_asks_of(canonical)]
    if asks and podset.parts != podset.copies:
        raise _RejectedError(
            RejectedReason.NOT_SUPPORTED,
            asks[0],
            f"the {podset.copies} Jobs of PodSet {podset.name} are placed one by one only if they "
            "have completionMode Indexed",
        )
    return podset.count // podset.copies


def _asks_of(canonical: Object) -> Iterator[str]:
    """Paths of all groups that request a topology."""
    if "topologyRequest" in canonical:
        yield f"{WHOLE}.topologyRequest"
    for at, gang in enumerate(canonical["gangGroups"]):
        if any(_asks(gang)):
            yield f"{WHOLE}.gangGroups[{at}]"


def _replica_size(gang: Object, path: str, podsets: Sequence[GangPodSet]) -> int | None:
    """Pods of a replica, if the PodSet has several replicas."""
    if not any(_asks(gang)):
        return None
    total = sum(podset.count for podset in podsets)
    size: int | None = None
    if "minCount" in gang and gang["minCount"] == gang.get("maxCount"):
        size = gang["minCount"]
    elif podsets[0].parts > 1:
        size = podsets[0].count // podsets[0].parts
    if not size or size >= total:
        return None
    if len(podsets) > 1 or total % size:
        raise _RejectedError(
            RejectedReason.NOT_SUPPORTED,
            path,
            f"the {total} pods of the job are not replicas of {size} pods in one PodSet; use one "
            "job for each replica",
        )
    return size


def _add_parts(
    asked: _Asked, groups: Sequence[Object], path: str, outer: str, replica: int | None
) -> None:
    """Add the requests of groups that divide one PodSet by rank."""
    paths = [
        f"{path}[{at}].topologyRequest"
        for at, group in enumerate(groups)
        if "topologyRequest" in group or any(_requests_below(group))
    ]
    if not paths or not asked.podset.count:
        return
    selectors = [group.get("selector") for group in groups]
    keys = {selector["key"] if selector else "" for selector in selectors}
    key = next(iter(keys))
    if len(keys) > 1 or key not in _INDEX_LABELS:
        asked.not_enforced += paths  # PodsMatched says that no group, or several, take its pods
        return
    podset = asked.podset
    size = _part_size([selector["values"] for selector in selectors if selector], key, podset)
    whole = podset.count if replica is None else replica
    requests = [group.get("topologyRequest") for group in groups]
    equal = all(request == requests[0] for request in requests)
    if any(any(_requests_below(group)) for group in groups):
        equal = False
    if size is None or not equal or size * len(groups) not in (podset.count, whole):
        raise _RejectedError(
            RejectedReason.NOT_SUPPORTED,
            paths[0],
            f'groups of PodSet "{podset.name}" must be equal parts of its {podset.count} pods, in '
            "the order of their ranks, with equal requests",
        )
    _add(asked, groups[0], f"{path}[0]", f"{outer}/{groups[0]['name']}", size)


def _requests_below(group: Object) -> Iterator[Object]:
    return (part for part in group.get("eqGroups", ()) if "topologyRequest" in part)


def _part_size(values: Sequence[Sequence[str]], key: str, podset: GangPodSet) -> int | None:
    """Pods of each part, if the parts are equally many consecutive ranks; else None."""
    unit = 1
    if key == JOB_INDEX_LABEL:
        if podset.parts < 1 or podset.count % podset.parts:
            return None
        unit = podset.count // podset.parts
    try:
        ranks = [sorted(int(value) for value in part) for part in values]
    except ValueError:
        return None
    length = len(ranks[0])
    for part in ranks:
        if len(part) != length or part[0] % length or part[-1] - part[0] != length - 1:
            return None
    return unit * length


def _place_claims(
    rows: Sequence[_Asked], topologies: Sequence[Sequence[str]] | None, *, nested: bool
) -> None:
    """Pods that share a claim go to the smallest domain that holds them, if nothing else is asked.

    A claim on devices of several nodes can be used in one part of the cluster only. Which one, is
    not known before it is allocated. So the lowest level is preferred: placement falls back to
    coarser ones, level by level. Of nested claims the outermost counts (GNG-50).
    """
    lowest = {levels[-1] for levels in topologies or () if levels}
    sharing: dict[str, int] = {}
    for row in rows:
        for claim in row.claims[:1]:
            sharing[claim.group] = sharing.get(claim.group, 0) + 1
    for row in rows:
        asks_otherwise = (
            row.asks or row.unconstrained or (row.podset.request or {}).keys() & set(_PLACES)
        )
        for at, claim in enumerate(row.claims):
            placeable = claim.shared and len(lowest) == 1 and not asks_otherwise and at == 0
            if placeable and (nested or sharing[claim.group] == 1):
                row.asks.append(_Ask(claim.group, claim.path, next(iter(lowest)), required=False))
            else:
                row.not_enforced.append(claim.path)


# Levels and templates.


def _check_levels(row: _Asked, topologies: Sequence[Sequence[str]] | None) -> None:
    """Reject inner levels that are not narrower, and levels that no topology has."""
    for at, ask in enumerate(row.asks):
        if any(ask.level == outer.level for outer in row.asks[:at]):
            raise _RejectedError(
                RejectedReason.NOT_NARROWER,
                ask.path,
                f'level "{ask.level}" is the level of a group around it; use a finer level',
            )
    if topologies is None or not row.asks:
        return
    levels = [ask.level for ask in row.asks]
    if not topologies:
        raise _RejectedError(
            RejectedReason.UNKNOWN_LEVEL,
            row.asks[0].path,
            f'level "{levels[0]}" is not in a Topology: no flavor of the queue has one',
        )
    fitting = [found for found in topologies if set(levels) <= set(found)]
    if not fitting:
        known = "; ".join(", ".join(found) for found in topologies)
        nearest = max(topologies, key=lambda found: len(set(levels) & set(found)))
        ask = next(ask for ask in row.asks if ask.level not in nearest)
        raise _RejectedError(
            RejectedReason.UNKNOWN_LEVEL,
            ask.path,
            f'level "{ask.level}" is not in a Topology of the queue with all levels that are '
            f"requested for its pods; levels: {known}",
        )
    for found in fitting:
        if all(found.index(outer) < found.index(inner) for outer, inner in pairwise(levels)):
            return
    order = fitting[0]
    outer, inner = next(
        (one, two)
        for one, two in pairwise(row.asks)
        if order.index(one.level) >= order.index(two.level)
    )
    raise _RejectedError(
        RejectedReason.NOT_NARROWER,
        inner.path,
        f'level "{inner.level}" is coarser than level "{outer.level}" of a group around it; levels '
        f"from coarse to fine: {', '.join(order)}",
    )


def _check_gate(rows: Sequence[_Asked], nesting: Sequence[NestedPodSet]) -> None:
    """Reject what only nested placement can express."""
    for podset in nesting:
        group = podset.within[0].group
        path = next(ask.path for row in rows for ask in row.asks if ask.group == group)
        raise _RejectedError(
            RejectedReason.NOT_SUPPORTED,
            path,
            "the fields of PodSets cannot express that these pods share a domain; set the feature "
            f"gate {GANG_NESTED_PLACEMENT}",
        )


def _check_template(
    row: _Asked, by_podset: Mapping[str, Mapping[str, Any]], nesting: Sequence[NestedPodSet]
) -> None:
    """Reject two different requests for the same pods."""
    path = row.asks[-1].path if row.asks else row.unconstrained
    if not path or row.podset.request is None:
        return
    places = {name: row.podset.request[name] for name in _PLACES if row.podset.request.get(name)}
    asked = by_podset.get(row.podset.name, {})
    same = places == {name: asked[name] for name in _PLACES if name in asked}
    if places and (not same or any(one.podset == row.podset.name for one in nesting)):
        raise _RejectedError(
            RejectedReason.CONFLICTS_WITH_TEMPLATE,
            path,
            f'the template of PodSet "{row.podset.name}" asks for its pods, too; remove its '
            "annotations or this request",
        )


# From what is asked to what is requested.


@dataclass(slots=True)
class _Narrowed:
    """What is left for one PodSet: requests for all its pods, and for parts, outer ones first."""

    row: _Asked
    whole: list[_Ask]
    parts: list[_Ask]


def _combine(
    rows: Sequence[_Asked], workload: str, *, across: bool
) -> tuple[dict[str, dict[str, Any]], tuple[NestedPodSet, ...]]:
    covered: dict[str, set[str]] = {}
    for row in rows:
        for ask in row.asks:
            covered.setdefault(ask.group, set()).add(row.podset.name)
    if across and WHOLE in covered:
        covered[WHOLE].add("")  # there are others
    counts = {row.podset.name: row.podset.count for row in rows}
    for ask in (ask for row in rows for ask in row.asks):
        if ask.part is not None and len(covered[ask.group]) > 1:
            raise _RejectedError(
                RejectedReason.NOT_SUPPORTED,
                ask.path,
                "a group cannot consist of parts of several PodSets",
            )
    narrowed = [_narrow(row, covered) for row in rows]
    by_podset: dict[str, dict[str, Any]] = {}
    nesting: list[tuple[tuple[int, ...], NestedPodSet]] = []
    for one in narrowed:
        name = one.row.podset.name
        request: dict[str, Any] = {}
        around = list(one.whole)
        if around:
            # Without a level of its own, a PodSet keeps to the domain around it.
            inner = around[-1]
            request[_mode(inner)] = inner.level
            if len(covered[inner.group]) == 1:
                around.pop()
            elif _is_leader_with_workers(inner, narrowed, covered, counts):
                request["podSetGroupName"] = f"{workload}-{inner.group.replace('/', '.')}"
                around.pop()
        request |= _slices(one.parts)
        if not request and one.row.unconstrained:
            request["unconstrained"] = True
        if not request and one.row.index_label:
            # The ranks are those that the group says, also for what the template asks.
            own = one.row.podset.request or {}
            request = {name: own[name] for name in _PLACES if own.get(name)}
        if request and one.row.index_label:
            request["podIndexLabel"] = one.row.index_label
        if request:
            by_podset[name] = request
        if around:
            within = tuple(
                Enclosing(
                    ask.group,
                    ask.level,
                    ask.required,
                    workload if across and ask.group == WHOLE else "",
                )
                for ask in around
            )
            nesting.append((one.row.position, NestedPodSet(name, within)))
    nesting.sort(key=lambda pair: pair[0])
    return by_podset, tuple(podset for _, podset in nesting)


def _mode(ask: _Ask) -> str:
    return "required" if ask.required else "preferred"


def _narrow(row: _Asked, covered: Mapping[str, set[str]]) -> _Narrowed:
    """Without the requests that inner ones for the same pods imply."""
    whole: list[_Ask] = []
    parts: list[_Ask] = []
    for ask in row.asks:
        kept = whole if ask.part is None else parts
        while (
            kept and (ask.required or not kept[-1].required) and _same_pods(kept[-1], ask, covered)
        ):
            kept.pop()
        kept.append(ask)
    return _Narrowed(row, whole, parts)


def _same_pods(one: _Ask, other: _Ask, covered: Mapping[str, set[str]]) -> bool:
    return one.part == other.part and covered[one.group] == covered[other.group]


def _is_leader_with_workers(
    ask: _Ask,
    narrowed: Sequence[_Narrowed],
    covered: Mapping[str, set[str]],
    counts: Mapping[str, int],
) -> bool:
    """Whether a PodSet group says the same: a leader and workers, and nothing inside."""
    names = covered[ask.group]
    members = [one for one in narrowed if one.row.podset.name in names]
    return (
        "" not in names
        and len(members) == 2
        and 1 in {counts[name] for name in names}
        and all(one.whole[-1:] == [ask] and not one.parts for one in members)
    )


def _slices(parts: Sequence[_Ask]) -> dict[str, Any]:
    """The fields for equal parts."""
    if not parts:
        return {}
    sizes = [ask.part or 0 for ask in parts]
    if len(parts) > MAX_LAYERS or any(outer % inner for outer, inner in pairwise(sizes)):
        raise _RejectedError(
            RejectedReason.NOT_SUPPORTED,
            parts[-1].path,
            f"parts of {', '.join(map(str, sizes))} pods are not at most {MAX_LAYERS} layers, each "
            "dividing the one before",
        )
    if len(parts) == 1:
        return {"podSetSliceRequiredTopology": parts[0].level, "podSetSliceSize": sizes[0]}
    layers = [{"topology": ask.level, "size": size} for ask, size in zip(parts, sizes, strict=True)]
    return {"podsetSliceRequiredTopologyConstraints": layers}

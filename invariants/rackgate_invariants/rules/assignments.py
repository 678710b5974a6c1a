"""Is what was granted well-formed: counts, domains, levels, charges."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.cluster import ObjectGroup, WorkloadWithSlices, format_domain, listed
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import Amounts, PodSetRow, SliceLayer, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.job_usage import running_pods_of
from rackgate_invariants.running_pods import PODS


def check_assignments(workload: WorkloadRow) -> Iterator[Breach]:
    """Each assignment is there, can be read, and covers what was granted."""
    for podset in workload.podsets:
        subject = f"{workload.key}/{podset.name}"
        if podset.problem:
            yield Breach("assignment-unreadable", subject, podset.problem)
        elif podset.assignment is None:
            if podset.topology and podset.admitted_count and not podset.delayed:
                found = f"{podset.admitted_count} pods are admitted without an assignment"
                yield Breach("assignment-missing", subject, found)
        else:
            yield from _sum(subject, podset, podset.assignment)


def _sum(subject: str, podset: PodSetRow, assignment: TopologyAssignment) -> Iterator[Breach]:
    total, granted = assignment.count, podset.admitted_count
    size = max((layer.size for layer in podset.slice_layers), default=1)
    # Slices may be fewer pods than were granted: what is left over stays gated.
    if total not in (granted, granted // max(size, 1) * size):
        found = f"the domains take {total} pods, {granted} are granted"
        yield Breach("assignment-sum", subject, found)


def check_usage(
    workload: WorkloadRow, group: ObjectGroup, node_index: NodeIndex
) -> Iterator[Breach]:
    """The charged amounts are the pods' requests times the pods.

    The API server adds to a template when it makes a pod of it: the overhead of a RuntimeClass,
    the defaults of a LimitRange, both as they were at the admission. So more than the template
    asks for is right, unless pods live that show that nothing was added.
    """
    for podset in workload.podsets:
        asked = {**dict(podset.requests), PODS: 1}
        for resource in sorted(podset.flavors):
            each = asked.get(resource, 0)
            charged, expected = podset.usage.get(resource, 0), each * podset.admitted_count
            if charged == expected or podset.problem:
                continue
            if charged > expected and resource != PODS:
                real = {dict(one).get(resource, 0) for one in _real(podset, group, node_index)}
                if real != {each}:
                    continue
            yield Breach(
                "usage-differs",
                f"{workload.key}/{podset.name} {resource}",
                f"{charged} charged; {podset.admitted_count} pods of {each} are {expected}",
            )


def _real(podset: PodSetRow, group: ObjectGroup, node_index: NodeIndex) -> set[Amounts]:
    """What single pods of a PodSet ask for, as the API server made them."""
    return running_pods_of(group, node_index).requests(podset.name)


def check_admitted_once(group: ObjectGroup) -> Iterator[Breach]:
    """One job holds quota once. A Workload that is going away is on its way to give it back."""
    holding = [one for one in group.own if one.holds and not one.deleting]
    if len(holding) > 1 and holding[0].owner:
        first = holding[0]
        found = f"holds quota through {listed(one.key for one in holding)}"
        yield Breach("admitted-twice", f"{first.namespace}/{first.owner_name}", found)


def check_levels(family: WorkloadWithSlices, node_index: NodeIndex) -> Iterator[Breach]:
    """All pods share a domain of the required level, and slices of theirs.

    PodSets of one group share it with each other, and so does what is added to them later.
    Domains whose place cannot be told (their node
    is gone) are left out.
    """
    shared: dict[tuple[str, str], list[PodSetRow]] = defaultdict(list)
    workload = family.parent
    for podset in [
        *workload.podsets,
        *(
            own
            for slice_podset in family.slices
            if slice_podset.holds
            for own in slice_podset.podsets
        ),
    ]:
        if podset.assignment is None:
            continue
        if podset.required:
            shared[podset.group or f"={podset.name}", podset.required].append(podset)
        for layer in podset.slice_layers:
            yield from _slices(workload, podset, layer, node_index)
    for (_, level), podsets in shared.items():
        found = {path for podset in podsets for path, _ in _paths(podset, level, node_index)}
        if len(found) > 1:
            subject = "+".join(dict.fromkeys(podset.name for podset in podsets))
            domains = listed(map(format_domain, found))
            text = f'"{level}" is required, pods are in {len(found)} such domains: {domains}'
            yield Breach("level-split", f"{workload.key}/{subject}", text)


def _slices(
    workload: WorkloadRow, podset: PodSetRow, layer: SliceLayer, node_index: NodeIndex
) -> Iterator[Breach]:
    total: Counter[Domain] = Counter()
    for path, count in _paths(podset, layer.level, node_index):
        total[path] += count
    known = sum(total.values()) == (podset.assignment.count if podset.assignment else 0)
    for path, count in total.items():
        if known and layer.size > 0 and count % layer.size:
            text = (
                f"{count} pods in {format_domain(path)}, "
                f'slices of "{layer.level}" have {layer.size}'
            )
            yield Breach("slice-split", f"{workload.key}/{podset.name}", text)


def _paths(podset: PodSetRow, level: str, node_index: NodeIndex) -> Iterable[tuple[Domain, int]]:
    """The domain of `level` of each assigned domain, with its pods."""
    assignment = podset.assignment
    if assignment is None:
        return
    known = node_index.levels_of(podset) or assignment.levels
    # Without the Topology's order the label alone has to tell domains apart.
    target_levels = known[: known.index(level) + 1] if level in known else (level,)
    for domain, count in assignment.domains:
        path = node_index.path(assignment.levels, domain, target_levels)
        if path is not None:
            yield path, count

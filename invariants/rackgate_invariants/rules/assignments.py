"""Whether an admission is well-formed: counts, domains, levels, usage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.cluster import ObjectGroup, WorkloadWithSlices, format_domain, listed
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import PodSetRow, SliceLayer, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.job_usage import running_pods_of
from rackgate_invariants.running_pods import PODS


def check_assignments(workload: WorkloadRow) -> Iterator[Breach]:
    """`assignment-unreadable`, `assignment-missing` and `assignment-sum`."""
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
    total, admitted = assignment.count, podset.admitted_count
    size = max((layer.size for layer in podset.slice_layers), default=1)
    # Slices may have fewer pods than were admitted; the others stay gated.
    if total not in (admitted, admitted // max(size, 1) * size):
        found = f"the domains have {total} pods, {admitted} are admitted"
        yield Breach("assignment-sum", subject, found)


def check_usage(
    workload: WorkloadRow, group: ObjectGroup, node_index: NodeIndex
) -> Iterator[Breach]:
    """`usage-differs`.

    When the API server creates a pod it adds the overhead of a RuntimeClass and the defaults of a
    LimitRange to the template. So usage above the template's requests is correct, unless running
    pods show that nothing was added.
    """
    for podset in workload.podsets:
        requests = {**dict(podset.requests), PODS: 1}
        for resource in sorted(podset.flavors):
            each = requests.get(resource, 0)
            charged, expected = podset.usage.get(resource, 0), each * podset.admitted_count
            if charged == expected or podset.problem:
                continue
            if charged > expected and resource != PODS:
                running = running_pods_of(group, node_index).requests(podset.name)
                if {dict(one).get(resource, 0) for one in running} != {each}:
                    continue
            yield Breach(
                "usage-differs",
                f"{workload.key}/{podset.name} {resource}",
                f"{charged} charged; {podset.admitted_count} pods of {each} are {expected}",
            )


def check_admitted_once(group: ObjectGroup) -> Iterator[Breach]:
    """`admitted-twice`; Workloads that are being deleted do not count, as they release quota."""
    holding = [one for one in group.own if one.holds and not one.deleting]
    if len(holding) > 1 and holding[0].owner:
        first = holding[0]
        found = f"holds quota through {listed(one.key for one in holding)}"
        yield Breach("admitted-twice", f"{first.namespace}/{first.owner_name}", found)


def check_levels(family: WorkloadWithSlices, node_index: NodeIndex) -> Iterator[Breach]:
    """`level-split` and `slice-split`.

    PodSets of one group share their domain, also with the workload slices added later. Domains
    whose node is gone are left out, as their upper levels are not known.
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
    """The domain of `level` that contains each assigned domain, with its pods."""
    assignment = podset.assignment
    if assignment is None:
        return
    known = node_index.levels_of(podset) or assignment.levels
    # Without the Topology's order only the label itself identifies a domain.
    target_levels = known[: known.index(level) + 1] if level in known else (level,)
    for domain, count in assignment.domains:
        path = node_index.path(assignment.levels, domain, target_levels)
        if path is not None:
            yield path, count

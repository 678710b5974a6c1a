"""Gangs start as a whole: in one run, in no other, and not in part.

A run is named by the UID of a Workload and the time of its admission, so the objects show to which
run a released pod belongs. What the pods of a gang were is not stored: pods that have ended or were
deleted cannot be seen. So `gang-in-part` judges a gang only if all pods that it needs exist, and
existed before the first of them was released.

The numbers of a Workload of gangs count only for runs that began after they were written. Pods
that are being deleted are no members.

Complexity: O(pods).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rackgate.api import names
from rackgate.gang.levels import Object, upper_bound
from rackgate.gang.membership import GangKey, Part, part_of
from rackgate_invariants.cluster import SLACK_S, Cluster, ObjectGroup, listed
from rackgate_invariants.rows.rows import OUR_GATES, GangWorkloadRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach


@dataclass(slots=True)
class _Members:
    """The pods of one gang that belong to one job.

    Attributes:
        released: by run.
        gated: with the gate of gangs.
    """

    released: dict[str, list[PodRow]] = field(default_factory=dict)
    gated: list[PodRow] = field(default_factory=list)


@dataclass(slots=True)
class _Gang:
    """One gang; `members` by the uid of their job."""

    workload: GangWorkloadRow
    key: GangKey
    least: int
    most: int | None
    members: dict[str, _Members] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The Workload of gangs and the gang, as the subject of a breach."""
        return f"{self.workload.key}/{self.key}"

    def had_these_numbers(self, moment: float) -> bool:
        """Whether pods that were released then were released by the numbers that are stored now."""
        return had_these_numbers(self.workload, moment)


def check(cluster: Cluster, groups: Mapping[str, ObjectGroup]) -> Iterator[Breach]:
    """All rules about gangs."""
    workloads = by_key(cluster)
    gangs: dict[tuple[str, GangKey], _Gang] = {}
    for root, group in groups.items():
        linked = [pod for pod in group.pods.values() if pod.link or pod.run or pod.gates]
        for pod in linked:
            yield from _bound_while_gated(pod)
        linked = [pod for pod in linked if (pod.link or pod.run) and not pod.terminating]
        if not linked:
            continue
        yield from _other_run(linked, group)
        for pod in linked:
            gang = _gang_of(pod, workloads, gangs)
            if gang is None:
                continue
            yield from _without_run(pod, gang)
            _add(gang.members.setdefault(root, _Members()), pod)
    for gang in gangs.values():
        yield from _shared(gang, groups)
        for root, members in gang.members.items():
            for workload in groups[root].own:
                released = members.released.get(workload.run) if workload.run else None
                if released:
                    yield from _too_many(gang, workload, released)
                    yield from _in_part(gang, workload, released, members.gated)


def had_these_numbers(workload: GangWorkloadRow, moment: float) -> bool:
    """Whether a Workload of gangs already had its present spec; services may learn of it late."""
    changed = workload.spec_at > workload.created_at
    return moment >= workload.spec_at + (SLACK_S if changed else 0.0)


def least_of(spec: Object, key: GangKey) -> int:
    """Pods of a gang that must be able to start together; 0 if it is none."""
    return next((_least(one) for one in spec["gangGroups"] if one["name"] == key.group), 0)


def by_key(cluster: Cluster) -> dict[str, GangWorkloadRow]:
    """Workloads of gangs by `namespace/name`."""
    return {row.key: row for row in cluster.gang_workloads}


def starting(group: ObjectGroup, workloads: Mapping[str, GangWorkloadRow]) -> dict[str, bool]:
    """Pods of gangs that have not started, by uid, and whether their gang could start.

    It could not if pods are missing, one has a gate of another owner, or a host is unhealthy.
    """
    gangs: dict[tuple[str, GangKey], _Gang] = {}
    found: dict[str, bool] = {}
    for pod in group.pods.values():
        if not pod.link or pod.terminating:
            continue
        gang = _gang_of(pod, workloads, gangs)
        if gang is not None:
            _add(gang.members.setdefault(group.root, _Members()), pod)
        elif names.GANG_GATE in pod.gates:
            found[pod.uid] = False
    runs = {workload.run for workload in group.own if workload.run}
    healthy = not any(workload.unhealthy_hosts for workload in group.own)
    for gang in gangs.values():
        for members in gang.members.values():
            if runs & members.released.keys():
                continue
            free = all(gate in OUR_GATES for pod in members.gated for gate in pod.gates)
            complete = healthy and free and len(members.gated) >= gang.least
            found.update((pod.uid, complete) for pod in members.gated)
    return found


def _gang_of(
    pod: PodRow,
    workloads: Mapping[str, GangWorkloadRow],
    gangs: dict[tuple[str, GangKey], _Gang],
) -> _Gang | None:
    """The gang of a pod; None without one, or if its Workload of gangs does not exist."""
    workload = workloads.get(f"{pod.namespace}/{pod.link}") if pod.link else None
    part = part_of(workload.spec, pod.labels) if workload is not None else None
    if workload is None or not isinstance(part, Part):
        return None
    key = part.gang
    if (workload.key, key) not in gangs:
        (group,) = (one for one in workload.spec["gangGroups"] if one["name"] == key.group)
        gangs[workload.key, key] = _Gang(workload, key, _least(group), upper_bound(group))
    found = gangs[workload.key, key]
    return found if found.least else None


def _least(group: Object) -> int:
    """Pods that must be able to start together; 0 if the group is no gang."""
    return int(group.get("minCount") or 0) if group.get("gangMode") == "Gang" else 0


def _add(members: _Members, pod: PodRow) -> None:
    if names.GANG_GATE in pod.gates:
        members.gated.append(pod)
    elif pod.run:
        members.released.setdefault(pod.run, []).append(pod)


def _bound_while_gated(pod: PodRow) -> Iterator[Breach]:
    """`gang-bound-while-gated`."""
    if pod.node and names.GANG_GATE in pod.gates:
        found = f'bound to node "{pod.node}" with the gate {names.GANG_GATE}'
        yield Breach("gang-bound-while-gated", pod.key, found)


def _other_run(pods: list[PodRow], group: ObjectGroup) -> Iterator[Breach]:
    """`gang-other-run`; while the job is evicted, the objects do not name its last run."""
    runs = {workload.run for workload in group.own if workload.may_ungate}
    if not runs:
        return
    for pod in pods:
        if not pod.run:
            continue
        if names.GANG_GATE in pod.gates:
            found = f"has the annotation of run {pod.run}, and still the gate of gangs"
        elif pod.run not in runs:
            found = f"released in run {pod.run}, its Workload was admitted for another run"
        else:
            continue
        yield Breach("gang-other-run", pod.key, found)


def _without_run(pod: PodRow, gang: _Gang) -> Iterator[Breach]:
    """`gang-without-run`, for pods that were created when their gang was known."""
    if pod.run or names.GANG_GATE in pod.gates or pod.created_at < gang.workload.spec_at:
        return
    place = f', and is bound to node "{pod.node}"' if pod.node else ""
    found = f"has neither the gate of gangs nor the annotation of a run{place}"
    yield Breach("gang-without-run", pod.key, found)


def _too_many(gang: _Gang, workload: WorkloadRow, released: list[PodRow]) -> Iterator[Breach]:
    """`gang-too-many`."""
    if gang.most is None or len(released) <= gang.most:
        return
    if gang.had_these_numbers(_first(released)):
        who = listed(pod.name for pod in released)
        found = f"{len(released)} pods released for {workload.key} ({who}), at most {gang.most}"
        yield Breach("gang-too-many", gang.subject, found)


def _shared(gang: _Gang, groups: Mapping[str, ObjectGroup]) -> Iterator[Breach]:
    """`gang-shared`; pods that have lost their job are found by other rules."""
    jobs = {
        root: pods
        for root, members in gang.members.items()
        if groups[root].own
        and (pods := [pod for several in members.released.values() for pod in several])
    }
    if len(jobs) < 2 or not all(gang.had_these_numbers(_first(pods)) for pods in jobs.values()):
        return
    who = listed(workload.key for root in jobs for workload in groups[root].own)
    yield Breach("gang-shared", gang.subject, f"{len(jobs)} jobs have released pods: {who}")


def _in_part(
    gang: _Gang, workload: WorkloadRow, released: list[PodRow], gated: list[PodRow]
) -> Iterator[Breach]:
    """`gang-in-part`, unless something is missing that a part of the gang may wait for.

    A gated pod that came after the first one was released replaces one that was lost. An unhealthy
    host is replaced first. Pods that have succeeded are not seen, and those of an elastic job may
    wait for their slice.
    """
    first = _first(released)
    if not workload.may_ungate or len(released) >= gang.least or not gang.had_these_numbers(first):
        return
    if workload.elastic or workload.unhealthy_hosts or workload.done_pods:
        return
    if any(podset.reclaimable for podset in workload.podsets):
        return
    waiting = [pod for pod in gated if pod.created_at <= first]
    if len(waiting) < len(gated) or len(released) + len(waiting) < gang.least:
        return
    others = sorted({gate for pod in waiting for gate in pod.gates} - OUR_GATES)
    why = f"; gates of others: {', '.join(others)}" if others else ""
    found = (
        f"{len(released)} of at least {gang.least} pods released for {workload.key}, gated are "
        f"{listed(pod.name for pod in waiting)}{why}"
    )
    yield Breach("gang-in-part", gang.subject, found, max(pod.assigned_at for pod in released))


def _first(released: list[PodRow]) -> float:
    """When the first of these pods was released."""
    return min(pod.assigned_at for pod in released)

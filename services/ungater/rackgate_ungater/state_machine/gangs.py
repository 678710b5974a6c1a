"""Which of the pods that the plans of a Workload release must wait for their gang. Pure.

Each PodSet is planned first, as without gangs. Then the pods of gangs are taken out again, unless
`rackgate.gang.readiness` lets their gang start, or it has started. So all pods of a gang are in one
proposal, or none. A pod without a domain in these plans (no free capacity, an earlier write is not
seen yet, a rejected one backs off) counts as not assigned: its gang does not start without it if it
is needed. A gang that has started goes on without it.

A write that is not confirmed yet is no record: it may never be applied. The gang waits until the
pod is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rackgate.api import names
from rackgate.api.resources import WORKLOADS
from rackgate.gang.link import is_link_of_child_job, run_id
from rackgate.gang.membership import GangKey, Mismatch
from rackgate.gang.native.model import (
    GangMember,
    Owner,
    PodGroup,
    foreign_groups,
    pod_group_name,
    pod_group_of,
)
from rackgate.gang.readiness import NOTHING, GangState, Member, Waiting, gangs_of, least_of
from rackgate.gang.runs.done_pods import DonePods, of_children, sum_of_done_pods
from rackgate.gang.runs.run_spec import decode_run_text
from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gated_objects import GangPod, GatedPod, GatedWorkload, PodUid
from rackgate_ungater.state_machine.records import PodSetState, WorkloadState
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission, Ungate

# The owner alone decides whether a pod is a member: flavors may have no topology.
_ANY_ASSIGNMENT: Final = ()
_SHOWN_PODS: Final = 5


@dataclass(frozen=True, slots=True)
class HeldPods:
    """Pods to report for one reason: gated ones that wait, or ones that were not held.

    Attributes:
        reason: a `Waiting` or a `Mismatch`.
        subject: what waits: a gang, or a Workload of gangs.
        message: for people; its numbers may change while the reason stays.
        pods: these pods, at least one.
        workload: the Workload of gangs, None if it does not exist.
    """

    reason: str
    subject: str
    message: str
    pods: tuple[GangPod, ...]
    workload: GangWorkload | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GangStart:
    """A gang whose first pods are released now.

    Attributes:
        workload: the Workload of gangs.
        pods: UIDs of the pods that are released.
    """

    workload: GangWorkload
    gang: GangKey
    run: str
    pods: frozenset[str]


@dataclass(frozen=True, slots=True)
class NeededGroup:
    """A native PodGroup that must exist before pods are released.

    Attributes:
        gang: its gang, for messages.
        group: none, if the pods are in groups of another controller.
        foreign: names of these groups.
        pods: UIDs of the gated pods that are not released before it exists.
    """

    gang: str
    group: PodGroup | None
    foreign: tuple[str, ...] = ()
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GangDecision:
    """What a proposal may release, as far as gangs are concerned.

    Attributes:
        ungates: all that may be released; pods of gangs with their run.
        starts: gangs that start with them.
        held: pods that wait, and ones that were not held.
        groups: native PodGroups of gangs that start, or have started.
    """

    ungates: list[Ungate]
    starts: tuple[GangStart, ...] = ()
    held: tuple[HeldPods, ...] = ()
    groups: tuple[NeededGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class PodsOfGangs:
    """The pods of gangs that belong to the owner of a Workload, without those being deleted.

    Once a pod of a restarted JobSet exists, those of its earlier attempts are being deleted, too,
    even if the watch does not show it yet. So the whole gang starts again, or none of it.

    Attributes:
        members: those that count. Pods that have succeeded count up to the number that is not
            needed again. A pod that was started by somebody else, without our gates, counts only in
            a domain of its PodSet.
        not_held: running pods that were started by somebody else: created while the admission
            policy was not installed, for example.
        ended: pods that have succeeded and do not count. They show that their gang has started.
        gone: by PodSet, pods that have succeeded, are not needed again, and do not exist any more.
        gone_of_children: the same, by the UID of a child Job that has a Workload of gangs of its
            own.
        children: by the name of such a Workload of gangs, the UID of its child Job.
        links: names of all Workloads of gangs that pods name.
    """

    members: list[GangPod] = field(default_factory=list)
    ended: list[GangPod] = field(default_factory=list)
    not_held: list[GangPod] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)
    gone_of_children: dict[str, dict[str, int]] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)

    def ended_of(self, link: str) -> Iterator[Member]:
        """`ended`, of one Workload of gangs."""
        return (_member(pod) for pod in self.ended if pod.link == link)

    def gone_of(self, link: str) -> Mapping[str, int]:
        """`gone`, of one Workload of gangs: that of a child Job, or the only one of the job."""
        if link in self.children:
            return self.gone_of_children.get(self.children[link], NOTHING)
        return self.gone if self.links == {link} else NOTHING


def pods_of_gangs(workload_state: WorkloadState, owners: ChildJobOwners) -> PodsOfGangs:
    """See `PodsOfGangs`."""
    workload, found = workload_state.workload, PodsOfGangs()
    if workload is None:
        return found
    admissions = dict(workload_state.admissions())
    pods = {
        name: owners.pods_of(workload, _pods_of_gangs(podset), assignment=_ANY_ASSIGNMENT)
        for name, podset in workload_state.podsets.items()
        if podset.in_gangs
    }
    attempt = _last_attempt(pods.values()) if workload.has_children else 0
    done = _done_pods(workload, owners, attempt)
    total = sum_of_done_pods(done, {one.name: one.succeeded for one in workload.podsets})
    for name, own in pods.items():
        admission = admissions.get(name)
        by_child = dict(done.get(name, NOTHING))
        left = total.pop(name, 0) - sum(by_child.values())
        for pod in own:
            if not isinstance(pod, GangPod) or pod.terminating:
                continue
            if attempt and _attempt_of(pod) < attempt:
                continue
            found.links.add(pod.link)
            if workload.has_children and is_link_of_child_job(pod.link, pod.owner_uid):
                found.children[pod.link] = pod.owner_uid
            if pod.succeeded:
                if by_child.get(pod.owner_uid, 0) > 0:
                    by_child[pod.owner_uid] -= 1
                elif left > 0:
                    left -= 1
                else:
                    found.ended.append(pod)
                    continue
            elif not pod.gates and not pod.run:
                found.not_held.append(pod)
                if not _is_placed(pod, admission):
                    continue
            found.members.append(pod)
        _add_gone(found, name, left + sum(by_child.values()), by_child)
    # Nothing says whether pods of other PodSets were in gangs, except of child Jobs.
    for name in total.keys() & done.keys():
        _add_gone(found, name, total[name], done[name])
    return found


def _add_gone(found: PodsOfGangs, podset: str, left: int, by_child: Mapping[str, int]) -> None:
    if left > 0:
        found.gone[podset] = left
    for uid, count in by_child.items():
        if count > 0:
            found.gone_of_children.setdefault(uid, {})[podset] = count


def _last_attempt(pods: Iterable[Iterable[GatedPod]]) -> int:
    return max((_attempt_of(pod) for own in pods for pod in own), default=0)


def _attempt_of(pod: GatedPod) -> int:
    return pod.indices.get(names.RESTART_ATTEMPT_LABEL, 0)


def _done_pods(workload: GatedWorkload, owners: ChildJobOwners, attempt: int) -> DonePods:
    jobs = {job for by_job in workload.done_pods.values() for job in by_job}
    if not jobs:
        return {}
    return of_children(workload.done_pods, owners.of(workload.owner_uid, jobs, attempt))


def _pods_of_gangs(podset: PodSetState) -> Iterator[GangPod]:
    return (pod for pod in podset.pods.values() if isinstance(pod, GangPod))


def _is_placed(pod: GangPod, admission: PodSetAdmission | str | None) -> bool:
    return isinstance(admission, PodSetAdmission) and admission.domain_index_of_pod(pod) is not None


def decide(
    workload_state: WorkloadState,
    pods: PodsOfGangs,
    ungates: Sequence[Ungate],
    *,
    native: bool = False,
) -> GangDecision:
    """Which pods may be released.

    Args:
        workload_state: an admitted Workload with gangs.
        pods: of its gangs.
        ungates: as the PodSets are planned, each pod by itself.
        native: PodGroups are made for gangs.
    """
    workloads = _gang_workloads(workload_state)
    run = run_of(workload_state)
    assigned = frozenset(ungate.pod.uid for ungate in ungates)
    by_link: dict[str, dict[str, GangPod]] = {}
    for pod in pods.members:
        by_link.setdefault(pod.link, {})[pod.uid] = pod
    released: set[str] = set()
    starts: list[GangStart] = []
    held: list[HeldPods] = []
    groups: list[NeededGroup] = []
    for link, members in by_link.items():
        workload = workloads.get(link)
        if workload is None:
            held += _without_workload(link, members.values())
            continue
        found = gangs_of(
            workload.spec,
            map(_member, members.values()),
            run=run,
            assigned=assigned,
            ended=pods.ended_of(link),
            gone=pods.gone_of(link),
        )
        releasable = found.releasable() & assigned
        released |= releasable
        for state in found.states:
            gated = tuple(members[one.uid] for one in state.members if one.gated)
            if state.waiting is not None and gated:
                held.append(HeldPods(state.waiting, str(state.key), state.message, gated, workload))
            elif first := _start(workload, state, run, releasable):
                starts.append(first)
            if native and state.waiting is None:
                groups += _needed_group(workload_state, workload, state, run, members)
        for reason in dict.fromkeys(reason for _, reason in found.unmatched):
            lost = tuple(members[one.uid] for one, why in found.unmatched if why is reason)
            if lost := tuple(pod for pod in lost if pod.gated):
                message = _pods_message("stay gated", lost)
                held.append(HeldPods(reason, link, message, lost, workload))
    held += _not_held(pods.not_held, workloads)
    return GangDecision(
        [
            msgspec.structs.replace(ungate, run=run) if isinstance(ungate.pod, GangPod) else ungate
            for ungate in ungates
            if not isinstance(ungate.pod, GangPod) or ungate.pod.uid in released
        ],
        tuple(starts),
        tuple(held),
        tuple(groups),
    )


def _needed_group(
    workload_state: WorkloadState,
    gangs: GangWorkload,
    state: GangState,
    run: str,
    pods: Mapping[str, GangPod],
) -> Iterator[NeededGroup]:
    """The PodGroup of a gang that may be released, if its pods name one."""
    workload = workload_state.workload
    own = [pods[one.uid] for one in state.members if one.run in ("", run) or one.succeeded]
    if workload is None or not any(pod.pod_group for pod in own):
        return
    # Pods that no job owns have a Workload for each replica.
    run_spec = decode_run_text(workload.run_spec)
    replica = run_spec.replica if run_spec is not None else state.key.replica
    name = pod_group_name(gangs.name, state.key.group, replica)
    members = [GangMember(pod.pod_group, pod.priority_class, pod.succeeded) for pod in own]
    group_spec = next(one for one in gangs.spec["gangGroups"] if one["name"] == state.key.group)
    owner = Owner(WORKLOADS.api_version, WORKLOADS.kind, workload.name, workload.uid)
    expected = PodGroup(
        workload.namespace,
        name,
        owner,
        run,
        state.min_count,
        group_spec.get("reschedulingPolicy") == "TerminateAll",
    )
    group = pod_group_of(expected, members)
    foreign = tuple(foreign_groups(name, members))
    if group is not None or foreign:
        # Those of a gang wait for each other.
        held = (pod for pod in own if pod.gated and (state.min_count or pod.pod_group == name))
        yield NeededGroup(str(state.key), group, foreign, frozenset(pod.uid for pod in held))


def first_of_gangs(ungates: Sequence[Ungate], starts: Sequence[GangStart]) -> list[Ungate]:
    """The first pod of each gang that starts: its write is the decision."""
    by_pod = {uid: start for start in starts for uid in start.pods}
    found: dict[GangStart, Ungate] = {}
    for ungate in ungates:
        start = by_pod.get(ungate.pod.uid)
        if start is not None:
            found.setdefault(start, ungate)
    return list(found.values())


def rest_of_gangs(
    ungates: Sequence[Ungate],
    starts: Sequence[GangStart],
    first: Sequence[Ungate],
    accepted: Collection[str],
    pods: Mapping[PodUid, GatedPod],
) -> list[Ungate]:
    """The pods that follow the first ones.

    Args:
        ungates: all that are released.
        starts: the gangs that start with them.
        first: already sent.
        accepted: UIDs of those that were released.
        pods: as they are known now; one that changed meanwhile is planned again.
    """
    sent = {ungate.pod.uid for ungate in first}
    not_started = {
        uid for start in starts if not start.pods & frozenset(accepted) for uid in start.pods
    }
    return [
        ungate
        for ungate in ungates
        if ungate.pod.uid not in sent
        and ungate.pod.uid not in not_started
        and pods.get(ungate.pod.uid) is ungate.pod
    ]


def progress(workload_state: WorkloadState, owners: ChildJobOwners) -> tuple[int, int]:
    """How many gangs are complete, and how many events are needed before another one can be.

    A gang is complete once the readiness depends on its places alone. One event adds one pod, or
    takes the gates of another owner off one pod. The second number is 0 if nothing is missing.
    """
    gangs = workload_state.gangs
    if gangs is None:
        return 0, 0
    run = run_of(workload_state)
    members: dict[str, list[Member]] = {}
    pods, workloads = pods_of_gangs(workload_state, owners), _gang_workloads(workload_state)
    for pod in pods.members:
        members.setdefault(pod.link, []).append(_member(pod))
    complete, missing = 0, []
    for link, workload in workloads.items():
        own = members.get(link, [])
        assigned = {member.uid for member in own}
        gone = pods.gone_of(link)
        ended = pods.ended_of(link)
        found = gangs_of(workload.spec, own, run=run, assigned=assigned, ended=ended, gone=gone)
        for state in found.states:
            if state.waiting is None:
                complete += 1
            else:
                foreign = sum(bool(member.foreign_gates) for member in state.members)
                missing.append(max(1, state.min_count - state.gone - len(state.members) + foreign))
        seen = {state.key.group for state in found.states}
        missing += [
            max(1, least_of(group))
            for group in workload.spec["gangGroups"]
            if group["name"] not in seen or workload.spec["replicaMode"] == "ReplicatedGangs"
        ]
    return complete, min(missing, default=0)


def _gang_workloads(workload_state: WorkloadState) -> Mapping[str, GangWorkload]:
    """By name, those that the pods of a Workload name, with the numbers that count now.

    Pods that no job owns have a Workload for each gang. All its pods are members, and it keeps the
    numbers of the run, whatever happens to the Workload of gangs meanwhile.
    """
    gangs, workload = workload_state.gangs, workload_state.workload
    if gangs is None:
        return {}
    run = decode_run_text(workload.run_spec) if workload is not None else None
    if run is None or workload is None:
        return gangs.workloads
    known = gangs.workloads.get(run.workload)
    own = GangWorkload(
        workload.namespace,
        run.workload,
        known.uid if known is not None else "",
        known.resource_version if known is not None else "",
        run.spec,
    )
    return {run.workload: own}


def waiting_pods(workload_state: WorkloadState, owners: ChildJobOwners) -> frozenset[str]:
    """UIDs of gated pods that wait for their gang, and not for a domain or a write of ours."""
    if workload_state.gangs is None:
        return frozenset()
    workloads = _gang_workloads(workload_state)
    run = run_of(workload_state)
    found: set[str] = set()
    members: dict[str, list[Member]] = {}
    pods = pods_of_gangs(workload_state, owners)
    for pod in pods.members:
        if pod.link in workloads:
            members.setdefault(pod.link, []).append(_member(pod))
        elif pod.gated:
            found.add(pod.uid)
    for link, own in members.items():
        spec = workloads[link].spec
        gated = {member.uid for member in own if member.gated}
        ended = pods.ended_of(link)
        gangs = gangs_of(spec, own, run=run, assigned=gated, ended=ended, gone=pods.gone_of(link))
        found |= gated - gangs.releasable()
    return frozenset(found)


def run_of(workload_state: WorkloadState) -> str:
    """The run of the present admission; "" if the Workload is not admitted."""
    workload = workload_state.workload
    if workload is None or not workload.admitted or workload.admitted_at is None:
        return ""
    return run_id(workload.uid, workload.admitted_at)


def _member(pod: GangPod) -> Member:
    return Member(
        uid=pod.uid,
        name=pod.name,
        labels=pod.labels,
        gated=pod.gates != 0,
        foreign_gates=pod.foreign_gates,
        run=pod.run,
        succeeded=pod.succeeded,
    )


def _start(
    workload: GangWorkload, state: GangState, run: str, releasable: frozenset[str]
) -> GangStart | None:
    """The start of a gang, if its first pods are among those that are released."""
    if not state.min_count or state.has_started(run):
        return None
    pods = releasable & {member.uid for member in state.members}
    return GangStart(workload, state.key, run, pods) if pods else None


def _without_workload(link: str, pods: Iterable[GangPod]) -> Iterator[HeldPods]:
    gated = tuple(pod for pod in pods if pod.gated)
    if gated:
        message = (
            f'pod stays gated: its Workload of gangs "{link}" does not exist'
            if link
            else "pod stays gated: it has the gate of gangs, and names no Workload of gangs"
        )
        yield HeldPods(Waiting.WORKLOAD_MISSING, link, message, gated)


def _not_held(pods: Iterable[GangPod], workloads: Mapping[str, GangWorkload]) -> Iterator[HeldPods]:
    by_link: dict[str, list[GangPod]] = {}
    for pod in pods:
        by_link.setdefault(pod.link, []).append(pod)
    for link, found in by_link.items():
        if link in workloads:
            message = _pods_message("were created without the gate of gangs", found)
            yield HeldPods(Mismatch.NOT_HELD, link, message, tuple(found), workloads[link])


def _pods_message(what: str, pods: Sequence[GangPod]) -> str:
    found = sorted(pod.name for pod in pods)
    more = f" and {len(found) - _SHOWN_PODS} more" if len(found) > _SHOWN_PODS else ""
    shown = ", ".join(found[:_SHOWN_PODS])
    return f"{len(found)} pods {what}: {shown}{more}"

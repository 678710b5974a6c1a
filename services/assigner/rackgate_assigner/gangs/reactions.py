"""When the gangs of an admitted job do not run as a whole: eviction, and its backoff. Pure.

The time of a gang runs from the admission, which the API server stores, until `minCount` of its
pods are bound. A restart or a new leader does not reset it, unless the wall clock differs from that
of the API server by more than half of the time: then it runs from the first look (race 21). Then
the whole job is evicted, and queued again after a backoff that doubles. With
`reschedulingPolicy: TerminateAll` the job is also evicted if a pod is lost later. Pods that have
succeeded count as present.

What the watches show is enough to know when to look. The pods are read live before an eviction.

Source: GNG-11, section 7 of the gang design.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from rackgate.api.names import (
    GANG_GATE,
    GANG_RUN_ANNOTATION,
    PODSET_LABEL,
    WORKLOAD_ANNOTATION,
    EvictionReason,
    WorkloadCondition,
)
from rackgate.api.timestamps import parse_rfc3339, rfc3339
from rackgate.gang.forms.expand import DEFAULT_TIMEOUT_S
from rackgate.gang.levels import Object
from rackgate.gang.link import link_of, run_id
from rackgate.gang.readiness import GangState, Member, gangs_of
from rackgate.jobframework.managed import owner_uid_of_pod
from rackgate.jobframework.templates import RESERVED_GATES
from rackgate.wire.core import Pod
from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.gangs.gang_workload import min_count
from rackgate_assigner.workload.elapsed import Elapsed

BASE_S: Final = 60.0
MAX_S: Final = 3600.0
# Two gangs that were evicted together do not come back together.
JITTER: Final = 0.2
_MAX_COUNT: Final = 2**31 - 1  # an int32 on the wire
_SHOWN_PODS: Final = 3


@dataclass(frozen=True, slots=True)
class GangEviction:
    """Why a job is evicted because of its gangs."""

    reason: EvictionReason
    message: str


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod of a gang, read live.

    Attributes:
        member: as the rules of gangs see it.
        lost: it has failed, or is being deleted before it succeeded.
    """

    member: Member
    lost: bool = False


@dataclass(frozen=True, slots=True)
class GangCheck:
    """Pods are to be read now.

    Attributes:
        run: id of the run.
        spec: canonical, of this run.
        workload: name of the Workload of gangs.
        due_s: gangs whose time is at most this may be over; 0 for none.
        suspects: UIDs of pods that the watch shows no more, with their names.
        since: what the time began with, for the message.
        child: UID of the child Job whose pods are to be read; "" if it is not about one.
        children: those of child Jobs that have Workloads of gangs.
        done: by PodSet, pods that are done and not created again, whether they exist or not.
    """

    run: str
    spec: Object
    workload: str
    due_s: float = 0.0
    suspects: Mapping[str, str] = field(default_factory=dict)
    since: str = "the admission"
    child: str = ""
    children: tuple[GangCheck, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)


def admission_run(workload: Workload) -> str:
    """The run of the present admission; "" if the Workload is not admitted."""
    admitted = workload.condition(WorkloadCondition.ADMITTED)
    if admitted is None or admitted.status != "True":
        return ""
    return run_id(workload.metadata.uid, admitted.last_transition_time or "")


def was_ready(workload: Workload) -> bool:
    """Whether all pods were ready at some time of this admission."""
    ready = workload.condition(WorkloadCondition.PODS_READY)
    return ready is not None and (ready.status == "True" or ready.reason == "WaitForRecovery")


def was_ready_since(workload: Workload, started_at: str) -> bool:
    """Whether all pods became ready after a child Job was started, and so also its pods.

    A job whose child Jobs start one after the other is ready, too, while the next one does not
    have to run yet.
    """
    ready = workload.condition(WorkloadCondition.PODS_READY)
    if ready is None or ready.status != "True":
        return False
    try:
        return parse_rfc3339(ready.last_transition_time or "") > parse_rfc3339(started_at)
    except ValueError:
        return False


def timeouts_of(spec: Object) -> list[float]:
    """The times of all gangs in seconds, in order, each once."""
    return sorted({_timeout_s(group) for group in spec["gangGroups"] if min_count(group)})


def terminates_all(spec: Object) -> bool:
    """Whether a lost pod of any gang makes all of them start again."""
    return any(_terminates(group) for group in spec["gangGroups"])


def clock_skew_s(server_date: str, now: datetime) -> float:
    """Seconds that a wall clock is ahead of that of the API server; 0 if its time is not known.

    Args:
        server_date: header `Date` of a response, as of now.
        now: the wall clock.
    """
    try:
        return (now - parsedate_to_datetime(server_date)).total_seconds()
    except (TypeError, ValueError):
        return 0.0


def is_skewed(skew_s: float, timeout_s: float) -> bool:
    """Whether wall clocks differ too much to compare a timestamp of an object with one of them."""
    return abs(skew_s) > timeout_s / 2


def next_timeout(
    spec: Object,
    workload: Workload,
    elapsed: Elapsed,
    *,
    checked_s: float,
    since_s: float | None = None,
) -> tuple[float, float]:
    """What is due now, and the seconds until the next time is over.

    Args:
        spec: canonical, of this run.
        workload: admitted.
        elapsed: the times of the Workload.
        checked_s: gangs with at most this time were found to be bound.
        since_s: seconds that count instead of those since the admission.

    Returns:
        The longest time that is over and not checked, 0 for none; and the seconds until the
        shortest one that is not over, 0 if there is none.
    """
    if since_s is None:
        since_s = since_admission_s(workload, elapsed)
    if since_s is None or was_ready(workload):
        return 0.0, 0.0
    return next_timeout_of(spec, since_s, checked_s=checked_s)


def since_admission_s(workload: Workload, elapsed: Elapsed) -> float | None:
    """Seconds since the present admission; None if there is none."""
    admitted = workload.condition(WorkloadCondition.ADMITTED)
    return elapsed.since(admitted.last_transition_time if admitted is not None else None)


def next_timeout_of(spec: Object, since_s: float, *, checked_s: float) -> tuple[float, float]:
    """As `next_timeout`, of gangs whose time began `since_s` seconds ago, and is not over."""
    left = [timeout for timeout in timeouts_of(spec) if timeout > checked_s]
    over = [timeout for timeout in left if timeout <= since_s]
    later = [timeout for timeout in left if timeout > since_s]
    return (max(over) if over else 0.0), (min(later) - since_s if later else 0.0)


def gang_pod(pod: Pod) -> GangPod:
    """A pod as it was read."""
    succeeded = pod.status.phase == "Succeeded"
    failed = pod.status.phase == "Failed"
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    meta = pod.metadata
    member = Member(
        meta.uid,
        meta.name,
        meta.labels,
        gated=GANG_GATE in gates,
        foreign_gates=tuple(gate for gate in gates if gate not in RESERVED_GATES),
        run=meta.annotations.get(GANG_RUN_ANNOTATION, ""),
        bound=bool(pod.spec.node_name),
        succeeded=succeeded,
    )
    lost = not succeeded and (failed or meta.deletion_timestamp is not None)
    return GangPod(member, lost)


def decide(check: GangCheck, pods: Sequence[GangPod], *, ready_before: bool) -> GangEviction | None:
    """Whether the job is evicted, given its pods as they are now; None if it is not.

    Args:
        check: what is to be decided.
        pods: all pods of the job that name the Workload of gangs.
        ready_before: all pods were ready at some time of this run.
    """
    present = [pod.member for pod in pods if not pod.lost]
    gone = gone_of(check.done, present)
    states = gangs_of(check.spec, present, run=check.run, assigned=(), gone=gone).states
    lost = _lost_members(check, pods, states, ready_before=ready_before)
    if lost:
        return GangEviction(EvictionReason.GANG_MEMBER_LOST, lost)
    for group in check.spec["gangGroups"]:
        timeout_s = _timeout_s(group)
        if not min_count(group) or timeout_s > check.due_s:
            continue
        found = _unbound(group, [one for one in states if one.key.group == group["name"]])
        if found:
            message = f"{found} {timeout_s:g} s after {check.since}"
            return GangEviction(EvictionReason.GANG_TIMEOUT, message)
    return None


def gone_of(done: Mapping[str, int], present: Iterable[Member]) -> Mapping[str, int]:
    """By PodSet, pods that are done and do not exist any more.

    Args:
        done: by PodSet, pods that are done and not created again.
        present: pods that exist.
    """
    there = Counter(one.labels.get(PODSET_LABEL, "") for one in present if one.succeeded)
    return {name: count - there[name] for name, count in done.items() if count > there[name]}


def requeue_state(
    workload: Workload, reason: EvictionReason, now: datetime, *, limit: int | None
) -> RequeueState | None:
    """`status.requeueState` after an eviction; None if it was evicted too often.

    Args:
        workload: as stored.
        reason: of the eviction; a lost pod needs no backoff.
        now: the wall clock.
        limit: evictions after which the Workload is deactivated; None: it never is.
    """
    before = workload.status.requeue_state
    count = min(max(0, before.count if before is not None else 0) + 1, _MAX_COUNT)
    if limit is not None and count > limit:
        return None
    if reason == EvictionReason.GANG_MEMBER_LOST:
        return RequeueState(count)
    # The exponent is limited first, as any client may have written the count.
    pause_s = min(BASE_S * 2 ** min(count - 1, 32), MAX_S)
    pause_s *= 1 - JITTER * _fraction(workload.metadata.uid, count)
    return RequeueState(count, rfc3339(now + timedelta(seconds=pause_s)))


def _fraction(uid: str, count: int) -> float:
    """A number from 0 to 1 that differs between Workloads and evictions, and not between tries."""
    digest = hashlib.sha1(f"{uid}/{count}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def _timeout_s(group: Object) -> float:
    return float(group.get("scheduleTimeoutSeconds") or DEFAULT_TIMEOUT_S)


def _terminates(group: Object) -> bool:
    return bool(min_count(group)) and group.get("reschedulingPolicy") == "TerminateAll"


def _unbound(group: Object, states: Sequence[GangState]) -> str:
    """Which gang of a group is not bound; "" if all are."""
    least = min_count(group)
    if not states:
        return f"none of the {least} pods of gang {group['name']} exists"
    for state in states:
        if state.bound < least:
            exist = len(state.members)
            short = f", {exist} exist" if exist < least else ""
            return f"{state.bound} of {least} pods of gang {state.key} are bound{short}"
    return ""


def _lost_members(
    check: GangCheck, pods: Sequence[GangPod], states: Sequence[GangState], *, ready_before: bool
) -> str:
    """Which pods of gangs that start again as a whole are lost; "" for none."""
    groups = {group["name"] for group in check.spec["gangGroups"] if _terminates(group)}
    if not groups:
        return ""
    of_run = [pod for pod in pods if pod.member.run == check.run]
    known = gangs_of(
        check.spec, [pod.member for pod in of_run if pod.lost], run=check.run, assigned=()
    )
    names = [
        member.name
        for state in known.states
        if state.key.group in groups
        for member in state.members
    ]
    seen = {pod.member.uid for pod in pods}
    # Its labels went with it, so it counts for any gang.
    names += [name for uid, name in check.suspects.items() if uid not in seen]
    if names:
        return f"lost pods that had started: {_listed(names)}"
    if ready_before:
        for state in states:
            running = sum(one.run == check.run for one in state.members if one.bound)
            done = sum(one.succeeded and not one.bound for one in state.members)
            done += state.gone
            if state.key.group in groups and running + done < state.min_count:
                return f"{running + done} of {state.min_count} pods of gang {state.key} are left"
    return ""


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _SHOWN_PODS} more" if len(shown) > _SHOWN_PODS else ""
    return ", ".join(shown[:_SHOWN_PODS]) + more


def pods_of(
    pods: Iterable[Pod], *, controllers: Collection[str], workload: str, gang: str
) -> list[GangPod]:
    """Pods that belong to a job, among those that have its labels, and name its gangs.

    Args:
        pods: as read.
        controllers: UIDs of the job and of its child Jobs; for a gang of pods its id.
        workload: name of the Workload of Kueue's API.
        gang: name of the Workload of gangs.
    """
    found = []
    for pod in pods:
        annotations = pod.metadata.annotations
        if owner_uid_of_pod(pod.metadata) not in controllers:
            continue
        if annotations.get(WORKLOAD_ANNOTATION) == workload and link_of(annotations) == gang:
            found.append(gang_pod(pod))
    return found

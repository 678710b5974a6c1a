"""The status of a Workload of gangs whose pods no managed job owns. Pure.

As for jobs, for people; here all pods are known, gated ones too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rackgate.api.names import QUEUE_LABEL, WorkloadCondition
from rackgate.gang.membership import GangKey, Mismatch, Part, ambiguous_group, part_of
from rackgate.gang.pod_shapes import difference, pod_shape
from rackgate.jobframework.pod_group.gang_group import GangGroup, is_held
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import HoldReason
from rackgate_assigner.gangs.status.gang_status import (
    EXCLUSIVE,
    GANG_SCHEDULED,
    MAX_GANGS,
    PODS_MATCHED,
    TOPOLOGY_ENFORCED,
    TOPOLOGY_VALID,
    Summary,
    short,
)
from rackgate_assigner.gangs.status.phases import (
    PodPhase,
    gang_phase,
    least_far,
    phase_fields,
    pod_phase,
)
from rackgate_assigner.workload.conditions import FALSE, TRUE, Change

_SHOWN_PODS: Final = 5
_RUNNING: Final = "Running"
_NOT_HELD: Final = "NotHeld"


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """The pods that name a Workload of gangs, and that no managed job owns.

    Attributes:
        groups: its gangs, and pods that start by themselves, each with its Workload of Kueue's API.
        mismatched: names of pods that belong to no gang, by reason.
    """

    groups: Sequence[tuple[GangGroup, Workload | None]]
    mismatched: Mapping[str, Sequence[str]]


class _Progress(NamedTuple):
    """How far one gang is: reason and message of GangScheduled, and its state."""

    reason: str
    message: str
    state: str


def summarize_instances(gang: GangWorkload, use: InstanceUse) -> Summary:
    """The status of a Workload of gangs.

    Args:
        gang: as the watch shows it.
        use: its pods.
    """
    gangs = [(group, _progress(group, own)) for group, own in use.groups if group.least]
    running = sum(found.reason == _RUNNING for _, found in gangs)
    waiting = [(group, found) for group, found in gangs if found.reason != _RUNNING]
    fields: dict[str, Any] = {"observedGeneration": gang.metadata.generation}
    if gang.canonical["replicaMode"] == "ReplicatedGangs":
        total = len(gangs)
        fields["replicas"] = {"total": total, "running": running, "waiting": total - running}
    if not gang.has_gangs:
        scheduled = Change(GANG_SCHEDULED, TRUE, "NoGang", "its pods start one by one")
        fields["phase"] = "Running"
    elif not gangs:
        message = "no pod names it" if not use.mismatched else "no pod belongs to a gang"
        scheduled = Change(GANG_SCHEDULED, FALSE, "PodsMissing", message)
        fields |= {"phase": "Empty", "waitingFor": "PodsMissing"}
    elif waiting:
        first = waiting[0][1]
        more = f"{running} of {len(gangs)} gangs run; " if len(gangs) > 1 else ""
        scheduled = Change(GANG_SCHEDULED, FALSE, first.reason, short(more + first.message))
        fields |= {"phase": first.state, "waitingFor": first.reason}
        fields["gangs"] = [_gang_status(*one) for one in waiting[:MAX_GANGS]]
    else:
        scheduled = Change(GANG_SCHEDULED, TRUE, _RUNNING, "all gangs run")
        fields["phase"] = "Running"
    if gangs:
        bound, least = sum(_bound(one) for one, _ in gangs), sum(one.least for one, _ in gangs)
        fields["members"] = f"{bound}/{least}"
    fields |= phase_fields(_phases(gang, use))
    alone = Change(EXCLUSIVE, TRUE, "OneJob", "each gang has a Workload of its own")
    changes = (_matched(gang, use), *_topology(use), alone, scheduled)
    return Summary(changes, fields)


def _progress(group: GangGroup, workload: Workload | None) -> _Progress:
    gang, bound = _key(group), _bound(group)
    text = f"{bound} of {group.least} pods of gang {gang} are bound"
    if workload is not None and workload.status.admission is not None:
        evicted = workload.condition(WorkloadCondition.EVICTED)
        if evicted is not None and evicted.status == TRUE:
            return _Progress("NotBound", f"{evicted.reason}: {evicted.message}", "GivingWay")
        if bound >= group.least:
            return _Progress(_RUNNING, "", "Running")
        if _released(group):
            return _Progress("NotBound", text, "Releasing")
        return _Progress("WaitingForPlacement", text, "Placed")
    if workload is not None and workload.is_true(WorkloadCondition.FINISHED):
        return _Progress(_RUNNING, "", "Done")
    if not group.metadata.labels.get(QUEUE_LABEL):
        message = f"gang {gang} has no queue: its pods, or the Workload of gangs, name none"
        return _Progress("NoQueue", message, "Collecting")
    if group.hold:
        return _Progress(group.hold_reason, group.hold, "Collecting")
    state = workload.status.requeue_state if workload is not None else None
    if state is not None and state.requeue_at:
        return _Progress("BackingOff", f"queued again at {state.requeue_at}", "Complete")
    return _Progress("WaitingForQuota", f"gang {gang} is not admitted", "Complete")


def _key(group: GangGroup) -> GangKey:
    return GangKey(group.instance.gang, group.instance.replica)


def _bound(group: GangGroup) -> int:
    return sum(pod.started and (pod.succeeded or bool(pod.node)) for pod in group.members)


def _released(group: GangGroup) -> int:
    return sum(pod.started and not is_held(pod) for pod in group.members)


def _phases(gang: GangWorkload, use: InstanceUse) -> dict[str, PodPhase]:
    """The phase of each gang group that has pods; pods that start by themselves are counted."""
    gangs: dict[str, list[PodPhase]] = {}
    singles: dict[str, Counter[PodPhase]] = {}
    for group, _ in use.groups:
        pods = Counter(pod_phase(pod.phase) for pod in group.pods if not pod.terminating)
        if not pods:
            continue
        if group.least:
            gangs.setdefault(group.instance.gang, []).append(gang_phase(pods, group.least))
        else:
            singles.setdefault(group.instance.gang, Counter()).update(pods)
    found: dict[str, PodPhase] = {}
    for one in gang.canonical["gangGroups"]:
        name = str(one["name"])
        phases = gangs.get(name, [])
        if not phases and name in singles:
            phases = [gang_phase(singles[name], 0)]
        phase = least_far(phases)
        if phase is not None:
            found[name] = phase
    return found


def _gang_status(group: GangGroup, found: _Progress) -> dict[str, Any]:
    status: dict[str, Any] = {
        "name": group.instance.gang,
        "state": found.state,
        "members": len(group.members),
        "minCount": group.least,
        "released": _released(group),
        "bound": _bound(group),
        "message": short(found.message),
    }
    if group.instance.replica:
        status["replica"] = group.instance.replica
    return status


def _matched(gang: GangWorkload, use: InstanceUse) -> Change:
    """The condition PodsMatched: the first reason for which pods stay behind, or differ."""
    found = {reason: list(pods) for reason, pods in use.mismatched.items()}
    for group, _ in use.groups:
        if group.most is not None:
            extra = group.waiting[max(0, group.most - len(group.members) + len(group.waiting)) :]
            found.setdefault(Mismatch.TOO_MANY_PODS, []).extend(pod.metadata.name for pod in extra)
        loose = [pod for pod in group.pods if pod.active and not pod.started and not is_held(pod)]
        found.setdefault(_NOT_HELD, []).extend(pod.metadata.name for pod in loose)
    for reason in (*Mismatch, _NOT_HELD):
        if pods := found.get(reason):
            return Change(PODS_MATCHED, FALSE, str(reason), short(_listed(pods)))
    for reason, text, found_pods in _differing(gang, use):
        return Change(PODS_MATCHED, FALSE, reason, short(f"{_listed(found_pods)}: {text}"))
    return Change(PODS_MATCHED, TRUE, "AllMatched", "all pods belong to a gang group")


def _differing(gang: GangWorkload, use: InstanceUse) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Pods that are released, and are not what the object says: reason, how, and their names.

    The groups of levels 2 and 3 are those of the labels that a pod has now.
    """
    ambiguous: dict[str, list[str]] = {}
    different: dict[str, list[str]] = {}
    known: dict[tuple[object, ...], str] = {}
    for group, _ in use.groups:
        for pod in group.pods:
            part = part_of(gang.canonical, pod.metadata.labels)
            if pod.terminating or not isinstance(part, Part):
                continue
            name = pod.metadata.name
            if outer := ambiguous_group(gang.canonical, part, pod.metadata.labels):
                ambiguous.setdefault(f"in no group inside of {outer}", []).append(name)
                continue
            names = (part.gang.group, part.ranked_group or "", part.eq_group or "")
            expected = gang.shapes.get(names)
            if expected is None:
                continue
            key = (id(pod.role.template), str(pod.folders), *names)
            if key not in known:
                spec = {**pod.role.template.get("spec", {}), "volumes": pod.folders}
                shape = pod_shape({"spec": spec})
                known[key] = "" if shape is None else difference(expected, shape)
            if known[key]:
                text = f"unlike {part.eq_group}: {known[key]}"
                different.setdefault(text, []).append(name)
    for reason, found in (("Ambiguous", ambiguous), ("ShapeDiffers", different)):
        yield from ((reason, text, pods) for text, pods in found.items())


def _listed(pods: Sequence[str]) -> str:
    pods = sorted(pods)
    more = f" and {len(pods) - _SHOWN_PODS} more" if len(pods) > _SHOWN_PODS else ""
    noun = "pod" if len(pods) == 1 else "pods"
    return f"{len(pods)} {noun}: {', '.join(pods[:_SHOWN_PODS])}{more}"


def _topology(use: InstanceUse) -> tuple[Change, Change]:
    rejected = next((one for one, _ in use.groups if one.hold_reason == HoldReason.TOPOLOGY), None)
    if rejected is not None:
        text = short(rejected.hold)
        return (
            Change(TOPOLOGY_VALID, FALSE, "NotSupported", text),
            Change(TOPOLOGY_ENFORCED, FALSE, "NotSupported", text),
        )
    valid = Change(TOPOLOGY_VALID, TRUE, "Valid", "the topology requests can be used")
    paths = list(dict.fromkeys(path for one, _ in use.groups for path in one.not_enforced))
    if paths:
        text = short(f"no effect: {', '.join(paths)}")
        return valid, Change(TOPOLOGY_ENFORCED, FALSE, "NotSupported", text)
    text = "the topology requests decide the placement"
    return valid, Change(TOPOLOGY_ENFORCED, TRUE, "Enforced", text)

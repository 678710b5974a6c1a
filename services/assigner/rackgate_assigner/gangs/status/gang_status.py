"""The status of a Workload of gangs: a summary for people, that no code reads back. Pure.

Pods are counted by PodSet, and only those that are bound: the assigner watches no others. What
their templates say stands for the pods that do not exist yet. Why a released gang waits for its
pods is in the logs and Events of the ungater.

Source: GNG-08, GNG-46, section 9 of the gang design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rackgate.api.names import EvictionReason, WorkloadCondition
from rackgate.gang.levels import Object, upper_bound
from rackgate.gang.membership import GangKey, Mismatch, Part, ambiguous_group, part_of, replica_key
from rackgate.gang.pod_shapes import PodSpecShape, difference
from rackgate.gang.readiness import Member, gangs_of
from rackgate.gang.topology_requests import GangPodSet, Rejected, RejectedReason, Requests
from rackgate.jobframework.generic_job import JobOutcome
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.gang_workload import GangWorkload, min_count
from rackgate_assigner.gangs.holds import Hold, HoldReason
from rackgate_assigner.gangs.native import NATIVE_GANG, BoundGang, NativeUse, native_condition
from rackgate_assigner.gangs.status.phases import PodPhase, gang_phase, least_far, phase_fields
from rackgate_assigner.workload.conditions import FALSE, TRUE, Change

# The object stays small at any number of gangs.
MAX_GANGS: Final = 16
MAX_TEXT: Final = 160
_SHOWN_PODS: Final = 3

GANG_SCHEDULED: Final = "GangScheduled"
EXCLUSIVE: Final = "Exclusive"
TOPOLOGY_VALID: Final = "TopologyRequestValid"
TOPOLOGY_ENFORCED: Final = "TopologyEnforced"
PODS_MATCHED: Final = "PodsMatched"
# Phases and reasons of a gang that is admitted, and whose pods are on their way.
_STARTING: Final = frozenset(("Placed", "Collecting", "Releasing"))
_ON_THEIR_WAY: Final = frozenset(("NotBound", "WaitingForPlacement"))
# Reasons of it for pods that run all the same. The ungater reports those that stay gated.
REPORTED: Final = frozenset(("NotHeld", "Ambiguous", "ShapeDiffers"))
TYPES: Final = (
    PODS_MATCHED,
    TOPOLOGY_VALID,
    TOPOLOGY_ENFORCED,
    EXCLUSIVE,
    NATIVE_GANG,
    GANG_SCHEDULED,
)
_GANG_EVICTIONS: Final = frozenset((EvictionReason.GANG_TIMEOUT, EvictionReason.GANG_MEMBER_LOST))


@dataclass(frozen=True, slots=True)
class Use:
    """The job that uses a Workload of gangs.

    Attributes:
        name: of the job.
        workload: its Workload of Kueue's API, None if it has none yet.
        podsets: those whose pods are in gangs.
        bound: its bound pods by PodSet.
        done: pods that are done and not created again, by PodSet.
        phases: its bound pods by PodSet and phase.
        outcome: how it ended; None while it has not.
        not_held: names of bound pods that Rackgate did not release.
        shapes: of its templates, by PodSet; empty if the Workload of gangs describes no shapes.
        topology: what the requests mean for the job.
        shared_with: another job that waits for it, "" if there is none.
        hold: why the job is not admitted.
        native: PodGroups of the cluster; None if Rackgate makes none.
        not_started: of a child Job: why it has no pods yet; "" if it may have.
    """

    name: str
    workload: Workload | None
    podsets: Sequence[GangPodSet] = ()
    bound: Mapping[str, int] = field(default_factory=dict)
    not_held: Sequence[str] = ()
    shapes: Mapping[str, PodSpecShape] = field(default_factory=dict)
    topology: Requests | Rejected = field(default_factory=Requests)
    shared_with: str = ""
    hold: Hold | None = None
    native: NativeUse | None = None
    done: Mapping[str, int] = field(default_factory=dict)
    phases: Mapping[tuple[str, PodPhase], int] = field(default_factory=dict)
    outcome: JobOutcome | None = None
    not_started: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """A status.

    Attributes:
        changes: its conditions.
        fields: the rest.
    """

    changes: tuple[Change, ...]
    fields: Mapping[str, Any]


def is_starting(found: Summary) -> bool:
    """Whether there is nothing to say but that the pods of a gang are on their way."""
    if found.fields["phase"] not in _STARTING:
        return False
    reasons = {one.type: str(one.reason) for one in found.changes}
    return reasons[GANG_SCHEDULED] in _ON_THEIR_WAY and reasons[PODS_MATCHED] == "AllMatched"


def summarize(gang: GangWorkload, use: Use | None, *, last: Use | None = None) -> Summary:
    """The status of a Workload of gangs.

    Args:
        gang: as the watch shows it.
        use: the job that uses it now; None if there is none.
        last: the job that used it last, if it is over.
    """
    observed: dict[str, Any] = {"observedGeneration": gang.metadata.generation}
    if use is None:
        change = Change(GANG_SCHEDULED, FALSE, "PodsMissing", "no job that is not over uses it")
        fields = {**observed, "phase": "Empty", "waitingFor": "PodsMissing"}
        ended = {} if last is None else phase_fields(_phases(gang.canonical, last))
        return Summary((change,), {**fields, **ended})
    found, no_part = _gangs(gang.canonical, use)
    reason, message, phase = _progress(gang.canonical, use, found)
    fields = {**observed, "phase": phase, **phase_fields(_phases(gang.canonical, use))}
    least = sum(min_count(group) for group in gang.canonical["gangGroups"])
    bound = sum(_present(use, one) for one in use.podsets)
    if least:
        fields["members"] = f"{bound}/{least}"
    waits = reason not in ("Running", "NoGang")
    if waits:
        fields["waitingFor"] = reason
        listed = [_gang_status(one, phase) for one in found if one.bound < one.min_count]
        if listed:
            fields["gangs"] = listed[:MAX_GANGS]
    changes = _conditions(gang, use, no_part)
    if use.native is not None:
        native = native_condition(gang.metadata.name, use.workload, found, use.native)
        if native is not None:
            changes.append(replace(native, message=short(native.message)))
    changes.append(Change(GANG_SCHEDULED, FALSE if waits else TRUE, reason, short(message)))
    return Summary(tuple(changes), fields)


def _conditions(gang: GangWorkload, use: Use, no_part: Sequence[str]) -> list[Change]:
    shared = bool(use.shared_with)
    reason, message = _mismatch(gang, use, no_part) or (
        "AllMatched",
        "all pod templates belong to a gang group",
    )
    matched = TRUE if reason == "AllMatched" else FALSE
    return [
        Change(PODS_MATCHED, matched, reason, short(message)),
        *_topology_conditions(use.topology),
        Change(
            EXCLUSIVE,
            FALSE if shared else TRUE,
            HoldReason.SHARED if shared else "OneJob",
            short(
                f"the job {use.shared_with} names it, too, and waits for {use.name}"
                if shared
                else f"only the job {use.name} uses it"
            ),
        ),
    ]


def _mismatch(gang: GangWorkload, use: Use, no_part: Sequence[str]) -> tuple[str, str] | None:
    """How the pods of a job do not match, the worst first: those that stay gated, then the rest."""
    if no_part:
        names = ", ".join(no_part)
        return Mismatch.NO_PART, f"no gang group takes the pods of PodSets {names}: they stay gated"
    parts = {one.name: part_of(gang.canonical, one.labels) for one in use.podsets}
    found = {name: part for name, part in parts.items() if isinstance(part, Part)}
    if too_many := _too_many(gang.canonical, use, found):
        return Mismatch.TOO_MANY_PODS, too_many
    if use.not_held:
        shown = ", ".join(sorted(use.not_held)[:_SHOWN_PODS])
        more = len(use.not_held) - _SHOWN_PODS
        names = f"{shown} and {more} more" if more > 0 else shown
        return Mismatch.NOT_HELD, f"pods that Rackgate did not hold and release: {names}"
    for one in use.podsets:
        part = found.get(one.name)
        if part is None:
            continue
        if group := ambiguous_group(gang.canonical, part, one.labels):
            return "Ambiguous", f"the pods of PodSet {one.name} are in no group inside of {group}"
        expected = gang.shapes.get((part.gang.group, part.ranked_group or "", part.eq_group or ""))
        shape = use.shapes.get(one.name)
        if expected is None or shape is None:
            continue
        if text := difference(expected, shape):
            return "ShapeDiffers", f"PodSet {one.name} differs from {part.eq_group}: {text}"
    return None


def _too_many(canonical: Object, use: Use, parts: Mapping[str, Part]) -> str:
    """Which gang group may have fewer pods than the job has for it; "" if there is none."""
    if replica_key(canonical):
        return ""  # counts are those of a replica
    for group in canonical["gangGroups"]:
        name, most = str(group["name"]), upper_bound(group)
        has = sum(one.count for one in use.podsets if _is_in(parts.get(one.name), name))
        if most is not None and has > most:
            return f"the job has {has} pods for gang {name}, at most {most} of them are released"
    return ""


def _is_in(part: Part | None, group: str) -> bool:
    return part is not None and part.gang.group == group


def _topology_conditions(topology: Requests | Rejected) -> tuple[Change, Change]:
    if isinstance(topology, Rejected):
        text = short(f"{topology.path}: {topology.message}")
        return (
            Change(TOPOLOGY_VALID, FALSE, topology.reason, text),
            Change(TOPOLOGY_ENFORCED, FALSE, RejectedReason.NOT_SUPPORTED, text),
        )
    valid = Change(TOPOLOGY_VALID, TRUE, "Valid", "the topology requests can be used")
    if topology.not_enforced:
        text = short(f"no effect: {', '.join(topology.not_enforced)}")
        return valid, Change(TOPOLOGY_ENFORCED, FALSE, RejectedReason.NOT_SUPPORTED, text)
    text = "the topology requests decide the placement"
    return valid, Change(TOPOLOGY_ENFORCED, TRUE, "Enforced", text)


def _gangs(canonical: Object, use: Use) -> tuple[list[BoundGang], list[str]]:
    """All gangs, those with bound pods first, and PodSets whose pods belong to none.

    The pods of a PodSet have the same labels here. One stands for all of them.
    """
    bound = {one.name: _present(use, one) for one in use.podsets}
    probes = [Member(one.name, one.name, one.labels, gated=True) for one in use.podsets]
    probed = gangs_of(canonical, probes, run="", assigned=())
    gangs = [
        BoundGang(state.key, state.min_count, sum(bound[one.name] for one in state.members))
        for state in probed.states
    ]
    found = [one for one in gangs if one.bound]
    seen = {one.key.group for one in found}
    absent = [one for one in gangs if one.key.group not in seen]
    return [*found, *absent], [member.name for member, _ in probed.unmatched]


def _present(use: Use, podset: GangPodSet) -> int:
    """Pods of a PodSet that have a node, or are done."""
    return use.bound.get(podset.name, 0) + use.done.get(podset.name, 0)


def _phases(canonical: Object, use: Use) -> dict[str, PodPhase]:
    """The phase of each gang group that has pods.

    The watch shows no pods without a node: what the admission has pods for is pending.
    """
    if use.outcome is None and (use.workload is None or use.workload.status.admission is None):
        return {}
    gangs: dict[GangKey, dict[PodPhase, int]] = {}
    for one in use.podsets:
        part = part_of(canonical, one.labels)
        if isinstance(part, Part):
            pods = gangs.setdefault(part.gang, {})
            for phase, count in _podset_phases(use, one).items():
                pods[phase] = pods.get(phase, 0) + count
    found: dict[str, PodPhase] = {}
    for group in canonical["gangGroups"]:
        name, least = str(group["name"]), min_count(group)
        of_group = least_far(gang_phase(p, least) for key, p in gangs.items() if key.group == name)
        if of_group is not None:
            found[name] = of_group
    return found


def _podset_phases(use: Use, podset: GangPodSet) -> dict[PodPhase, int]:
    outcome, done = use.outcome, use.done.get(podset.name, 0)
    if outcome is not None:
        if not outcome.failed:
            return {PodPhase.SUCCEEDED: podset.count}
        return {PodPhase.SUCCEEDED: done, PodPhase.FAILED: max(0, podset.count - done)}
    found = {phase: use.phases.get((podset.name, phase), 0) for phase in PodPhase}
    found[PodPhase.SUCCEEDED] += done
    found[PodPhase.PENDING] += max(0, podset.count - sum(found.values()))
    return found


def _progress(canonical: Object, use: Use, found: Sequence[BoundGang]) -> tuple[str, str, str]:
    """Reason and message of GangScheduled, and the phase."""
    workload = use.workload
    if not any(min_count(group) for group in canonical["gangGroups"]):
        return "NoGang", "its pods start one by one", "Running"
    if use.hold is not None:
        unsatisfiable = use.hold.reason is HoldReason.UNSATISFIABLE
        reason = "Unsatisfiable" if unsatisfiable else "WaitingForQuota"
        return reason, use.hold.message, "Empty"
    if workload is None or workload.status.admission is None:
        state = workload.status.requeue_state if workload is not None else None
        if state is not None and state.requeue_at:
            return "BackingOff", f"queued again at {state.requeue_at}", "Empty"
        return "WaitingForQuota", f"the job {use.name} is not admitted", "Empty"
    evicted = workload.condition(WorkloadCondition.EVICTED)
    if evicted is not None and evicted.status == TRUE:
        why = evicted.reason if evicted.reason in _GANG_EVICTIONS else "the job is evicted"
        return "NotBound", f"{why}: {evicted.message}", "GivingWay"
    if use.not_started:
        return "PodsMissing", use.not_started, "Empty"
    short = [state for state in found if state.bound < state.min_count]
    if not short:
        return "Running", "all gangs run", "Running"
    texts = [f"{one.bound} of {one.min_count} pods of gang {one.key} are bound" for one in short]
    phase = "Releasing" if any(one.bound for one in short) else "Collecting"
    return "NotBound", "; ".join(texts), phase


def _gang_status(state: BoundGang, phase: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": state.key.group,
        "state": phase,
        "members": state.bound,
        "minCount": state.min_count,
        "released": state.bound,
        "bound": state.bound,
    }
    if state.key.replica:
        found["replica"] = state.key.replica
    return found


def short(text: str) -> str:
    """A text of limited length."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"

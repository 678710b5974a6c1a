"""Whether the pods of a gang may be released now: all, or none.

A gate that is off cannot be put back. So the decision is made before the first one goes. A gang is
released when

1. its Workload of gangs is known,
2. `minCount` of its pods exist,
3. no pod of it has a gate of another owner,
4. its admission has a domain for at least `minCount` of them, and for each pod that is released.

The first released pod carries the id of the run and so records the decision: the other pods of the
gang follow it, also after a crash, and replacements and late pods need no quorum again, also if all
pods but a replaced one have succeeded. Nothing else is stored about a start. Pods that are left
from an earlier run neither count nor decide. Pods that succeeded and are not made again count, also
if they are gone. Time is linear in the pods.

Source: GNG-10, GNG-12, section 7 of the gang design.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from rackgate.gang.levels import Object, upper_bound
from rackgate.gang.membership import GangKey, Mismatch, Parts, gang_of_podset

_SHOWN_PODS: Final = 5
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class Waiting(StrEnum):
    """Why a gang is not released; reasons of the condition GangScheduled."""

    WORKLOAD_MISSING = "WorkloadMissing"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    PODS_MISSING = "PodsMissing"
    FOREIGN_GATE = "ForeignGate"
    WAITING_FOR_PLACEMENT = "WaitingForPlacement"


class Member(NamedTuple):
    """One pod that names the Workload of gangs and is not being deleted.

    Attributes:
        uid: of the pod.
        name: of the pod, for messages.
        labels: those that say which groups it belongs to, at least.
        gated: it still has the gate of gangs.
        foreign_gates: gates of other owners.
        run: id of the run under which it was released; "" if it was not.
        bound: it has a node.
        succeeded: it has ended successfully; it counts as present.
    """

    uid: str
    name: str
    labels: Mapping[str, str]
    gated: bool
    foreign_gates: tuple[str, ...] = ()
    run: str = ""
    bound: bool = False
    succeeded: bool = False


@dataclass(slots=True)
class GangState:
    """One gang and its pods now.

    Attributes:
        key: which gang.
        min_count: pods that must be able to start together; 0 if it is no gang.
        max_count: pods that may be released at most; None if any number may.
        members: its pods, in the order in which they were given.
        gone: pods that ended successfully, are not made again, and do not exist any more.
        started: ids of runs in which pods of it were released that are no members.
        waiting: why it is not released; None if its pods may be released.
        message: the same, for people; "" if they may.
    """

    key: GangKey
    min_count: int
    max_count: int | None = None
    members: list[Member] = field(default_factory=list)
    gone: int = 0
    started: set[str] = field(default_factory=set)
    waiting: Waiting | None = None
    message: str = ""

    def has_started(self, run: str) -> bool:
        """Whether a pod of it was released in that run, and is still there."""
        return run in self.started or any(
            member.run == run and not member.gated for member in self.members
        )

    @property
    def released(self) -> int:
        """Pods that are released, or ended successfully."""
        return self.gone + sum(not one.gated or one.succeeded for one in self.members)

    @property
    def bound(self) -> int:
        """Pods that have a node, or ended successfully."""
        return self.gone + sum(one.bound or one.succeeded for one in self.members)


@dataclass(frozen=True, slots=True)
class Gangs:
    """All gangs of a Workload of gangs that have pods.

    Attributes:
        states: in the order of the groups, then by replica.
        unmatched: pods that belong to no gang, or are too many in theirs, with the reason. They
            stay gated.
    """

    states: tuple[GangState, ...]
    unmatched: tuple[tuple[Member, Mismatch], ...] = ()

    def releasable(self) -> frozenset[str]:
        """UIDs of the pods that may be released, as far as gangs are concerned."""
        ready = (one for one in self.states if one.waiting is None)
        surplus = {member.uid for member, _ in self.unmatched}
        return frozenset(
            member.uid
            for one in ready
            for member in one.members
            if member.gated and member.uid not in surplus
        )


def gangs_of(
    canonical: Object,
    members: Iterable[Member],
    *,
    run: str,
    assigned: Collection[str],
    ended: Iterable[Member] = (),
    gone: Mapping[str, int] = NOTHING,
) -> Gangs:
    """The gangs of a Workload of gangs, and which of them may be released.

    Args:
        canonical: the expanded spec.
        members: its pods, without those that are being deleted or failed.
        run: id of the present admission; "" if there is none.
        assigned: UIDs of gated pods that the present admission has a domain for.
        ended: pods that ended successfully, may be made again, and are no members. They show in
            which run their gang has started.
        gone: by PodSet, pods that ended successfully, are not made again, and are no members. They
            count where all pods of their PodSet are of one gang.
    """
    groups = {str(group["name"]): group for group in canonical["gangGroups"]}
    states: dict[GangKey, GangState] = {}
    unmatched: list[tuple[Member, Mismatch]] = []
    parts = Parts(canonical)
    for member in members:
        part = parts.of(member.labels)
        if isinstance(part, Mismatch):
            unmatched.append((member, part))
            continue
        state = states.get(part.gang)
        if state is None:
            group = groups[part.gang.group]
            state = GangState(part.gang, least_of(group), upper_bound(group))
            states[part.gang] = state
        state.members.append(member)
    for member in ended:
        part = parts.of(member.labels)
        if not isinstance(part, Mismatch) and part.gang in states:
            states[part.gang].started.add(member.run)
    for podset, count in gone.items():
        key = gang_of_podset(canonical, podset) if count > 0 else None
        if key is not None:
            if key not in states:
                group = groups[key.group]
                states[key] = GangState(key, least_of(group), upper_bound(group))
            states[key].gone += count
    order = {name: index for index, name in enumerate(groups)}
    found = sorted(states.values(), key=lambda one: (order[one.key.group], one.key.replica))
    for state in found:
        state.waiting, state.message = _waits(state, run, assigned)
        if state.max_count is not None and state.waiting is None:
            surplus = _surplus(state, state.max_count, run, assigned)
            unmatched += [(member, Mismatch.TOO_MANY_PODS) for member in surplus]
    return Gangs(tuple(found), tuple(unmatched))


def least_of(group: Object) -> int:
    """Pods of a canonical gang group that must be able to start together; 0 if it is no gang."""
    return int(group.get("minCount") or 0) if group["gangMode"] == "Gang" else 0


def _present(state: GangState, run: str) -> list[Member]:
    """The pods that count in a run: not those that were released in an earlier one and still run.

    A watch may show these after the next admission.
    """
    return [
        member
        for member in state.members
        if member.gated or member.succeeded or member.run in ("", run)
    ]


def _surplus(state: GangState, most: int, run: str, assigned: Collection[str]) -> list[Member]:
    """The gated pods beyond `maxCount`; those with a domain are released first."""
    present = _present(state, run)
    gated = [member for member in present if member.gated]
    room = max(0, most - state.gone - (len(present) - len(gated)))
    return sorted(gated, key=lambda member: member.uid not in assigned)[room:]


def _waits(state: GangState, run: str, assigned: Collection[str]) -> tuple[Waiting | None, str]:
    if not run:
        return Waiting.WAITING_FOR_QUOTA, f"gang {state.key} is not admitted"
    if not state.min_count or state.has_started(run):
        return None, ""
    least, present = state.min_count - state.gone, _present(state, run)
    if len(present) < least:
        return Waiting.PODS_MISSING, f"{len(present)} of {least} pods of gang {state.key} exist"
    foreign = [member for member in present if member.foreign_gates]
    if foreign:
        gates = ", ".join(sorted({gate for member in foreign for gate in member.foreign_gates}))
        return (
            Waiting.FOREIGN_GATE,
            f"pods of gang {state.key} have gates of other owners ({gates}): {_names(foreign)}",
        )
    count = sum(
        member.uid in assigned or member.succeeded or not member.gated for member in present
    )
    if count < least:
        return (
            Waiting.WAITING_FOR_PLACEMENT,
            f"{count} of {least} pods of gang {state.key} are assigned to a domain",
        )
    return None, ""


def _names(members: Iterable[Member]) -> str:
    names = sorted(member.name for member in members)
    more = f" and {len(names) - _SHOWN_PODS} more" if len(names) > _SHOWN_PODS else ""
    return ", ".join(names[:_SHOWN_PODS]) + more

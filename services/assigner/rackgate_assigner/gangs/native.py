"""The condition NativeGang: whether kube-scheduler binds the pods of a gang together. Pure.

The ungater makes the PodGroups, and knows why it made none: its Events say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from rackgate.gang.membership import GangKey
from rackgate.gang.native.adapter import Adapter
from rackgate.gang.native.model import ObservedPodGroup, pod_group_name
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.reactions import admission_run
from rackgate_assigner.workload.conditions import FALSE, TRUE, Change

NATIVE_GANG: Final = "NativeGang"
_UNKNOWN: Final = "Unknown"


class NativeReason(StrEnum):
    """Reasons of NativeGang."""

    IN_USE = "InUse"
    ABSENT = "Absent"
    BASIC = "Basic"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NativeUse:
    """What the cluster has.

    Attributes:
        adapter: of the generation that it serves; None if it serves none.
        groups: all PodGroups by `namespace/name`.
    """

    adapter: Adapter | None
    groups: Mapping[str, ObservedPodGroup]


class BoundGang(NamedTuple):
    """A gang of a job.

    Attributes:
        min_count: pods that start together; 0 if it is no gang.
        bound: pods that have a node, or are done.
    """

    key: GangKey
    min_count: int
    bound: int


def native_condition(
    gang: str, workload: Workload | None, states: Sequence[BoundGang], native: NativeUse
) -> Change | None:
    """The condition; None while there is nothing to say.

    Args:
        gang: name of the Workload of gangs.
        workload: of Kueue's API, of the job that uses it.
        states: its gangs with their bound pods.
        native: of the cluster.
    """
    if native.adapter is None:
        text = "the cluster serves no PodGroups: kube-scheduler binds the pods one by one"
        return Change(NATIVE_GANG, FALSE, NativeReason.ABSENT, text)
    run = admission_run(workload) if workload is not None else ""
    gangs = [state for state in states if state.min_count]
    if workload is None or not run or not gangs:
        return None
    uid, namespace = workload.metadata.uid, workload.metadata.namespace
    silent, absent, taken, basic = [], [], [], []
    for state in gangs:
        name = pod_group_name(gang, state.key.group, state.key.replica)
        found = native.groups.get(f"{namespace}/{name}")
        if found is None or (found.owner_uid == uid and found.run != run):
            absent.append(name)
        elif not found.is_of(uid, run):
            taken.append(name)
        elif not found.min_count:
            basic.append(name)
        elif state.bound >= state.min_count and found.scheduled is None:
            silent.append(name)
    if taken:
        text = f"not made by Rackgate, which uses no other: PodGroup {_names(taken)}"
        return Change(NATIVE_GANG, _UNKNOWN, NativeReason.UNKNOWN, text)
    if absent:
        if not any(state.bound for state in gangs):
            return None  # it is made just before the first pod is released
        text = f"PodGroup {_names(absent)} does not exist: Events of the job's Workload say why"
        return Change(NATIVE_GANG, FALSE, NativeReason.ABSENT, text)
    if basic:
        text = f"some pods were created without it: PodGroup {_names(basic)} binds one by one"
        return Change(NATIVE_GANG, FALSE, NativeReason.BASIC, text)
    if silent:
        text = (
            f"all pods are bound, and kube-scheduler says nothing about PodGroup {_names(silent)}: "
            "is its feature gate GangScheduling on?"
        )
        return Change(NATIVE_GANG, _UNKNOWN, NativeReason.UNKNOWN, text)
    version = native.adapter.resource.version
    note = "" if native.adapter.is_tested else f" ({version}, not run live)"
    text = f"kube-scheduler binds the pods of each gang together{note}"
    return Change(NATIVE_GANG, TRUE, NativeReason.IN_USE, text)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"

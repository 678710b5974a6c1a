"""The gangs of one run: written where the run starts, and kept until it ends.

A Workload of gangs may be changed or deleted while its pods run. The run keeps the numbers that it
was started with, so no one has to guess which version of them a pod was released under. A job has
them in an annotation, from its start to its stop. Pods that no managed job owns have no other
object: their Workload of Kueue's API has them. Whoever may edit these objects could write anything
there, which affects only these pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec

from rackgate.api.names import GANG_RUN_SPEC_ANNOTATION
from rackgate.gang.forms.expand import expand
from rackgate.gang.levels import Object
from rackgate.gang.link import PER_JOB
from rackgate.wire.core import View

_OF_SPEC: Final = ("replicaMode", "replicaKey")
# A job is looked at several times in a row while it starts. Longer texts are written by users.
_REMEMBERED_TEXTS: Final = 256
_REMEMBERED_CHARACTERS: Final = 4096
_OF_GROUP: Final = (
    "name",
    "gangMode",
    "minCount",
    "scheduleTimeoutSeconds",
    "reschedulingPolicy",
    "selector",
)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a started job says about its gangs.

    Attributes:
        workload: name of the Workload of gangs; `PER_JOB` if each child Job has one.
        podsets: names of the PodSets whose pods are in gangs.
        spec: canonical, of level 1 only.
        replica: of a gang of pods, value of the replica key.
        pod: of a pod that starts by itself, its UID.
        children: by PodSet, canonical specs of child Jobs, of level 1 only.
    """

    workload: str
    podsets: tuple[str, ...]
    spec: Object
    replica: str = ""
    pod: str = ""
    children: Mapping[str, Object] = field(default_factory=dict)

    @property
    def links(self) -> dict[str, str]:
        """By PodSet, the name of the Workload of gangs."""
        return dict.fromkeys(self.podsets, self.workload)


def encode_run_spec(links: Mapping[str, str], canonical: Object) -> str:
    """The annotation of a job that is started now.

    Args:
        links: by PodSet, the name of the Workload of gangs.
        canonical: its expanded spec.
    """
    return _encode(min(links.values()), links, _first_levels(canonical))


def encode_child_specs(specs: Mapping[str, Object]) -> str:
    """As `encode_run_spec`, of a job whose child Jobs have Workloads of gangs.

    Args:
        specs: by PodSet, their expanded spec.
    """
    found = {podset: _first_levels(spec) for podset, spec in specs.items()}
    return _encode(PER_JOB, specs, {"gangGroups": []}, {"children": found})


def _first_levels(canonical: Object) -> Object:
    groups = [
        {key: group[key] for key in _OF_GROUP if key in group} for group in canonical["gangGroups"]
    ]
    spec = {key: canonical[key] for key in _OF_SPEC if key in canonical}
    return {**spec, "gangGroups": groups}


def encode_instance_spec(
    workload: str, podsets: Iterable[str], group: Object, *, replica: str = "", pod: str = ""
) -> str:
    """The annotation of a Workload of Kueue's API of one gang of pods.

    All its pods are members, so the group has no selector. A pod that starts by itself is no gang.

    Args:
        workload: name of the Workload of gangs.
        podsets: names of the PodSets.
        group: canonical gang group.
        replica: value of the replica key.
        pod: UID of a pod that starts by itself.
    """
    kept = ("name",) if pod else tuple(key for key in _OF_GROUP if key != "selector")
    one = {key: group[key] for key in kept if key in group}
    more = {"replica": replica, "pod": pod}
    return _encode(
        workload, podsets, {"gangGroups": [one]}, {key: v for key, v in more.items() if v}
    )


def _encode(
    workload: str, podsets: Iterable[str], spec: Object, more: Mapping[str, Any] | None = None
) -> str:
    found = {"workload": workload, "podSets": sorted(podsets), "spec": spec, **(more or {})}
    return msgspec.json.encode(found).decode()


class _Selector(View, frozen=True):
    key: str
    values: list[str]


class _Group(View, frozen=True, omit_defaults=True):
    name: str
    gang_mode: str | None = None
    min_count: int | None = None
    schedule_timeout_seconds: int | None = None
    rescheduling_policy: str | None = None
    selector: _Selector | None = None


class _Spec(View, frozen=True, omit_defaults=True):
    gang_groups: list[_Group]
    replica_mode: str | None = None
    replica_key: str | None = None


class _RunSpec(View, frozen=True):
    workload: str
    pod_sets: list[str]
    spec: _Spec
    replica: str = ""
    pod: str = ""
    children: dict[str, _Spec] = {}  # noqa: RUF012 - msgspec copies empty defaults


_decode = msgspec.json.Decoder(_RunSpec).decode


def decode_run_spec(annotations: Mapping[str, str]) -> RunSpec | None:
    """The gangs of a started job; None if it has none, or does not say so in a readable way."""
    return decode_run_text(annotations.get(GANG_RUN_SPEC_ANNOTATION, ""))


def decode_run_text(text: str) -> RunSpec | None:
    """As `decode_run_spec`, for the value of the annotation.

    What it returns may be shared with other callers: it must not be changed.
    """
    if not text:
        return None
    return _remembered(text) if len(text) <= _REMEMBERED_CHARACTERS else _read(text)


def _read(text: str) -> RunSpec | None:
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return RunSpec(
        found.workload,
        tuple(found.pod_sets),
        expand(msgspec.to_builtins(found.spec)),
        found.replica,
        found.pod,
        {podset: expand(msgspec.to_builtins(spec)) for podset, spec in found.children.items()},
    )


_remembered = lru_cache(maxsize=_REMEMBERED_TEXTS)(_read)

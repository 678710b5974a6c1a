"""The gangs of one run of a job: written on the job at its start, and removed when it stops.

A Workload of gangs may be changed or deleted while a job runs. The run keeps the numbers that it
was started with, so no one has to guess which version of them a pod was released under. The job
has them in an annotation. Its user could write anything there, which affects only this job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api.names import GANG_RUN_SPEC_ANNOTATION
from rackgate.gang.expand import expand
from rackgate.gang.levels import Object
from rackgate.wire.core import View

_OF_SPEC: Final = ("replicaMode", "replicaKey")
_OF_GROUP: Final = (
    "name",
    "gangMode",
    "minCount",
    "scheduleTimeoutSeconds",
    "reschedulingPolicy",
    "selector",
)


@dataclass(frozen=True, slots=True)
class JobGang:
    """The Workload of gangs of a job, as far as its start needs it.

    Attributes:
        links: by PodSet, its name; empty for a job without gangs.
        run_spec: value of the annotation that its start writes; "" while it does not exist.
        is_own: Rackgate makes it, or has made it.
        topology: by PodSet, fields of `topologyRequest` that say what it requests.
        nesting: domains that its PodSets share, for the annotation of the Workload of Kueue's API;
            "" if there are none.
        started: the job was started with it.
        pod_groups: by PodSet, annotations that say which native PodGroup its pods are in.
    """

    links: Mapping[str, str] = field(default_factory=dict)
    run_spec: str = ""
    is_own: bool = False
    topology: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    nesting: str = ""
    started: bool = False
    pod_groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """Name of the Workload of gangs that the job waits for; "" if it waits for none."""
        return min(self.links.values()) if self.links and not self.run_spec else ""


NO_GANG: Final = JobGang()


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a started job says about its gangs.

    Attributes:
        workload: name of the Workload of gangs.
        podsets: names of the PodSets whose pods are in gangs.
        spec: canonical, of level 1 only.
    """

    workload: str
    podsets: tuple[str, ...]
    spec: Object

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
    groups = [
        {key: group[key] for key in _OF_GROUP if key in group} for group in canonical["gangGroups"]
    ]
    spec = {key: canonical[key] for key in _OF_SPEC if key in canonical}
    found = {
        "workload": min(links.values()),
        "podSets": sorted(links),
        "spec": {**spec, "gangGroups": groups},
    }
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


_decode = msgspec.json.Decoder(_RunSpec).decode


def decode_run_spec(annotations: Mapping[str, str]) -> RunSpec | None:
    """The gangs of a started job; None if it has none, or does not say so in a readable way."""
    return decode_run_text(annotations.get(GANG_RUN_SPEC_ANNOTATION, ""))


def decode_run_text(text: str) -> RunSpec | None:
    """As `decode_run_spec`, for the value of the annotation."""
    if not text:
        return None
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    spec: dict[str, Any] = msgspec.to_builtins(found.spec)
    return RunSpec(found.workload, tuple(found.pod_sets), expand(spec))

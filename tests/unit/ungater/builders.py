"""Builders of rows: each method returns a changed copy, so a test reads as a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment, encode
from rackgate_ungater.state_machine.gated_objects import (
    GANG,
    TOPOLOGY,
    GangPod,
    GatedPod,
    GatedPodSet,
    GatedWorkload,
    PodUid,
    WorkloadKey,
)
from rackgate_ungater.state_machine.ranks import RankSource
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission, Ungate

HOST = names.HOSTNAME_LABEL
INDEX = names.COMPLETION_INDEX_LABEL
OWNER = "job-uid"
R1, R2, R3 = ("b1", "r1"), ("b1", "r2"), ("b2", "r1")
LEVELS = ("block", "rack")
RANKED = RankSource(INDEX)


@dataclass(frozen=True)
class PodBuilder:
    """A gated pod of PodSet `main` of Workload `team/train`."""

    name: str = "pod-0"
    uid: str = ""
    version: int = 1
    facts: dict[str, Any] = field(default_factory=dict)

    def _with(self, **facts: Any) -> Self:
        return replace(self, facts={**self.facts, **facts})

    def rank(self, index: int) -> Self:
        return self.label(INDEX, index)

    def label(self, key: str, index: int) -> Self:
        return self._with(indices={**self.facts.get("indices", {}), key: index})

    def pinned(self, **selector: str) -> Self:
        return self._with(selector=selector)

    def ungated(self, domain: Domain, levels: tuple[str, ...] = LEVELS) -> Self:
        return self._with(gates=0, selector=dict(zip(levels, domain, strict=True)))

    def gates(self, gates: int) -> Self:
        return self._with(gates=gates)

    def free(self) -> Self:
        """Released by number alone, or by somebody else: it names no domain."""
        return self._with(gates=0)

    def at(self, version: int) -> Self:
        return replace(self, version=version)

    def terminating(self, grace_s: float = 30.0) -> Self:
        return self._with(terminating=True, grace_s=grace_s)

    def terminal(self) -> Self:
        return self._with(terminal=True)

    def offset(self, value: int) -> Self:
        return self._with(index_offset=value)

    def of(self, podset: str = "main", workload: str = "train", owner: str = OWNER) -> Self:
        return self._with(podset=podset, workload=workload, owner_uid=owner)

    def build(self) -> GatedPod:
        facts: dict[str, Any] = {
            "workload": "train",
            "podset": "main",
            "owner_uid": OWNER,
            "gates": TOPOLOGY,
            "terminating": False,
            "terminal": False,
            "selector": {},
            "indices": {},
        }
        return GatedPod(
            namespace="team",
            name=self.name,
            uid=PodUid(self.uid or f"uid-{self.name}"),
            resource_version=str(self.version),
            version=self.version,
            **{**facts, **self.facts},
        )


def pod(name: str | int = 0) -> PodBuilder:
    return PodBuilder(name if isinstance(name, str) else f"pod-{name}")


def gang_pod(
    row: GatedPod, *, foreign: tuple[str, ...] = (), link: str = "train", **labels: str
) -> GangPod:
    """The pod as one of a gang, with both gates while it is gated."""
    gates = TOPOLOGY | GANG if row.gates else 0
    facts = msgspec.structs.asdict(row) | {"gates": gates}
    return GangPod(**facts, link=link, labels=labels, foreign_gates=foreign)


def ranked(*indices: int) -> list[GatedPod]:
    return [pod(index).rank(index).build() for index in indices]


def assignment(*counts: tuple[Domain, int], levels: tuple[str, ...] = LEVELS) -> TopologyAssignment:
    return TopologyAssignment(levels, counts)


def admission(
    *counts: tuple[Domain, int],
    ranks: RankSource | None = None,
    levels: tuple[str, ...] = LEVELS,
    count: int | None = None,
    unhealthy: tuple[str, ...] = (),
) -> PodSetAdmission:
    total = sum(number for _, number in counts)
    return PodSetAdmission(
        podset="main",
        count=total if count is None else count,
        assignment=assignment(*counts, levels=levels),
        ranks=ranks,
        unhealthy=unhealthy,
    )


def podset(*counts: tuple[Domain, int], name: str = "main", **facts: Any) -> GatedPodSet:
    raw = msgspec.json.encode(encode(assignment(*counts)))
    return GatedPodSet(name, sum(number for _, number in counts), raw, **facts)


def workload(*podsets: GatedPodSet, version: int = 1, **facts: Any) -> GatedWorkload:
    return GatedWorkload(
        namespace="team",
        name="train",
        uid=facts.pop("uid", "workload-uid"),
        resource_version=str(version),
        version=version,
        owner_uid=OWNER,
        admitted=facts.pop("admitted", True),
        podsets=podsets,
        **facts,
    )


def counted(count: int, name: str = "main", **facts: Any) -> GatedPodSet:
    """A PodSet without topology."""
    return GatedPodSet(name, count, None, **facts)


def elastic(*podsets: GatedPodSet, version: int = 1, **facts: Any) -> GatedWorkload:
    """The Workload of an elastic job."""
    return workload(*podsets, version=version, elastic=True, **facts)


def slice_of(
    parent: GatedWorkload,
    *podsets: GatedPodSet,
    uid: str = "slice-0",
    version: int = 1,
    **facts: Any,
) -> GatedWorkload:
    """A slice of an elastic Workload, admitted unless told otherwise."""
    return GatedWorkload(
        namespace=parent.namespace,
        name=facts.pop("name", f"{parent.name}-{uid}"),
        uid=uid,
        resource_version=str(version),
        version=version,
        owner_uid=facts.pop("owner_uid", parent.uid),
        admitted=facts.pop("admitted", True),
        podsets=podsets,
        elastic=True,
        parent=WorkloadKey(parent.key),
        **facts,
    )


def where(ungates: tuple[Ungate, ...] | list[Ungate]) -> dict[str, Domain]:
    """Pod name to domain."""
    return {ungate.pod.name: ungate.domain for ungate in ungates}

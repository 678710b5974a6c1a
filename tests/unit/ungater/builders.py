"""Builders of rows: each method returns a changed copy, so a test reads as a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment, encode
from rackgate_ungater.machine.plan import Grant, Ungate
from rackgate_ungater.machine.ranks import RankSource
from rackgate_ungater.machine.rows import (
    TOPOLOGY,
    PodRow,
    PodSetRow,
    PodUid,
    WorkloadKey,
    WorkloadRow,
)

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

    def row(self) -> PodRow:
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
        return PodRow(
            namespace="team",
            name=self.name,
            uid=PodUid(self.uid or f"uid-{self.name}"),
            resource_version=str(self.version),
            version=self.version,
            **{**facts, **self.facts},
        )


def pod(name: str | int = 0) -> PodBuilder:
    return PodBuilder(name if isinstance(name, str) else f"pod-{name}")


def ranked(*indices: int) -> list[PodRow]:
    return [pod(index).rank(index).row() for index in indices]


def assignment(*counts: tuple[Domain, int], levels: tuple[str, ...] = LEVELS) -> TopologyAssignment:
    return TopologyAssignment(levels, counts)


def grant(
    *counts: tuple[Domain, int],
    ranks: RankSource | None = None,
    levels: tuple[str, ...] = LEVELS,
    count: int | None = None,
    unhealthy: tuple[str, ...] = (),
) -> Grant:
    total = sum(number for _, number in counts)
    return Grant(
        podset="main",
        count=total if count is None else count,
        assignment=assignment(*counts, levels=levels),
        ranks=ranks,
        unhealthy=unhealthy,
    )


def podset(*counts: tuple[Domain, int], name: str = "main", **facts: Any) -> PodSetRow:
    raw = msgspec.json.encode(encode(assignment(*counts)))
    return PodSetRow(name, sum(number for _, number in counts), raw, **facts)


def workload(*podsets: PodSetRow, version: int = 1, **facts: Any) -> WorkloadRow:
    return WorkloadRow(
        namespace="team",
        name="train",
        uid=facts.pop("uid", "workload-uid"),
        resource_version=str(version),
        version=version,
        owner_uid=OWNER,
        granting=facts.pop("granting", True),
        podsets=podsets,
        **facts,
    )


def counted(count: int, name: str = "main", **facts: Any) -> PodSetRow:
    """A PodSet without topology."""
    return PodSetRow(name, count, None, **facts)


def elastic(*podsets: PodSetRow, version: int = 1, **facts: Any) -> WorkloadRow:
    """The Workload of an elastic job."""
    return workload(*podsets, version=version, elastic=True, **facts)


def slice_of(
    parent: WorkloadRow,
    *podsets: PodSetRow,
    uid: str = "slice-0",
    version: int = 1,
    **facts: Any,
) -> WorkloadRow:
    """A slice of an elastic Workload, admitted unless told otherwise."""
    return WorkloadRow(
        namespace=parent.namespace,
        name=facts.pop("name", f"{parent.name}-{uid}"),
        uid=uid,
        resource_version=str(version),
        version=version,
        owner_uid=facts.pop("owner_uid", parent.uid),
        granting=facts.pop("granting", True),
        podsets=podsets,
        elastic=True,
        parent=WorkloadKey(parent.key),
        **facts,
    )


def where(ungates: tuple[Ungate, ...] | list[Ungate]) -> dict[str, Domain]:
    """Pod name to domain."""
    return {ungate.pod.name: ungate.domain for ungate in ungates}

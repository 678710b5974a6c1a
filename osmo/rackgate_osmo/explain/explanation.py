"""The explanation that `rackgate osmo explain` prints; with `--json` as JSON.

Each class declares the value, its JSON (camelCase) and its JSON schema; docstrings are part of the
schema. Domains are lists of label values, coarse to fine; "" stands for a missing label.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

API_VERSION: Final = "explain.rackgate.dev/v1"
KIND: Final = "WorkflowExplanation"

Answer: TypeAlias = Literal["scheduled", "partly", "pending", "undecided"]
KaiResult: TypeAlias = Literal["scheduled", "partly", "pending", "unknown"]
Requirement: TypeAlias = Literal["required", "preferred", "none"]


class Reply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base: immutable, camelCase in JSON."""


class DomainRoom(Reply, frozen=True):
    """A domain and a number of pods: that go there, or that it would take."""

    domain: tuple[str, ...]
    pods: int


class Subgroup(Reply, frozen=True):
    """One node of a task group's tree.

    Attributes:
        name: of the subgroup; "" for what all tasks of the group share.
        key: the pool's key; group: as the workflow writes it, "" for tasks that name none.
        type: what is asked; "none" where OSMO fills a level up.
        together: whether all its pods share a domain of the key; None while they have no place.
        domain: that domain.
        places: where its pods go, by the finest key; of leaves only.
    """

    name: str
    key: str
    group: str
    type: Requirement
    pods: int
    together: bool | None = None
    domain: tuple[str, ...] | None = None
    places: tuple[DomainRoom, ...] = ()


class Shortage(Reply, frozen=True):
    """A group that finds no domain.

    Attributes:
        key: the pool's key; "" where the whole task group finds no room.
        takes: pods that the closest domain takes; missing: pods that it does not.
        missing_nodes: empty nodes that would take the missing pods; 0: no node is large enough.
        rooms: the domains that come closest, best first.
        within: domain that this is inside of.
        beside: subgroups that fit, but leave too little.
        text: all of it in a sentence.
    """

    subgroup: str
    key: str
    group: str
    pods: int
    takes: int
    missing: int
    missing_nodes: int
    rooms: tuple[DomainRoom, ...]
    within: tuple[str, ...]
    beside: tuple[str, ...]
    text: str


class Deviation(Reply, frozen=True):
    """A reason why KAI does not do what is possible, or why what it does cannot be known."""

    name: str
    text: str
    help: str


class Kai(Reply, frozen=True):
    """What KAI does with one task group. Where it puts pods is not foretold.

    Attributes:
        result: "unknown": it does not follow from what is known of KAI.
        robust: the same with `--profile robust`.
        deviations: why it is not what is possible, or is not known; else empty.
    """

    result: KaiResult
    robust: KaiResult
    deviations: tuple[Deviation, ...] = ()


class Group(Reply, frozen=True):
    """One task group: one PodGroup.

    Attributes:
        answer: whether it can be placed on the room that the groups before it leave, if they
            are placed as is shown; pods that terminate still take theirs.
        running: where its pods are that are on nodes already, by the finest key.
        complete: False where the search for further preferences was cut off.
    """

    name: str
    pod_group: str
    pods: int
    answer: Answer
    summary: str
    complete: bool
    subgroups: tuple[Subgroup, ...]
    shortages: tuple[Shortage, ...]
    kai: Kai
    running: tuple[DomainRoom, ...] = ()


class LeftOut(Reply, frozen=True):
    """Nodes that pods may not use, by reason."""

    why: str
    nodes: int
    names: tuple[str, ...]


class KeyRoom(Reply, frozen=True):
    """One key of the pool on these nodes.

    Attributes:
        unlabelled: nodes without its label.
        best: domains that take most pods of the workflow's largest kind, best first.
    """

    key: str
    label: str
    domains: int
    unlabelled: int
    best: tuple[DomainRoom, ...]


class WorkflowExplanation(Reply, frozen=True):
    """The whole answer.

    Attributes:
        answer: "scheduled": every task group finds a place after those before it.
        together: whether all task groups fit at once, whoever comes first; None: not decided.
        groups: by the names of their PodGroups, and each placed on what those before it leave;
            KAI may take them in another order.
    """

    workflow: str
    pool: str
    profile: str
    kai_version: str
    nodes: int
    answer: Answer
    together: bool | None
    kai_result: KaiResult
    summary: str
    keys: tuple[KeyRoom, ...]
    left_out: tuple[LeftOut, ...]
    groups: tuple[Group, ...]
    warnings: tuple[str, ...] = ()
    api_version: str = API_VERSION
    kind: str = KIND


def schema() -> dict[str, Any]:
    """JSON Schema of a `WorkflowExplanation`."""
    return msgspec.json.schema(WorkflowExplanation)

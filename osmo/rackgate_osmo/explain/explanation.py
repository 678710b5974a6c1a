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


class DomainPods(Reply, frozen=True):
    """A domain, and the number of pods that are placed or fit there."""

    domain: tuple[str, ...]
    pods: int


class Subgroup(Reply, frozen=True):
    """One node of a task group's tree.

    Attributes:
        name: name of the subgroup; "" for what all tasks of the group share.
        key: the pool's key.
        group: group that the workflow names; "" for tasks that name none.
        type: type of the requirement; "none" for tasks that name no group of this key.
        together: whether all its pods share a domain of the key; null if they do not fit.
        domain: that domain.
        places: domains of its pods, by the finest key; of leaves only.
    """

    name: str
    key: str
    group: str
    type: Requirement
    pods: int
    together: bool | None = None
    domain: tuple[str, ...] | None = None
    places: tuple[DomainPods, ...] = ()


class Shortage(Reply, frozen=True):
    """A group that does not fit in any domain.

    Attributes:
        key: the pool's key; "" if the whole task group does not fit.
        takes: pods that fit in the best domain.
        missing: pods that do not fit in it.
        missing_nodes: empty nodes that fit the missing pods; 0 if no node is large enough.
        rooms: the best domains, with the pods that fit in each.
        within: domain that these domains are in.
        beside: subgroups that fit, but leave too little free capacity.
        text: all of it in a sentence.
    """

    subgroup: str
    key: str
    group: str
    pods: int
    takes: int
    missing: int
    missing_nodes: int
    rooms: tuple[DomainPods, ...]
    within: tuple[str, ...]
    beside: tuple[str, ...]
    text: str


class Deviation(Reply, frozen=True):
    """Why KAI does not do what is possible, or why its result cannot be predicted."""

    name: str
    text: str
    help: str


class Kai(Reply, frozen=True):
    """What KAI does with one task group. It does not say where KAI places pods.

    Attributes:
        result: "unknown" if the known behavior of KAI does not decide it.
        robust: the result with `--profile robust`.
        deviations: why it differs from what is possible, or is unknown; else empty.
    """

    result: KaiResult
    robust: KaiResult
    deviations: tuple[Deviation, ...] = ()


class Group(Reply, frozen=True):
    """One task group: one PodGroup.

    Attributes:
        answer: whether it fits in the capacity that is free after the groups before it are placed
            as shown; terminating pods still use theirs.
        running: domains of its bound pods, by the finest key.
        complete: false if the search for further preferences was cut off.
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
    running: tuple[DomainPods, ...] = ()


class LeftOut(Reply, frozen=True):
    """Nodes that pods may not use, by reason."""

    why: str
    nodes: int
    names: tuple[str, ...]


class KeyDomains(Reply, frozen=True):
    """One key of the pool on these nodes.

    Attributes:
        unlabelled: nodes without its label.
        best: domains that fit the most pods of the workflow's most frequent size, best first.
    """

    key: str
    label: str
    domains: int
    unlabelled: int
    best: tuple[DomainPods, ...]


class WorkflowExplanation(Reply, frozen=True):
    """The whole answer.

    Attributes:
        answer: "scheduled" if every task group fits after those before it.
        together: whether all task groups fit at once, in any order; null if not decided.
        groups: ordered by the names of their PodGroups, each placed in the capacity that those
            before it leave free; KAI may schedule them in another order.
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
    keys: tuple[KeyDomains, ...]
    left_out: tuple[LeftOut, ...]
    groups: tuple[Group, ...]
    warnings: tuple[str, ...] = ()
    api_version: str = API_VERSION
    kind: str = KIND


def schema() -> dict[str, Any]:
    """JSON Schema of a `WorkflowExplanation`."""
    return msgspec.json.schema(WorkflowExplanation)

"""The Workload of `scheduling.rackgate.dev`: which pods belong together, and what they ask for.

It is not the Workload of Kueue that `rackgate.api.workload` describes. The models are strict: they
validate what users write. `rackgate.gang` works on the JSON data itself, because an expanded and a
written object differ in which fields are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from rackgate.api import gang_rules
from rackgate.api.gang_rules import GangRule
from rackgate.api.meta import (
    ATOMIC,
    DNS_LABEL,
    LABEL_KEY,
    LIST_SET,
    ApiModel,
    ApiObject,
    Conditions,
    Count,
    LabelValue,
    Schema,
    Time,
    list_map,
    rules,
)
from rackgate.api.names import GANG_GROUP, GANG_VERSION, MAX_LEVEL_KEY

API_VERSION: Final = f"{GANG_GROUP}/{GANG_VERSION}"
MAX_PODS: Final = 1_000_000
MAX_GROUPS: Final = 18
MAX_EQ_GROUPS: Final = 4
MAX_SELECTOR_VALUES: Final = 8
MAX_TIMEOUT_S: Final = 86_400
MAX_SHOWN_GANGS: Final = 32

_KEEP_UNKNOWN: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
_ANY_SCALAR: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_RANK_PATH: Final = (
    r"^metadata\.(labels|annotations)\['([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?'\]$"
)
# Objects on a wrong level; the other misplaced fields are scalars.
_OBJECTS: Final = {"podRank", "template", "maxTemplate", "topologySpread", "controllerRef"}

_Name = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
_LevelKey = Annotated[str, Field(min_length=1, max_length=MAX_LEVEL_KEY, pattern=LABEL_KEY)]
_Opaque = Annotated[str, Field(min_length=1, max_length=253)]
_Pods = Annotated[int, Field(ge=0, le=MAX_PODS, json_schema_extra={"format": "int32"})]
# With one value left, pydantic writes `const`, which the API server does not know.
_Off = Annotated[Literal["Off"], WithJsonSchema({"type": "string", "enum": ["Off"]})]
_TerminateAll = Annotated[
    Literal["TerminateAll"], WithJsonSchema({"type": "string", "enum": ["TerminateAll"]})
]
_True = Annotated[Literal[True], WithJsonSchema({"type": "boolean", "enum": [True]})]
_AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", **_KEEP_UNKNOWN})]


def _rules_of(found: Sequence[GangRule]) -> Schema:
    return rules(*(one.to_json() for one in found))


def _level(level: str, found: Sequence[GangRule]) -> Callable[[Schema], None]:
    """Adds the rules of a level, and the fields of other levels that the rules reject."""

    def extend(schema: Schema) -> None:
        for field in gang_rules.misplaced(level):
            shape = {"type": "object"} if field in _OBJECTS else _ANY_SCALAR
            description = f"Rejected here: {gang_rules.belongs_to(field)}."
            schema["properties"][field] = {**shape, "description": description}
        schema.update(_rules_of(found))

    return extend


class _GangModel(ApiModel):
    """Base: an unknown field is an error, null is no value, and no value is converted."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _reject_null(cls, found: Any) -> Any:
        for field, value in found.items() if isinstance(found, dict) else ():
            if value is None:
                raise PydanticCustomError("null", "is null", {"field": str(field)})
        return found


class ControllerRef(_GangModel):
    """The object whose pods these are. Scheduling does not read it."""

    api_group: str | None = Field(default=None, max_length=253)
    """API group, such as `batch`; absent for core kinds."""
    kind: str = Field(min_length=1, max_length=63)
    """Kind, such as `Job`."""
    name: str = Field(min_length=1, max_length=253)
    """Name, in the same namespace."""


class PodSelector(_GangModel):
    """Selects pods by one label. All selectors of one list use the same key."""

    key: str = Field(min_length=1, max_length=317, pattern=LABEL_KEY)
    """Label key."""
    values: list[LabelValue] = Field(
        min_length=1, max_length=MAX_SELECTOR_VALUES, json_schema_extra=LIST_SET
    )
    """Label values. A value may select one group only."""


class ResourceClaim(_GangModel, json_schema_extra=_rules_of(gang_rules.RESOURCE_CLAIM)):
    """A device of several nodes that the pods share."""

    name: _Opaque | None = None
    """Name of this entry."""
    resource_claim: _Opaque | None = None
    """Name of a ResourceClaim."""
    resource_claim_template: _Opaque | None = None
    """Name of a ResourceClaimTemplate."""


class TopologyRequest(_GangModel, json_schema_extra=_rules_of(gang_rules.TOPOLOGY_REQUEST)):
    """Where the pods of this level go. Exactly one field."""

    required: _LevelKey | None = None
    """Node label of a level: all pods in one domain of it."""
    preferred: _LevelKey | None = None
    """Node label of a level: all pods in one domain of it, if one fits them."""
    unconstrained: _True | None = None
    """Any domains with capacity."""
    resource_claims: list[ResourceClaim] | None = Field(
        default=None, min_length=1, max_length=4, json_schema_extra=ATOMIC
    )
    """Claims of devices whose nodes are the domain."""


class FieldRef(_GangModel):
    """A label or an annotation of the pod."""

    field_path: str = Field(max_length=340, pattern=_RANK_PATH)
    """`metadata.labels['KEY']` or `metadata.annotations['KEY']`."""


class RankSource(_GangModel):
    """Where the rank is written."""

    field_ref: FieldRef
    """A label or an annotation of the pod."""


class PodRank(_GangModel):
    """The rank of each pod of the group, a whole number."""

    value_from: RankSource
    """Where the rank is written."""


class EqGroup(_GangModel, json_schema_extra=_level("eqGroups", gang_rules.EQ_GROUPS)):
    """Pods of one shape: equal requests, claims and temporary volumes."""

    name: _Name
    """Name, unique in its list."""
    selector: PodSelector | None = None
    """Pods of this group; a group without selector takes what no other selects."""
    count: _Pods | None = None
    """Number of pods: short for equal minCount and maxCount."""
    min_count: _Pods | None = None
    """Least number of pods."""
    max_count: _Pods | None = None
    """Greatest number of pods."""
    template: _AnyObject | None = None
    """Pod template, or its `resources` or its spec alone."""
    max_template: _AnyObject | None = None
    """The largest that a pod may become; in the forms of template."""
    topology_request: TopologyRequest | None = None
    """Where the pods of this group go."""


_EqGroups = Annotated[
    list[EqGroup],
    Field(min_length=1, max_length=MAX_EQ_GROUPS, json_schema_extra=list_map("name")),
]


class RankedGroup(_GangModel, json_schema_extra=_level("rankedGroups", gang_rules.RANKED_GROUPS)):
    """Pods that are numbered from 0."""

    name: _Name
    """Name, unique in its list."""
    selector: PodSelector | None = None
    """Pods of this group; a group without selector takes what no other selects."""
    min_count: _Pods | None = None
    """Least number of pods."""
    max_count: _Pods | None = None
    """Greatest number of pods."""
    rank_mode: _Off | None = None
    """Off: ranks have no meaning for the placement. Default: Off without podRank."""
    pod_rank: PodRank | None = None
    """The rank of each pod."""
    topology_request: TopologyRequest | None = None
    """Where the pods of this group go."""
    eq_groups: _EqGroups | None = None
    """Pods by shape."""


_RankedGroups = Annotated[
    list[RankedGroup],
    Field(min_length=1, max_length=MAX_GROUPS, json_schema_extra=list_map("name")),
]


class GangGroup(_GangModel, json_schema_extra=_level("gangGroups", gang_rules.GANG_GROUPS)):
    """Pods that start together or not at all, or with gangMode Off pods that belong together."""

    name: _Name
    """Name, unique in its list."""
    min_count: _Pods | None = None
    """Pods that must be able to start together. 0: no gang."""
    schedule_timeout_seconds: int | None = Field(
        default=None, ge=1, le=MAX_TIMEOUT_S, json_schema_extra={"format": "int32"}
    )
    """Seconds after which a gang that started in part is evicted. Default for a gang: 60."""
    selector: PodSelector | None = None
    """Pods of this group; a group without selector takes what no other selects."""
    gang_mode: Literal["Gang", "Off"] | None = None
    """Default: Gang with a minCount above 0, else Off."""
    max_count: _Pods | None = None
    """Greatest number of pods."""
    rescheduling_policy: _TerminateAll | None = None
    """TerminateAll: if a member is lost, all start again. Default: no action."""
    topology_request: TopologyRequest | None = None
    """Where the pods of this group go."""
    ranked_groups: _RankedGroups | None = None
    """Pods by their ranks."""
    rank_mode: _Off | None = None
    """Short form of one ranked group: its rankMode."""
    pod_rank: PodRank | None = None
    """Short form of one ranked group: its podRank."""
    eq_groups: _EqGroups | None = None
    """Short form of one ranked group: its eqGroups."""


class WorkloadSpec(_GangModel, json_schema_extra=_level("spec", gang_rules.SPEC)):
    """Which pods belong together, and what they ask for."""

    controller_ref: ControllerRef | None = None
    """The object whose pods these are. Scheduling does not read it."""
    replica_mode: Literal["Unreplicated", "ReplicatedPods", "ReplicatedGangs"] | None = None
    """ReplicatedPods: each replica is one pod. ReplicatedGangs: each replica is a gang as the one
    gangGroup says. Default: Unreplicated."""
    replica_key: Annotated[str, Field(max_length=317, pattern=LABEL_KEY)] | None = None
    """Pod label whose value tells replicas apart; with ReplicatedGangs only."""
    min_count: _Pods | None = None
    """Least number of pods of the whole workload."""
    max_count: _Pods | None = None
    """Greatest number of pods of the whole workload."""
    topology_request: TopologyRequest | None = None
    """Where all pods go."""
    topology_spread: _AnyObject | None = None
    """Reserved: its fields are not decided."""
    gang_groups: (
        Annotated[
            list[GangGroup],
            Field(min_length=1, max_length=MAX_GROUPS, json_schema_extra=list_map("name")),
        ]
        | None
    ) = None
    """Pods by gang."""
    ranked_groups: _RankedGroups | None = None
    """Short form of one gangGroup `gg`: its rankedGroups."""
    eq_groups: _EqGroups | None = None
    """Short form of one gangGroup `gg` with one ranked group `rg`: its eqGroups."""


class GangStatus(ApiModel):
    """One gang that does not run yet."""

    name: str = Field(max_length=63)
    """The gangGroup."""
    replica: str | None = Field(default=None, max_length=63)
    """Value of the replica key, with ReplicatedGangs."""
    state: Literal[
        "Empty",
        "Collecting",
        "Complete",
        "Placed",
        "Releasing",
        "Released",
        "Running",
        "Done",
        "GivingWay",
    ]
    """How far it is."""
    members: Count
    """Live pods."""
    min_count: Count
    """Pods that must be able to start together."""
    released: Count | None = None
    """Pods without a gate of Rackgate."""
    bound: Count | None = None
    """Pods that have a node."""
    run: str | None = Field(default=None, max_length=63)
    """Id of the run."""
    since: Time | None = None
    """When it got into this state."""
    message: str | None = Field(default=None, max_length=4096)
    """What it waits for."""


class GangGroupPhase(ApiModel):
    """The phase of the pods of one gangGroup."""

    name: str = Field(max_length=63)
    """The gangGroup."""
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    """As the phase of a pod; of several replicas, that of the least far."""


class ReplicaCounts(ApiModel):
    """Replicas, with ReplicatedGangs."""

    total: Count
    running: Count
    waiting: Count


class WorkloadStatus(ApiModel):
    """Summary for people. No code reads it back."""

    observed_generation: int | None = Field(
        default=None, ge=0, json_schema_extra={"format": "int64"}
    )
    """Generation of the object that the status describes."""
    conditions: Conditions = Field(default_factory=list)
    """PodsMatched, TopologyRequestValid, TopologyEnforced, Exclusive, GangScheduled, NativeGang."""
    phase: str | None = Field(default=None, max_length=63)
    """The state of the gang that is least far."""
    members: str | None = Field(default=None, max_length=63)
    """Bound pods and the least number, such as `7/8`."""
    waiting_for: str | None = Field(default=None, max_length=316)
    """Reason why the gang that is least far does not run."""
    gangs: list[GangStatus] = Field(
        default_factory=list, max_length=MAX_SHOWN_GANGS, json_schema_extra=ATOMIC
    )
    """Gangs that do not run."""
    pod_phase: str | None = Field(default=None, max_length=63)
    """The phase of the pods of the gang group that is least far; absent while there are no pods."""
    gang_groups: list[GangGroupPhase] = Field(
        default_factory=list, max_length=MAX_GROUPS, json_schema_extra=ATOMIC
    )
    """The phase of the pods of each gangGroup that has pods."""
    replicas: ReplicaCounts | None = None
    """Replicas, with ReplicatedGangs."""


class Workload(ApiObject):
    """Which pods of a job belong together: gangs, ranks, shapes, and where they go."""

    api_version: str = API_VERSION
    spec: WorkloadSpec
    status: WorkloadStatus | None = None

"""Models of OSMO's pools and workflows, and the KAI objects that are built from them.

The models declare the fields that topology needs. Other fields of a workflow or a task (`image`,
`inputs`, `credentials` ...) are kept unchanged. Resources and requirements reject unknown fields:
with a misspelled `topology` a job would run without one. `reading` turns data into models and
reports every rejection; models that were built directly are checked when objects are rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rackgate.api.names import MAX_LEVELS
from rackgate.resources.quantity import MAX_TEXT, QuantityError, to_milli

Object = dict[str, Any]

KAI: Final = "kai"
SCHEDULER_NAME: Final = "kai-scheduler"
POD_GROUP_ANNOTATION: Final = "pod-group-name"
SUBGROUP_LABEL: Final = "kai.scheduler/subgroup-name"
QUEUE_LABEL: Final = "kai.scheduler/queue"
DEFAULT_RESOURCE: Final = "default"

# Maximum of KAI's schema. KAI[topology-17-levels]
MAX_KEYS: Final = MAX_LEVELS
MAX_KEY: Final = 63
MAX_NAME: Final = 253
# `osmo-pool-<name>` is the value of the queue label, which has at most 63 characters.
MAX_POOL_NAME: Final = 53
MAX_LABELS: Final = 16
MAX_TOLERATIONS: Final = 16
MAX_TAINT: Final = 317
MAX_TASKS: Final = 20_000
MAX_GROUPS: Final = 20_000
MAX_RESOURCES: Final = 20_000
# There are at most 16 keys; a few more are read to report which one is a duplicate.
MAX_REQUIREMENTS: Final = 64

RequirementType = Literal["required", "preferred"]


class KaiVersion(StrEnum):
    """Minor version of KAI that schedules the objects. There is no 0.11."""

    V0_10 = "0.10"
    V0_12 = "0.12"
    V0_13 = "0.13"


class Profile(StrEnum):
    """How closely the objects follow OSMO's design; see `profiles`."""

    SEED = "seed"
    ROBUST = "robust"


def _amount(value: object) -> object:
    """A non-negative Kubernetes quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity", 'must be a quantity such as 4, "500m" or "16Gi"')
    try:
        milli = to_milli(value)
    except (QuantityError, OverflowError, ValueError) as error:
        raise PydanticCustomError(
            "quantity", 'is not a quantity: use a form such as 4, "500m" or "16Gi"'
        ) from error
    if milli < 0:
        raise PydanticCustomError("quantity", "must not be negative: use 0 or more")
    return value


Size = Annotated[str | int | float, BeforeValidator(_amount)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class _StrictModel(BaseModel):
    """Base: no type coercion, immutable."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class TopologyKey(_StrictModel):
    """One level of a pool: the key that users write, and the node label that it stands for."""

    key: str = Field(min_length=1, max_length=MAX_KEY)
    label: str


class Toleration(_StrictModel):
    """A toleration with the field names of Kubernetes."""

    key: str = Field(default="", max_length=MAX_TAINT)
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = Field(default="", max_length=63)
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    tolerationSeconds: int | None = None  # noqa: N815 - spelled as users write it

    @model_validator(mode="after")
    def _check_accepted_by_api_server(self) -> Self:
        if not self.key and self.operator != "Exists":
            raise PydanticCustomError("toleration", "without a key, operator must be Exists")
        if self.value and self.operator == "Exists":
            raise PydanticCustomError("toleration", "value must be empty with operator Exists")
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            raise PydanticCustomError("toleration", "tolerationSeconds needs effect NoExecute")
        return self

    def to_pod_toleration(self) -> Object:
        """The toleration as a pod has it."""
        return self.model_dump(exclude_defaults=True)


class Pool(_StrictModel):
    """A pool: its queue, its topology keys from coarse to fine, and its nodes.

    Attributes:
        node_selector: labels that its nodes carry; pods run on no others. Empty selects all nodes.
        tolerations: tolerations of all its pods.
        gpu_toleration: whether pods that request GPUs tolerate the taint `nvidia.com/gpu`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    name: str
    backend: str = Field(default="", max_length=MAX_NAME)
    scheduler: str = Field(default=KAI, max_length=MAX_NAME)
    topology_keys: Annotated[tuple[TopologyKey, ...], Field(strict=False)] = ()
    node_selector: Annotated[dict[str, str], Field(max_length=MAX_LABELS)] = Field(
        default_factory=dict
    )
    tolerations: Annotated[
        tuple[Toleration, ...], Field(strict=False, max_length=MAX_TOLERATIONS)
    ] = ()
    gpu_toleration: bool = True

    @property
    def osmo_name(self) -> str:
        """Name of the pool's queue; `<osmo-pool-name>` in OSMO's design."""
        return f"osmo-pool-{self.name}"

    @property
    def topology_name(self) -> str:
        """Name of the pool's Topology object."""
        return f"{self.osmo_name}-topology"


class Requirement(_StrictModel):
    """Tasks with the same group below the same parent share one domain of the key."""

    key: str = Field(max_length=MAX_NAME)
    group: str = Field(default="default", max_length=MAX_NAME)
    requirementType: RequirementType = "required"  # noqa: N815 - spelled as users write it

    @property
    def required(self) -> bool:
        """Whether the tasks stay pending without such a domain."""
        return self.requirementType == "required"


def _shared(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Reuses an equal requirement, if the caller gives a dict to keep them in."""
    if info.context is None or type(value) is not dict:
        return handler(value)
    try:
        read = tuple(value.items())
        found = info.context.get(read)
        if found is None:
            found = info.context[read] = handler(value)
    except TypeError:  # a value of the wrong type, which is not hashable
        return handler(value)
    return found


class Resource(_StrictModel):
    """What one task of this resource requests. OSMO's defaults apply to absent sizes."""

    topology: Annotated[
        tuple[Annotated[Requirement, WrapValidator(_shared)], ...],
        Field(strict=False, max_length=MAX_REQUIREMENTS),
    ] = ()
    cpu: Size | None = None
    memory: Size | None = None
    gpu: Size | None = None
    storage: Size | None = None
    platform: str | None = Field(default=None, max_length=MAX_NAME)
    nodesExcluded: Annotated[  # noqa: N815 - spelled as users write it
        tuple[Annotated[str, Field(max_length=MAX_TEXT)], ...],
        Field(strict=False, max_length=10_000),
    ] = ()


class Task(_StrictModel):
    """One task: one pod. Other fields are kept in `model_extra`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: Name
    resource: str | None = Field(default=None, max_length=MAX_NAME)
    image: str | None = None
    command: Any = None
    args: Any = None
    environment: Any = None

    @model_validator(mode="after")
    def _let_others_run(self) -> Self:
        # pydantic holds the GIL until a Python function is called. This call lets other threads
        # run between tasks, however many there are.
        return self


class TaskGroup(_StrictModel):
    """Tasks that start together: one PodGroup."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: Name
    tasks: Annotated[tuple[Task, ...], Field(strict=False)]


class Workflow(_StrictModel):
    """Task groups, and the resources that their tasks name."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: Name
    groups: Annotated[tuple[TaskGroup, ...], Field(strict=False)]
    resources: dict[str, Resource] = Field(default_factory=dict)

    def resource_of(self, task: Task) -> Resource | None:
        """The resource that a task names, else `default`, else None."""
        return self.resources.get(task.resource or DEFAULT_RESOURCE)


@dataclass(frozen=True, slots=True)
class PodMembership:
    """What makes a pod a member of its PodGroup and subgroup.

    Pods of one leaf share this object, and pods of a PodGroup share its annotations: copy to
        change.

    Attributes:
        pod_group: name of the PodGroup.
        annotations: to add to the pod.
        labels: to add to the pod; empty if the PodGroup has no subgroups.
        scheduler_name: for `spec.schedulerName`. The pod must also have no ownerReferences, because
            KAI regroups the pods of an owner.
    """

    pod_group: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    scheduler_name: str = SCHEDULER_NAME


@dataclass(frozen=True, slots=True)
class Built:
    """Objects for KAI, as JSON data.

    Attributes:
        topology: the pool's Topology; None for a pool without keys.
        pod_groups: one per task group, in the workflow's order.
        pods: membership of each pod by task group and task.
    """

    topology: Object | None
    pod_groups: tuple[Object, ...]
    pods: Mapping[tuple[str, str], PodMembership] = field(default_factory=dict)

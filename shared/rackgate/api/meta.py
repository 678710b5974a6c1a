"""Base of the models of our kinds: wire names, bounded scalars, extensions of the CRD schemas.

`rackgate.api.crd` generates the CustomResourceDefinitions in `deploy/crds` from the models, so the
API server enforces the bounds and rules that a field declares here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from rackgate.api.names import API_VERSION
from rackgate.resources.quantity import QuantityError, to_milli

Schema = dict[str, Any]

SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# Pattern A-1 of KEP-2724: an optional DNS subdomain and "/", then a label name.
LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
LABEL_VALUE: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
QUANTITY: Final = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
MAX_INT32: Final = 2**31 - 1


def rule(expression: str, message: str, path: str | None = None) -> Schema:
    """One CEL rule; errors name `path`, the field relative to the rule."""
    found = {"rule": " ".join(expression.split()), "message": message}
    return found if path is None else {**found, "fieldPath": path}


def rules(*found: Schema) -> Schema:
    """CEL rules as a schema extension."""
    return {"x-kubernetes-validations": list(found)}


def list_map(*keys: str) -> Schema:
    """A list that is a map by these keys: entries merge on apply, duplicates are rejected."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Final[Schema] = {"x-kubernetes-list-type": "atomic"}
LIST_SET: Final[Schema] = {"x-kubernetes-list-type": "set"}
ATOMIC_MAP: Final[Schema] = {"x-kubernetes-map-type": "atomic"}


def rule_error(path: str, message: str) -> PydanticCustomError:
    """The error of a rule over several fields, for a model's validator.

    `path` is the field relative to the model in wire names; it may be empty.
    """
    return PydanticCustomError("rule", "{message}", {"message": message, "path": path})


class ApiModel(BaseModel):
    """Base: camelCase on the wire, snake_case here; unknown fields are preserved."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        use_attribute_docstrings=True,
    )

    def to_json(self) -> dict[str, Any]:
        """The object as JSON data in wire names; only fields that were set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _check_quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PydanticCustomError(
            "quantity", "must be a quantity: a string such as 500m or 1.5Gi, or a whole number"
        )
    try:
        found = to_milli(value)
    except QuantityError as error:
        raise PydanticCustomError("quantity", "{message}", {"message": str(error)}) from error
    if found < 0:
        raise PydanticCustomError("quantity", "must not be negative: use 0 or more")
    return value


Quantity = Annotated[
    str | int,
    BeforeValidator(_check_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY,
            "minimum": 0,
            "maxLength": 256,
        }
    ),
]
Int32 = Annotated[
    int, Field(ge=-MAX_INT32 - 1, le=MAX_INT32, json_schema_extra={"format": "int32"})
]
Count = Annotated[int, Field(ge=0, le=MAX_INT32, json_schema_extra={"format": "int32"})]
Positive = Annotated[int, Field(ge=1, le=MAX_INT32, json_schema_extra={"format": "int32"})]
# No bounds: the API server reads bounds as floats, which cannot represent the limits of int64.
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
ObjectName = Annotated[str, Field(max_length=253, pattern=SUBDOMAIN)]
PodSetName = Annotated[str, Field(max_length=63, pattern=DNS_LABEL)]
ResourceName = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
RequestedLevel = Annotated[str, Field(min_length=1, max_length=63)]
IndexLabel = Annotated[str, Field(max_length=317)]
Quantities = dict[ResourceName, Quantity]


class ObjectMeta(ApiModel):
    """Metadata of an object. Fields that are not declared here are preserved."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class ApiObject(ApiModel):
    """Base of our kinds."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    def to_json(self) -> dict[str, Any]:
        """The object as JSON data: fields that were set, and always apiVersion and kind."""
        head = {"apiVersion": self.api_version, "kind": self.kind or type(self).__name__}
        return head | super().to_json()


class Condition(ApiModel):
    """One aspect of an object's observed state."""

    type: str = Field(max_length=316, pattern=LABEL_KEY)
    status: Literal["True", "False", "Unknown"]
    observed_generation: int | None = Field(
        default=None, ge=0, json_schema_extra={"format": "int64"}
    )
    last_transition_time: Time
    reason: str = Field(
        min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    )
    message: str = Field(max_length=32768)


Conditions = Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))]


class Taint(ApiModel):
    """A taint of the nodes of a flavor."""

    key: str = Field(min_length=1, max_length=317)
    value: str | None = Field(default=None, max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    time_added: Time | None = None


class Toleration(
    ApiModel,
    json_schema_extra=rules(
        rule(
            """(has(self.key) && self.key != '')
            || (has(self.operator) && self.operator == 'Exists')""",
            "operator must be Exists when key is empty, which tolerates every taint",
            ".operator",
        ),
        rule(
            """!has(self.tolerationSeconds)
            || (has(self.effect) && self.effect == 'NoExecute')""",
            "tolerationSeconds needs effect NoExecute",
            ".effect",
        ),
        rule(
            """!has(self.operator) || self.operator != 'Exists'
            || !has(self.value) || self.value == ''""",
            "value must be empty when operator is Exists",
            ".value",
        ),
    ),
):
    """A toleration that is added to pods."""

    key: str | None = Field(default=None, max_length=317)
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = Field(default=None, max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Int64 | None = None


class SelectorRequirement(ApiModel):
    """One expression of a label selector."""

    key: str = Field(max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = Field(default=None, json_schema_extra=ATOMIC)


class LabelSelector(ApiModel, json_schema_extra=ATOMIC_MAP):
    """A label selector: all parts must match. An empty selector matches everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[SelectorRequirement] = Field(
        default_factory=list, json_schema_extra=ATOMIC
    )

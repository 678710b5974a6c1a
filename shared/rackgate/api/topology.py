"""Topology: the levels of a data center, and the shape of `topologyAssignment` in a Workload.

`rackgate.topology.assignment` encodes and decodes assignments.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from rackgate.api.meta import (
    ATOMIC,
    LABEL_KEY,
    ApiModel,
    ApiObject,
    Positive,
    Schema,
    rule,
    rule_error,
    rules,
)
from rackgate.api.names import HOSTNAME_LABEL, MAX_LEVEL_KEY, MAX_LEVELS
from rackgate.topology.assignment import MAX_SLICES, MAX_VALUE, SLICE_DOMAINS, decode

HOSTNAME_LAST = (
    f"the {HOSTNAME_LABEL} label can only be used at the lowest level of topology: put it last"
)
UNIQUE = "levels must be unique: name every node label once"
# Assignments stay valid after a change of levels only if they contain host names alone.
_LEVELS_MAY_CHANGE = rule(
    f"""self == oldSelf || (self[size(self) - 1].nodeLabel == '{HOSTNAME_LABEL}'
    && oldSelf[size(oldSelf) - 1].nodeLabel == '{HOSTNAME_LABEL}')""",
    f"levels can only change when {HOSTNAME_LABEL} is the lowest level before and after",
)
LEVELS_FIXED = rule("self == oldSelf", "levels cannot change through this version")


class TopologyLevel(ApiModel):
    """One level of a topology."""

    node_label: str = Field(min_length=1, max_length=MAX_LEVEL_KEY, pattern=LABEL_KEY)
    """Node label whose values are the domains of this level, such as
    `cloud.provider.com/topology-rack`."""


class TopologySpec(ApiModel):
    """Levels of a topology."""

    levels: list[TopologyLevel] = Field(
        min_length=1,
        max_length=MAX_LEVELS,
        json_schema_extra=ATOMIC
        | rules(
            _LEVELS_MAY_CHANGE,
            rule("self.all(i, self.exists_one(j, j.nodeLabel == i.nodeLabel))", UNIQUE),
            rule(
                f"""!self.exists(i, i.nodeLabel == '{HOSTNAME_LABEL}')
                || self[size(self) - 1].nodeLabel == '{HOSTNAME_LABEL}'""",
                HOSTNAME_LAST,
            ),
        ),
    )
    """Levels, coarsest first; `kubernetes.io/hostname` may only be the last."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        labels = [level.node_label for level in self.levels]
        if len(set(labels)) < len(labels):
            raise rule_error("levels", UNIQUE)
        if HOSTNAME_LABEL in labels[:-1]:
            raise rule_error("levels", HOSTNAME_LAST)
        return self


class Topology(ApiObject):
    """The levels of a data center (block, rack, host ...) that jobs can request."""

    spec: TopologySpec


_ONE_OF = "exactly one of universal and individual must be set"
_Level = Annotated[str, Field(max_length=317)]
_Value = Annotated[str, Field(max_length=MAX_VALUE)]


class IndividualValues(ApiModel):
    """Values of one level: prefix + root + suffix, one root per domain."""

    prefix: _Value | None = None
    suffix: _Value | None = None
    roots: list[_Value] = Field(min_length=1, max_length=SLICE_DOMAINS, json_schema_extra=ATOMIC)


class LevelValues(
    ApiModel, json_schema_extra=rules(rule("has(self.universal) != has(self.individual)", _ONE_OF))
):
    """Values of one level: one for all domains, or one for each."""

    universal: _Value | None = None
    individual: IndividualValues | None = None


class PodCounts(
    ApiModel, json_schema_extra=rules(rule("has(self.universal) != has(self.individual)", _ONE_OF))
):
    """Pods of each domain: one number for all domains, or one for each."""

    universal: Positive | None = None
    individual: list[Positive] | None = Field(
        default=None, min_length=1, max_length=SLICE_DOMAINS, json_schema_extra=ATOMIC
    )


class AssignmentSlice(
    ApiModel,
    json_schema_extra=rules(
        rule(
            "!has(self.podCounts.individual)"
            " || size(self.podCounts.individual) == self.domainCount",
            "podCounts.individual must have domainCount entries",
        ),
        rule(
            """self.valuesPerLevel.all(v, !has(v.individual)
            || size(v.individual.roots) == self.domainCount)""",
            "individual.roots must have domainCount entries",
        ),
    ),
):
    """Some of the domains, by column."""

    domain_count: Annotated[
        int, Field(ge=1, le=SLICE_DOMAINS, json_schema_extra={"format": "int32"})
    ]
    values_per_level: list[LevelValues] = Field(
        min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC
    )
    pod_counts: PodCounts


class AssignmentShape(
    ApiModel,
    json_schema_extra=rules(
        rule(
            "self.slices.all(s, size(s.valuesPerLevel) == size(self.levels))",
            "valuesPerLevel must have one entry per level",
        )
    ),
):
    """Domains and pod counts of a PodSet: the union of the slices, in rank order."""

    levels: list[_Level] = Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC)
    """Node label keys, coarsest first. Only the hostname if that is the lowest level."""
    slices: list[AssignmentSlice] = Field(
        min_length=1, max_length=MAX_SLICES, json_schema_extra=ATOMIC
    )


def _check(value: dict[str, Any]) -> dict[str, Any]:
    decode(value)
    return value


class _ShapeSchema:
    """Gives a plain dict the JSON schema of `AssignmentShape`."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        return handler(AssignmentShape.__pydantic_core_schema__)


Assignment = Annotated[dict[str, Any], AfterValidator(_check), _ShapeSchema]

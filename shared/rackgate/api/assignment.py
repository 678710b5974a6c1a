"""Shape of `topologyAssignment` for the CRD; the codec is `rackgate.topology.assignment`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from rackgate.api.meta import ATOMIC, ApiModel, Positive, Schema, rule, rules
from rackgate.api.names import MAX_LEVELS
from rackgate.topology.assignment import MAX_SLICES, MAX_VALUE, SLICE_DOMAINS, decode

_ONE_OF = "exactly one of universal and individual must be set"
_Level = Annotated[str, Field(max_length=317)]
_Value = Annotated[str, Field(max_length=MAX_VALUE)]


class IndividualValues(ApiModel):
    """Values of one level: prefix + root + suffix, one root per domain."""

    prefix: _Value | None = None
    suffix: _Value | None = None
    roots: list[_Value] = Field(min_length=1, max_length=SLICE_DOMAINS, json_schema_extra=ATOMIC)


class LevelValues(
    ApiModel,
    json_schema_extra=rules(rule("has(self.universal) != has(self.individual)", _ONE_OF)),
):
    """Values of one level: the same for all domains, or one for each."""

    universal: _Value | None = None
    individual: IndividualValues | None = None


class PodCounts(
    ApiModel,
    json_schema_extra=rules(rule("has(self.universal) != has(self.individual)", _ONE_OF)),
):
    """Pods by domain: the same for all, or one number for each."""

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
    """Some of the domains, in columns."""

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
    """Node label keys, coarsest first; only the host name where that is the lowest level."""
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

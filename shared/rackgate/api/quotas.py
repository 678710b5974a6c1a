"""Quota by flavor and resource, as ClusterQueues and Cohorts have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    ApiModel,
    Int64,
    ObjectName,
    Quantities,
    Quantity,
    ResourceName,
    Time,
    list_map,
    rule,
    rule_error,
    rules,
)

SAME_RESOURCES = "every flavor must list the resources of coveredResources, in the same order"


class ResourceQuota(ApiModel):
    """Quota of one resource in one flavor."""

    name: ResourceName
    nominal_quota: Quantity
    """What workloads may use at a time."""
    borrowing_limit: Quantity | None = None
    """Most that may be borrowed from the cohort; unset: no limit."""
    lending_limit: Quantity | None = None
    """Most of the unused quota that the cohort may borrow; unset: no limit."""


class FlavorQuotas(ApiModel):
    """Quotas of one flavor."""

    name: ObjectName
    """Name of a ResourceFlavor."""
    resources: list[ResourceQuota] = Field(
        min_length=1, max_length=64, json_schema_extra=list_map("name")
    )


class ResourceGroup(
    ApiModel,
    json_schema_extra=rules(
        rule(
            "self.flavors.all(f, size(f.resources) == size(self.coveredResources))",
            SAME_RESOURCES,
            ".flavors",
        ),
        rule(
            """self.flavors.all(f, size(f.resources) != size(self.coveredResources)
            || f.resources.all(i, r, r.name == self.coveredResources[i]))""",
            SAME_RESOURCES,
            ".flavors",
        ),
    ),
):
    """Resources that take their flavor together; flavors are tried in order."""

    covered_resources: list[ResourceName] = Field(
        min_length=1, max_length=64, json_schema_extra=ATOMIC
    )
    flavors: list[FlavorQuotas] = Field(
        min_length=1, max_length=64, json_schema_extra=list_map("name")
    )

    @model_validator(mode="after")
    def _check_flavors(self) -> Self:
        for index, flavor in enumerate(self.flavors):
            if [quota.name for quota in flavor.resources] != self.covered_resources:
                raise rule_error(f"flavors[{index}].resources", SAME_RESOURCES)
        return self


def _find_repeated(groups: Sequence[Sequence[str]]) -> str | None:
    seen: set[str] = set()
    for names in groups:
        repeated = next((name for name in names if name in seen), None)
        if repeated is not None:
            return repeated
        seen.update(names)
    return None


def check_groups(groups: Sequence[ResourceGroup]) -> None:
    """Refuse a resource or flavor that stands in two groups (too costly a rule for CEL).

    Raises:
        PydanticCustomError: to be raised in the validator of a model with `resourceGroups`.
    """
    found = _find_repeated([group.covered_resources for group in groups])
    if found is not None:
        raise rule_error(
            "resourceGroups", f'resource "{found}" is in two groups: cover it in one of them'
        )
    found = _find_repeated([[flavor.name for flavor in group.flavors] for group in groups])
    if found is not None:
        raise rule_error(
            "resourceGroups", f'flavor "{found}" is in two groups: name it in one of them'
        )


def quota_paths(
    groups: Sequence[ResourceGroup], chosen: Callable[[ResourceQuota], bool]
) -> Iterator[str]:
    """Paths of the quotas that `chosen` picks, as `resourceGroups[0].flavors[1].resources[0]`."""
    for g, group in enumerate(groups):
        for f, flavor in enumerate(group.flavors):
            for r, quota in enumerate(flavor.resources):
                if chosen(quota):
                    yield f"resourceGroups[{g}].flavors[{f}].resources[{r}]"


class FairSharing(ApiModel):
    """Weight among others that compete for unused resources."""

    weight: Quantity = Field(default=1)
    """A greater weight gets more; 0 always comes last."""


class AdmissionFairSharingStatus(ApiModel):
    """Usage over time that admission fair sharing goes by."""

    consumed_resources: Quantities
    last_update: Time


class FairSharingStatus(ApiModel):
    """Current share."""

    weighted_share: Int64
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None

"""Cohort: ClusterQueues that lend each other unused quota."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rackgate.api.meta import ATOMIC, ApiModel, ApiObject, ObjectName
from rackgate.api.quotas import FairSharing, FairSharingStatus, ResourceGroup, check_groups


class CohortSpec(ApiModel, json_schema_extra={"default": {}}):
    """Place in the tree of cohorts, and quota shared by all members."""

    parent_name: ObjectName | None = None
    """Cohort above this one; unset: this is a root."""
    resource_groups: list[ResourceGroup] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    """Quota on top of what the member ClusterQueues have."""
    fair_sharing: FairSharing | None = None

    @model_validator(mode="after")
    def _check_resource_groups(self) -> Self:
        check_groups(self.resource_groups)
        return self


class CohortStatus(ApiModel):
    """Current share."""

    fair_sharing: FairSharingStatus | None = None


class Cohort(ApiObject):
    """ClusterQueues that lend each other unused quota."""

    spec: CohortSpec = Field(default_factory=CohortSpec)
    status: CohortStatus | None = None

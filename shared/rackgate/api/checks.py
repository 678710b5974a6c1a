"""AdmissionCheck and WorkloadPriorityClass: small kinds that queues and workloads name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rackgate.api.meta import (
    DNS_LABEL,
    ApiModel,
    ApiObject,
    Conditions,
    Int32,
    Int64,
    ObjectName,
    rule,
    rules,
)


class CheckParameters(ApiModel):
    """Object with more settings of a check."""

    api_group: ObjectName
    kind: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")]
    name: Annotated[str, Field(max_length=63, pattern=DNS_LABEL)]


class AdmissionCheckSpec(ApiModel):
    """Who answers a check."""

    controller_name: str = Field(
        min_length=1,
        max_length=317,
        json_schema_extra=rules(rule("self == oldSelf", "controllerName is immutable")),
    )
    retry_delay_minutes: Int64 | None = None
    parameters: CheckParameters | None = None


class AdmissionCheckStatus(ApiModel):
    """Observed state of a check."""

    conditions: Conditions = Field(default_factory=list)


class AdmissionCheck(ApiObject):
    """A question that another controller answers before a workload is admitted."""

    spec: AdmissionCheckSpec
    status: AdmissionCheckStatus | None = None


class WorkloadPriorityClass(ApiObject):
    """A named priority of workloads."""

    value: Int32
    """The priority: the higher goes first."""
    description: str = Field(default="", max_length=2048)

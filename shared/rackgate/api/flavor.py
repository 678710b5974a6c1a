"""ResourceFlavor: a class of nodes, optionally with a topology."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    ATOMIC_MAP,
    ApiModel,
    ApiObject,
    LabelValue,
    ObjectName,
    Taint,
    Toleration,
    rule,
    rule_error,
    rules,
)

NEEDS_LABELS = "at least one node label is required when topologyName is set"


class ResourceFlavorSpec(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            "!has(self.topologyName) || (has(self.nodeLabels) && size(self.nodeLabels) >= 1)",
            NEEDS_LABELS,
            ".nodeLabels",
        ),
        rule(
            """!has(oldSelf.topologyName)
            || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)""",
            "topologyName is immutable once set",
            ".topologyName",
        ),
    ),
):
    """Which nodes a flavor stands for."""

    node_labels: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=8, json_schema_extra=ATOMIC_MAP
    )
    """Labels that tell the nodes of this flavor; admitted pods get them as node selector."""
    node_taints: list[Taint] = Field(default_factory=list, max_length=8, json_schema_extra=ATOMIC)
    """Taints that the nodes of this flavor have; pods must tolerate them to get the flavor."""
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=8, json_schema_extra=ATOMIC
    )
    """Tolerations added to the pods admitted with this flavor."""
    topology_name: ObjectName | None = None
    """Topology of the nodes: set, the flavor's pods are placed by topology."""

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.topology_name is not None and not self.node_labels:
            raise rule_error("nodeLabels", NEEDS_LABELS)
        return self


class ResourceFlavor(ApiObject):
    """A class of nodes that quota is given in."""

    spec: ResourceFlavorSpec = Field(default_factory=ResourceFlavorSpec)

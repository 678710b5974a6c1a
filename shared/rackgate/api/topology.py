"""Topology: the levels of a data centre, by the node labels that tell them."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rackgate.api.meta import ATOMIC, LABEL_KEY, ApiModel, ApiObject, rule, rule_error, rules
from rackgate.api.names import HOSTNAME_LABEL, MAX_LEVEL_KEY, MAX_LEVELS

HOSTNAME_LAST = (
    f"the {HOSTNAME_LABEL} label can only be used at the lowest level of topology: put it last"
)
UNIQUE = "levels must be unique: name every node label once"
# A change of levels is harmless only where assignments hold nothing but host names.
_LEVELS_MAY_CHANGE = rule(
    f"""self == oldSelf || (self[size(self) - 1].nodeLabel == '{HOSTNAME_LABEL}'
    && oldSelf[size(oldSelf) - 1].nodeLabel == '{HOSTNAME_LABEL}')""",
    f"levels can only change when {HOSTNAME_LABEL} is the lowest level before and after",
)
LEVELS_FIXED = rule("self == oldSelf", "levels cannot change through this version")


class TopologyLevel(ApiModel):
    """One level of a topology."""

    node_label: str = Field(min_length=1, max_length=MAX_LEVEL_KEY, pattern=LABEL_KEY)
    """Node label whose values are the domains of this level, for instance
    `cloud.provider.com/topology-rack`."""


class TopologySpec(ApiModel):
    """What a topology looks like."""

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
    """The levels of a data centre (block, rack, host ...) that jobs may ask for."""

    spec: TopologySpec

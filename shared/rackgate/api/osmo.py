"""OSMO's pools and workflows as objects of a cluster, their fields spelled as OSMO's users do.

The shape alone is here; what makes a pool or workflow wrong is for `rackgate_osmo` to say.
Of a Pool the API server holds the rules itself, so that they hold without any webhook. A Workflow
keeps unknown fields: they are to be refused in words, and pruning would make them vanish instead.
"""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict, Field

from rackgate.api.meta import (
    ATOMIC,
    ApiModel,
    ApiObject,
    Conditions,
    LabelValue,
    ObjectName,
    Schema,
    Toleration,
    rule,
    rules,
)
from rackgate.api.names import (
    HOSTNAME_LABEL,
    MAX_LEVELS,
    OSMO_GROUP,
    OSMO_VERSION,
)

API_VERSION: Final = f"{OSMO_GROUP}/{OSMO_VERSION}"
# The queue "osmo-pool-<name>" is a label of each PodGroup: 63 characters at most.
MAX_POOL_NAME: Final = 53
MAX_GROUPS: Final = 20_000
MAX_TASKS: Final = 20_000
MAX_RESOURCES: Final = 20_000

_MAX_LABEL: Final = 317
_KEEP_UNKNOWN: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
# As LABEL_KEY, and its name part as long as that of a node label may be.
_NODE_LABEL: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]|[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9])$"
)


def _rule_with_expression(
    expression: str, message: str, message_expression: str, path: str
) -> Schema:
    """A rule whose message is an expression; `message` stands in for it should that fail."""
    found = rule(expression, message, path)
    return {**found, "messageExpression": " ".join(message_expression.split())}


_KAI_REQUIRED: Final = _rule_with_expression(
    "self.spec.topology_keys.size() == 0 || self.spec.scheduler in ['kai', 'kai-scheduler']",
    "topology_keys need a backend whose scheduler is kai",
    """'pool "' + self.metadata.name + '" of backend "' + self.spec.backend
    + '" has topology keys, but its scheduler is "' + self.spec.scheduler
    + '": only kai takes them; use a backend with it, or take the keys out'""",
    ".spec.topology_keys",
)
_SHORT_NAME: Final = rule(
    f"self.metadata.name.size() <= {MAX_POOL_NAME}",
    f"the name of a pool may have {MAX_POOL_NAME} characters at most: "
    'its queue "osmo-pool-<name>" is a label',
)


def _unique_rule(field: str) -> Schema:
    return rule(
        f"self.all(i, self.exists_one(j, j.{field} == i.{field}))",
        f"each {field} may be there once: name every {field} in one entry only",
    )


class _OsmoModel(ApiModel):
    """Fields are spelled as users of OSMO write them, not in the API's camel case."""

    model_config = ConfigDict(alias_generator=None)


class PoolTopologyKey(_OsmoModel):
    """One topology key: what users call it, and the node label it stands for."""

    key: str = Field(min_length=1, max_length=63)
    """Name that workflows use, for instance `rack`."""
    label: str = Field(
        min_length=1,
        max_length=_MAX_LABEL,
        json_schema_extra=rules(
            rule(
                f"self.matches('{_NODE_LABEL}')",
                'is no label of a node: use a form such as "rack" or "example.com/rack", '
                "with at most 63 characters after the slash",
            )
        ),
    )
    """Node label whose values are the domains, for instance `topology.kubernetes.io/rack`."""


class PoolSpec(_OsmoModel):
    """What a pool offers to workflows."""

    description: str | None = Field(default=None, max_length=4096)
    """For people."""
    backend: str = Field(default="", max_length=253)
    """Backend that the pool belongs to."""
    scheduler: str = Field(default="kai", min_length=1, max_length=253)
    """Scheduler that the backend uses; topology keys need `kai`."""
    topology_keys: list[PoolTopologyKey] = Field(
        default_factory=list,
        max_length=MAX_LEVELS,
        json_schema_extra=ATOMIC
        | {"default": []}
        | rules(
            _unique_rule("key"),
            _unique_rule("label"),
            rule(
                f"""!self.exists(i, i.label == '{HOSTNAME_LABEL}')
                || self[size(self) - 1].label == '{HOSTNAME_LABEL}'""",
                f"{HOSTNAME_LABEL} can only be the finest key: put it last",
            ),
        ),
    )
    """Keys, coarsest first; none: workflows of the pool cannot ask for topology."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels of the pool's nodes, which its pods select; none: they run on any node."""
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    """Tolerations of all the pool's pods."""
    gpu_toleration: bool | None = None
    """Whether pods that ask for GPUs tolerate taints of the key `nvidia.com/gpu`; they do unless it
    is false."""


class PoolStatus(ApiModel):
    """What was made of the pool."""

    conditions: Conditions = Field(default_factory=list)
    """Synced: the pool's Topology is as its keys say."""
    topology: str | None = Field(default=None, max_length=253)
    """Name of the Topology that the PodGroups of the pool's workflows name."""
    observed_generation: int | None = Field(
        default=None, ge=0, json_schema_extra={"format": "int64"}
    )
    """Generation of the pool that the status is about."""


class Pool(ApiObject, json_schema_extra=rules(_KAI_REQUIRED, _SHORT_NAME)):
    """A pool of OSMO: its backend's scheduler, and the topology keys that workflows may use."""

    api_version: str = API_VERSION
    spec: PoolSpec
    status: PoolStatus | None = None


class WorkflowRequirement(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """Tasks of one group belong into one domain of a key."""

    key: str | None = Field(default=None, max_length=256)
    """One of the pool's topology keys."""
    group: str | None = Field(default=None, max_length=256)
    """Tasks with the same key and group belong together; `default` when absent."""
    requirementType: str | None = Field(default=None, max_length=64)  # noqa: N815 - as users write it
    """`required` (when absent) or `preferred`."""


class WorkflowResource(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """What the tasks that name this resource need."""

    topology: list[WorkflowRequirement] | None = Field(
        default=None, max_length=64, json_schema_extra=ATOMIC
    )
    """Which of them belong together."""


class WorkflowTask(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """One task: one pod."""

    name: str = Field(max_length=256)
    """Unique in its workflow."""
    resource: str | None = Field(default=None, max_length=256)
    """One of the workflow's resources; `default` when absent."""


class WorkflowGroup(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """Tasks that run together: one PodGroup."""

    name: str = Field(max_length=256)
    """Unique in its workflow."""
    tasks: list[WorkflowTask] = Field(
        default_factory=list, max_length=MAX_TASKS, json_schema_extra=ATOMIC
    )
    """Its tasks."""


class WorkflowSpec(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """A workflow as its user wrote it, and the pool it was submitted to.

    What a file has below `workflow` may stand here or, as there, below `workflow`.
    """

    pool: ObjectName
    """Pool that it is submitted to."""
    name: str | None = Field(default=None, max_length=256)
    """Its name; that of the object when absent."""
    groups: list[WorkflowGroup] | None = Field(
        default=None, max_length=MAX_GROUPS, json_schema_extra=ATOMIC
    )
    """Groups of tasks."""
    tasks: list[WorkflowTask] | None = Field(
        default=None, max_length=MAX_TASKS, json_schema_extra=ATOMIC
    )
    """Tasks without groups."""
    resources: dict[str, WorkflowResource] | None = Field(default=None, max_length=MAX_RESOURCES)
    """Named resources of the tasks."""


class Workflow(ApiObject):
    """A workflow of OSMO, submitted to a pool."""

    api_version: str = API_VERSION
    spec: WorkflowSpec

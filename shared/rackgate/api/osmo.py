"""OSMO's pools and workflows as Kubernetes objects, with the field names that OSMO's users write.

These models define the shape; `rackgate_osmo` validates. The API server itself enforces the rules
of a Pool, without a webhook. A Workflow preserves unknown fields, so that `rackgate_osmo` can
reject them with a message; pruning would silently drop them.
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
from rackgate.api.names import HOSTNAME_LABEL, MAX_LEVELS, OSMO_GROUP, OSMO_VERSION

API_VERSION: Final = f"{OSMO_GROUP}/{OSMO_VERSION}"
# The queue "osmo-pool-<name>" is a label of each PodGroup: 63 characters at most.
MAX_POOL_NAME: Final = 53
MAX_GROUPS: Final = 20_000
MAX_TASKS: Final = 20_000
MAX_RESOURCES: Final = 20_000

_MAX_LABEL: Final = 317
_KEEP_UNKNOWN: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
# As LABEL_KEY, with at most 63 characters in the name part.
_NODE_LABEL: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]|[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9])$"
)


def _rule_with_expression(
    expression: str, message: str, message_expression: str, path: str
) -> Schema:
    """A rule whose message is an expression; `message` is used if the expression fails."""
    found = rule(expression, message, path)
    return {**found, "messageExpression": " ".join(message_expression.split())}


_KAI_REQUIRED: Final = _rule_with_expression(
    "self.spec.topology_keys.size() == 0 || self.spec.scheduler in ['kai', 'kai-scheduler']",
    "topology_keys need a backend whose scheduler is kai",
    """'pool "' + self.metadata.name + '" of backend "' + self.spec.backend
    + '" has topology keys, but its scheduler is "' + self.spec.scheduler
    + '": only kai supports them; use a backend with scheduler kai, or remove the keys'""",
    ".spec.topology_keys",
)
_SHORT_NAME: Final = rule(
    f"self.metadata.name.size() <= {MAX_POOL_NAME}",
    f"the name of a pool may have at most {MAX_POOL_NAME} characters: "
    'its queue "osmo-pool-<name>" is a label',
)


def _unique_rule(field: str) -> Schema:
    return rule(
        f"self.all(i, self.exists_one(j, j.{field} == i.{field}))",
        f"each {field} must be unique: use every {field} in one entry only",
    )


class _OsmoModel(ApiModel):
    """Base of models whose fields are spelled as OSMO's users write them, not in camelCase."""

    model_config = ConfigDict(alias_generator=None)


class PoolTopologyKey(_OsmoModel):
    """One topology key: the name that users write, and its node label."""

    key: str = Field(min_length=1, max_length=63)
    """Name that workflows use, such as `rack`."""
    label: str = Field(
        min_length=1,
        max_length=_MAX_LABEL,
        json_schema_extra=rules(
            rule(
                f"self.matches('{_NODE_LABEL}')",
                'is not a node label key: use a form such as "rack" or "example.com/rack", '
                "with at most 63 characters after the slash",
            )
        ),
    )
    """Node label whose values are the domains, such as `topology.kubernetes.io/rack`."""


class PoolSpec(_OsmoModel):
    """Backend, topology keys and nodes of a pool."""

    description: str | None = Field(default=None, max_length=4096)
    """Description for users."""
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
    """Keys, coarsest first. Without keys, workflows of the pool cannot request topology."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels of the pool's nodes. Without labels, its pods run on any node."""
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    """Tolerations of all pods of the pool."""
    gpu_toleration: bool | None = None
    """Whether pods that request GPUs tolerate taints with key `nvidia.com/gpu`. Default: true."""


class PoolStatus(ApiModel):
    """Observed state of a pool."""

    conditions: Conditions = Field(default_factory=list)
    """Synced: the KAI Topology of the pool matches its keys."""
    topology: str | None = Field(default=None, max_length=253)
    """Name of the KAI Topology for the PodGroups of the pool's workflows."""
    observed_generation: int | None = Field(
        default=None, ge=0, json_schema_extra={"format": "int64"}
    )
    """Generation of the pool that the status describes."""


class Pool(ApiObject, json_schema_extra=rules(_KAI_REQUIRED, _SHORT_NAME)):
    """An OSMO pool: the scheduler of its backend, and the topology keys that workflows may use."""

    api_version: str = API_VERSION
    spec: PoolSpec
    status: PoolStatus | None = None


class WorkflowRequirement(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """Requests that the tasks of one group are placed in one domain of a key."""

    key: str | None = Field(default=None, max_length=256)
    """One of the pool's topology keys."""
    group: str | None = Field(default=None, max_length=256)
    """Tasks with the same key and group are placed together; `default` when absent."""
    requirementType: str | None = Field(default=None, max_length=64)  # noqa: N815 - as users write it
    """`required` (when absent) or `preferred`."""


class WorkflowResource(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """Requests of the tasks that name this resource."""

    topology: list[WorkflowRequirement] | None = Field(
        default=None, max_length=64, json_schema_extra=ATOMIC
    )
    """Tasks that are placed together."""


class WorkflowTask(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """One task, which runs as one pod."""

    name: str = Field(max_length=256)
    """Unique in its workflow."""
    resource: str | None = Field(default=None, max_length=256)
    """One of the workflow's resources; `default` when absent."""


class WorkflowGroup(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """Tasks that run together as one PodGroup."""

    name: str = Field(max_length=256)
    """Unique in its workflow."""
    tasks: list[WorkflowTask] = Field(
        default_factory=list, max_length=MAX_TASKS, json_schema_extra=ATOMIC
    )
    """Tasks of the group."""


class WorkflowSpec(_OsmoModel, json_schema_extra=_KEEP_UNKNOWN):
    """A workflow as its user wrote it, and its pool.

    The fields of a workflow file may be here or, as in the file, below `workflow`.
    """

    pool: ObjectName
    """Pool of the workflow."""
    name: str | None = Field(default=None, max_length=256)
    """Name of the workflow; the name of the object when absent."""
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
    """An OSMO workflow, submitted to a pool."""

    api_version: str = API_VERSION
    spec: WorkflowSpec

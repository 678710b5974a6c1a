"""Workload: what a job asks for as a whole, and what it was given."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    ApiModel,
    ApiObject,
    Count,
    IndexLabel,
    Int32,
    ObjectName,
    PodSetName,
    Positive,
    RequestedLevel,
    Schema,
    list_map,
    rule,
    rule_error,
    rules,
)
from rackgate.api.workload_status import (
    MAX_PODSETS,
    Admission,
    AdmissionCheckState,
    PodSetAssignment,
    WorkloadStatus,
)

__all__ = [
    "Admission",
    "AdmissionCheckState",
    "PodSet",
    "PodSetAssignment",
    "PodSetTopologyRequest",
    "PriorityClassRef",
    "SliceConstraint",
    "Workload",
    "WorkloadSpec",
    "WorkloadStatus",
]

ONE_REQUEST = "at most one of required, preferred and unconstrained may be set"
SLICE_PAIR = "podSetSliceRequiredTopology and podSetSliceSize need each other"
SLICE_FORMS = (
    "podsetSliceRequiredTopologyConstraints cannot be used with podSetSliceRequiredTopology"
    " and podSetSliceSize"
)
LAYERS = "every layer must name another topology level, with a size that divides the one before"
ONE_MIN_COUNT = "at most one podSet may set minCount"
MIN_COUNT = "minCount must not be greater than count"
NEEDS_PRIORITY = "priority is needed with priorityClassRef"


class SliceConstraint(ApiModel):
    """`size` pods of a PodSet slice stay within one domain of the level `topology`."""

    topology: RequestedLevel
    size: Positive


class PodSetTopologyRequest(
    ApiModel,
    json_schema_extra=rules(
        rule(
            # Two levels at once are behind a gate, which webhook and assigner know.
            """!has(self.unconstrained) || !self.unconstrained
            || (!has(self.required) && !has(self.preferred))""",
            ONE_REQUEST,
        ),
        rule(
            "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
            SLICE_PAIR,
            ".podSetSliceSize",
        ),
        rule(
            """!has(self.podsetSliceRequiredTopologyConstraints)
            || (!has(self.podSetSliceRequiredTopology) && !has(self.podSetSliceSize))""",
            SLICE_FORMS,
            ".podsetSliceRequiredTopologyConstraints",
        ),
    ),
):
    """What a PodSet asks of the topology; the annotations of its template say the same."""

    required: RequestedLevel | None = None
    """All pods within one domain of this level."""
    preferred: RequestedLevel | None = None
    """All pods within one domain of this level if it can be, else of a coarser one."""
    unconstrained: bool | None = None
    """Any nodes with room."""
    pod_index_label: IndexLabel | None = None
    """Pod label with the index in the PodSet."""
    sub_group_index_label: IndexLabel | None = None
    """Pod label with the index of its group of pods."""
    sub_group_count: Count | None = None
    """Groups of pods."""
    pod_set_group_name: str | None = Field(default=None, max_length=256)
    """PodSets of one group are placed together."""
    pod_set_slice_required_topology: RequestedLevel | None = None
    """Every slice of the PodSet within one domain of this level."""
    pod_set_slice_size: Positive | None = None
    """Pods in a slice."""
    podset_slice_required_topology_constraints: list[SliceConstraint] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        json_schema_extra=ATOMIC
        | rules(
            rule(
                """self.all(i, c, self.exists_one(d, d.topology == c.topology)
                && (i == 0 || self[i - 1].size % c.size == 0))""",
                LAYERS,
            )
        ),
    )
    """Slices in layers, coarsest first."""

    @model_validator(mode="after")
    def _check_exclusive_forms(self) -> Self:
        if self.unconstrained and (self.required is not None or self.preferred is not None):
            raise rule_error("", ONE_REQUEST)
        pair = (self.pod_set_slice_required_topology, self.pod_set_slice_size)
        if (pair[0] is None) != (pair[1] is None):
            raise rule_error("podSetSliceSize", SLICE_PAIR)
        layers = self.podset_slice_required_topology_constraints
        if layers is None:
            return self
        if pair[0] is not None:
            raise rule_error("podsetSliceRequiredTopologyConstraints", SLICE_FORMS)
        sizes = [layer.size for layer in layers]
        divides = all(a % b == 0 for a, b in pairwise(sizes))
        if not divides or len({layer.topology for layer in layers}) < len(layers):
            raise rule_error("podsetSliceRequiredTopologyConstraints", LAYERS)
        return self


# A rule can compare a template only when its schema names a field, and is only affordable when
# that field is bounded. What the schema does not name is kept as it came, and compared as well.
_TEMPLATE: Schema = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "metadata": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"name": {"type": "string", "maxLength": 253}},
        }
    },
}


class PodSet(
    ApiModel,
    json_schema_extra=rules(
        rule("!has(self.minCount) || self.minCount <= self.count", MIN_COUNT, ".minCount")
    ),
):
    """Pods of one shape."""

    name: PodSetName = "main"
    count: Count = 1
    min_count: Positive | None = None
    """Fewest pods that partial admission may grant."""
    template: dict[str, Any] = Field(json_schema_extra=_TEMPLATE)
    """Pod template, kept exactly as given."""
    topology_request: PodSetTopologyRequest | None = None

    @model_validator(mode="after")
    def _check_min_count(self) -> Self:
        if self.min_count is not None and self.min_count > self.count:
            raise rule_error("minCount", MIN_COUNT)
        return self


class PriorityClassRef(
    ApiModel,
    json_schema_extra=rules(
        rule(
            """self.kind == (self.group == 'scheduling.k8s.io'
            ? 'PriorityClass' : 'WorkloadPriorityClass')""",
            "kind must be PriorityClass in group scheduling.k8s.io,"
            " WorkloadPriorityClass in group kueue.x-k8s.io",
            ".kind",
        )
    ),
):
    """Where a Workload's priority comes from."""

    group: Literal["kueue.x-k8s.io", "scheduling.k8s.io"]
    kind: Literal["WorkloadPriorityClass", "PriorityClass"]
    name: ObjectName = Field(min_length=1)


class PreemptionGate(ApiModel):
    """Holds back preemption by this Workload."""

    name: str = Field(min_length=1, max_length=316)


class WorkloadSpec(
    ApiModel,
    json_schema_extra=rules(
        rule("!has(self.priorityClassRef) || has(self.priority)", NEEDS_PRIORITY, ".priority")
    ),
):
    """What is asked for."""

    pod_sets: list[PodSet] = Field(
        min_length=1,
        max_length=MAX_PODSETS,
        json_schema_extra=list_map("name")
        | rules(rule("self.filter(p, has(p.minCount)).size() <= 1", ONE_MIN_COUNT)),
    )
    queue_name: ObjectName | None = None
    """LocalQueue."""
    priority_class_ref: PriorityClassRef | None = None
    priority: Int32 | None = None
    """The higher goes first."""
    active: bool = True
    """False evicts the Workload and keeps it from being admitted."""
    maximum_execution_time_seconds: Positive | None = None
    preemption_gates: list[PreemptionGate] = Field(
        default_factory=list, max_length=8, json_schema_extra=list_map("name")
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        names = [podset.name for podset in self.pod_sets]
        repeated = next((i for i, name in enumerate(names) if name in names[:i]), None)
        if repeated is not None:
            raise rule_error(
                f"podSets[{repeated}].name", f'podSet "{names[repeated]}" is there twice: rename it'
            )
        if sum(podset.min_count is not None for podset in self.pod_sets) > 1:
            raise rule_error("podSets", ONE_MIN_COUNT)
        if self.priority_class_ref is not None and self.priority is None:
            raise rule_error("priority", NEEDS_PRIORITY)
        return self


def _while_condition(condition: str, rest: str) -> str:
    """CEL: `rest` must hold while that condition was True before and is True now."""
    held = " && ".join(
        f"has({it}.status) && has({it}.status.conditions)"
        f" && {it}.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True')"
        for it in ("oldSelf", "self")
    )
    return f"!({held}) || ({rest})"


def _unchanged_rule(new: str, old: str, field: str) -> str:
    """CEL: an optional field is absent in both, or the same (`.?` has no bounded cost)."""
    return (
        f"has({new}.{field}) == has({old}.{field})"
        f" && (!has({new}.{field}) || {new}.{field} == {old}.{field})"
    )


_OLD_PODSET = "oldSelf.spec.podSets[i]"
# A count follows the admission up, which only that of an elastic Workload goes (its policy in
# deploy/webhook sees the annotation; a schema does not). By then quota is held for every pod.
_COUNT_ADMITTED = """has(self.status.admission)
    && self.status.admission.podSetAssignments.exists(a, a.name == p.name
    && has(a.count) && p.count <= a.count)"""
_SAME_PODSETS = f"""size(self.spec.podSets) == size(oldSelf.spec.podSets)
    && self.spec.podSets.all(i, p, p.name == {_OLD_PODSET}.name
    && (p.count <= {_OLD_PODSET}.count || ({_COUNT_ADMITTED}))
    && p.template == {_OLD_PODSET}.template
    && {_unchanged_rule("p", _OLD_PODSET, "minCount")}
    && {_unchanged_rule("p", _OLD_PODSET, "topologyRequest")})"""


class Workload(
    ApiObject,
    json_schema_extra=rules(
        rule(
            """!has(self.status) || !has(self.status.admission) || !has(self.status.conditions)
            || !self.status.conditions.exists(
                c, c.type == 'QuotaReserved' && c.status == 'True')
            || size(self.spec.podSets) == size(self.status.admission.podSetAssignments)""",
            "podSetAssignments must have one entry per podSet",
            ".status.admission.podSetAssignments",
        ),
        rule(
            _while_condition(
                "QuotaReserved", _unchanged_rule("self.spec", "oldSelf.spec", "queueName")
            ),
            "queueName is immutable while quota is reserved",
            ".spec.queueName",
        ),
        rule(
            _while_condition("QuotaReserved", _SAME_PODSETS),
            "podSets are immutable while quota is reserved, but for counts that decrease"
            " or follow the admission",
            ".spec.podSets",
        ),
        rule(
            _while_condition(
                "QuotaReserved",
                """has(self.spec.priorityClassRef) == has(oldSelf.spec.priorityClassRef)
                && (!has(self.spec.priorityClassRef)
                || (self.spec.priorityClassRef.group == oldSelf.spec.priorityClassRef.group
                && (self.spec.priorityClassRef.group != 'scheduling.k8s.io'
                || self.spec.priorityClassRef.name == oldSelf.spec.priorityClassRef.name)))""",
            ),
            "priorityClassRef can only change its WorkloadPriorityClass while quota is reserved",
            ".spec.priorityClassRef",
        ),
        rule(
            _while_condition(
                "Admitted",
                _unchanged_rule("self.spec", "oldSelf.spec", "maximumExecutionTimeSeconds"),
            ),
            "maximumExecutionTimeSeconds is immutable while admitted",
            ".spec.maximumExecutionTimeSeconds",
        ),
    ),
):
    """Pods of one job, admitted and placed together."""

    spec: WorkloadSpec
    status: WorkloadStatus | None = None

"""The `quota-scenario/1` format: read a file, and check that every scenario can be answered.

An error names the path in the document, the value there and what it must be:
`scenarios[3].workloads[0].priority: "high": must be a whole number`. All errors of a file are
listed, up to a limit. Numbers are bounded as those of the API server are; other limits keep time
and memory proportional to the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.features import PLACEMENT_GATES
from rackgate.resources.quantity import QuantityError, quota_amount
from rackgate.topology.assignment import LEVELS, MAX_LEVEL_LENGTH, MAX_PODS, MAX_VALUE, shown
from rackgate.wire.core import PodSpec
from rackgate_assigner.preemption.fair_sharing import STRATEGIES
from rackgate_assigner.topology.placement.node_matching import node_affinity

FORMAT: Final = "quota-scenario/1"
MAX_ERRORS: Final = 20
MAX_NODES: Final = 1 << 17
MAX_WORKLOADS: Final = 1 << 20
MAX_QUEUES: Final = 100_000
MAX_ENTRIES: Final = 1000  # of a list or map within one object
MAX_DEPTH: Final = 64  # Cohorts above each other
MAX_NAME: Final = 253
MAX_SECONDS: Final = 1 << 40
MAX_PRIORITY: Final = (1 << 31) - 1


class QuotaScenarioError(ValueError):
    """A file cannot be read or answered; each line of the text begins with a path."""


def _rule(message: str, path: str = "") -> PydanticCustomError:
    return PydanticCustomError("rule", "{message}", {"message": message, "path": path})


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _rule('must be a quantity such as "500m", "4" or "1.5Gi"')
    try:
        negative = quota_amount("", value) < 0
    except (QuantityError, OverflowError) as error:
        raise _rule('must be a quantity such as "500m", "4" or "1.5Gi"') from error
    if negative:
        raise _rule("must not be negative")
    return str(value)


def _check_affinity(value: dict[str, Any]) -> dict[str, Any]:
    try:
        return node_affinity(PodSpec(affinity={"nodeAffinity": value})) or {}
    except (msgspec.ValidationError, RecursionError) as error:
        raise _rule(f"must be a NodeAffinity: {error}") from error


Quantity: TypeAlias = Annotated[str, BeforeValidator(_quantity)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Label: TypeAlias = Annotated[str, Field(max_length=MAX_LEVEL_LENGTH)]
Value: TypeAlias = Annotated[str, Field(max_length=MAX_VALUE)]
Labels: TypeAlias = Annotated[dict[Label, Value], Field(max_length=MAX_ENTRIES)]
Amounts: TypeAlias = Annotated[dict[Label, Quantity], Field(max_length=MAX_ENTRIES)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_PODS)]
Priority: TypeAlias = Annotated[int, Field(ge=-MAX_PRIORITY - 1, le=MAX_PRIORITY)]
Seconds: TypeAlias = Annotated[int, Field(ge=-MAX_SECONDS, le=MAX_SECONDS)]
Levels: TypeAlias = Annotated[tuple[Label, ...], Field(min_length=1, max_length=LEVELS)]
Policy: TypeAlias = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]
Fungible: TypeAlias = Literal["MayStopSearch", "TryNextFlavor"]
Effect: TypeAlias = Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"]


class ScenarioModel(BaseModel):
    """Base of the format's objects; unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, strict=True, extra="ignore"
    )


class ScenarioTaint(ScenarioModel):
    """A taint."""

    key: Label
    value: Value = ""
    effect: Effect = ""


class ScenarioToleration(ScenarioModel):
    """A toleration."""

    key: Label = ""
    operator: Literal["", "Equal", "Exists", "Gt", "Lt"] = ""
    value: Value = ""
    effect: Effect = ""


Taints: TypeAlias = Annotated[tuple[ScenarioTaint, ...], Field(max_length=MAX_ENTRIES)]
Tolerations: TypeAlias = Annotated[tuple[ScenarioToleration, ...], Field(max_length=MAX_ENTRIES)]


class ScenarioFlavor(ScenarioModel):
    """A ResourceFlavor."""

    name: Name
    node_labels: Labels = {}
    taints: Taints = ()
    tolerations: Tolerations = ()
    topology: Name | None = None


class ScenarioTopology(ScenarioModel):
    """A Topology, its levels coarsest first."""

    name: Name
    levels: Levels

    @model_validator(mode="after")
    def _check(self) -> ScenarioTopology:
        _check_unique(self.levels, "levels")
        if HOSTNAME_LABEL in self.levels[:-1]:
            path = f"levels[{self.levels.index(HOSTNAME_LABEL)}]"
            raise _rule(f"{shown(HOSTNAME_LABEL)}: can only be the last level", path)
        return self


class ScenarioNode(ScenarioModel):
    """A node."""

    name: Name
    labels: Labels = {}
    allocatable: Amounts = {}
    taints: Taints = ()
    unschedulable: bool = False
    ready: bool = True


class ScenarioPod(ScenarioModel):
    """A pod that TAS did not place; `requests` are of the whole pod."""

    name: Annotated[str, Field(max_length=MAX_NAME)] = ""
    requests: Amounts = {}
    node: str | None = None
    phase: Literal["", "Pending", "Running", "Succeeded", "Failed", "Unknown"] = ""


class ScenarioQuota(ScenarioModel):
    """Quota of one resource in one flavor."""

    nominal: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class ScenarioFlavorQuotas(ScenarioModel):
    """Quotas of one flavor, by resource."""

    name: Name
    quotas: Annotated[dict[Label, ScenarioQuota], Field(max_length=MAX_ENTRIES)] = {}


class ScenarioResourceGroup(ScenarioModel):
    """Resources that get one flavor; flavors in order of preference."""

    resources: Annotated[tuple[Label, ...], Field(max_length=MAX_ENTRIES)]
    flavors: Annotated[tuple[ScenarioFlavorQuotas, ...], Field(max_length=MAX_ENTRIES)]


ResourceGroups: TypeAlias = Annotated[
    tuple[ScenarioResourceGroup, ...], Field(max_length=MAX_ENTRIES)
]


class ScenarioCohort(ScenarioModel):
    """A Cohort."""

    name: Name
    parent: Name | None = None
    resource_groups: ResourceGroups = ()
    fair_weight: Quantity = "1"


class ScenarioBorrowWithinCohort(ScenarioModel):
    """Preemption while borrowing."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    max_priority_threshold: Priority | None = None


class ScenarioPreemption(ScenarioModel):
    """Preemption policies."""

    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"
    reclaim_within_cohort: Policy = "Never"
    borrow_within_cohort: ScenarioBorrowWithinCohort = ScenarioBorrowWithinCohort()


class ScenarioFlavorFungibility(ScenarioModel):
    """When the search for a flavor goes on."""

    when_can_borrow: Fungible = "MayStopSearch"
    when_can_preempt: Fungible = "TryNextFlavor"
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] = (
        "BorrowingOverPreemption"
    )


class ScenarioExpression(ScenarioModel):
    """One requirement of a label selector."""

    key: Label
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[Value, ...], Field(max_length=MAX_ENTRIES)] = ()


class ScenarioSelector(ScenarioModel):
    """A label selector."""

    match_labels: Labels = {}
    match_expressions: Annotated[tuple[ScenarioExpression, ...], Field(max_length=MAX_ENTRIES)] = ()


class ScenarioClusterQueue(ScenarioModel):
    """A ClusterQueue; without a selector it accepts every namespace."""

    name: Name
    cohort: Name | None = None
    resource_groups: ResourceGroups = ()
    fair_weight: Quantity = "1"
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"
    preemption: ScenarioPreemption = ScenarioPreemption()
    flavor_fungibility: ScenarioFlavorFungibility = ScenarioFlavorFungibility()
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = "None"
    namespace_selector: ScenarioSelector = ScenarioSelector()


class ScenarioLocalQueue(ScenarioModel):
    """A LocalQueue."""

    namespace: Name
    name: Name
    cluster_queue: Name


class ScenarioNamespace(ScenarioModel):
    """A namespace."""

    name: Name
    labels: Labels = {}


class ScenarioLayer(ScenarioModel):
    """One layer of PodSet slices."""

    topology: Label
    size: Count = 0


class ScenarioTopologyRequest(ScenarioModel):
    """A topology request."""

    required: Label | None = None
    preferred: Label | None = None
    unconstrained: bool = False
    slices: Annotated[tuple[ScenarioLayer, ...], Field(max_length=LEVELS)] = ()

    @model_validator(mode="after")
    def _check(self) -> ScenarioTopologyRequest:
        if self.unconstrained and (self.required or self.preferred):
            raise _rule("true: must not be set together with a level", "unconstrained")
        for index, layer in enumerate(self.slices[1:], start=1):
            if layer.size < 1:
                raise _rule(f"{layer.size}: must be at least 1", f"slices[{index}].size")
        return self


class ScenarioPodSet(ScenarioModel):
    """A PodSet; `requests` are per pod."""

    name: Name
    count: Count
    min_count: Count | None = None
    requests: Amounts = {}
    node_selector: Labels = {}
    node_affinity: Annotated[dict[str, Any], AfterValidator(_check_affinity)] | None = None
    tolerations: Tolerations = ()
    topology_request: ScenarioTopologyRequest | None = None
    group: Name | None = None


class ScenarioDomain(ScenarioModel):
    """Pods of one domain."""

    values: Annotated[tuple[str, ...], Field(min_length=1, max_length=LEVELS)]
    count: Annotated[int, Field(ge=1, le=MAX_PODS)]


class ScenarioAssignment(ScenarioModel):
    """A topology assignment, one entry per domain."""

    levels: Levels
    domains: tuple[ScenarioDomain, ...]

    @model_validator(mode="after")
    def _check_widths(self) -> ScenarioAssignment:
        for index, domain in enumerate(self.domains):
            if len(domain.values) != len(self.levels):
                problem = f"must have {len(self.levels)} values, one for each level"
                raise _rule(problem, f"domains[{index}].values")
        return self


class ScenarioAdmittedPodSet(ScenarioModel):
    """What an admission gives one PodSet; `usage` is of all its pods."""

    name: Name
    count: Count
    flavors: Annotated[dict[Label, Name], Field(max_length=MAX_ENTRIES)] = {}
    usage: Amounts = {}
    topology: ScenarioAssignment | None = None


class ScenarioAdmission(ScenarioModel):
    """An admission."""

    cluster_queue: Name
    pod_sets: Annotated[tuple[ScenarioAdmittedPodSet, ...], Field(max_length=MAX_ENTRIES)]


class ScenarioCondition(ScenarioModel):
    """A condition; `at` in seconds."""

    type: Name
    status: bool
    reason: str = ""
    at: Seconds = 0


class ScenarioWorkload(ScenarioModel):
    """A Workload: running with `reservedAt`, else pending."""

    namespace: Name
    name: Name
    uid: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    queue: Annotated[str, Field(max_length=MAX_NAME)] = ""
    priority: Priority = 0
    created: Seconds = 0
    pod_sets: Annotated[tuple[ScenarioPodSet, ...], Field(max_length=MAX_ENTRIES)]
    admission: ScenarioAdmission | None = None
    reserved_at: Seconds | None = None
    conditions: Annotated[tuple[ScenarioCondition, ...], Field(max_length=MAX_ENTRIES)] = ()
    reclaimable: Annotated[dict[Name, Count], Field(max_length=MAX_ENTRIES)] = {}
    inactive: bool = False

    @model_validator(mode="after")
    def _check(self) -> ScenarioWorkload:
        _check_unique([podset.name for podset in self.pod_sets], "podSets", ".name")
        if self.reserved_at is not None and self.admission is None:
            raise _rule("must be set with reservedAt", "admission")
        for index, podset in enumerate(self.pod_sets):
            if podset.min_count is not None and podset.min_count > podset.count:
                problem = f"{podset.min_count}: must be no more than count, {podset.count}"
                raise _rule(problem, f"podSets[{index}].minCount")
        return self

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def condition(self, kind: str) -> ScenarioCondition | None:
        """The condition of a type."""
        return next((found for found in self.conditions if found.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of a type is true."""
        found = self.condition(kind)
        return found is not None and found.status


class ScenarioFairSharing(ScenarioModel):
    """Fair sharing is on; strategies in their order."""

    strategies: Annotated[
        tuple[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"], ...],
        Field(min_length=1, max_length=2),
    ] = STRATEGIES


class QuotaScenario(ScenarioModel):
    """Queues, quota, and Workloads that run and wait."""

    id: Annotated[str, Field(max_length=MAX_NAME)]
    gates: dict[str, bool] = {}
    fair_sharing: ScenarioFairSharing | None = None
    flavors: Annotated[tuple[ScenarioFlavor, ...], Field(max_length=MAX_ENTRIES)] = ()
    topologies: Annotated[tuple[ScenarioTopology, ...], Field(max_length=MAX_ENTRIES)] = ()
    nodes: Annotated[tuple[ScenarioNode, ...], Field(max_length=MAX_NODES)] = ()
    pods: Annotated[tuple[ScenarioPod, ...], Field(max_length=MAX_WORKLOADS)] = ()
    cohorts: Annotated[tuple[ScenarioCohort, ...], Field(max_length=MAX_QUEUES)] = ()
    cluster_queues: Annotated[tuple[ScenarioClusterQueue, ...], Field(max_length=MAX_QUEUES)]
    local_queues: Annotated[tuple[ScenarioLocalQueue, ...], Field(max_length=MAX_QUEUES)] = ()
    namespaces: Annotated[tuple[ScenarioNamespace, ...], Field(max_length=MAX_QUEUES)] = ()
    workloads: Annotated[tuple[ScenarioWorkload, ...], Field(max_length=MAX_WORKLOADS)] = ()

    @model_validator(mode="after")
    def _check(self) -> QuotaScenario:
        for gate in self.gates:
            if gate not in PLACEMENT_GATES:
                known = ", ".join(sorted(PLACEMENT_GATES))
                raise _rule(f"unknown feature gate (known: {known})", f"gates[{shown(gate)}]")
        _check_unique([flavor.name for flavor in self.flavors], "flavors", ".name")
        _check_unique([topology.name for topology in self.topologies], "topologies", ".name")
        _check_unique([node.name for node in self.nodes], "nodes", ".name")
        _check_unique([cohort.name for cohort in self.cohorts], "cohorts", ".name")
        _check_unique([queue.name for queue in self.cluster_queues], "clusterQueues", ".name")
        _check_unique([f"{one.namespace}/{one.name}" for one in self.local_queues], "localQueues")
        _check_unique([space.name for space in self.namespaces], "namespaces", ".name")
        _check_unique([workload.key for workload in self.workloads], "workloads")
        topologies = {topology.name for topology in self.topologies}
        for index, flavor in enumerate(self.flavors):
            if flavor.topology is not None and flavor.topology not in topologies:
                problem = f"{shown(flavor.topology)}: must be the name of one of the topologies"
                raise _rule(problem, f"flavors[{index}].topology")
        _check_parents(self.cohorts)
        return self


class _Header(msgspec.Struct):
    format: Any = None


class _File(ScenarioModel):
    scenarios: tuple[QuotaScenario, ...]


def _check_unique(names: Sequence[str], path: str, field: str = "") -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            problem = f"{shown(name)}: is in {path}[{first[name]}]{field} already"
            raise _rule(problem, f"{path}[{index}]{field}")


def _check_parents(cohorts: Sequence[ScenarioCohort]) -> None:
    parents = {cohort.name: cohort.parent for cohort in cohorts}
    for index, cohort in enumerate(cohorts):
        above = cohort.parent
        for _ in range(MAX_DEPTH):
            if above is None or above == cohort.name:
                break
            above = parents.get(above)
        if above is not None:
            problem = "is above itself" if above == cohort.name else "has too many Cohorts above it"
            path = f"cohorts[{index}].parent"
            raise _rule(f'{shown(cohort.parent)}: Cohort "{cohort.name}" {problem}', path)


def read_quota_scenarios(text: bytes) -> tuple[QuotaScenario, ...]:
    """Read a scenario file; every scenario in it can be answered.

    Raises:
        QuotaScenarioError: not JSON, another format, or an invalid field.
    """
    if not text.strip():
        raise QuotaScenarioError(f"the file is empty: a {FORMAT} document is required")
    try:
        # Another format explains all other errors.
        header = msgspec.json.decode(text, type=_Header)
        if header.format != FORMAT:
            raise QuotaScenarioError(f'format: {shown(header.format)}: must be "{FORMAT}"')
        return _File.model_validate_json(text).scenarios
    except msgspec.ValidationError as error:
        raise QuotaScenarioError(f"the document: must be an object with {FORMAT}") from error
    except RecursionError as error:
        raise QuotaScenarioError("the file is nested too deeply to be read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise QuotaScenarioError(_unreadable(text, str(error))) from error
    except ValidationError as error:
        raise QuotaScenarioError(_error_text(error)) from error


def _unreadable(text: bytes, error_text: str) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"the file is not UTF-8: {error.reason} (byte {error.start})"
    return f"the file is not JSON: {error_text.removeprefix('JSON is malformed: ')}"


# What a field must be, by pydantic's type of error; its own text if there is none.
_MUST: Final = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "tuple_type": "must be a list",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be no more than {le}",
    "string_too_long": "must have no more than {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have no more than {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be one of {expected}",
}


def _error_text(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    lines = [_line(one) for one in found[:MAX_ERRORS]]
    if len(found) > MAX_ERRORS:
        lines.append(f"{len(found) - MAX_ERRORS} more errors are not shown")
    return "\n".join(lines)


def _line(error: ErrorDetails) -> str:
    context: Mapping[str, Any] = error.get("ctx") or {}
    path = _path(error["loc"])
    if context.get("path"):
        return f"{path}{'.' if path else ''}{context['path']}: {error['msg']}"
    text = _MUST.get(error["type"], error["msg"]).format_map({**context})
    if error["type"] == "missing":
        return f"{path}: {text}"
    return f"{path or 'the document'}: {shown(error['input'])}: {text}"


def _path(location: Iterable[str | int]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "[key]":
            path += " (key)"
        elif step.isidentifier():
            path += f".{step}" if path else step
        else:
            path += f"[{json.dumps(step)}]"
    return path

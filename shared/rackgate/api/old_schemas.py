"""Turn the schemas of v1beta2 into those of v1beta1, for the CRDs.

A schema of v1beta1 has all fields of v1beta2 except for those that `rackgate.api.conversion`
converts. Each rule of v1beta2 holds in v1beta1 as well, because the API server checks a request
with the rules of its version: a weaker rule in one version would be a way around the other.
"""

from __future__ import annotations

from typing import Any, Final

from rackgate.api.conversion import POD_PRIORITY, WORKLOAD_PRIORITY
from rackgate.api.meta import ATOMIC, LIST_SET, Schema, rule, rules
from rackgate.api.names import MAX_LEVELS
from rackgate.api.topology import LEVELS_FIXED
from rackgate.api.workload import held
from rackgate.topology.assignment import MAX_VALUE

# Paths of fields that have another name, for columns.
PATHS: Final = {".spec.cohortName": ".spec.cohort"}
MAX_DOMAINS: Final = 1_000_000
_VALIDATIONS: Final = "x-kubernetes-validations"


def same(_schema: Schema) -> None:
    """Nothing: v1beta1 has the shape of v1beta2."""


def topology(schema: Schema) -> None:
    """Levels cannot change."""
    levels = _fields(schema, "spec")["levels"]
    checks = levels[_VALIDATIONS]
    levels.update(rules(LEVELS_FIXED, *(one for one in checks if "oldSelf" not in one["rule"])))


def cluster_queue(schema: Schema) -> None:
    """`cohort`, `admissionChecks`, and the older values of `flavorFungibility`."""
    spec = schema["properties"]["spec"]
    fields = spec["properties"]
    fields["cohort"] = fields.pop("cohortName")
    checks = fields["admissionChecksStrategy"]["properties"]["admissionChecks"]
    fields["admissionChecks"] = {
        "type": "array",
        "maxItems": checks["maxItems"],
        "items": checks["items"]["properties"]["name"],
        "description": "Admission checks of all flavors.",
        **LIST_SET,
    }
    fungibility = fields["flavorFungibility"]["properties"]
    for name, value in (("whenCanBorrow", "Borrow"), ("whenCanPreempt", "Preempt")):
        fungibility[name]["enum"] = [*fungibility[name]["enum"], value]
    _replace_in_rules(spec, "cohortName", "cohort")
    spec[_VALIDATIONS].append(
        rule(
            """!has(self.admissionChecks) || size(self.admissionChecks) == 0
            || !has(self.admissionChecksStrategy)""",
            "admissionChecks and admissionChecksStrategy cannot be used together",
            ".admissionChecks",
        )
    )
    _sort(fields)


def local_queue(schema: Schema) -> None:
    """`flavorUsage`."""
    fields = _fields(schema, "status")
    fields["flavorUsage"] = fields.pop("flavorsUsage")
    _sort(fields)


def workload(schema: Schema) -> None:
    """`priorityClassName`, `priorityClassSource` and `domains`."""
    spec, status = schema["properties"]["spec"], _fields(schema, "status")
    fields = spec["properties"]
    name = fields.pop("priorityClassRef")["properties"]["name"]
    fields["priorityClassName"] = {
        # Kueue's clients may write an empty name.
        "type": "string",
        "maxLength": name["maxLength"],
        "pattern": f"^$|{name['pattern']}",
        "description": "Name of a WorkloadPriorityClass or a PriorityClass.",
    }
    fields["priorityClassSource"] = {
        "type": "string",
        "enum": [WORKLOAD_PRIORITY, POD_PRIORITY, ""],
        "description": "Kind of the priority class. Empty: PriorityClass.",
    }
    for one in spec[_VALIDATIONS]:
        if "priorityClassRef" in one["rule"]:
            one.update(_NEEDS_PRIORITY)
    for one in schema[_VALIDATIONS]:
        if "priorityClassRef" in one["rule"]:
            fixed = f"({_SAME_PRIORITY}) || !{held('QuotaReserved')}"
            one.update(rule(fixed, _PRIORITY_FIXED, _PRIORITY_PATH))
    status["accumulatedPastExexcutionTimeSeconds"] = status.pop(
        "accumulatedPastExecutionTimeSeconds"
    )
    of_podset = _fields(status["admission"], "podSetAssignments", "items")
    _topology_assignment(of_podset["topologyAssignment"])
    _sort(fields)
    _sort(status)


_NEEDS_PRIORITY: Final = rule(
    "!has(self.priorityClassName) || self.priorityClassName == '' || has(self.priority)",
    "priority is needed with priorityClassName",
    ".priority",
)
_PRIORITY_PATH: Final = ".spec.priorityClassName"
_PRIORITY_FIXED: Final = (
    "priorityClassName can only change its WorkloadPriorityClass while quota is reserved"
)


def _name(of: str) -> str:
    return f"(has({of}.spec.priorityClassName) ? {of}.spec.priorityClassName : '')"


def _of_workloads(of: str) -> str:
    source = f"{of}.spec.priorityClassSource"
    return f"(has({source}) && {source} == '{WORKLOAD_PRIORITY}')"


_SAME_PRIORITY: Final = f"""({_name("self")} == '') == ({_name("oldSelf")} == '')
    && ({_name("self")} == '' || ({_of_workloads("self")} == {_of_workloads("oldSelf")}
    && ({_of_workloads("self")} || {_name("self")} == {_name("oldSelf")})))"""


def _topology_assignment(schema: Schema) -> None:
    """Either `domains`, or `slices` that no list of domains can stand for."""
    fields = schema["properties"]
    domain: dict[str, Any] = {
        "type": "object",
        "required": ["values", "count"],
        "properties": {
            "count": {"type": "integer", "format": "int32", "minimum": 1},
            "values": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_LEVELS,
                "items": {"type": "string", "maxLength": MAX_VALUE},
                **ATOMIC,
            },
        },
    }
    fields["domains"] = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_DOMAINS,
        "description": "Lowest-level domains in rank order, each with its number of pods.",
        "items": domain,
        **ATOMIC,
    }
    schema["required"] = ["levels"]
    schema[_VALIDATIONS] = [
        rule(
            "has(self.domains) != has(self.slices)",
            "exactly one of domains and slices must be set",
            ".domains",
        ),
        *({**one, "rule": f"!has(self.slices) || {one['rule']}"} for one in schema[_VALIDATIONS]),
    ]
    _sort(fields)


def _fields(schema: Schema, name: str, *more: str) -> Schema:
    found = schema["properties"][name]
    for key in more:
        found = found[key]
    fields: Schema = found["properties"]
    return fields


def _replace_in_rules(schema: Schema, before: str, after: str) -> None:
    for one in schema[_VALIDATIONS]:
        one.update({key: text.replace(before, after) for key, text in one.items()})


def _sort(fields: Schema) -> None:
    ordered = sorted(fields.items())
    fields.clear()
    fields.update(ordered)

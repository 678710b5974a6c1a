"""Rules for our own kinds: errors of their models, by path in the manifest.

The API server rejects most of this by the schemas that are generated from the same models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rackgate.api.meta import SUBDOMAIN, ApiObject
from rackgate.api.names import WorkloadCondition
from rackgate.api.queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from rackgate.api.topology import Topology
from rackgate.api.workload import Workload
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.templates import items, section
from rackgate.jobframework.topology_request import exclusive_errors, request_errors, topology_errors

Object = Mapping[str, Any]
MAX_ERRORS: Final = 16
_SUBDOMAIN: Final = re.compile(SUBDOMAIN)


def name_errors(name: str, path: str, advice: str) -> list[FieldError]:
    """Reject what cannot be the name of an object."""
    if len(name) <= 253 and _SUBDOMAIN.match(name) and not name.endswith("\n"):
        return []
    return [FieldError(path, f"{shown(name)} is not a name of an object", advice)]


def topology_object_errors(topology: Object, _stored: Object) -> list[FieldError]:
    """Rules of a Topology: 1 to 16 unique levels, the hostname only as the last."""
    return model_errors(Topology, topology)


def flavor_errors(flavor: Object, stored: Object) -> list[FieldError]:
    """Rules of a ResourceFlavor: a topology needs node labels and is immutable."""
    return model_errors(ResourceFlavor, flavor) + _immutable_field_errors(
        flavor, stored, "topologyName", "create another ResourceFlavor for the other topology"
    )


def cluster_queue_errors(queue: Object, _stored: Object) -> list[FieldError]:
    """Rules of a ClusterQueue's quotas."""
    return model_errors(ClusterQueue, queue)


def admission_check_errors(check: Object, _stored: Object) -> list[FieldError]:
    """Rules of an AdmissionCheck's controller and parameters."""
    return model_errors(AdmissionCheck, check)


def cohort_errors(cohort: Object, _stored: Object) -> list[FieldError]:
    """Rules of a Cohort's quotas."""
    return model_errors(Cohort, cohort)


def local_queue_errors(queue: Object, stored: Object) -> list[FieldError]:
    """Rules of a LocalQueue: its ClusterQueue is immutable."""
    return model_errors(LocalQueue, queue) + _immutable_field_errors(
        queue, stored, "clusterQueue", "create another LocalQueue for the other ClusterQueue"
    )


def _immutable_field_errors(
    now: Object, stored: Object, field: str, advice: str
) -> list[FieldError]:
    before = section(stored, "spec").get(field)
    after = section(now, "spec").get(field)
    if before is None or before == after:
        return []
    found = "nothing" if after is None else shown(after)
    return [
        FieldError(
            f"spec.{field}", f"is immutable: the value is {shown(before)}, found {found}", advice
        )
    ]


def workload_errors(
    workload: Object, stored: Object, *, both_levels: bool = False
) -> list[FieldError]:
    """Rules of a Workload: topology requests, and what is immutable while quota is reserved."""
    spec = section(workload, "spec")
    if stored and spec == section(stored, "spec"):
        return []
    errors = model_errors(Workload, workload)
    for index, podset in enumerate(items(spec, "podSets", "spec")):
        path = f"spec.podSets[{index}]"
        count = podset.get("count")
        template = section(podset, "template", path)
        whole = count if isinstance(count, int) and not isinstance(count, bool) else None
        errors += topology_errors(
            template, f"{path}.template", count=whole, both_levels=both_levels
        )
        request = section(podset, "topologyRequest", path)
        where = f"{path}.topologyRequest"
        errors += exclusive_errors(request, where, both_levels=both_levels)
        errors += request_errors(request, where, count=whole)
    if stored and _has_quota_reservation(stored):
        errors += _immutable_spec_errors(spec, section(stored, "spec"), _admitted_counts(stored))
    return _without_duplicates(errors)


def _has_quota_reservation(workload: Object) -> bool:
    conditions = items(section(workload, "status"), "conditions", "status")
    return any(
        condition.get("type") == WorkloadCondition.QUOTA_RESERVED
        and condition.get("status") == "True"
        for condition in conditions
    )


def _admitted_counts(workload: Object) -> dict[str, int]:
    """Pods of each podset that quota is reserved for."""
    admission = section(section(workload, "status"), "admission", "status")
    reserved = items(admission, "podSetAssignments", "status.admission")
    counts = {str(assigned.get("name")): assigned.get("count") for assigned in reserved}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _immutable_spec_errors(
    spec: Object, stored: Object, admitted: Mapping[str, int]
) -> list[FieldError]:
    advice = "deactivate the workload first (spec.active: false)"
    errors = []
    if spec.get("queueName") != stored.get("queueName"):
        problem = f"{shown(stored.get('queueName', ''))} cannot change while quota is reserved"
        errors.append(FieldError("spec.queueName", problem, advice))
    now, before = items(spec, "podSets", "spec"), items(stored, "podSets", "spec")
    if _without_counts(now) != _without_counts(before):
        problem = "podsets cannot change while quota is reserved, except to smaller counts"
        errors.append(FieldError("spec.podSets", problem, advice))
        return errors
    for index, (podset, old) in enumerate(zip(now, before, strict=True)):
        asked, reserved = podset.get("count", 1), old.get("count", 1)
        if isinstance(reserved, int):  # an elastic job's count follows what was admitted (SLC-23)
            reserved = max(reserved, admitted.get(str(podset.get("name")), 0))
        if isinstance(asked, int) and isinstance(reserved, int) and asked > reserved:
            problem = f"{asked} is more than the {reserved} pods that quota is reserved for"
            errors.append(FieldError(f"spec.podSets[{index}].count", problem, advice))
    return errors


def _without_counts(podsets: Sequence[Object]) -> list[dict[str, Any]]:
    return [
        {field: value for field, value in podset.items() if field != "count"} for podset in podsets
    ]


def _without_duplicates(errors: list[FieldError]) -> list[FieldError]:
    return list({(error.path, error.problem): error for error in errors}.values())


def model_errors(model: type[ApiObject], found: Object) -> list[FieldError]:
    """What a model rejects in an object; 16 errors at most, in the model's order."""
    try:
        model.model_validate(found)
    except ValidationError as error:
        details = error.errors(include_url=False)[:MAX_ERRORS]
        return [_field_error(detail) for detail in details]
    except RecursionError:
        return [FieldError("", "the object is nested too deeply")]
    return []


def _field_error(detail: ErrorDetails) -> FieldError:
    path = _path(detail["loc"])
    context = detail.get("ctx", {})
    inner = context.get("path")
    if inner:
        path = f"{path}.{inner}" if path else str(inner)
    problem, value = detail["msg"], detail.get("input")
    # The message of a rule already contains the value. In other messages only scalars are shown.
    if detail["type"] != "rule" and isinstance(value, str | int | float | bool):
        problem = f"{problem}, found {shown(value)}"
    return FieldError(path, problem[:1].lower() + problem[1:])


def _path(location: tuple[str | int, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text

"""Rules for OSMO's Pools and Workflows. The caller reads the objects that they need.

The schema of a Pool has most of its rules; here they are repeated with clearer messages. The rules
of a Workflow are only here, because they need its Pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rackgate.api.names import OSMO_GROUP
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.templates import items, section
from rackgate_osmo import Pool, RejectedError, Rejection, read_pool, read_workflow
from rackgate_webhook.admission.review import AdmissionResponse, Review

Object = Mapping[str, Any]

POOL: Final = f"{OSMO_GROUP}/Pool"
WORKFLOW: Final = f"{OSMO_GROUP}/Workflow"
# The API server passes on 4 KiB of warnings, of 256 characters each.
MAX_WARNINGS: Final = 8
MAX_USERS_SHOWN: Final = 3


def is_osmo_write(review: Review) -> bool:
    """Whether a review is checked here: a write of a Pool or Workflow that is not being deleted."""
    return (
        review.kind in (POOL, WORKFLOW)
        and not review.sub_resource
        and review.operation in ("CREATE", "UPDATE")
        and not section(review.object, "metadata").get("deletionTimestamp")
    )


def pool_of(workflow: Object) -> str:
    """Name of the Pool that a Workflow is submitted to; "" without one."""
    name = section(workflow, "spec").get("pool")
    return name if isinstance(name, str) else ""


def removed_topology_keys(review: Review) -> tuple[str, ...]:
    """Keys that a change of a Pool removes or maps to another label, coarsest first."""
    if review.kind != POOL or review.operation != "UPDATE":
        return ()
    now = _labels_by_key(review.object)
    return tuple(
        key for key, label in _labels_by_key(review.old_object).items() if now.get(key) != label
    )


def topology_keys_of(workflow: Object) -> set[str]:
    """Topology keys that the resources of a Workflow name."""
    spec = section(workflow, "spec")
    inner = spec.get("workflow")
    holders = [spec, *([inner] if isinstance(inner, Mapping) else [])]
    keys = set()
    for resource in (one for holder in holders for one in _resources(holder)):
        requirements = resource.get("topology") if isinstance(resource, Mapping) else None
        for entry in requirements if isinstance(requirements, Sequence) else ():
            key = entry.get("key") if isinstance(entry, Mapping) else None
            if isinstance(key, str):
                keys.add(key)
    return keys


def _resources(holder: Object) -> Collection[Any]:
    found = holder.get("resources")
    return found.values() if isinstance(found, Mapping) else ()


def pool_response(review: Review, users: Mapping[str, Sequence[str]] | None) -> AdmissionResponse:
    """The response to a Pool.

    Args:
        review: for which `is_osmo_write` holds.
        users: Workflows, as `namespace/name`, by each key of `removed_topology_keys`; None when
            they could not be read in time.
    """
    try:
        read_pool(pool_data(review.object))
    except RejectedError as error:
        return AdmissionResponse(errors=[_field_error(rejection) for rejection in error.rejections])
    return AdmissionResponse(warnings=_removed_key_warnings(removed_topology_keys(review), users))


def workflow_response(review: Review, pool: Object | None) -> AdmissionResponse:
    """The response to a Workflow.

    Args:
        review: for which `is_osmo_write` holds.
        pool: its Pool as stored; None when there is none of that name.
    """
    name = pool_of(review.object)
    if pool is None:
        advice = "submit it to an existing pool (kubectl get pools.osmo.rackgate.dev)"
        return AdmissionResponse(
            errors=[FieldError("spec.pool", f"there is no pool {shown(name)}", advice)]
        )
    try:
        found = read_pool(pool_data(pool))
    except RejectedError as error:
        problem = f"pool {shown(name)} is not valid: {error.rejections[0]}"
        return AdmissionResponse(errors=[FieldError("spec.pool", problem, "fix the pool first")])
    return AdmissionResponse(errors=workflow_errors(review.object, found))


def workflow_errors(workflow: Object, pool: Pool) -> list[FieldError]:
    """What is wrong with a Workflow on its Pool, by field path."""
    try:
        read_workflow(workflow_data(workflow), pool)
    except RejectedError as error:
        return [_field_error(rejection) for rejection in error.rejections]
    return []


def pool_data(pool: Object) -> dict[str, Any]:
    """A Pool object in the format of OSMO's pool files."""
    return {**section(pool, "spec"), "name": section(pool, "metadata").get("name", "")}


def workflow_data(workflow: Object) -> dict[str, Any]:
    """A Workflow object in the format of OSMO's workflow files. Its spec may omit the name."""
    name = section(workflow, "metadata").get("name", "")
    spec = section(workflow, "spec")
    given = {key: value for key, value in spec.items() if key != "pool"}
    if isinstance(given.get("workflow"), Mapping):
        return {**given, "workflow": {"name": name, **given["workflow"]}}
    return {"name": name, **given}


def _field_error(rejection: Rejection) -> FieldError:
    return FieldError(_path(rejection), rejection.message)


def _path(rejection: Rejection) -> str:
    """The path of a rejection in the object: all fields but the name are below spec."""
    path = rejection.path
    if path == "name" and rejection.at == "pool":
        return "metadata.name"
    if not path:
        return "spec"
    return f"spec{path}" if path.startswith("[") else f"spec.{path}"


def _labels_by_key(pool: Object) -> dict[str, str]:
    entries = items(section(pool, "spec"), "topology_keys", "spec")
    return {str(entry.get("key")): str(entry.get("label")) for entry in entries}


def _removed_key_warnings(
    keys: Iterable[str], users: Mapping[str, Sequence[str]] | None
) -> list[str]:
    """Warnings about Workflows that use what a change removes."""
    names = list(keys)
    if not names:
        return []
    if users is None:
        listed_keys = ", ".join(map(shown, names))
        return [f"the workflows that use {listed_keys} could not be read in time; {_EFFECT}"]
    warnings = []
    for name in names:
        if found := users.get(name, ()):
            more = len(found) - MAX_USERS_SHOWN
            listed = ", ".join(found[:MAX_USERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
            warnings.append(f"{shown(name)} is used by {listed}; {_EFFECT}")
    return warnings[:MAX_WARNINGS]


_EFFECT: Final = "running workflows are not affected, pending ones stay pending"

"""Renders the pods of an OSMO workflow's tasks, as members of their PodGroups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from rackgate.resources.quantity import to_milli
from rackgate_osmo.model.names import pod_group_names
from rackgate_osmo.model.rejections import RejectedError, Rejection
from rackgate_osmo.model.task_resources import SIZES, tolerations_of
from rackgate_osmo.model.workflow import (
    DEFAULT_RESOURCE,
    SCHEDULER_NAME,
    Built,
    PodMembership,
    Pool,
    Resource,
    Task,
    Workflow,
)

Object = dict[str, Any]

CONTAINER: Final = "task"
_HOSTNAME: Final = "kubernetes.io/hostname"


def build_pods(
    pool: Pool, workflow: Workflow, built: Built, document: Any, namespace: str | None = None
) -> list[Object]:
    """A Pod for each task that has an image, in the workflow's order.

    It has no owner, because KAI regroups the pods of an owner.

    Args:
        pool: says which nodes its pods may use.
        workflow: has image, command, args and environment of its tasks.
        built: has the labels and annotations of every task's pod.
        document: what the workflow was read from, for the paths of rejections.
        namespace: of the pods; None leaves it to the caller.

    Raises:
        RejectedError: with every field of a task that is not valid in a container.
    """
    if rejections := list(_rejections(workflow, document)):
        raise RejectedError(rejections)
    pods = []
    for group in workflow.groups:
        tasks = {task.name: built.pods[group.name, task.name] for task in group.tasks}
        owner = next(iter(tasks.values())).pod_group
        names = pod_group_names(owner, list(tasks))
        for task in group.tasks:
            if task.image is not None:
                metadata = _metadata(names[task.name], tasks[task.name], namespace)
                pods.append(_pod(metadata, pool, task, workflow.resource_of(task)))
    return pods


def left_out(workflow: Workflow) -> list[str]:
    """Fields of tasks with an image that are not copied to their Pods, sorted."""
    tasks = [task for group in workflow.groups for task in group.tasks if task.image is not None]
    return sorted({str(name) for task in tasks for name in task.model_extra or ()})


def _metadata(name: str, marks: PodMembership, namespace: str | None) -> Object:
    metadata: Object = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if marks.labels:
        metadata["labels"] = dict(marks.labels)
    metadata["annotations"] = dict(marks.annotations)
    return metadata


def _pod(metadata: Object, pool: Pool, task: Task, resource: Resource | None) -> Object:
    spec: Object = {"schedulerName": SCHEDULER_NAME, "restartPolicy": "Never"}
    if pool.node_selector:
        spec["nodeSelector"] = dict(pool.node_selector)
    if tolerated := tolerations_of(pool, resource):
        spec["tolerations"] = [one.to_pod_toleration() for one in tolerated]
    if resource is not None and resource.nodesExcluded:
        spec["affinity"] = _excluded_nodes_affinity(resource)
    spec["containers"] = [_container(task, resource)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(task: Task, resource: Resource | None) -> Object:
    container: Object = {"name": CONTAINER, "image": task.image}
    if task.command:
        container["command"] = list(task.command)
    if task.args:
        container["args"] = list(task.args)
    if task.environment:
        container["env"] = [
            {"name": name, "value": _text(value)} for name, value in task.environment.items()
        ]
    sizes = _sizes(resource)
    if sizes:
        # Requests equal limits, so that the pod is guaranteed what it may use.
        container["resources"] = {"requests": sizes, "limits": dict(sizes)}
    return container


def _sizes(resource: Resource | None) -> dict[str, str]:
    found = {}
    for field, name in SIZES.items():
        value = None if resource is None else getattr(resource, field)
        if value is not None:
            found[name] = value if isinstance(value, str) else _quantity(value)
    return found


def _quantity(value: float) -> str:
    # Exact arithmetic: 64 GiB in bytes exceed the bound of `to_milli`.
    milli = math.ceil(Fraction(repr(value)) * 1000)
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _excluded_nodes_affinity(resource: Resource) -> Object:
    excluded = {"key": _HOSTNAME, "operator": "NotIn", "values": list(resource.nodesExcluded)}
    term = {"nodeSelectorTerms": [{"matchExpressions": [excluded]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}


def _text(value: object) -> str:
    """A YAML scalar as a shell would see it: true stays "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rejections(workflow: Workflow, document: Any) -> Iterator[Rejection]:
    inside = "workflow." if "workflow" in document else ""
    body = document["workflow"] if inside else document
    alone = bool(body.get("tasks"))  # each task is a group of its own
    for at, group in enumerate(workflow.groups):
        for index, task in enumerate(group.tasks):
            if task.image is not None:
                inner = f"tasks[{at}]" if alone else f"groups[{at}].tasks[{index}]"
                yield from _of_task(f"{inside}{inner}", task)
    for name in sorted(_used(workflow) & set(workflow.resources)):
        gpu = workflow.resources[name].gpu
        if gpu is not None and to_milli(gpu) % 1000:
            prefix = "" if name in (document.get("resources") or {}) else inside
            message = (
                f"{gpu} is not a whole number: a pod can request only whole GPUs, such as 1 or 2"
            )
            path = f"{prefix}resources.{name}.gpu"
            yield Rejection("submission", "fraction", path, gpu, message)


def _used(workflow: Workflow) -> set[str]:
    """Resources of the tasks that get a Pod."""
    return {
        task.resource or DEFAULT_RESOURCE
        for group in workflow.groups
        for task in group.tasks
        if task.image is not None
    }


def _of_task(path: str, task: Task) -> Iterator[Rejection]:
    if not (task.image or "").strip():
        message = "the image is empty: set it, or remove it if the task needs no Pod"
        yield Rejection("submission", "empty", f"{path}.image", task.image, message)
    for field in ("command", "args"):
        yield from _of_words(f"{path}.{field}", getattr(task, field))
    yield from _of_environment(f"{path}.environment", task.environment)


def _of_words(path: str, value: object) -> Iterator[Rejection]:
    if value is None:
        return
    if not isinstance(value, list | tuple):
        message = 'must be a list of strings, for example ["python", "train.py"]'
        yield Rejection("submission", "type", path, value, message)
        return
    for at, word in enumerate(value):
        if not isinstance(word, str):
            message = f"{_found(word)} is not a string: put it in quotes"
            yield Rejection("submission", "type", f"{path}[{at}]", word, message)


def _of_environment(path: str, value: object) -> Iterator[Rejection]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        message = "must be a mapping of names to values, for example {EPOCHS: 10}"
        yield Rejection("submission", "type", path, value, message)
        return
    for name, entry in value.items():
        plain = isinstance(entry, str | bool | int) or (
            isinstance(entry, float) and math.isfinite(entry)
        )
        if not plain:
            message = f"{_found(entry)} is not a plain value: use a string, a number or a boolean"
            yield Rejection("submission", "type", f"{path}.{name}", entry, message)


def _found(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else f"{value}"

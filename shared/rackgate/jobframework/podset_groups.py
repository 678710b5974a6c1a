"""What several templates of one job must agree on, so that one Workload can carry them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rackgate.api.names import PODSET_GROUP, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.templates import annotations_of

MAX_PODSETS: Final = 18  # of a Workload
_DNS_LABEL: Final = re.compile(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


def name_errors(named: Iterable[tuple[str, str]], taken: Iterable[str] = ()) -> list[FieldError]:
    """Refuse names that are no names of PodSets, and two that differ in case alone.

    Args:
        named: path and name of each template, in order.
        taken: names of PodSets that are there besides.
    """
    errors: list[FieldError] = []
    first = {name: name for name in taken}
    for path, name in named:
        podset = name.lower()
        if not _DNS_LABEL.match(podset):
            problem = f"{shown(name)} cannot be the name of a podset"
            errors.append(
                FieldError(path, problem, "use up to 63 letters, digits and -, no - at the ends")
            )
        elif podset in first:
            problem = f"{shown(name)} is the same podset as {shown(first[podset])}"
            errors.append(FieldError(path, problem, "rename one of them; case does not count"))
        first.setdefault(podset, name)
    return errors


def group_errors(
    pod_templates: Sequence[PodTemplate], counts: Mapping[str, int]
) -> list[FieldError]:
    """Refuse podset groups that cannot be placed: a group is one leader pod and its workers.

    Args:
        pod_templates: all templates of the job.
        counts: pods of each PodSet.

    Returns:
        One error for each broken group, at its first template.
    """
    groups: dict[str, list[PodTemplate]] = {}
    for pod_template in pod_templates:
        name = annotations_of(pod_template.template, pod_template.path).get(PODSET_GROUP)
        if name is not None:
            groups.setdefault(str(name), []).append(pod_template)
    errors = []
    for name, members in groups.items():
        group_error = _group_error(members, counts)
        if group_error is not None:
            path = f"{members[0].path}.metadata.annotations[{PODSET_GROUP}]"
            errors.append(
                FieldError(path, f"podset group {shown(name)}: {group_error[0]}", group_error[1])
            )
    return errors


def _group_error(
    members: Sequence[PodTemplate], counts: Mapping[str, int]
) -> tuple[str, str] | None:
    if len(members) != 2:
        problem = f"it is made of exactly 2 podsets, here are {len(members)}"
        return problem, "name the group in the templates of the leader and of its workers"
    smallest = min(counts.get(member.podset, 0) for member in members)
    if smallest > 1:
        problem = f"one of its podsets must be a single pod, the smaller has {smallest}"
        return problem, "ask for slices instead, or make the leader a template of its own"
    if len({_levels(member) for member in members}) > 1:
        return "its podsets ask for different levels", "give both the same topology annotation"
    return None


def _levels(pod_template: PodTemplate) -> tuple[str | None, ...]:
    annotations = annotations_of(pod_template.template, pod_template.path)
    return tuple(annotations.get(key) for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY))

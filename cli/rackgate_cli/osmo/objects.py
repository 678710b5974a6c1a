"""The objects of a workflow, from the arguments of a verb."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rackgate_cli.errors import UsageError
from rackgate_cli.osmo.inputs import Inputs, read_inputs
from rackgate_cli.osmo.rejections import read_or_reject
from rackgate_cli.tables import clean
from rackgate_osmo import Built, KaiVersion, Profile, Workflow, build_podgroups
from rackgate_osmo.render.pods import build_pods, left_out

Object = dict[str, Any]

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Objects:
    """What a workflow comes to.

    Attributes:
        pods: of the tasks that have an image; none with `--no-pods`.
        left_out: fields of tasks that no Pod carries.
    """

    inputs: Inputs
    built: Built
    pods: tuple[Object, ...]
    left_out: tuple[str, ...]


def objects_of(
    arguments: argparse.Namespace,
    default: str | None = None,
    nodes: Sequence[Mapping[str, str]] | None = None,
) -> Objects:
    """The objects that the arguments of a verb ask for.

    Args:
        arguments: those of `osmo_arguments`, and `namespace`.
        default: namespace where neither the command line nor a Workflow object names one.
        nodes: labels of every node of the pool, for the robust profile.

    Raises:
        CommandError: the pool is not in the cluster.
        KubeError: the cluster cannot be read.
        UsageError: an argument is wrong, or pool or workflow are refused.
    """
    inputs = read_inputs(arguments)
    namespace = namespace_of(arguments.namespace, inputs.namespace) or default
    names = names_of(arguments.names, inputs.workflow)

    def build() -> tuple[Built, list[Object]]:
        built = build_podgroups(
            inputs.pool,
            inputs.workflow,
            names,
            namespace=namespace,
            profile=Profile(arguments.profile),
            kai=KaiVersion(arguments.kai),
            nodes=nodes,
        )
        if not arguments.pods:
            return built, []
        return built, build_pods(inputs.pool, inputs.workflow, built, inputs.document, namespace)

    built, pods = read_or_reject(arguments.file, build)
    rest = left_out(inputs.workflow) if pods else []
    return Objects(inputs, built, tuple(pods), tuple(rest))


def namespace_of(asked: str | None, written: str | None) -> str | None:
    """The namespace that the command line or the Workflow object names."""
    found = asked or written
    if found is not None and not _NAMESPACE.fullmatch(found):
        raise UsageError(
            f'namespace "{clean(found)}" is no name: use up to 63 lower-case letters, digits '
            "and -, beginning and ending with a letter or digit"
        )
    if written not in (None, found):
        raise UsageError(
            f'the Workflow says namespace "{clean(written)}", the command line "{found}"'
        )
    return found


def names_of(given: Iterable[str], workflow: Workflow) -> Mapping[str, str] | None:
    """PodGroup names by task group."""
    found: dict[str, str] = {}
    known = [group.name for group in workflow.groups]
    for entry in (part for text in given for part in text.split(",") if part):
        group, equals, name = entry.rpartition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f'--names: "{clean(entry)}" is not GROUP=NAME with the name of an object: up to '
                "253 lower-case letters, digits, - and ."
            )
        if group not in known:
            raise UsageError(
                f'--names: there is no task group "{clean(group)}" '
                f"(groups: {clean(', '.join(known))})"
            )
        if group in found or name in found.values():
            raise UsageError(f'--names: "{clean(entry)}" names a group or a PodGroup again')
        found[group] = name
    return found or None

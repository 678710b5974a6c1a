"""`rackgate osmo render`: a workflow's objects as YAML, for `kubectl apply`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.errors import UsageError
from rackgate_cli.osmo.arguments import (
    add_kai,
    add_nodes,
    add_objects,
    add_tolerations,
    add_workflow,
    check_streams,
    new_verb,
)
from rackgate_cli.verbs import add_target

if TYPE_CHECKING:
    from rackgate_cli.osmo.inputs import Objects
    from rackgate_cli.verbs import Subparsers

_COLUMNS: Final = 100


def add_verbs(subparsers: Subparsers) -> None:
    """Add the verb `render`."""
    parser = new_verb(
        subparsers,
        "render",
        run,
        summary="print a workflow's Topology, PodGroups and pods as YAML",
        description="Prints the pool's Topology, a PodGroup for each task group and a Pod for each "
        "task that has an image. For other tasks, prints as comments what their pods need. Reads "
        "only the pool from a cluster, and only if POOL is not a file.",
        examples=(
            "rackgate osmo render -f workflow.yaml --pool pool.yaml",
            "rackgate osmo render -f workflow.yaml --pool pool.yaml -n team-a | kubectl apply -f -",
            "rackgate osmo render -f - --pool my-pool --names train=3f1c --json < workflow.yaml",
            "rackgate osmo render -f workflow.yaml --pool pool.yaml --profile robust "
            "--nodes nodes.yaml",
        ),
        exit_codes={
            0: "rendered",
            1: "the pool is not in the cluster, or the cluster cannot be read",
            2: "the command line, the pool or the workflow is invalid; all errors are printed",
        },
    )
    add_workflow(parser)
    parser.add_argument("-n", "--namespace", help="of PodGroups and Pods (default: not set)")
    add_kai(parser)
    add_nodes(parser, "none; used only with --profile robust")
    add_tolerations(parser)
    add_objects(parser)
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the objects; return 0."""
    from rackgate_cli.osmo.inputs import objects_of

    found = objects_of(arguments, nodes=_labels(arguments))
    # Build everything before printing: if anything is rejected, no object is printed.
    text = json.dumps(_document(found), indent=2) + "\n" if arguments.json else _yaml(found)
    print_left_out(found)
    sys.stdout.write(text)
    return 0


def _labels(arguments: argparse.Namespace) -> list[Mapping[str, str]] | None:
    """Labels of the nodes in a file; only the robust profile uses them."""
    if arguments.nodes is None:
        if arguments.selector:
            raise UsageError("-l requires --nodes")
        return None
    if arguments.profile != "robust":
        raise UsageError("--nodes requires --profile robust")
    from rackgate_cli.osmo.nodes import nodes_of

    check_streams(arguments)
    return [node.labels for node in nodes_of(arguments).nodes]


def print_left_out(found: Objects) -> None:
    """Name the fields of tasks that are not copied to Pods, on stderr."""
    from rackgate_cli.tables import clean

    if found.left_out:
        fields = clean(", ".join(found.left_out))
        print(f"rackgate: fields of tasks that are not copied to Pods: {fields}", file=sys.stderr)


def _document(found: Objects) -> dict[str, Any]:
    return {
        "topology": found.built.topology,
        "podGroups": list(found.built.pod_groups),
        "pods": list(found.pods),
        "marks": _memberships(found, frozenset()),
    }


def _memberships(found: Objects, without: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
    """Labels and annotations that the pods of tasks need; tasks with equal ones are one entry."""
    entries: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Any]] = {}
    selector = found.inputs.pool.node_selector
    for member, marks in found.built.pods.items():
        if member in without:
            continue
        key = (marks.pod_group, tuple(sorted(marks.labels.items())))
        entry = entries.setdefault(
            key,
            {
                "podGroup": marks.pod_group,
                "tasks": [],
                "annotations": dict(marks.annotations),
                "labels": dict(marks.labels),
                "schedulerName": marks.scheduler_name,
                **({"nodeSelector": dict(selector)} if selector else {}),
            },
        )
        entry["tasks"].append(member[1])
    return list(entries.values())


def _yaml(found: Objects) -> str:
    from rackgate_cli.plain_yaml import dump_documents

    topology = found.built.topology
    objects = [*([] if topology is None else [topology]), *found.built.pod_groups, *found.pods]
    return dump_documents(objects) + "".join(f"# {line}\n" for line in _comments(found))


def _comments(found: Objects) -> Iterator[str]:
    """Labels and annotations of the pods that are not rendered here, as YAML comments."""
    made = frozenset(
        (group.name, task.name)
        for group in found.inputs.workflow.groups
        for task in group.tasks
        if task.image is not None and found.pods
    )
    entries = _memberships(found, made)
    if entries:
        name = entries[0]["schedulerName"]
        yield "These tasks have no Pod here: they have no image, or --no-pods is set. Their pods"
        yield f"need spec.schedulerName {name}, no owner, and in their metadata:"
        if "nodeSelector" in entries[0]:
            yield f"(and spec.nodeSelector {json.dumps(entries[0]['nodeSelector'])})"
    for entry in entries:
        # Escaped as JSON: a name cannot end its comment.
        yield from _lines([json.dumps(task) for task in entry["tasks"]])
        yield f"    annotations: {json.dumps(entry['annotations'])}"
        if entry["labels"]:
            yield f"    labels: {json.dumps(entry['labels'])}"


def _lines(words: Sequence[str]) -> Iterator[str]:
    line = " "
    for word in words:
        if len(line) > 1 and len(line) + len(word) > _COLUMNS:
            yield line
            line = " "
        line += f" {word}"
    yield line

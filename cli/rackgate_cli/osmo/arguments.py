"""Arguments that the verbs of `rackgate osmo` share; few imports, as every `--help` loads it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.input_files import STDIN
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

# Values of the library's `KaiVersion` and `Profile`, which take longer to import.
KAI_VERSIONS: Final = ("0.10", "0.12", "0.13")
PROFILES: Final = ("seed", "robust")


def new_verb(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    examples: Sequence[str],
    exit_codes: Mapping[int, str],
    note: str = "",
) -> argparse.ArgumentParser:
    """Add a verb. With `--json` its rejections are also printed as JSON."""

    def run_verb(arguments: argparse.Namespace) -> int:
        from rackgate.kube.errors import KubeError
        from rackgate_cli.osmo.inputs import RejectedInputError
        from rackgate_cli.tables import clean, show_json

        try:
            return run(arguments)
        except RejectedInputError as error:
            if getattr(arguments, "json", getattr(arguments, "output", "") == "json"):
                show_json(error.document())
            raise
        except KubeError as error:
            raise CommandError(f"the cluster cannot be read: {clean(str(error))}") from error

    return add_verb(
        subparsers,
        name,
        run_verb,
        summary=summary,
        description=description,
        examples=examples,
        exit_codes=exit_codes,
        note=note,
    )


def add_workflow(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a workflow and its pool."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        required=True,
        help="the workflow, plain or as an object, YAML or JSON; - for standard input",
    )
    parser.add_argument(
        "--pool",
        metavar="POOL",
        help="its pool: a file (- for standard input), or the name of a pool in the cluster "
        "(default: the pool that a Workflow object names)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="reject a workflow whose tasks do not all use the same keys",
    )


def add_kai(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select KAI's version and the profile of the objects."""
    parser.add_argument(
        "--kai",
        choices=KAI_VERSIONS,
        default=KAI_VERSIONS[-1],
        help="release of the KAI scheduler (default %(default)s)",
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=PROFILES[0],
        help="seed: as in OSMO's design; robust: works around defects of KAI (default %(default)s)",
    )


def add_nodes(parser: argparse.ArgumentParser, default: str = "those of the cluster") -> None:
    """Add the arguments that name a list of nodes and select among them."""
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="the pool's nodes, as kubectl prints them or as a list of {count, cpu, labels}; "
        f"- for standard input (default: {default})",
    )
    parser.add_argument(
        "-l",
        "--selector",
        metavar="LABEL=VALUE,...",
        type=_selector,
        default={},
        help="only nodes with these labels belong to the pool (default: those that its "
        "node_selector chooses)",
    )


def _selector(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(label and equals for label, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not LABEL=VALUE[,LABEL=VALUE...]')
    return {label: value for label, _, value in pairs}


def check_streams(arguments: argparse.Namespace) -> None:
    """Reject more than one input from standard input."""
    if [arguments.file, arguments.pool, arguments.nodes].count(STDIN) > 1:
        raise UsageError("only one of workflow, pool and nodes can be standard input")


def add_objects(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the objects and their names."""
    add_names(parser)
    parser.add_argument(
        "--pods",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="create a Pod for each task that has an image",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names PodGroups."""
    parser.add_argument(
        "--names",
        action="append",
        default=[],
        metavar="GROUP=NAME",
        help="name of a task group's PodGroup, several times or separated by commas "
        "(default: from the names of workflow and group)",
    )


def add_tolerations(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for tolerations in addition to those of the pool."""
    parser.add_argument(
        "--tolerate",
        metavar="KEY",
        action="append",
        default=[],
        help="the pods tolerate taints with this key (may be repeated)",
    )
    parser.add_argument(
        "--gpu-toleration",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="pods that request GPUs tolerate taints with the key nvidia.com/gpu "
        "(default: gpu_toleration of the pool, which is true by default)",
    )

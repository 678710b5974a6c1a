"""`rackgate gang`: what the Workload of gangs says, and the end of gang scheduling."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_target, add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

MAX_BYTES: Final = 16 << 20
_FILES: Final = "expand, collapse and explain read files, no cluster."
_EXIT_CODES: Final = {0: "done", 2: "the command line, the file or an object is invalid"}

Object = dict[str, Any]


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `gang` with its own verbs."""
    parser = add_verb(
        subparsers,
        "gang",
        None,
        summary="validate and explain Workloads of gangs",
        description="A Workload of scheduling.rackgate.dev says which pods belong together: those "
        "that start together or not at all, their ranks and their shapes. These verbs check such "
        "objects and show what they mean.",
        examples=(
            "rackgate gang explain -f workload.yaml",
            "rackgate gang expand -f workload.yaml --feature-gates WorkloadRevN=true",
        ),
        exit_codes=_EXIT_CODES,
        note=_FILES,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_verb(
        verbs,
        "expand",
        _expand,
        summary="print objects with all levels and all defaults",
        description="Prints each Workload in canonical form: all four levels, counts as bounds, "
        "templates as pod templates, every default value.",
    )
    _add_verb(
        verbs,
        "collapse",
        _collapse,
        summary="print objects in their shortest form",
        description="Prints each Workload in the shortest form that says the same: without default "
        "values, and without groups that carry nothing of their own.",
    )
    _add_explain(verbs)
    _add_release(verbs)


def _add_verb(
    verbs: Subparsers,
    name: str,
    show: Callable[[list[Object]], str],
    *,
    summary: str,
    description: str,
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        # Read all objects before printing: if one is invalid, nothing is printed.
        sys.stdout.write(show(_read_workloads(arguments)))
        return 0

    parser = add_verb(
        verbs,
        name,
        run,
        summary=summary,
        description=description,
        examples=(
            f"rackgate gang {name} -f workload.yaml",
            f"rackgate gang {name} -f - --feature-gates WorkloadRevN=true < workload.yaml",
        ),
        exit_codes=_EXIT_CODES,
        note=_FILES,
    )
    _add_file(parser, required=True)


def _add_file(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        required=required,
        help="YAML or JSON; objects of other kinds in it are ignored; - for standard input",
    )
    parser.add_argument(
        "--feature-gates",
        metavar="NAME=true,...",
        type=_gates,
        default={},
        help="WorkloadRevN=true accepts fields of RevN (default: only those of Rev1)",
    )


def _add_explain(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "explain",
        _run_explain,
        summary="say what objects ask for, and what a gang of a cluster waits for",
        description="Says in plain text what each Workload of a file asks for: its shape, gangs, "
        "counts, the defaults that apply, and warnings. With NAME it reads the Workload from the "
        "cluster instead, and says what its gangs wait for: which pods are missing, which gates "
        "they have, and how long until the timeout. Only reads.",
        examples=(
            "rackgate gang explain -f workload.yaml",
            "rackgate gang explain -f - --feature-gates WorkloadRevN=true < workload.yaml",
            "rackgate gang explain job-train-3f9c1 -n team-a",
        ),
        exit_codes={
            0: "explained",
            1: "no such Workload, or the cluster cannot be read",
            2: "the command line, the file or an object is invalid",
        },
    )
    parser.add_argument(
        "workload", metavar="NAME", nargs="?", help="of a Workload of gangs, or namespace/name"
    )
    parser.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    _add_file(parser, required=False)
    add_target(parser)


def _run_explain(arguments: argparse.Namespace) -> int:
    if (arguments.workload is None) == (arguments.file is None):
        raise UsageError("specify either the name of a Workload of gangs, or a file with -f")
    if arguments.file is not None:
        sys.stdout.write(_explain(_read_workloads(arguments)))
        return 0
    return interruptible.run(_explain_of_cluster(arguments))


async def _explain_of_cluster(arguments: argparse.Namespace) -> int:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.explain.gangs import GangReader, status_blocks
    from rackgate_cli.tables import show

    target = target_of(arguments, "gang-explain")
    namespace, _, name = arguments.workload.rpartition("/")
    namespace = namespace or arguments.namespace or target.namespace
    async with target.client() as client:
        reader = GangReader(client, top=5)
        try:
            gang = await reader.read(namespace, name)
            if gang is None:
                raise CommandError(f'there is no Workload of gangs "{name}" in "{namespace}"')
            found = await reader.now(gang)
        except KubeError as error:
            raise CommandError(f"the cluster cannot be read: {error}") from error
    sys.stdout.write(_explain([{"metadata": {"name": name}, "spec": dict(gang.spec)}]))
    show(status_blocks(gang, found))
    return 0


def _add_release(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "release",
        _release,
        summary="remove the gate of gangs from all pods, when gang scheduling is given up",
        description="Removes the gate scheduling.rackgate.dev/gang from every pod of the cluster, "
        "so that no pod is held when the component deploy/gangs is removed. Delete the admission "
        "policies of the component first: as long as they exist, they reject the change. Gates of "
        "other owners stay, and so do Rackgate's other gates.",
        examples=("rackgate gang release --dry-run", "rackgate gang release"),
        exit_codes={
            0: "no pod has the gate",
            1: "a pod keeps the gate, and is named",
            2: "the command line is invalid",
        },
    )
    add_target(parser)
    parser.add_argument("--dry-run", action="store_true", help="name the pods, and change nothing")


def _release(arguments: argparse.Namespace) -> int:
    return interruptible.run(_release_all(arguments))


async def _release_all(arguments: argparse.Namespace) -> int:
    from rackgate.api.names import GANG_GATE
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.tables import clean
    from rackgate_ungater.uninstall import gated_pods, release_pods

    async with target_of(arguments, "gang-release").client() as client:
        try:
            if arguments.dry_run:
                for pod in await gated_pods(client, [GANG_GATE]):
                    print(f"{pod} has the gate")
                return 0
            found = await release_pods(client, [GANG_GATE])
        except KubeError as error:
            raise CommandError(f"{error}\nrun the command again") from error
    for pod in sorted(found.pods):
        print(f"{pod} released")
    for pod, why in sorted(found.gated.items()):
        print(f"{pod} keeps the gate: {clean(why)}")
    return 1 if found.gated else 0


def _gates(text: str) -> dict[str, bool]:
    from rackgate.features import WORKLOAD_REV_N

    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name != WORKLOAD_REV_N:
            raise argparse.ArgumentTypeError(f'unknown gate "{name[:60]}": use {WORKLOAD_REV_N}')
        if value not in ("true", "false"):
            raise argparse.ArgumentTypeError(f'"{part[:60]}" is not NAME=true or NAME=false')
        found[name] = value == "true"
    return found


def _read_workloads(arguments: argparse.Namespace) -> list[Object]:
    """The Workloads of a file, all valid, with Off as text.

    Raises:
        UsageError: the file cannot be read, has none, or one is invalid.
    """
    from rackgate.api.resources import GANG_WORKLOADS as KIND
    from rackgate.features import Features
    from rackgate.gang.forms.expand import quote_off
    from rackgate.gang.validation import errors_of
    from rackgate_cli.plain_yaml import read_plain_yaml
    from rackgate_cli.tables import clean

    found = [
        document
        for document in _flat(read_plain_yaml(arguments.file, MAX_BYTES))
        if (document.get("apiVersion"), document.get("kind")) == (KIND.api_version, KIND.kind)
    ]
    if not found:
        raise UsageError(f'"{arguments.file}" contains no {KIND.kind} of {KIND.api_version}')
    if any(quote_off(document.get("spec")) != document.get("spec") for document in found):
        text = "put Off in quotes: YAML reads it as false, and the API server rejects that"
        print(f"rackgate: {text}", file=sys.stderr)
    rev_n = Features.of(arguments.feature_gates).workload_rev_n
    lines = []
    for document in found:
        document["spec"] = quote_off(document.get("spec"))
        errors = errors_of(document["spec"], rev_n=rev_n)
        # Character by character, because `clean` truncates text to a table cell.
        lines += ["".join(map(clean, f"{_name(document)}: {error}")) for error in errors]
    if lines:
        raise UsageError("\n  ".join([f'"{arguments.file}" is invalid:', *lines]))
    return found


def _flat(documents: list[Any]) -> Iterator[Object]:
    """The objects, and those in lists as kubectl prints them."""
    for document in documents:
        if isinstance(document, dict):
            items = document.get("items")
            yield from _flat(items) if isinstance(items, list) else (document,)


def _name(document: Object) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _expand(documents: list[Object]) -> str:
    from rackgate.gang.forms.expand import expand

    return _yaml([{**one, "spec": expand(one["spec"])} for one in documents])


def _collapse(documents: list[Object]) -> str:
    from rackgate.gang.forms.collapse import collapse

    return _yaml([{**one, "spec": collapse(one["spec"])} for one in documents])


def _explain(documents: list[Object]) -> str:
    from rackgate.gang.describe import describe
    from rackgate_cli.tables import clean

    blocks = [
        "".join("".join(map(clean, line)) + "\n" for line in describe(_name(one), one["spec"]))
        for one in documents
    ]
    return "\n".join(blocks)


def _yaml(documents: list[Object]) -> str:
    from rackgate_cli.plain_yaml import dump_documents

    return dump_documents(documents)

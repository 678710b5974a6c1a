"""`rackgate completion`, and the answers to a shell that completes a command line.

The shell runs the command again with the words so far. argcomplete answers with verbs, flags and
choices, and asks the functions here for names of the cluster. A cluster that does not answer within
`LIMIT_S` completes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.cluster import interruptible
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate.api.resources import Resource
    from rackgate_cli.verbs import Subparsers

SHELLS: Final = ("bash", "zsh", "fish")
# Set by the shell when it asks.
ASKED: Final = "_ARGCOMPLETE"
LIMIT_S: Final = 3.0
_COMMANDS: Final = ("rackgate", "kubectl-rackgate")


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `completion`."""
    parser = add_verb(
        subparsers,
        "completion",
        _print_script,
        summary="print the script with which a shell completes command lines",
        description="Prints a script for a shell. It completes verbs, flags and values, and names "
        "of jobs, Workloads, queues and namespaces of the cluster. The program "
        "kubectl_complete-rackgate does the same for `kubectl rackgate`.",
        examples=(
            "source <(rackgate completion bash)",
            "rackgate completion zsh > ~/.zfunc/_rackgate",
            "rackgate completion fish | source",
        ),
    )
    parser.add_argument("shell", choices=SHELLS)


def _print_script(arguments: argparse.Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(_COMMANDS, shell=arguments.shell))


def is_asked() -> bool:
    """Whether a shell asks for completions, and no command line is run."""
    return ASKED in os.environ


BuildParser = Callable[["str | None"], argparse.ArgumentParser]


def complete(build: BuildParser) -> None:
    """Answer the shell and end the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(build(words[1] if len(words) > 1 else None))


# Names of the cluster. argcomplete calls a completer with the parsed arguments.


def namespaces(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Names of namespaces."""
    from rackgate.api import resources as kinds

    return _ask(parsed_args, kinds.NAMESPACES, _names)


def jobs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """`kind/name` of the jobs that have a Workload, without finished ones."""
    from rackgate.api import resources as kinds

    return _ask(parsed_args, kinds.WORKLOADS, _jobs)


def named(parsed_args: argparse.Namespace, **more: Any) -> list[str]:
    """Names for `rackgate get KIND`."""
    from rackgate.api import resources as kinds
    from rackgate_cli.get.kinds import TOPOLOGY, WORDS, WORKLOADS

    report = WORDS[parsed_args.kind].report
    if report == WORKLOADS:
        return jobs(parsed_args, **more)
    if report == TOPOLOGY:
        return _ask(parsed_args, kinds.TOPOLOGIES, _names)
    local = _ask(parsed_args, kinds.LOCAL_QUEUES, _names)
    return [*local, *_ask(parsed_args, kinds.CLUSTER_QUEUES, _names)]


def set_completer(action: argparse.Action, completer: Callable[..., Sequence[str]]) -> None:
    """Set the function that completes an argument."""
    action.completer = completer  # type: ignore[attr-defined] # as argcomplete documents


def _names(found: Iterable[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def _jobs(found: Iterable[dict[str, Any]]) -> list[str]:
    names = []
    for one in found:
        conditions = (one.get("status") or {}).get("conditions") or ()
        if any(c.get("type") == "Finished" and c.get("status") == "True" for c in conditions):
            continue
        owners = one["metadata"].get("ownerReferences") or ()
        owner = next((o for o in owners if o.get("controller")), None)
        if owner is None:
            names.append(f"workload/{one['metadata']['name']}")
        elif owner["kind"] != "Workload":
            names.append(f"{owner['kind'].lower()}/{owner['name']}")
    return names


def _ask(
    arguments: argparse.Namespace,
    kind: Resource,
    choose: Callable[[list[dict[str, Any]]], list[str]],
) -> list[str]:
    """What to choose of the objects of a kind; nothing if they cannot be read in time."""
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.lists import list_objects
    from rackgate_cli.cluster.target import cluster_target
    from rackgate_cli.errors import CommandError

    async def read() -> list[str]:
        target = cluster_target(
            getattr(arguments, "state", None),
            getattr(arguments, "kubeconfig", None),
            getattr(arguments, "context", None),
        )
        everywhere = getattr(arguments, "all_namespaces", False) or not kind.namespaced
        namespace = getattr(arguments, "namespace", None) or target.namespace
        async with asyncio.timeout(LIMIT_S), target.client() as client:
            found = await list_objects(client, kind, namespace=None if everywhere else namespace)
            return choose(found)

    try:
        return interruptible.run(read())
    except (KubeError, CommandError, OSError):  # TimeoutError is an OSError
        return []

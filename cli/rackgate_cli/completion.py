"""`rackgate completion`, and the answers to a shell that completes a command line.

The shell runs the command again with the words so far. argcomplete answers with verbs, flags and
choices, and asks the functions here for names of the cluster. A cluster that does not answer within
`LIMIT_S` completes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate.api.resources import Resource
    from rackgate_cli.verbs import Subparsers

SHELLS: Final = ("bash", "zsh", "fish")
LIMIT_S: Final = 3.0
_COMMANDS: Final = ("rackgate", "kubectl-rackgate")
# What `kubectl` expects after the candidates: 4, do not complete names of files.
_DIRECTIVE: Final = b":4"


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


BuildParser = Callable[["str | None"], argparse.ArgumentParser]


def complete(build: BuildParser) -> None:
    """Answer the shell and end the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(build(words[1] if len(words) > 1 else None))


def complete_for_kubectl() -> None:
    """Print what the last argument may become, one candidate in a line, as kubectl expects.

    The process ends soon: argcomplete takes over file descriptors.
    """
    import argcomplete

    from rackgate_cli.__main__ import build_parser

    words = sys.argv[1:]
    line = " ".join(["rackgate", *map(shlex.quote, words[:-1]), *words[-1:]])
    os.environ |= {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_SHELL": "fish",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    answer = io.BytesIO()

    def end(_code: int = 0) -> NoReturn:
        # With fish, each candidate has its help after a tab.
        found = [one.partition(b"\t")[0].strip() for one in answer.getvalue().split(b"\n")]
        lines = [*filter(None, found), _DIRECTIVE]
        sys.stdout.buffer.write(b"".join(one + b"\n" for one in lines))
        sys.stdout.flush()
        sys.exit()

    parser = build_parser(words[0] if len(words) > 1 else None)
    stream = io.TextIOWrapper(answer, encoding="utf-8", write_through=True)
    argcomplete.autocomplete(parser, exit_method=end, output_stream=stream)


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

    kind = getattr(parsed_args, "kind", None)
    if kind == "workloads":
        return jobs(parsed_args, **more)
    if kind == "topology":
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
    from rackgate_cli.errors import CommandError
    from rackgate_cli.lists import list_objects
    from rackgate_cli.target import cluster_target

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
        return asyncio.run(read())
    except (KubeError, CommandError, OSError):  # TimeoutError is an OSError
        return []

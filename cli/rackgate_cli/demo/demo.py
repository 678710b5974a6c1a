"""`rackgate demo`: runs a story on real objects, shows it live and checks every promise."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate.kube.client import Client
    from rackgate_cli.demo.story import Story
    from rackgate_cli.verbs import Subparsers

NODES: Final = 64
KINDS: Final = ("job", "jobset", "raycluster")
# Columns of an output that no terminal wraps.
PIPED_WIDTH: Final = 400


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `demo`."""
    parser = add_verb(
        subparsers,
        "demo",
        run,
        summary="run example jobs on a playground and check their placement",
        description="Starts a playground (2 blocks x 4 racks x 8 nodes) and runs jobs on it. "
        "job: one Job requires a rack, one prefers a rack and is spread over a block, and one is "
        "pending with a reason and starts when the first one ends. jobset: leaders, and workers "
        "of which each job has a rack and all share a block. raycluster: Ray's autoscaler resizes "
        "it from 2 to 40 workers and down to 1 without a stop. The playground keeps running.",
        examples=(
            "rackgate demo",
            "rackgate demo --kind jobset",
            "rackgate demo --kind raycluster",
            "rackgate demo --state DIR --limit 120",
        ),
        exit_codes={
            0: "every placement is correct by the objects of the API server",
            1: "a check failed, or a step took too long",
            2: "the command line is invalid",
        },
    )
    parser.add_argument("--state", metavar="DIR", help="folder of the playground")
    parser.add_argument(
        "--kind", choices=KINDS, default="job", help="kind of the example jobs (default: job)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=90,
        metavar="SECONDS",
        help="timeout of each step (default 90)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Start a playground and run the story on it."""
    from rackgate.kube.errors import KubeError
    from rackgate_cli.playground.playground import (
        feature_gates,
        open_client,
        set_feature_gates,
        start_console,
        status,
        up,
    )

    story = _stories()[arguments.kind]
    begin = time.monotonic()
    gates = feature_gates(arguments.state)
    state = up(
        arguments.state, nodes=NODES, operators=story.operators, feature_gates=story.feature_gates
    )
    sys.stdout.write(f"playground ready after {time.monotonic() - begin:.0f} s: {state}\n")
    sys.stdout.write(f"look at it in a browser: {start_console(state)}\n")
    sys.stdout.flush()

    async def run_on_playground() -> int:
        async with open_client(state) as client:
            return await _run_story(story, client, arguments.limit)

    try:
        return interruptible.run(run_on_playground())
    except (CommandError, KubeError) as error:
        raise CommandError(f"{error}{not_ready_components(status(state))}") from error
    finally:
        if feature_gates(state) != gates:
            set_feature_gates(state, gates)
            sys.stdout.write("the feature gates of the playground are as before\n")
        sys.stdout.write(
            f"another link to the console: rackgate console --state {state}\n"
            f"playground and console keep running; stop them with: rackgate down --state {state}\n"
        )


def _stories() -> dict[str, type[Story]]:
    # rich and the client take longer to import than most verbs take to run.
    from rackgate_cli.demo.job import JobStory
    from rackgate_cli.demo.jobset import JobSetStory
    from rackgate_cli.demo.raycluster import RayClusterStory

    return dict(zip(KINDS, (JobStory, JobSetStory, RayClusterStory), strict=True))


async def _run_story(kind: type[Story], client: Client, limit_s: float) -> int:
    from rich.console import Console

    from rackgate_invariants.judge import breaches
    from rackgate_invariants.reading import read_cluster

    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    story = kind(client, console, limit_s)
    await story.clear()
    await story.until_queue_active()
    with story.live():
        await story.run()
    failures = story.failures + [str(one) for one in breaches(await read_cluster(client))]
    console.print()
    console.print(story.picture())
    for line in story.legend:
        console.print(f"  {line}")
    for failure in failures:
        console.print(f"[red]failed:[/red] {failure}")
    if not failures:
        console.print("all placements are correct by the objects of the API server")
    return 1 if failures else 0


def not_ready_components(found: Mapping[str, Any]) -> str:
    """Which components of a playground are not ready, and their logs; "" for none.

    Args:
        found: what `rackgate_cli.playground.playground.status` returned.
    """
    down = [
        f"{name} (log: {component['log']})"
        for name, component in found["components"].items()
        if not component["ready"]
    ]
    return f"\nnot ready: {', '.join(down)}" if down else ""

"""The stories of kinds other than Job, and what each of them needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rich.console import Console

from rackgate.features import ELASTIC_JOBS
from rackgate.kube.client import Client
from rackgate_cli.demo import jobset as demo_jobset
from rackgate_cli.demo import raycluster as demo_raycluster
from rackgate_cli.demo.scene import Part, Scene, verdict
from rackgate_invariants.invariants import breaches
from rackgate_invariants.reading import read_cluster


@dataclass(frozen=True, slots=True)
class Play:
    """A story of another kind than Job.

    Attributes:
        operator: that the playground needs.
        gates: that the services need.
        parts: what the picture shows.
        tell: the story; returns the promises that were not kept.
    """

    operator: str
    gates: dict[str, bool]
    parts: tuple[Part, ...]
    tell: Callable[[Scene], Awaitable[list[str]]]


PLAYS = {
    "jobset": Play("jobset", {}, demo_jobset.PARTS, demo_jobset.tell),
    "raycluster": Play(
        "kuberay", {ELASTIC_JOBS: True}, demo_raycluster.PARTS, demo_raycluster.tell
    ),
}


async def tell_play(client: Client, play: Play, limit_s: float) -> int:
    """Run a story on a ready playground; 0 only if every promise was seen kept."""
    console = Console()
    scene = Scene(client, console, play.parts, limit_s)
    await scene.clear()
    with scene.on():
        broken = await play.tell(scene)
    broken += [str(breach) for breach in breaches(await read_cluster(client))]
    console.print()
    console.print(scene.picture())
    return verdict(console, broken)

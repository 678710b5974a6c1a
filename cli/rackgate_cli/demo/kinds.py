"""The stories of kinds other than Job, and what each of them needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rich.console import Console

from rackgate.features import ELASTIC_JOBS
from rackgate.kube.client import Client
from rackgate_cli.demo import jobset as demo_jobset
from rackgate_cli.demo import raycluster as demo_raycluster
from rackgate_cli.demo.scene import DemoScene, PodGroupView, print_result
from rackgate_invariants.invariants import breaches
from rackgate_invariants.reading import read_cluster


@dataclass(frozen=True, slots=True)
class DemoKind:
    """A story of another kind than Job.

    Attributes:
        operator: that the playground needs.
        gates: that the services need.
        parts: what the picture shows.
        tell: the story; returns the promises that were not kept.
    """

    operator: str
    gates: dict[str, bool]
    parts: tuple[PodGroupView, ...]
    run_story: Callable[[DemoScene], Awaitable[list[str]]]


DEMO_KINDS = {
    "jobset": DemoKind("jobset", {}, demo_jobset.POD_GROUPS, demo_jobset.run_story),
    "raycluster": DemoKind(
        "kuberay", {ELASTIC_JOBS: True}, demo_raycluster.POD_GROUPS, demo_raycluster.run_story
    ),
}


async def run_kind_story(client: Client, play: DemoKind, limit_s: float) -> int:
    """Run a story on a ready playground; 0 only if every promise was seen kept."""
    console = Console()
    scene = DemoScene(client, console, play.parts, limit_s)
    await scene.clear()
    with scene.live():
        broken = await play.run_story(scene)
    broken += [str(breach) for breach in breaches(await read_cluster(client))]
    console.print()
    console.print(scene.picture())
    return print_result(console, broken)

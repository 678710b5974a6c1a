"""`rackgate demo`: the main job on real objects, shown live, every promise checked."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.console import Console

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_cli.demo.kinds import DEMO_KINDS, run_kind_story
from rackgate_cli.demo.scene import print_result, remove_leftovers
from rackgate_cli.demo.screen import Screen
from rackgate_cli.demo.story import (
    BLOCK,
    DEMO_JOBS,
    FIRST,
    SECOND,
    THIRD,
    BoundPod,
    DemoJob,
    bound_pods_of,
    failed_checks,
    manifest,
)
from rackgate_cli.demo.view import live, picture
from rackgate_cli.errors import CommandError
from rackgate_invariants.invariants import breaches
from rackgate_invariants.reading import read_cluster

NAMESPACE = "default"
NODES = 64
Object: TypeAlias = dict[str, Any]


@dataclass
class DemoState:
    """What the demo knows: refreshed from the API server, never from its own wishes."""

    client: Client
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    taken: dict[str, list[BoundPod]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Read nodes, pods, Jobs and Workloads again."""
        nodes = await self._list(kinds.NODES)
        self.nodes = {
            obj["metadata"]["name"]: obj["metadata"]["labels"]
            for obj in nodes
            if BLOCK in obj["metadata"].get("labels", {})
        }
        pods = await self._list(kinds.PODS)
        jobs = {obj["metadata"]["name"]: obj for obj in await self._list(kinds.JOBS)}
        workloads = await self._list(kinds.WORKLOADS)
        for act in DEMO_JOBS:
            if act.name not in jobs:
                continue
            own = [pod for pod in pods if _is_pod_of(pod, act) and not _ended(pod)]
            self.taken[act.name] = bound_pods_of(own, self.nodes)
            ended = any(_is_pod_of(pod, act) and _ended(pod) for pod in pods)
            workload = _workload_of(workloads, act)
            bound = len(self.taken[act.name])
            self.states[act.name] = _state(jobs[act.name], workload, bound, act, ended=ended)

    async def _list(self, kind: kinds.Resource, *, everywhere: bool = False) -> list[Object]:
        items: list[Object] = []
        path = kind.path(NAMESPACE if kind.namespaced and not everywhere else None)
        async for page in self.client.list_pages(path):
            items.extend(json.loads(page)["items"])
        return items

    async def foreign(self) -> list[str]:
        """Unfinished Workloads and pods of all namespaces that would take the story's room."""
        workloads = [
            f"Workload {_full_name(obj)}"
            for obj in await self._list(kinds.WORKLOADS, everywhere=True)
            if _conditions(obj).get("Finished", {}).get("status") != "True"
        ]
        pods = [
            f"pod {_full_name(obj)}"
            for obj in await self._list(kinds.PODS, everywhere=True)
            if not _ended(obj)
        ]
        return sorted(workloads) + sorted(pods)

    async def workload(self, act: DemoJob) -> Object | None:
        """The Workload of a Job of the story."""
        return _workload_of(await self._list(kinds.WORKLOADS), act)


def _full_name(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _is_pod_of(pod: Object, act: DemoJob) -> bool:
    labels = pod["metadata"].get("labels", {})
    return bool(labels.get("batch.kubernetes.io/job-name") == act.name)


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _workload_of(workloads: list[Object], act: DemoJob) -> Object | None:
    for workload in workloads:
        owners = workload["metadata"].get("ownerReferences", [])
        if any(owner["name"] == act.name for owner in owners):
            return workload
    return None


def _state(job: Object, workload: Object | None, bound: int, act: DemoJob, *, ended: bool) -> str:
    """One line for a person: finished, running, starting, or why it waits."""
    for entry in job.get("status", {}).get("conditions", []):
        if entry["type"] in ("Complete", "Failed") and entry["status"] == "True":
            return "finished" if entry["type"] == "Complete" else f"failed: {entry['message']}"
    conditions = {} if workload is None else _conditions(workload)
    quota = conditions.get("QuotaReserved")
    if quota is not None and quota["status"] == "False":
        return f"waits ({quota['reason']}): {quota['message']}"
    if conditions.get("Admitted", {}).get("status") == "True":
        if ended or job.get("status", {}).get("succeeded"):
            return "ending"
        return "running" if bound == act.count else "admitted, pods are released"
    return "submitted"


def _conditions(workload: Object) -> dict[str, Object]:
    entries = workload.get("status", {}).get("conditions", [])
    return {entry["type"]: entry for entry in entries}


class DemoScreen(Screen):
    """Prints the story: a live picture on a terminal, plain lines on a pipe."""

    def __init__(self, console: Console, stage: DemoState) -> None:
        super().__init__(console)
        self.stage = stage
        self._last_states: dict[str, str] = {}

    def follow(self) -> None:
        """DemoScreen what the stage knows now; say what changed."""
        stage = self.stage
        for name, state in stage.states.items():
            if self._last_states.get(name) != state:
                self._last_states[name] = state
                self.say(f"[bold]{name}[/bold] {state}")
        self.update(live(stage.nodes, stage.taken, stage.states))


class Story:
    """The three acts and what must be seen in each."""

    def __init__(self, client: Client, console: Console, limit_s: float) -> None:
        self.client = client
        self.stage = DemoState(client)
        self.show = DemoScreen(console, self.stage)
        self.limit_s = limit_s
        self.failures: list[str] = []

    async def until(self, what: str, condition_met: Callable[[], Awaitable[bool]]) -> None:
        """Refresh and show until a condition holds.

        Raises:
            CommandError: it did not come in time; names what is waited for and what was seen.
        """
        end = time.monotonic() + self.limit_s
        while True:
            await self.stage.refresh()
            self.show.follow()
            if await condition_met():
                return
            if time.monotonic() > end:
                seen = "; ".join(f"{name}: {state}" for name, state in self.stage.states.items())
                raise CommandError(f"{what}: not within {self.limit_s:g} s (seen: {seen})")
            await asyncio.sleep(0.25)

    async def clear(self) -> None:
        """Remove the jobs of an earlier demo."""
        await remove_leftovers(self.client)

        async def gone() -> bool:
            left = [act for act in DEMO_JOBS if await self.stage.workload(act) is not None]
            return not left and not any(self.stage.taken.values())

        self.stage.taken.clear()
        await self.until("Jobs of an earlier demo are gone", gone)
        self.stage.states.clear()
        if foreign := await self.stage.foreign():
            raise CommandError(
                f"the story needs an empty playground, and {foreign[0]} is there"
                + (f" (and {len(foreign) - 1} more)" if foreign[1:] else "")
                + "; delete it, or name another folder with --state"
            )

    async def submit(self, act: DemoJob) -> None:
        """Create one Job of the story."""
        level = act.level.rsplit("-", 1)[-1]
        kind = "required" if "required" in act.annotation else "preferred"
        self.show.say(f"submit [bold]{act.name}[/bold]: {act.count} pods, {kind} {level}")
        body = json.dumps(manifest(act)).encode()
        await self.client.create(kinds.JOBS.path(NAMESPACE), body)

    async def check_bound(self, act: DemoJob) -> None:
        """Wait until all pods of a Job are bound, then check where."""

        async def all_bound() -> bool:
            return len(self.stage.taken.get(act.name, [])) == act.count

        await self.until(f"all pods of {act.name} are bound", all_bound)
        self.failures += failed_checks(act, self.stage.taken[act.name])

    async def check_pending(self, act: DemoJob) -> None:
        """Wait until a Job says why it waits, and check that it has no pod."""

        async def refused() -> bool:
            workload = await self.stage.workload(act)
            quota = {} if workload is None else _conditions(workload).get("QuotaReserved", {})
            return quota.get("reason") == "TopologyPlacementFailed"

        await self.until(f"{act.name} waits with a reason", refused)
        if self.stage.taken.get(act.name):
            self.failures.append(f"{act.name}: pods are bound though it has to wait")

    async def run(self) -> None:
        """Tell the story from an empty cluster to the last pod."""
        await self.clear()
        with self.show.live():
            await self.submit(FIRST)
            await self.check_bound(FIRST)
            await self.submit(SECOND)
            await self.check_bound(SECOND)
            await self.submit(THIRD)
            await self.check_pending(THIRD)
            await self.check_bound(THIRD)
        self.failures += [str(breach) for breach in breaches(await read_cluster(self.client))]


async def run_story(client: Client, limit_s: float) -> int:
    """Run the story on a ready playground; 0 only if every promise was seen kept."""
    console = Console()
    story = Story(client, console, limit_s)
    await story.run()
    console.print()
    console.print(picture(story.stage.nodes, story.stage.taken))
    for act in DEMO_JOBS:
        console.print(f"  {act.letter}  {act.name}: {act.promise}")
    return print_result(console, story.failures)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command."""
    parser = subparsers.add_parser(
        "demo",
        help="the main job, live, on a playground",
        description="Starts a playground (2 blocks x 4 racks x 8 nodes) and tells a story. "
        "job: one that requires a rack, one that prefers a rack and spreads over its block, and "
        "one that waits with a reason and starts when the first ends. jobset: leaders, and workers "
        "of which each job has a rack and all share a block. raycluster: one that Ray's autoscaler "
        "resizes from 2 to 40 workers and down to 1 without a stop. Exit code 0 only "
        "if every placement was checked against the API server's objects. The playground stays up.",
        epilog="examples:\n  rackgate demo\n  rackgate demo --kind jobset\n"
        "  rackgate demo --kind raycluster\n  rackgate demo --state DIR --limit 120\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--state", metavar="DIR", help="folder of the playground")
    parser.add_argument(
        "--kind", choices=("job", *DEMO_KINDS), default="job", help="which story (default: job)"
    )
    parser.add_argument(
        "--limit", type=float, default=90, metavar="SECONDS", help="for each step (default 90)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Bring a playground up and tell the story on it."""
    from rackgate_cli.playground.playground import open_client, status, up

    begin = time.monotonic()
    play = DEMO_KINDS.get(arguments.kind)
    state = up(
        arguments.state,
        nodes=NODES,
        operators=() if play is None else (play.operator,),
        feature_gates=None if play is None else play.gates,
    )
    sys.stdout.write(f"playground ready after {time.monotonic() - begin:.0f} s: {state}\n")

    async def run_on_playground() -> int:
        async with open_client(state) as client:
            if play is not None:
                return await run_kind_story(client, play, arguments.limit)
            return await run_story(client, arguments.limit)

    try:
        code = asyncio.run(run_on_playground())
    except (CommandError, KubeError) as error:
        raise CommandError(f"{error}{not_ready_components(status(state))}") from error
    finally:
        sys.stdout.write(f"the playground stays up; end it with: rackgate down --state {state}\n")
    return code


def not_ready_components(found: Object) -> str:
    """Say which components of a playground are not ready, and where to read on; "" for none.

    Args:
        found: what `rackgate_cli.playground.playground.status` returned.
    """
    parts = found["components"]
    down = [f"{name} (log: {part['log']})" for name, part in parts.items() if not part["ready"]]
    return f"\nnot ready: {', '.join(down)}" if down else ""

"""What the stories of JobSet and RayCluster share: seeing, showing, waiting, clearing up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rich.console import Console

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import NotFoundError
from rackgate_cli.demo.screen import Screen
from rackgate_cli.demo.story import BLOCK, DEMO_JOBS, BoundPod, bound_pods_of
from rackgate_cli.demo.view import picture
from rackgate_cli.errors import CommandError

NAMESPACE: Final = "default"
Object: TypeAlias = dict[str, Any]

JOBSET_NAMES: Final = ("train", "eval", "next")
RAY_NAME: Final = "ray"
# Everything any story leaves behind; parents first, or their operators make children anew.
LEFTOVERS: Final[tuple[tuple[Resource, str], ...]] = (
    *((kinds.JOBSETS, name) for name in JOBSET_NAMES),
    (kinds.RAY_CLUSTERS, RAY_NAME),
    *((kinds.JOBS, act.name) for act in DEMO_JOBS),
)


@dataclass(frozen=True, slots=True)
class PodGroupView:
    """Pods that the picture shows under one letter.

    Attributes:
        name: what lines call it.
        labels: that its pods carry.
        rank: of a pod, None when its pods have no order.
    """

    name: str
    letter: str
    labels: Mapping[str, str]
    rank: Callable[[Object], int] | None = None


class DemoScene(Screen):
    """What is seen of a story, refreshed from the API server and shown as it changes."""

    def __init__(
        self, client: Client, console: Console, parts: Sequence[PodGroupView], limit_s: float
    ) -> None:
        super().__init__(console)
        self.client = client
        self.parts = parts
        self.limit_s = limit_s
        self.nodes: dict[str, dict[str, str]] = {}
        self.pods: dict[str, list[Object]] = {}

    @property
    def taken(self) -> dict[str, list[BoundPod]]:
        """Seats of the bound pods, by part."""
        return {
            part.name: bound_pods_of(self.pods.get(part.name, ()), self.nodes, part.rank)
            for part in self.parts
        }

    def bound(self, name: str) -> int:
        """How many pods of a part have a node."""
        return len(self.taken[name])

    def show(self) -> None:
        """Print the picture among the lines."""
        self.console.print(self.picture())

    def picture(self) -> Any:
        """Who runs in which rack, now."""
        letters = {part.name: part.letter for part in self.parts}
        return picture(self.nodes, self.taken, letters)

    async def refresh(self) -> None:
        """Read nodes and pods again."""
        self.nodes = {
            obj["metadata"]["name"]: obj["metadata"]["labels"]
            for obj in await self.listed(kinds.NODES)
            if BLOCK in obj["metadata"].get("labels", {})
        }
        pods = [pod for pod in await self.listed(kinds.PODS) if not _is_terminating(pod)]
        for part in self.parts:
            own = [pod for pod in pods if part.labels.items() <= _labels(pod).items()]
            own.sort(key=lambda pod: (pod["metadata"]["creationTimestamp"], _name(pod)))
            self.pods[part.name] = own
        self.update(self.picture())

    async def until(self, what: str, condition_met: Callable[[], Awaitable[bool]]) -> None:
        """Refresh and show until a condition holds.

        Raises:
            CommandError: it did not come in time; names what is waited for and what was seen.
        """
        end = time.monotonic() + self.limit_s
        while True:
            await self.refresh()
            if await condition_met():
                return
            if time.monotonic() > end:
                seen = ", ".join(f"{part.name}: {self.bound(part.name)}" for part in self.parts)
                raise CommandError(f"{what}: not within {self.limit_s:g} s (bound pods: {seen})")
            await asyncio.sleep(0.25)

    async def create(self, kind: Resource, obj: Object) -> None:
        """Create one object of the story."""
        await self.client.create(kind.path(NAMESPACE), json.dumps(obj).encode())

    async def get(self, kind: Resource, name: str) -> Object:
        """Read one object."""
        namespace = NAMESPACE if kind.namespaced else None
        return dict(json.loads(await self.client.get(kind.path(namespace, name))))

    async def listed(self, kind: Resource) -> list[Object]:
        """Every object of a kind, of the story's namespace."""
        items: list[Object] = []
        async for page in self.client.list_pages(kind.path(NAMESPACE if kind.namespaced else None)):
            items.extend(json.loads(page)["items"])
        return items

    async def workload_of(self, name: str) -> Object | None:
        """The Workload of a job of the story, None while there is none."""
        for workload in await self.listed(kinds.WORKLOADS):
            owners = workload["metadata"].get("ownerReferences", [])
            if any(owner["name"] == name for owner in owners):
                return workload
        return None

    async def condition(self, name: str, type_: str) -> Object:
        """A condition of a job's Workload; empty when there is none."""
        workload = await self.workload_of(name) or {}
        for entry in workload.get("status", {}).get("conditions", []):
            if entry["type"] == type_:
                return dict(entry)
        return {}

    async def clear(self) -> None:
        """Remove what an earlier story left, and refuse a playground that others use.

        Raises:
            CommandError: something else takes the story's room.
        """
        await remove_leftovers(self.client)

        async def gone() -> bool:
            return not await self.listed(kinds.WORKLOADS) and not await self.listed(kinds.PODS)

        try:
            await self.until("an empty namespace", gone)
        except CommandError as error:
            raise CommandError(
                f"{error}; the story needs an empty playground: delete what is in namespace "
                f"{NAMESPACE}, or name another folder with --state"
            ) from error


async def remove_leftovers(client: Client) -> None:
    """Delete what any story made; kinds that are not installed have nothing to delete."""
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    for kind, name in LEFTOVERS:
        with contextlib.suppress(NotFoundError):
            await client.delete(kind.path(NAMESPACE, name), options)


def print_result(console: Console, broken: Sequence[str]) -> int:
    """Print what was promised and not seen; return the exit code."""
    for line in broken:
        console.print(f"[red]broken promise:[/red] {line}")
    if broken:
        return 1
    console.print("every placement was checked against the API server's objects: all as promised")
    return 0


def _labels(pod: Object) -> dict[str, str]:
    return dict(pod["metadata"].get("labels", {}))


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _is_terminating(pod: Object) -> bool:
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    return ended or "deletionTimestamp" in pod["metadata"]

"""What all stories of the demo share: reading, showing, waiting and deleting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import NotFoundError
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.errors import CommandError

Object: TypeAlias = dict[str, Any]

NAMESPACE: Final = "default"
QUEUE: Final = "default"
BLOCK: Final = "cloud.provider.com/topology-block"
RACK: Final = "cloud.provider.com/topology-rack"
GPU: Final = "nvidia.com/gpu"
GPUS_PER_NODE: Final = 8
RUN_SECONDS_ANNOTATION: Final = "rackgate.dev/run-seconds"
JOB_NAMES: Final = ("train-a", "train-b", "train-c")
JOBSET_NAMES: Final = ("train", "eval", "next")
RAY_NAME: Final = "ray"
# Everything that any story creates.
DEMO_OBJECTS: Final[tuple[tuple[Resource, str], ...]] = (
    *((kinds.JOBSETS, name) for name in JOBSET_NAMES),
    (kinds.RAY_CLUSTERS, RAY_NAME),
    *((kinds.JOBS, name) for name in JOB_NAMES),
)
# Lines and spaces of the picture beside its texts.
_FRAME: Final = 8
STYLES: Final = {
    "A": "bold black on cyan",
    "B": "bold black on yellow",
    "C": "bold black on green",
    "L": "bold black on magenta",
    "H": "bold black on magenta",
}


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The node that one pod is bound to."""

    rank: int
    block: str
    rack: str
    host: str


def completion_index(pod: Object) -> int:
    """Rank of a pod within its Job, -1 for none."""
    return int(pod["metadata"]["labels"].get(names.COMPLETION_INDEX_LABEL, -1))


def bound_pods_of(
    pods: Iterable[Object],
    nodes: Mapping[str, Mapping[str, str]],
    rank_of: Callable[[Object], int] | None = completion_index,
) -> list[BoundPod]:
    """The bound pods of one job, by rank.

    Args:
        pods: Pod objects as the API server returns them.
        nodes: labels by node name.
        rank_of: rank of a pod; None numbers the pods in their order.
    """
    found = []
    for position, pod in enumerate(pods):
        host = pod["spec"].get("nodeName")
        if host and host in nodes:
            rank = position if rank_of is None else rank_of(pod)
            found.append(BoundPod(rank, nodes[host][BLOCK], nodes[host][RACK], host))
    return sorted(found, key=lambda pod: pod.rank)


def pod_template(
    annotations: Mapping[str, str], gpus: int, image: str = "trainer:1", **spec: str
) -> Object:
    """A pod template with one container."""
    limits = {GPU: str(gpus)} if gpus else {}
    container = {
        "name": image.partition(":")[0],
        "image": f"registry.example/{image}",
        "resources": {"requests": {"cpu": "1", **limits}, "limits": limits},
    }
    return {
        "metadata": {"annotations": dict(annotations)},
        "spec": {**spec, "containers": [container]},
    }


def manifest_of(kind: Resource, name: str, spec: Object) -> Object:
    """An object of the demo's queue."""
    metadata = {"name": name, "labels": {names.QUEUE_LABEL: QUEUE}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class PodGroupView:
    """Pods that the picture shows with one letter.

    Attributes:
        labels: that its pods carry.
        rank: of a pod, None if its pods have no order.
    """

    name: str
    letter: str
    labels: Mapping[str, str]
    rank: Callable[[Object], int] | None = None


def picture(
    nodes: Mapping[str, Mapping[str, str]],
    bound: Mapping[str, list[BoundPod]],
    letters: Mapping[str, str],
    columns: int = 120,
) -> RenderableType:
    """A table with a row per rack and a cell per host: `A3` is rank 3 of A, `H0B2` two pods.

    A rack that is too wide takes several rows.

    Args:
        nodes: labels by node name.
        bound: bound pods by name of their group.
        letters: letter by name of the group.
        columns: of the terminal.
    """
    on_host: dict[str, list[str]] = {}
    for name, letter in letters.items():
        for pod in bound.get(name, ()):
            on_host.setdefault(pod.host, []).append(f"{letter}{pod.rank}")
    width = max([4, *(len("".join(cells)) for cells in on_host.values())])
    racks: dict[tuple[str, str], list[str]] = {}
    for name in sorted(nodes):
        racks.setdefault((nodes[name][BLOCK], nodes[name][RACK]), []).append(name)
    table = Table(title="pods by rack", title_justify="left", pad_edge=False)
    for heading in ("block", "rack", "hosts: job and rank"):
        table.add_column(heading, no_wrap=True)
    names_width = sum(max([5, *(len(found[part]) for found in racks)]) for part in (0, 1))
    fit = max(1, (columns - names_width - _FRAME) // (width + 1))
    last = None
    for (block, rack), hosts in sorted(racks.items()):
        for begin in range(0, len(hosts), fit):
            line = Text()
            for host in hosts[begin : begin + fit]:
                cells = on_host.get(host, ["·"])
                line.append(f"{''.join(cells):^{width}}", style=STYLES.get(cells[-1][0], "dim"))
                line.append(" ")
            table.add_row("" if block == last else block, rack if begin == 0 else "", line)
            last = block
    return table


class Story(ABC):
    """One story: subclasses define what is submitted, what is checked, and what is shown.

    A story checks only what it reads from the API server, never its own manifests.

    Attributes:
        groups: pods that the picture shows.
        operators: that the playground needs.
        feature_gates: that the services need.
        legend: lines below the last picture.
        nodes: labels by node name.
        pods: pods of each group that have not ended and are not being deleted.
        ended: groups with a pod that has ended.
        failures: failed checks.
    """

    groups: ClassVar[Sequence[PodGroupView]]
    operators: ClassVar[Sequence[str]] = ()
    feature_gates: ClassVar[Mapping[str, bool]] = {}
    legend: ClassVar[Sequence[str]] = ()

    def __init__(self, client: Client, console: Console, limit_s: float) -> None:
        self.client, self.console, self.limit_s = client, console, limit_s
        self.nodes: dict[str, dict[str, str]] = {}
        self.pods: dict[str, list[Object]] = {}
        self.ended: set[str] = set()
        self.failures: list[str] = []
        self._started = time.monotonic()
        self._live: Live | None = None

    @abstractmethod
    async def run(self) -> None:
        """Submit, wait and check; fills `failures`."""

    def say(self, text: str) -> None:
        """Print one line with the seconds since the story started."""
        line = Text.from_markup(text)
        for number, part in enumerate(line.wrap(self.console, max(20, self.console.width - 9))):
            since = f"{time.monotonic() - self._started:5.1f} s" if number == 0 else " " * 7
            self.console.print(Text.assemble((since, "dim"), "  ", part), soft_wrap=True)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """On a terminal, show a picture below the printed lines and keep it current."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as shown:
            self._live = shown
            try:
                yield
            finally:
                self._live = None

    @property
    def bound(self) -> dict[str, list[BoundPod]]:
        """Bound pods by group."""
        return {
            group.name: bound_pods_of(self.pods.get(group.name, ()), self.nodes, group.rank)
            for group in self.groups
        }

    def picture(self) -> RenderableType:
        """The running pods by rack, now."""
        letters = {group.name: group.letter for group in self.groups}
        return picture(self.nodes, self.bound, letters, self.console.width)

    def live_view(self) -> RenderableType:
        """What `live` shows."""
        return self.picture()

    async def refresh(self) -> None:
        """Read nodes and pods again."""
        self.nodes = {
            obj["metadata"]["name"]: obj["metadata"]["labels"]
            for obj in await self.listed(kinds.NODES)
            if BLOCK in obj["metadata"].get("labels", {})
        }
        pods = await self.listed(kinds.PODS)
        pods.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), _name(pod)))
        for group in self.groups:
            own = [pod for pod in pods if group.labels.items() <= _labels(pod).items()]
            self.pods[group.name] = [
                pod for pod in own if not (has_ended(pod) or "deletionTimestamp" in pod["metadata"])
            ]
            if any(map(has_ended, own)):
                self.ended.add(group.name)

    async def until(self, what: str, condition_met: Callable[[], Awaitable[bool]]) -> None:
        """Refresh and show until a condition is true.

        Raises:
            CommandError: it did not become true in time; names it and the last state.
        """
        end = time.monotonic() + self.limit_s
        while True:
            await self.refresh()
            if self._live is not None:
                self._live.update(self.live_view())
            if await condition_met():
                return
            if time.monotonic() > end:
                raise CommandError(f"{what}: not within {self.limit_s:g} s ({self.seen()})")
            await asyncio.sleep(0.25)

    def seen(self) -> str:
        """The state at the last refresh, for the message of a wait that failed."""
        return "bound pods: " + ", ".join(
            f"{name}: {len(pods)}" for name, pods in self.bound.items()
        )

    async def until_bound(self, what: str, counts: Mapping[str, int]) -> None:
        """Wait until each group has so many bound pods."""

        async def all_bound() -> bool:
            bound = self.bound
            return all(len(bound[name]) == count for name, count in counts.items())

        await self.until(what, all_bound)

    async def until_pending(self, name: str) -> str:
        """Wait until the Workload of a job does not fit, and return its message."""
        message = ""

        async def not_placed() -> bool:
            nonlocal message
            quota = await self.condition(name, "QuotaReserved")
            message = quota.get("message", "")
            return quota.get("reason") == "TopologyPlacementFailed"

        await self.until(f"{name} is pending with a reason", not_placed)
        return message

    async def create(self, kind: Resource, obj: Object) -> None:
        """Create one object of the story."""
        await self.client.create(kind.path(NAMESPACE), json.dumps(obj).encode())

    async def get(self, kind: Resource, name: str) -> Object:
        """Read one object."""
        path = kind.path(NAMESPACE if kind.namespaced else None, name)
        return dict(json.loads(await self.client.get(path)))

    async def listed(self, kind: Resource, *, everywhere: bool = False) -> list[Object]:
        """Every object of a kind in the story's namespace, or in all of them."""
        namespace = NAMESPACE if kind.namespaced and not everywhere else None
        return await list_objects(self.client, kind, namespace=namespace)

    async def workload_of(self, name: str) -> Object | None:
        """The Workload of a job of the story, None while there is none."""
        workloads = await self.listed(kinds.WORKLOADS)
        return next((one for one in workloads if name in _owners(one)), None)

    async def condition(self, name: str, type_: str) -> Object:
        """A condition of a job's Workload; empty when there is none."""
        return conditions_of(await self.workload_of(name)).get(type_, {})

    async def foreign(self) -> list[str]:
        """Unfinished Workloads and pods of all namespaces that use capacity of the story."""
        workloads = [
            f"Workload {obj['metadata']['namespace']}/{_name(obj)}"
            for obj in await self.listed(kinds.WORKLOADS, everywhere=True)
            if conditions_of(obj).get("Finished", {}).get("status") != "True"
        ]
        pods = [
            f"pod {obj['metadata']['namespace']}/{_name(obj)}"
            for obj in await self.listed(kinds.PODS, everywhere=True)
            if not has_ended(obj)
        ]
        return sorted(workloads) + sorted(pods)

    async def until_queue_active(self) -> None:
        """Wait until the queue of the story accepts jobs: the services may just have started."""

        async def active() -> bool:
            queue = await self.get(kinds.LOCAL_QUEUES, QUEUE)
            return conditions_of(queue).get("Active", {}).get("status") == "True"

        await self.until(f"LocalQueue {QUEUE} is active", active)

    async def clear(self) -> None:
        """Delete the objects of an earlier demo.

        Raises:
            CommandError: the playground runs something else.
        """
        options = json.dumps({"propagationPolicy": "Background"}).encode()
        for kind, name in DEMO_OBJECTS:
            with contextlib.suppress(NotFoundError):  # also where the kind is not installed
                await self.client.delete(kind.path(NAMESPACE, name), options)

        async def gone() -> bool:
            every = [*await self.listed(kinds.WORKLOADS), *await self.listed(kinds.PODS)]
            return not any(map(_is_of_demo, every))

        await self.until("objects of an earlier demo are gone", gone)
        self.ended.clear()
        if others := await self.foreign():
            more = f" (and {len(others) - 1} more)" if others[1:] else ""
            raise CommandError(
                f"the demo needs an empty playground, and {others[0]}{more} exists; delete it, "
                "or name another folder with --state"
            )


def conditions_of(obj: Object | None) -> dict[str, Object]:
    """Conditions of an object by type."""
    entries = (obj or {}).get("status", {}).get("conditions", [])
    return {entry["type"]: entry for entry in entries}


def has_ended(pod: Object) -> bool:
    """Whether a pod succeeded or failed."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _is_of_demo(obj: Object) -> bool:
    known = {name for _, name in DEMO_OBJECTS}
    return not known.isdisjoint((*_owners(obj), *_labels(obj).values()))


def _owners(obj: Object) -> list[str]:
    return [owner["name"] for owner in obj["metadata"].get("ownerReferences", [])]


def _labels(obj: Object) -> dict[str, str]:
    return dict(obj["metadata"].get("labels", {}))


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])

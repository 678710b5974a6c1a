"""Logs of a job's pods, each line with the rank of its pod."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.jobframework.managed import is_pod_of, podset_of_pod
from rackgate.jobframework.ranks import rank_of
from rackgate.jobframework.registry import KINDS
from rackgate.kube.client import Client
from rackgate.kube.errors import BadRequestError, ForbiddenError, KubeError
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.watches import decoder
from rackgate_cli.cluster.lists import list_decoded
from rackgate_cli.cluster.rights import Right
from rackgate_cli.errors import CommandError, first_error
from rackgate_cli.jobs.actions import JobActions
from rackgate_cli.jobs.names import JobName, choose, name_of

# Logs that are followed at once.
MAX_STREAMS: Final = 64
MAX_LINE_BYTES: Final = 1 << 20
POLL_S: Final = 1.0
_STARTED: Final = ("Running", "Succeeded", "Failed")
_RIGHTS: Final = (
    Right("list", kinds.WORKLOADS),
    Right("list", kinds.PODS),
    Right("get", kinds.PODS, "log"),
)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What to print.

    Attributes:
        follow: until the job is finished.
        tail: last lines of each pod; None for all.
        ranks: of which pods; empty for all.
        container: name; None for the first one.
    """

    follow: bool = False
    tail: int | None = None
    ranks: frozenset[int] = frozenset()
    container: str | None = None


@dataclass(frozen=True, slots=True)
class LogSource:
    """A pod of the job.

    Attributes:
        uid: of the pod.
        name: of the pod.
        podset: its PodSet.
        rank: in its PodSet; None if it has none.
        started: it may have a log.
        prefix: of its lines.
    """

    uid: str
    name: str
    podset: str
    rank: int | None
    started: bool
    prefix: str


def sources(
    workloads: Sequence[Workload], pods: Sequence[Pod], ranks: frozenset[int] = frozenset()
) -> list[LogSource]:
    """The pods of a job, in the order of PodSets and ranks.

    Args:
        workloads: of the job.
        pods: of its namespace.
        ranks: only of these; empty for all.
    """
    found = []
    podsets = {
        (one.metadata.name, podset.name): (at, podset)
        for one in workloads
        for at, podset in enumerate(one.spec.pod_sets)
    }
    several = len({name for _, name in podsets}) > 1
    owners = {one.metadata.name: _pod_owner(one) for one in workloads}
    for pod in pods:
        meta = pod.metadata
        claim = podset_of_pod(meta.annotations, meta.labels)
        if claim is not None and claim not in podsets:
            named = (
                one.metadata.name
                for one in workloads
                if is_pod_of(meta.annotations, one.metadata.name, one.metadata.annotations)
            )
            claim = (next(named, ""), claim[1])
        if claim not in podsets or claim is None:
            continue
        owner, controller = owners[claim[0]], meta.controller
        # An annotation is a claim. Where the job itself controls its pods, it is checked.
        if owner and (controller is None or controller.uid != owner):
            continue
        at, podset = podsets[claim]
        rank = rank_of(pod.metadata, podset)
        if ranks and rank not in ranks:
            continue
        label = pod.metadata.name if rank is None else str(rank)
        prefix = f"[{podset.name} {label}] " if several else f"[{label}] "
        started = pod.status.phase in _STARTED
        key = (at, rank is None, rank or 0, pod.metadata.name)
        found.append(
            (
                key,
                LogSource(pod.metadata.uid, pod.metadata.name, podset.name, rank, started, prefix),
            )
        )
    return [source for _, source in sorted(found, key=lambda one: one[0])]


def _pod_owner(workload: Workload) -> str:
    """UID of the job that controls the pods of a Workload itself; "" if others do."""
    owner = workload.metadata.controller
    kind = KINDS.get(owner.kind) if owner is not None else None
    return owner.uid if owner is not None and kind is not None and not kind.child_job_label else ""


class JobLogs:
    """Prints the logs of one job."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        options: LogOptions,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._client, self._namespace, self._options = client, namespace, options
        self._write = write or sys.stdout.write
        self._actions = JobActions(client, namespace, print)

    async def run(self, job: JobName) -> None:
        """Print; with `follow`, until the job is finished and all has been printed.

        Raises:
            CommandError: there is no such job, a right is missing, or no pod has started.
            KubeError: no log can be read.
        """
        try:
            await (self._follow(job) if self._options.follow else self._print(job))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _print(self, job: JobName) -> None:
        workloads, found = await self._find(job)
        started = [source for source in found if source.started]
        if not started:
            raise CommandError(_nothing(workloads, found, self._options.ranks))
        failed: list[KubeError] = []
        for source in started:
            try:
                await self._copy(source)
            except KubeError as error:  # its node may be down: the others are shown
                failed.append(error)
                self._note(source, error.message or error.reason)
        if len(failed) == len(started):
            raise failed[0]

    async def _follow(self, job: JobName) -> None:
        seen: dict[str, asyncio.Task[None]] = {}
        told = False
        async with asyncio.TaskGroup() as group:
            while True:
                workloads, found = await self._find(job)
                left = [one for one in found if one.started and one.uid not in seen]
                running = sum(not task.done() for task in seen.values())
                for source in left[: MAX_STREAMS - running]:
                    seen[source.uid] = spawn(
                        group, self._copy_started(source, seen), f"log of {source.name}"
                    )
                if len(left) > MAX_STREAMS - running and not told:
                    told = True
                    print(
                        f"note: at most {MAX_STREAMS} logs are followed at once; choose pods with "
                        "--rank",
                        file=sys.stderr,
                    )
                ended = all(one.is_true("Finished") for one in workloads)
                if ended and not left and all(task.done() for task in seen.values()):
                    return
                await asyncio.sleep(POLL_S)

    async def _copy_started(self, source: LogSource, seen: dict[str, asyncio.Task[None]]) -> None:
        try:
            await self._copy(source)
        except BadRequestError:
            del seen[source.uid]  # its container is waiting to start
        except KubeError as error:
            self._note(source, error.message or error.reason)

    async def _find(self, job: JobName) -> tuple[list[Workload], list[LogSource]]:
        """The Workloads of a job, finished ones too, and its pods.

        Raises:
            CommandError: there is no such job, or a right is missing.
        """
        listed = await self._actions.workloads(_RIGHTS)
        workloads = choose(job, listed)
        if not workloads:
            await self._actions.find(job, _RIGHTS)
        params = {"labelSelector": names.PODSET_LABEL}
        try:
            pods = await list_decoded(
                self._client, kinds.PODS, decoder(Pod), namespace=self._namespace, params=params
            )
        except ForbiddenError as error:
            raise await self._actions.rejected(_RIGHTS, error) from error
        return workloads, sources(workloads, pods, self._options.ranks)

    async def _copy(self, source: LogSource) -> None:
        options = self._options
        params = {"follow": "true"} if options.follow else {}
        if options.tail is not None:
            params["tailLines"] = str(options.tail)
        if options.container is not None:
            params["container"] = options.container
        path = kinds.PODS.path(self._namespace, source.name, "log")
        try:
            async with aclosing(self._client.read_stream(path, params)) as chunks:
                async for lines in _lines(chunks):
                    self._write("".join(f"{source.prefix}{line}\n" for line in lines))
                    sys.stdout.flush()
        except ForbiddenError as error:
            raise await self._actions.rejected(_RIGHTS, error) from error

    @staticmethod
    def _note(source: LogSource, text: str) -> None:
        print(f"note: {source.name}: {text}", file=sys.stderr)


def _nothing(
    workloads: Sequence[Workload], found: Sequence[LogSource], ranks: frozenset[int]
) -> str:
    name = name_of(workloads[0])
    if found:
        return f"no pod of {name} has started yet; follow the logs with -f"
    if ranks:
        shown = ", ".join(map(str, sorted(ranks)))
        return f"{name} has no pod with rank {shown}"
    return f"{name} has no pods: rackgate explain {name.name} says why"


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[str]]:
    """Lines that arrived together; a line of more than `MAX_LINE_BYTES` is split."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            whole.append(rest)
            rest = b""
        if whole:
            yield list(_shown(whole))
    if rest:
        yield list(_shown([rest]))


def _shown(lines: Sequence[bytes]) -> Iterator[str]:
    # A program's colors are meant; a carriage return would hide the prefix.
    return (line.decode(errors="replace").rstrip("\r").replace("\r", "\\r") for line in lines)

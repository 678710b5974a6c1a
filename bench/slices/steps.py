"""One resize after the other: what a watch sees of it, and what it cost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.measuring.processes import cpu_seconds, machine_busy_seconds
from bench.measuring.rounds import Observer, SeenPod, release
from bench.measuring.world import CONCURRENCY, GATE, NAMESPACE
from bench.slices.world import LIMIT, OURS, Kind, name_of, remove, workers
from bench.slices.writes import AuditLog, Writes
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import start
from rackgate.wire.core import Condition, Meta, View

# Last writes of a step (conditions, Events, pods ready) belong to it.
REST_S: Final = 1.0


@dataclass
class Step:
    """One resize. Times are seconds since the write that asked for it; NaN for what is not there.

    Attributes:
        made_s: the last new pod was seen.
        sliced_s: the last slice was seen.
        admitted_s: the last slice was seen admitted.
        first_s, released_s: the first and the last new pod were seen without a gate.
        settled_s: the Workload counted the new size in spec and admission, and had no slice left.
        gone_s: the last surplus pod was gone.
        releases_s: for each new pod, until it was seen without a gate.
        cpu_s: used by component; `others` all foreign work.
        writes: by who, then by verb and resource.
    """

    kind: str
    mode: str
    others: int
    before: int
    after: int
    made_s: float = float("nan")
    sliced_s: float = float("nan")
    admitted_s: float = float("nan")
    first_s: float = float("nan")
    released_s: float = float("nan")
    settled_s: float = float("nan")
    gone_s: float = float("nan")
    releases_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    writes: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """By how many the size changed."""
        return abs(self.after - self.before)

    @property
    def grows(self) -> bool:
        return self.after > self.before

    @property
    def done_s(self) -> float:
        """Until the last pod was there to run, or gone."""
        return self.released_s if self.grows else self.gone_s

    def written_by(self, who: str) -> int:
        """Writes of one user."""
        return sum(self.writes.get(who, {}).values())


class _Part(View, frozen=True):
    name: str = ""
    count: int = 0


class _Spec(View, frozen=True):
    pod_sets: tuple[_Part, ...] = ()


class _Admission(View, frozen=True):
    pod_set_assignments: tuple[_Part, ...] = ()


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None


class SeenSlice(View, frozen=True):
    """The little of a parent or slice that the bench looks at."""

    metadata: Meta = Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def is_slice(self) -> bool:
        owner = self.metadata.controller
        return owner is not None and owner.kind == kinds.WORKLOADS.kind

    @property
    def admitted(self) -> bool:
        wanted = names.WorkloadCondition.ADMITTED
        return any(c.type == wanted and c.status == "True" for c in self.status.conditions)

    def counts(self, podset: str) -> tuple[int, int]:
        """Pods of a PodSet in spec and in admission."""
        given = self.status.admission.pod_set_assignments if self.status.admission else ()
        asked = sum(part.count for part in self.spec.pod_sets if part.name == podset)
        return asked, sum(part.count for part in given if part.name == podset)


class Resizes(Observer):
    """Takes the watches' events of one job and tells when a size is reached."""

    def __init__(self, kind: Kind, mode: str) -> None:
        super().__init__(sys.maxsize, GATE)
        self.kind, self.mode = kind, mode
        self.present: set[str] = set()
        self.workloads: dict[str, SeenSlice] = {}
        self.marks: dict[str, float] = {}
        self._size, self._reached = 0, asyncio.Event()
        self._admitted: set[str] = set()

    async def reach(self, size: int) -> None:
        """Wait until exactly so many pods are there, bound and paid for."""
        self._size = size
        self._reached.clear()
        self._judge()
        await self._reached.wait()

    def short_of(self) -> str:
        """How far it is, for who gave up waiting."""
        free = len(self.present & self.ungated.keys())
        bound = len(self.present & self.bound.keys())
        counted = sorted(w.counts(self.kind.podset) for w in self.workloads.values())
        return (
            f"{self.kind.name} {self.mode} to {self._size}: {len(self.present)} pods, {free}"
            f" without a gate, {bound} bound; counts of {len(self.workloads)} Workloads:"
            f" {counted[-5:]}"
        )

    def pod_seen(self, before: SeenPod | None, pod: SeenPod) -> None:
        """See `Observer`."""
        super().pod_seen(before, pod)
        self.present.add(pod.metadata.uid)
        self._judge()

    def pod_gone(self, pod: SeenPod) -> None:
        """A pod was deleted."""
        self.present.discard(pod.metadata.uid)
        self.marks["gone"] = time.perf_counter()
        self._judge()

    def slice_seen(self, _before: SeenSlice | None, workload: SeenSlice) -> None:
        """A parent or slice was added or changed."""
        now, uid = time.perf_counter(), workload.metadata.uid
        if workload.is_slice:
            if uid not in self.workloads:
                self.marks["sliced"] = now
            if workload.admitted and uid not in self._admitted:
                self._admitted.add(uid)
                self.marks["admitted"] = now
        self.workloads[uid] = workload
        self._judge()

    def slice_gone(self, workload: SeenSlice) -> None:
        """A parent or slice was deleted."""
        self.workloads.pop(workload.metadata.uid, None)
        self._judge()

    def _is_settled(self) -> bool:
        if self.mode != OURS:
            return True
        if len(self.workloads) != 1:
            return False
        (parent,) = self.workloads.values()
        return parent.counts(self.kind.podset) == (self._size, self._size)

    def _judge(self) -> None:
        if not self._is_settled():
            self.marks.pop("settled", None)
            return
        self.marks.setdefault("settled", time.perf_counter())
        if len(self.present) == self._size and self.present <= self.bound.keys():
            self._reached.set()


@contextlib.asynccontextmanager
async def _watched(client: Client, kind: Kind, mode: str, uid: str) -> AsyncIterator[Resizes]:
    """Watches the pods of a job and, if it is ours, its Workloads."""
    seen = Resizes(kind, mode)
    pods: Informer[SeenPod] = Informer(
        client,
        kinds.PODS,
        msgspec.json.Decoder(SeenPod).decode,
        on_upsert=seen.pod_seen,
        on_delete=seen.pod_gone,
        namespace=NAMESPACE,
        params={"labelSelector": kind.selector(mode)},
        # As a deleted object is looked up.
        key_of=lambda pod: f"{NAMESPACE}/{pod.metadata.name}",
        version_of=lambda pod: pod.metadata.resource_version,
        uid_of=lambda pod: pod.metadata.uid,
    )
    workloads: Informer[SeenSlice] = Informer(
        client,
        kinds.WORKLOADS,
        msgspec.json.Decoder(SeenSlice).decode,
        on_upsert=seen.slice_seen,
        on_delete=seen.slice_gone,
        namespace=NAMESPACE,
        params={"labelSelector": f"{names.JOB_UID_LABEL}={uid}"},
    )
    tasks = [start(pods.run(), "pods"), start(workloads.run(), "workloads")]
    if mode == LIMIT:
        tasks += [start(release(client, seen), "release") for _ in range(CONCURRENCY)]
    try:
        await pods.synced.wait()
        await workloads.synced.wait()
        yield seen
    finally:
        for task in tasks:
            task.cancel()


@dataclass
class Bench:
    """Resizes jobs of one control plane.

    Attributes:
        pids: of all its processes, by name.
        limit_s: seconds that one step may take.
        wrong: what was not as it must be between two steps.
    """

    client: Client
    audit: AuditLog
    pids: dict[str, int]
    limit_s: float
    wrong: list[str] = field(default_factory=list)

    async def play(self, kind: Kind, mode: str, sizes: Sequence[int], others: int) -> list[Step]:
        """Make a job of the first size, resize it to each of the others, and remove it.

        Raises:
            TimeoutError: a size was not reached in time; says how far it was.
        """
        body = json.dumps(kind.body(mode, sizes[0], max(sizes))).encode()
        made = json.loads(await self.client.create(kind.resource.path(NAMESPACE), body))
        uid = made["metadata"]["uid"]
        steps = []
        async with _watched(self.client, kind, mode, uid) as seen:
            await self._reach(seen, sizes[0])
            for before, after in itertools.pairwise(sizes):
                step = Step(kind.name, mode, others, before, after)
                await self._step(seen, step)
                steps.append(step)
        async with asyncio.timeout(self.limit_s):
            await remove(self.client, kind, mode, uid)
        return steps

    async def _step(self, seen: Resizes, step: Step) -> None:
        await asyncio.sleep(REST_S)
        self.audit.take()
        cpu, busy = cpu_seconds(self.pids), machine_busy_seconds()
        seen.marks.clear()
        known = set(seen.appeared)
        begin = await seen.kind.resize(self.client, step.mode, step.after)
        await self._reach(seen, step.after)
        marks = {name: at - begin for name, at in seen.marks.items()}
        await asyncio.sleep(REST_S)
        spent = cpu_seconds(self.pids)
        step.cpu_s = {name: spent[name] - cpu[name] for name in spent}
        step.cpu_s["others"] = machine_busy_seconds() - busy - sum(step.cpu_s.values())
        step.writes = _by_user(self.audit.take())
        _fill(step, seen, marks, known, begin)
        await self._look(seen, step)

    async def _reach(self, seen: Resizes, size: int) -> None:
        try:
            async with asyncio.timeout(self.limit_s):
                await seen.reach(size)
        except TimeoutError as error:
            raise TimeoutError(f"not within {self.limit_s:g} s: {seen.short_of()}") from error

    async def _look(self, seen: Resizes, step: Step) -> None:
        """Count what is stored: pods without a gate are those granted, and no slice is left."""
        pods = await workers(self.client, seen.kind, step.mode)
        free = sum(not pod["spec"].get("schedulingGates") for pod in pods)
        found = [free, len(pods)]
        if step.mode == OURS:
            found += [n for w in seen.workloads.values() for n in w.counts(seen.kind.podset)]
        if set(found) != {step.after} or (step.mode == OURS and len(found) != 4):
            where = f"{name_of(step.mode)}, {step.before} to {step.after}"
            self.wrong.append(f"{where}: pods free, pods, counts of Workloads are {found}")


def _fill(
    step: Step, seen: Resizes, marks: dict[str, float], known: set[str], begin: float
) -> None:
    new = [uid for uid in seen.appeared if uid not in known]
    nan = float("nan")
    if step.mode == OURS:
        step.settled_s = marks["settled"]
        step.sliced_s, step.admitted_s = marks.get("sliced", nan), marks.get("admitted", nan)
    step.gone_s = marks.get("gone", nan)
    if new:
        step.made_s = max(seen.appeared[uid] for uid in new) - begin
        step.releases_s = sorted(seen.ungated[uid] - begin for uid in new)
        step.first_s, step.released_s = step.releases_s[0], step.releases_s[-1]


def _by_user(writes: Writes) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for (who, what), count in writes.items():
        found.setdefault(who, Counter())[what] += count
    return {who: dict(counts.most_common()) for who, counts in sorted(found.items())}

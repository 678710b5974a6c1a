"""One round: create the Jobs, watch pods and Workloads, note when what was seen."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.measuring.processes import cpu_seconds, machine_busy_seconds
from bench.measuring.world import CONCURRENCY, GATE, NAMESPACE, Size, bench_job, create, job_name
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError
from rackgate.kube.informer import Informer
from rackgate.wire.core import Condition, OwnerReference, SchedulingGate, View
from tests.support.objects import POOL_LABEL

RELEASE_TRIES: Final = 5


class _Meta(View, frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def owner(self) -> str:
        return self.owner_references[0].name if self.owner_references else ""


class _Spec(View, frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class SeenPod(View, frozen=True):
    """The little of a pod that the bench looks at: its own cost must not be in the figures."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


class _PodSetAssignment(View, frozen=True):
    topology_assignment: msgspec.Raw = msgspec.Raw()


class _Admission(View, frozen=True):
    pod_set_assignments: tuple[_PodSetAssignment, ...] = ()


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None


class SeenWorkload(View, frozen=True):
    metadata: _Meta = _Meta()
    status: _Status = _Status()


@dataclass
class Round:
    """What one round gave. Times are seconds.

    Attributes:
        took_s: from the first create to the last bound pod.
        cpu_s: used meanwhile, by component; `bench` is this process, `others` all foreign work.
        marks_s: when the last Job was admitted, and the last pod seen, ungated and bound.
        admission_s: for each Job, from the answer to its create to its admission seen.
        gate_s: for each pod, from its Job's admission to the pod seen without its gate.
        held_s: for each pod, from the pod first seen to the pod seen without its gate.
    """

    mode: str
    pods: int
    took_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    marks_s: dict[str, float] = field(default_factory=dict)
    admission_s: list[float] = field(default_factory=list)
    gate_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Pods per second."""
        return self.pods / self.took_s


class Observer:
    """Takes the watches' events and notes the first time of everything.

    Attributes:
        assigned: for each Job, the assignment it was admitted with, as JSON.
    """

    def __init__(self, total: int, gate: str) -> None:
        self.created: dict[str, float] = {}
        self.admitted: dict[str, float] = {}
        self.appeared: dict[str, float] = {}
        self.ungated: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.owner: dict[str, str] = {}
        self.assigned: dict[str, bytes] = {}
        self.done = asyncio.Event()
        self.gated: asyncio.Queue[SeenPod] = asyncio.Queue()
        self._total, self._gate = total, gate

    def pod_seen(self, _before: SeenPod | None, pod: SeenPod) -> None:
        now = time.perf_counter()
        uid = pod.metadata.uid
        if uid not in self.appeared:
            self.appeared[uid] = now
            self.owner[uid] = pod.metadata.owner
            if any(gate.name == self._gate for gate in pod.spec.scheduling_gates):
                self.gated.put_nowait(pod)
        if uid not in self.ungated and not pod.spec.scheduling_gates:
            self.ungated[uid] = now
        if pod.spec.node_name and uid not in self.bound:
            self.bound[uid] = now
            if len(self.bound) == self._total:
                self.done.set()

    def workload_seen(self, _before: SeenWorkload | None, workload: SeenWorkload) -> None:
        owner = workload.metadata.owner
        if owner not in self.admitted and any(
            c.type == names.WorkloadCondition.ADMITTED and c.status == "True"
            for c in workload.status.conditions
        ):
            self.admitted[owner] = time.perf_counter()
            if workload.status.admission is not None:
                (podset,) = workload.status.admission.pod_set_assignments
                # Copied: a Raw keeps the line that it was cut from alive.
                self.assigned[owner] = bytes(podset.topology_assignment)

    def fill(self, result: Round, begin: float) -> None:
        """Turn moments into durations."""
        moments = {
            "created": self.appeared,
            "admitted": self.admitted,
            "ungated": self.ungated,
            "bound": self.bound,
        }
        result.marks_s = {
            name: max(seen.values()) - begin for name, seen in moments.items() if seen
        }
        result.took_s = max(self.bound.values()) - begin
        # The watch may be faster than the answer to the create.
        result.admission_s = [
            max(0.0, at - self.created[name]) for name, at in self.admitted.items()
        ]
        if result.mode != "plain":
            result.held_s = [at - self.appeared[uid] for uid, at in self.ungated.items()]
        if self.admitted:
            result.gate_s = [
                at - self.admitted[self.owner[uid]] for uid, at in self.ungated.items()
            ]


def _informers(
    client: Client, observer: Observer
) -> tuple[Informer[SeenPod], Informer[SeenWorkload]]:
    pods: Informer[SeenPod] = Informer(
        client,
        kinds.PODS,
        msgspec.json.Decoder(SeenPod).decode,
        on_upsert=observer.pod_seen,
        on_delete=lambda _: None,
        namespace=NAMESPACE,
        key_of=lambda pod: pod.metadata.name,
        version_of=lambda pod: pod.metadata.resource_version,
        uid_of=lambda pod: pod.metadata.uid,
    )
    workloads: Informer[SeenWorkload] = Informer(
        client,
        kinds.WORKLOADS,
        msgspec.json.Decoder(SeenWorkload).decode,
        on_upsert=observer.workload_seen,
        on_delete=lambda _: None,
        namespace=NAMESPACE,
        key_of=lambda item: item.metadata.name,
        version_of=lambda item: item.metadata.resource_version,
        uid_of=lambda item: item.metadata.uid,
    )
    return pods, workloads


async def release(client: Client, observer: Observer) -> None:
    """Take the foreign gate off pods as they are seen: the bare patch of the limit."""
    while True:
        pod = await observer.gated.get()
        body = {
            "metadata": {"uid": pod.metadata.uid},
            "spec": {
                "schedulingGates": [{"$patch": "delete", "name": GATE}],
                "nodeSelector": {POOL_LABEL: "bench"},
            },
        }
        path = kinds.PODS.path(NAMESPACE, pod.metadata.name)
        for attempt in range(RELEASE_TRIES):
            try:
                await client.patch(path, msgspec.json.encode(body), PatchType.STRATEGIC)
            except KubeError:
                if attempt == RELEASE_TRIES - 1:
                    raise
            else:
                break


async def _submit(client: Client, observer: Observer, mode: str, size: Size) -> None:
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(index: int) -> None:
        async with gate:
            await create(client, kinds.JOBS, bench_job(mode, index, size.pods))
        observer.created[job_name(mode, index)] = time.perf_counter()

    async with asyncio.TaskGroup() as group:
        for index in range(size.jobs):
            group.create_task(one(index))


async def play(
    client: Client,
    mode: str,
    size: Size,
    pids: dict[str, int],
    limit_s: float,
    *,
    observer: Observer | None = None,
) -> Round:
    """Run one round; it ends when all pods are bound.

    An observer of the caller's holds afterwards what was seen.

    Raises:
        TimeoutError: not all pods were bound within `limit_s` seconds.
    """
    observer = observer or Observer(size.total, GATE)
    pods, workloads = _informers(client, observer)
    result = Round(mode, size.total)
    async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
        tasks = [group.create_task(pods.run()), group.create_task(workloads.run())]
        await pods.synced.wait()
        await workloads.synced.wait()
        if mode == "limit":
            tasks += [group.create_task(release(client, observer)) for _ in range(CONCURRENCY)]
        cpu, busy = cpu_seconds(pids), machine_busy_seconds()
        begin = time.perf_counter()
        await _submit(client, observer, mode, size)
        await observer.done.wait()
        spent = cpu_seconds(pids)
        result.cpu_s = {name: spent[name] - cpu[name] for name in spent}
        result.cpu_s["others"] = machine_busy_seconds() - busy - sum(result.cpu_s.values())
        for task in tasks:
            task.cancel()
    observer.fill(result, begin)
    return result

"""What lives in the worlds of the attacks, by watches: every change is measured, none is sampled.

One pair of watches (pods, Workloads) serves all worlds of a playground. A world's ledger adds up
the requests of its living pods at each event, and keeps the highest sum.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.resources.quantity import to_milli
from rackgate.topology.assignment import AssignmentError, decode
from tests.support.objects import Object

ENDED: Final = ("Succeeded", "Failed")
# On pods that no queue is asked for: what they take is nobody's quota.
UNMANAGED: Final = "test.rackgate.dev/unmanaged"
_GATES: Final = frozenset(
    (names.TOPOLOGY_GATE, names.ELASTIC_GATE, names.GANG_GATE, names.ADMISSION_GATE)
)
LISTED: Final = 12  # pods named in a finding


def pod_cpu(pod: Object) -> int:
    """Millicores that a pod asks of its node, as the scheduler adds them up."""
    spec = pod["spec"]

    def asked(container: Object) -> int:
        return to_milli(container.get("resources", {}).get("requests", {}).get("cpu", "0"))

    sidecars, peak = 0, 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += asked(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked(container))
    total = max(peak, sidecars + sum(asked(one) for one in spec["containers"]))
    whole = spec.get("resources", {}).get("requests", {}).get("cpu")
    total = to_milli(whole) if whole is not None else total
    return total + to_milli(spec.get("overhead", {}).get("cpu", "0"))


def lives(pod: Object) -> bool:
    """Whether a pod takes room: it is bound and has not ended. Terminating ones do."""
    phase = pod.get("status", {}).get("phase")
    return bool(pod["spec"].get("nodeName")) and phase not in ENDED


def domains_of(workload: Object) -> dict[tuple[str, str], int]:
    """Pods assigned to each (PodSet, host); empty without a readable assignment by host."""
    found: dict[tuple[str, str], int] = {}
    admission = workload.get("status", {}).get("admission") or {}
    for part in admission.get("podSetAssignments") or ():
        wire = part.get("topologyAssignment")
        if not wire:
            continue
        with suppress(AssignmentError):
            for values, count in decode(wire).domains:
                found[(part["name"], values[-1])] = count
    return found


def _selected(labels: Mapping[str, str], selector: str) -> bool:
    """Whether labels are as a selector of equalities and existing keys wants them."""
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(labels.get(key) == value if sign else key in labels for key, sign, value in terms)


@dataclass
class Ledger:
    """The account of one world.

    Attributes:
        namespaces: of the attacker and of the other tenant.
        topology: whether each pod needs a place.
        peak: most millicores that lived at once.
        peak_pods: what lived then, in short.
        ever_bound: pods of the attacker that were ever bound.
        seen: all pods of both namespaces, also those that do not count, by UID.
        queued: Workloads of the attacker that there ever were.
        gated: pods of the attacker that a gate of ours ever held.
    """

    attacker: str
    namespaces: frozenset[str]
    topology: bool
    living: dict[str, Object] = field(default_factory=dict)
    cpu: dict[str, int] = field(default_factory=dict)
    peak: int = 0
    peak_pods: list[str] = field(default_factory=list)
    ever_bound: set[str] = field(default_factory=set)
    seen: dict[str, Object] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)  # pods of the other tenant that were taken away
    _most: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    _assigned: dict[tuple[str, str, str, str], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    # By namespace and parent: what each Workload of the family was assigned last.
    _places: dict[tuple[str, str], dict[str, dict[tuple[str, str], int]]] = field(
        default_factory=dict
    )
    _unplaced: set[str] = field(default_factory=set)

    @property
    def now(self) -> int:
        """Millicores that live at this moment."""
        return sum(self.cpu.values())

    def pod(self, kind: str, pod: Object) -> None:
        """Take in an event about a pod."""
        meta = pod["metadata"]
        uid = meta["uid"]
        if kind == "DELETED":
            self.seen.pop(uid, None)
        else:
            self.seen[uid] = pod
        if UNMANAGED in meta.get("labels", {}):
            return
        mine = meta["namespace"] == self.attacker
        gates = {gate["name"] for gate in pod["spec"].get("schedulingGates") or ()}
        if mine and gates & _GATES:
            self.gated.add(uid)
        if kind == "DELETED" or not lives(pod):
            self.living.pop(uid, None)
            self.cpu.pop(uid, None)
        else:
            fresh = uid not in self.living
            self.living[uid], self.cpu[uid] = pod, pod_cpu(pod)
            if mine:
                self.ever_bound.add(uid)
            if self.topology and mine and fresh:
                self._place(pod)
        if not mine and "deletionTimestamp" in meta:
            self.lost.add(meta["name"])
        if self.now > self.peak:
            self.peak = self.now
            self.peak_pods = self.shown()

    def workload(self, workload: Object) -> None:
        """Take in the places that a Workload has; they are remembered when it loses them."""
        meta = workload["metadata"]
        if meta["namespace"] == self.attacker:
            self.queued.add(meta["name"])
        # Pods of a slice carry the name of its parent, also before that one counts them.
        owners = meta.get("ownerReferences") or ()
        parent = next((o["name"] for o in owners if o["kind"] == "Workload"), meta["name"])
        family = self._places.setdefault((meta["namespace"], parent), {})
        family[meta["name"]] = domains_of(workload)
        total: Counter[tuple[str, str]] = Counter()
        for places in family.values():
            total.update(places)
        for (podset, host), count in total.items():
            key = (meta["namespace"], parent, podset, host)
            self._assigned[key] = max(self._assigned[key], count)

    def running(self, namespace: str, selector: str = "") -> list[Object]:
        """Pods that live and that nobody deletes, by a selector of labels."""
        return [
            pod
            for pod in self.seen.values()
            if pod["metadata"]["namespace"] == namespace
            and lives(pod)
            and "deletionTimestamp" not in pod["metadata"]
            and _selected(pod["metadata"].get("labels", {}), selector)
        ]

    def misplaced(self) -> list[str]:
        """Pods that were bound without a place or beyond it, ever."""
        found = [f"{name} was bound without a place" for name in sorted(self._unplaced)]
        for key, most in sorted(self._most.items()):
            granted = self._assigned.get(key, 0)
            if most > granted:
                namespace, workload, podset, host = key
                found.append(
                    f"{most} pods of {namespace}/{workload}/{podset} on {host}, {granted} assigned"
                )
        return found

    def shown(self) -> list[str]:
        """The living pods, in short."""
        rows = [
            f"{pod['metadata']['name']} {self.cpu[uid]}m"
            + (" terminating" if "deletionTimestamp" in pod["metadata"] else "")
            for uid, pod in self.living.items()
        ]
        return rows[:LISTED] + ([f"and {len(rows) - LISTED} more"] if len(rows) > LISTED else [])

    def _place(self, pod: Object) -> None:
        meta = pod["metadata"]
        workload = meta.get("annotations", {}).get(names.WORKLOAD_ANNOTATION)
        podset = meta.get("labels", {}).get(names.PODSET_LABEL)
        if workload is None or podset is None:
            self._unplaced.add(meta["name"])
            return
        key = (meta["namespace"], workload, podset, pod["spec"]["nodeName"])
        here = sum(1 for one in self.living.values() if _key(one) == key)
        self._most[key] = max(self._most[key], here)


def _key(pod: Object) -> tuple[str, str, str, str]:
    meta = pod["metadata"]
    return (
        meta["namespace"],
        meta.get("annotations", {}).get(names.WORKLOAD_ANNOTATION, ""),
        meta.get("labels", {}).get(names.PODSET_LABEL, ""),
        pod["spec"].get("nodeName", ""),
    )


class Observer:
    """Both watches, with an administrator's eyes; ledgers come and go."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ledgers: dict[str, Ledger] = {}

    def add(self, ledger: Ledger) -> None:
        """Measure a world from now on. Its namespaces are empty yet."""
        self._ledgers |= dict.fromkeys(ledger.namespaces, ledger)

    def remove(self, ledger: Ledger) -> None:
        """Measure it no more."""
        for namespace in ledger.namespaces:
            self._ledgers.pop(namespace, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch for as long as the block lasts."""
        ready = [asyncio.Event(), asyncio.Event()]
        tasks = [
            asyncio.create_task(self._follow(kinds.PODS, self._pod, ready[0])),
            asyncio.create_task(self._follow(kinds.WORKLOADS, self._workload, ready[1])),
        ]
        try:
            await asyncio.gather(*(event.wait() for event in ready))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self, kind: Resource, take: Callable[[str, Object], None], ready: asyncio.Event
    ) -> None:
        while True:
            with suppress(KubeError):
                since = await self._list(kind, take)
                ready.set()
                async for line in self._client.watch(kind.path(), {"resourceVersion": since}):
                    event: dict[str, Any] = json.loads(line)
                    if event["type"] in ("BOOKMARK", "ERROR"):
                        continue
                    take(event["type"], event["object"])
            await asyncio.sleep(0.1)

    async def _list(self, kind: Resource, take: Callable[[str, Object], None]) -> str:
        seen: set[str] = set()
        version = ""
        async for page in self._client.list_pages(kind.path()):
            found = json.loads(page)
            version = found["metadata"]["resourceVersion"]
            for obj in found["items"]:
                take("ADDED", obj)
                seen.add(obj["metadata"]["uid"])
        if kind is kinds.PODS:
            for ledger in set(map(id, self._ledgers.values())):
                self._forget(ledger, seen)
        return version

    def _forget(self, identity: int, seen: Iterable[str]) -> None:
        """Pods that went while no watch ran."""
        for ledger in self._ledgers.values():
            if id(ledger) == identity:
                for uid in set(ledger.seen) - set(seen):
                    ledger.pod("DELETED", ledger.seen[uid])

    def _pod(self, kind: str, pod: Object) -> None:
        ledger = self._ledgers.get(pod["metadata"]["namespace"])
        if ledger is not None:
            ledger.pod(kind, pod)

    def _workload(self, kind: str, workload: Object) -> None:
        ledger = self._ledgers.get(workload["metadata"]["namespace"])
        if ledger is not None and kind != "DELETED":
            ledger.workload(workload)

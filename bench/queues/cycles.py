"""Scheduling cycles on a cache, without an API server: whatever is decided is written at once.

A cycle is timed as the assigner runs it: changes, snapshot, plan, admissions assumed. What the API
server and the watch would do follows untimed: each decision changes its Workload, which is put into
the cache as the watch would show it.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from bench.queues import objects
from bench.queues.objects import Queue, condition
from rackgate.api.names import WorkloadCondition
from rackgate.api.timestamps import rfc3339
from rackgate.features import Features
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.planner import Planner
from rackgate_assigner.watches import decode_workload
from rackgate_assigner.workload.decisions import Admit, Decision, Evict, Preempt, Requeue
from rackgate_assigner.workload.status import admission_of
from tests.support.objects import Object

T = TypeVar("T")

FEATURES: Final = Features.of(dict.fromkeys(objects.TOPOLOGY_GATES, True))
MANY_CYCLES: Final = 10_000
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_versions = count(1)


def view(kind: type[T], manifest: Mapping[str, Any]) -> T:
    """An object as a watch decodes it."""
    return msgspec.json.decode(json.dumps(manifest), type=kind)


def moment(second: int) -> str:
    """An RFC 3339 time, later for larger numbers."""
    return rfc3339(BEGIN + timedelta(seconds=second))


def stored(
    manifest: Mapping[str, Any], second: int, status: Mapping[str, Any] | None = None
) -> kueue.Workload:
    """A Workload as the API server has it, created in this second."""
    version = str(next(_versions))
    metadata = {
        **manifest["metadata"],
        "uid": f"uid-{version}",
        "resourceVersion": version,
        "generation": 1,
        "creationTimestamp": moment(second),
    }
    document = {**manifest, "metadata": metadata, "status": status or {}}
    return decode_workload(json.dumps(document).encode())


def admitted_status(admission: Mapping[str, Any], second: int) -> dict[str, Any]:
    """Status of a Workload that is admitted since this second."""
    since = moment(second)
    return {
        "admission": admission,
        "conditions": [condition("QuotaReserved", since), condition("Admitted", since)],
    }


def filled(
    queues: Sequence[Queue],
    nodes: int,
    *,
    topology: bool = True,
    cluster_queue: Callable[[Queue], Object] = objects.cluster_queue_of,
) -> Cache:
    """A cache with nodes and queues, and no Workload."""
    cache = Cache(FEATURES)
    levels, flavor = objects.flavor_objects(topology=topology)
    if levels is not None:
        cache.set_topology(view(kueue.Topology, levels))
    cache.set_flavor(view(kueue.ResourceFlavor, flavor))
    for node in objects.nodes(nodes):
        ready = [{"type": "Ready", "status": "True"}]
        shown = {**node, "status": {**node["status"], "conditions": ready}}
        cache.set_node(view(core.Node, shown))
    for queue in queues:
        cache.set_namespace(view(core.Namespace, objects.namespace_of(queue)))
        cache.set_cluster_queue(view(kueue.ClusterQueue, cluster_queue(queue)))
        cache.set_local_queue(view(kueue.LocalQueue, objects.local_queue_of(queue)))
    return cache


@dataclass
class Cycles:
    """The Workloads of a cache, and what cycles make of them.

    Attributes:
        workloads: as the watch shows them, by key.
        admitted: keys of admitted Workloads, in the order of their admissions.
    """

    cache: Cache
    workloads: dict[str, kueue.Workload] = field(default_factory=dict)
    admitted: dict[str, None] = field(default_factory=dict)
    planner: Planner = field(init=False)

    def __post_init__(self) -> None:
        """Keep pending Workloads from cycle to cycle, as the assigner does."""
        self.planner = Planner(self.cache)

    def put(self, workloads: Iterable[kueue.Workload]) -> None:
        """Workloads were added or changed."""
        for workload in workloads:
            self._show(workload)

    def cycle(
        self, changed: Callable[[Cache], object] = lambda _cache: None
    ) -> tuple[float, list[Decision]]:
        """Take in a change and run a cycle.

        Args:
            changed: puts the change into the cache, as its listener does.

        Returns:
            CPU milliseconds of both, and the decisions.
        """
        began = time.process_time()
        changed(self.cache)
        snapshot, queues = self.planner.prepare(lambda _key: False)
        decisions = plan(snapshot, FEATURES, queues=queues)
        for decision in decisions:
            if isinstance(decision, Admit):
                self.cache.assume(decision.workload, decision.assignment)
        spent_ms = (time.process_time() - began) * 1e3
        for decision in decisions:
            self._write(decision)
        return spent_ms, decisions

    def settle(self) -> list[float]:
        """Run cycles until none decides anything; milliseconds of each.

        Raises:
            AssertionError: there is no end to it.
        """
        spent: list[float] = []
        for _ in range(MANY_CYCLES):
            spent_ms, decisions = self.cycle()
            spent.append(spent_ms)
            if not decisions and not self.planner.is_due:
                return spent
        raise AssertionError(f"{MANY_CYCLES} cycles, and the last one decided something, too")

    def finish(self, key: str) -> Callable[[Cache], object]:
        """The change that an admitted Workload finishes."""
        before = self.workloads[key]
        over = core.Condition(type=WorkloadCondition.FINISHED, status="True")
        now = self._changed(before, conditions=(*before.status.conditions, over))
        self.workloads[key] = now
        del self.admitted[key]
        return lambda cache: cache.set_workload(now)

    def arrive(self, workload: kueue.Workload) -> Callable[[Cache], object]:
        """The change that a Workload is created."""
        self.workloads[workload.metadata.key] = workload
        return lambda cache: cache.set_workload(workload)

    def _write(self, decision: Decision) -> None:
        """What the watch shows after the decision was written, and the job has stopped."""
        workload = self.workloads[decision.workload]
        reserved = WorkloadCondition.QUOTA_RESERVED
        if isinstance(decision, Admit):
            admission = msgspec.convert(admission_of(decision.assignment), kueue.Admission)
            since = moment(next(_versions))
            shown = tuple(
                core.Condition(type=type_, status="True", last_transition_time=since)
                for type_ in (reserved, WorkloadCondition.ADMITTED)
            )
            self._show(self._changed(workload, conditions=shown, admission=admission))
        elif isinstance(decision, Requeue):
            unfit = core.Condition(
                type=reserved, status="False", reason=decision.reason, message=decision.message
            )
            self._show(self._changed(workload, conditions=(unfit,)))
        elif isinstance(decision, Evict | Preempt):
            pending = core.Condition(type=reserved, status="False", reason="Pending")
            self._show(self._changed(workload, conditions=(pending,), admission=None))

    def _changed(self, workload: kueue.Workload, **status: Any) -> kueue.Workload:
        meta = msgspec.structs.replace(workload.metadata, resource_version=str(next(_versions)))
        return msgspec.structs.replace(
            workload, metadata=meta, status=msgspec.structs.replace(workload.status, **status)
        )

    def _show(self, workload: kueue.Workload) -> None:
        key = workload.metadata.key
        self.workloads[key] = workload
        self.cache.set_workload(workload)
        self.admitted.pop(key, None)
        if workload.status.admission is not None:
            self.admitted[key] = None


@contextmanager
def frozen_heap() -> Iterator[None]:
    """What exists is left out of collections, as in the assigner after its first sync."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

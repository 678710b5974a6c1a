"""The console: watches keep the cache of the assigner up to date, and the feed gets its rows.

    watches -> cache -> rows of what changed -> feed -> streams of the viewers

Nothing is written to the cluster. Changes are collected for `MIN_INTERVAL_S`, and for longer if the
last update was slow: updates use at most `MAX_LOAD` of the time of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from rackgate.api.resources import Resource
from rackgate.api.timestamps import rfc3339
from rackgate.features import Features
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.runtime.namespaces import Selectors
from rackgate.runtime.tasks import spawn
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.explain.workload import explain
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing
from rackgate_assigner.visibility.pending_order import PendingOrder, order_of_cache
from rackgate_assigner.watches import Watch, Watches, cache_updates
from rackgate_assigner.workload.info import pod_info
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_console.connection import Connection
from rackgate_console.feed import Feed, Row
from rackgate_console.history import INTERVAL_S, History
from rackgate_console.rows.queues import queue_rows
from rackgate_console.rows.topology import TopologyRows
from rackgate_console.rows.workloads import WorkloadRows
from rackgate_console.viewers.access import QUEUES

MIN_INTERVAL_S: Final = 0.25
MAX_LOAD: Final = 0.2
# How often the state of the watches is read.
POLL_S: Final = 1.0

log = structlog.get_logger()


class Console:
    """What the page shows, and keeps it up to date.

    Attributes:
        cache: that of an assigner, filled by the watches.
        watches: those of an assigner.
        feed: the rows.
        history: usage of quota over time.
        connection: whether the API server answers.
        selectors: in which namespaces jobs are managed, by plural of their kind.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.
    """

    def __init__(
        self,
        client: Client,
        features: Features,
        excluded: tuple[str, ...] = (),
        *,
        fair_sharing: tuple[str, ...] | None = None,
        admission_fair_sharing: AdmissionFairSharing | None = None,
    ) -> None:
        """Prepare.

        Args:
            client: only lists and watches.
            features: gates of the assigner.
            excluded: prefixes of resources that it does not count.
            fair_sharing: strategies of preemption in their order; None: fair sharing is off.
            admission_fair_sharing: how usage orders LocalQueues; None: it does not.
        """
        self.cache = Cache(features, excluded, admission_fair_sharing=admission_fair_sharing)
        self.watches = Watches(client)
        self.feed, self.history, self.connection = Feed(), History(), Connection()
        self.fair_sharing = fair_sharing
        self.selectors: Selectors = {}
        self._updates = cache_updates(self.watches, self.cache)
        self._pods: dict[str, dict[str, core.Pod]] = {}  # by name of the node, and key
        self._nodes_version = 0
        self._topologies = TopologyRows(self.feed, self._used_by_pods)
        self._workloads = WorkloadRows(self.feed)
        self._changed, self._committed = asyncio.Event(), asyncio.Event()
        self._connect()

    @property
    def resources(self) -> list[Resource]:
        """The collections that it lists."""
        return [watch.resource for watch in self._needed()]

    def missing(self) -> list[str]:
        """Reasons why the page is not complete: watches that have not listed yet."""
        return [line for watch in self._needed() for line in watch.missing()]

    async def follow(self) -> None:
        """Keep the feed up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._needed():
                spawn(group, watch.run(), f"watch {watch.resource.full_name}")
            spawn(group, self._update_feed(), "feed")
            spawn(group, self._sample(), "history")
            spawn(group, self._poll_connection(), "connection")

    async def news(self, number: int, connection: Connection) -> None:
        """Wait until the feed has a later batch than this one, or the connection changed."""
        while self.feed.number == number and self.connection == connection:
            await self._committed.wait()

    def explanation(self, key: str) -> Explanation | None:
        """Why a Workload is pending, or where it runs; None if it does not exist."""
        features = self.cache.features
        return explain(self.cache, key, features, fair_sharing=self.fair_sharing)

    def hosts(self, flavor: str, path: tuple[str, ...]) -> tuple[list[Row], int] | None:
        """The first hosts of a domain, and their number; None: no such domain of hosts."""
        return self._topologies.hosts_of(flavor, path)

    def workload(self, key: str) -> kueue.Workload | None:
        """The object of a Workload."""
        return self.watches.workloads.store.get(key)

    def reading(self) -> ClusterReading:
        """What `rackgate explain` reads, as the watches have it."""
        watches = self.watches
        return ClusterReading(
            self.cache,
            dict(watches.workloads.store),
            dict(watches.workload_classes.store),
            dict(watches.classes.store),
            self.selectors,
            cluster_queues=dict(watches.cluster_queues.store),
        )

    def copied(self, *, empty: bool) -> Callable[[], ClusterReading]:
        """The same with a cache of its own, which is filled by the function that is returned.

        That takes a second for 10,000 nodes, so it may run in another thread.

        Args:
            empty: as if no job had ever been started. Other pods, of DaemonSets, stay.
        """
        watches, reading = self.watches, self.reading()
        cache = Cache(self.cache.features, self.cache.excluded)
        found = [
            (upsert, watch is watches.pods, list(watch.store.values()))
            for watch, upsert, _ in cache_updates(watches, cache)
            if not (empty and watch is watches.workloads)
        ]

        def filled() -> ClusterReading:
            for upsert, of_pods, items in found:
                for item in items:
                    if not (empty and of_pods and _is_of_job(item)):
                        upsert(item)
            return replace(reading, cache=cache, workloads={} if empty else reading.workloads)

        return filled

    def _needed(self) -> list[Watch[Any]]:
        return [*(watch for watch, _, _ in self._updates), self.watches.classes]

    def _connect(self) -> None:
        for watch, upsert, drop in self._updates:

            def upserted(_before: Any, item: Any, upsert: Any = upsert) -> None:
                upsert(item)
                self._changed.set()

            def deleted(item: Any, drop: Any = drop) -> None:
                drop(item.metadata.key)
                self._changed.set()

            watch.add_listener(upserted, deleted)
        watches = self.watches
        watches.pods.add_listener(self._on_pod_upsert, self._on_pod_delete)
        watches.nodes.add_listener(
            lambda _before, _node: self._on_node_change(), lambda _node: self._on_node_change()
        )
        watches.workloads.add_listener(
            lambda _before, one: self._workloads.mark(one.metadata.key),
            lambda one: self._workloads.mark(one.metadata.key),
        )
        watches.local_queues.add_listener(self._on_local_queue_upsert, self._on_local_queue_delete)

    def _on_node_change(self) -> None:
        self._nodes_version += 1

    def _on_local_queue_upsert(
        self, before: kueue.LocalQueue | None, queue: kueue.LocalQueue
    ) -> None:
        if before is None or before.spec.cluster_queue != queue.spec.cluster_queue:
            self._mark_queue(queue)

    def _on_local_queue_delete(self, queue: kueue.LocalQueue) -> None:
        self._mark_queue(queue)

    def _mark_queue(self, queue: kueue.LocalQueue) -> None:
        for info in self.cache.pending():
            if info.queue == queue.metadata.key:
                self._workloads.mark(info.key)

    def _on_pod_upsert(self, before: core.Pod | None, pod: core.Pod) -> None:
        if before is not None and before.spec.node_name != pod.spec.node_name:
            self._on_pod_delete(before)
        if pod.spec.node_name:
            self._pods.setdefault(pod.spec.node_name, {})[pod.metadata.key] = pod

    def _on_pod_delete(self, pod: core.Pod) -> None:
        on_node = self._pods.get(pod.spec.node_name or "", {})
        on_node.pop(pod.metadata.key, None)
        if not on_node:
            self._pods.pop(pod.spec.node_name or "", None)

    def _used_by_pods(self, node: str) -> Mapping[str, int]:
        used: dict[str, int] = {}
        for pod in self._pods.get(node, {}).values():
            info = pod_info(pod)
            for resource, amount in (*info.requests, ("pods", 1)) if info is not None else ():
                used[resource] = used.get(resource, 0) + amount
        return used

    async def _update_feed(self) -> None:
        for watch in self._needed():
            await watch.synced()
        self._check_connection()
        while True:
            self._changed.clear()
            started = clock.monotonic()
            self._workloads.set_order(await self._order())
            self._topologies.update(self.cache, self._nodes_version)
            fair_sharing = self.fair_sharing is not None
            self.feed.replace(QUEUES, queue_rows(self.cache, fair_sharing=fair_sharing))
            self._workloads.update(self.cache, self.watches.workloads.store)
            if self.feed.commit(rfc3339(clock.now())):
                self._notify()
            took = clock.monotonic() - started
            await asyncio.sleep(max(MIN_INTERVAL_S, took / MAX_LOAD))
            await self._changed.wait()

    async def _order(self) -> PendingOrder:
        steps = order_of_cache(self.cache)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                order: PendingOrder = finished.value
                return order
            await asyncio.sleep(0)

    async def _sample(self) -> None:
        for watch in self._needed():
            await watch.synced()
        while True:
            self.history.add(self.cache.quota_usage().tree, rfc3339(clock.now()))
            await asyncio.sleep(INTERVAL_S)

    async def _poll_connection(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self._check_connection()

    def _check_connection(self) -> None:
        problems = (watch.informer.problem for watch in self._needed())
        found = self.connection.after(problems, rfc3339(clock.now()))
        if found != self.connection:
            self.connection = found
            log.info("connection_changed", reachable=found.reachable, problem=found.problem)
            self._notify()

    def _notify(self) -> None:
        committed, self._committed = self._committed, asyncio.Event()
        committed.set()


def _is_of_job(pod: core.Pod) -> bool:
    info = pod_info(pod)
    return info is not None and info.is_job_pod

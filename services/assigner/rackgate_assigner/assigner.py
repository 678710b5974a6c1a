"""The assigner: watches keep the cache up to date, and the holder of the Lease acts on it.

Every replica watches the cluster, so a standby takes over with warm caches. Listeners only
update the cache and enqueue keys. They are cheap, and the same on a standby.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from prometheus_client.core import GaugeMetricFamily

from rackgate.api import names, resources
from rackgate.api.resources import JOBS, JOBSETS, RAY_CLUSTERS
from rackgate.gang.link import link_of
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.managed import is_child_of_job, is_group_pod
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.pod_group import PodGroup, assemble
from rackgate.jobframework.pod_group.pods import GroupPod
from rackgate.jobframework.registry import GANG, PLAIN_POD, POD_GROUP, enabled_elastic_kinds
from rackgate.kube.access import missing_rights
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.kube.events import EventRecorder
from rackgate.runtime.metrics import freeze_heap, scraping
from rackgate.runtime.tasks import spawn
from rackgate.wire import batch, core, kueue
from rackgate_assigner.admission_checks.controller import AdmissionCheckController
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.cache.usage import ExcessUsage
from rackgate_assigner.cache.verification_controller import Verification
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.explain.workload import explain
from rackgate_assigner.gangs.bound_pods import BoundPods, is_not_held
from rackgate_assigner.gangs.pods_controller import GangPods
from rackgate_assigner.gangs.status.phases import pod_phase
from rackgate_assigner.jobs import executor as job_executor
from rackgate_assigner.jobs.controller import JobController, Key
from rackgate_assigner.jobs.pod_groups.index import PodGroups, key_of
from rackgate_assigner.jobs.pod_groups.writer import PodGroupWriter
from rackgate_assigner.node_replacement.controller import NodeReplacementController
from rackgate_assigner.node_replacement.second_pass import second_pass
from rackgate_assigner.node_replacement.writer import NodeWriter
from rackgate_assigner.queues import finalizer_controller as finalizers
from rackgate_assigner.queues.flavor_controller import FlavorController
from rackgate_assigner.queues.metrics import queue_families, topology_families
from rackgate_assigner.queues.status_controller import QueueStatusController
from rackgate_assigner.queues.usage_controller import UsageController
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.controller import Scheduler
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.settings import AssignerSettings, BudgetSettings
from rackgate_assigner.unsupported_controller import UnsupportedFieldController
from rackgate_assigner.visibility.controller import VisibilityController
from rackgate_assigner.visibility.settings import VisibilitySettings
from rackgate_assigner.watches import Object, PoolWatches, Watch, Watches, cache_updates
from rackgate_assigner.workload.decisions import SecondPassDecision
from rackgate_assigner.workload.unsupported import KnownTexts
from rackgate_assigner.workload_slices.controller import SliceController
from rackgate_assigner.workload_slices.jobs import ResizableJobs
from rackgate_assigner.workload_slices.writer import SliceWriter

if TYPE_CHECKING:
    from rackgate.gang.native.model import ObservedPodGroup
    from rackgate.kube.native_groups import NativeGroups
    from rackgate_assigner.gangs.child_jobs import ChildGang, ChildJobGangs
    from rackgate_assigner.gangs.controller import GangController
    from rackgate_assigner.gangs.index import GangIndex, JobKey
    from rackgate_assigner.gangs.instances import GangInstances
    from rackgate_assigner.gangs.linked_controller import LinkedController
    from rackgate_assigner.gangs.native import NativeUse
    from rackgate_assigner.gangs.status.controller import GangStatusController
    from rackgate_assigner.osmo_pools.controller import PoolController

V = TypeVar("V", bound=Object)

log = structlog.get_logger()


class Assigner:
    """One replica: follows the cluster always, acts while it holds the Lease.

    Attributes:
        cache: the state of the cluster.
        watches: all watches.
        acting: whether this replica holds the Lease and writes.
    """

    def __init__(self, settings: AssignerSettings, client: Client) -> None:
        features = settings.features
        self._selector = settings.managed_jobs_namespace_selector
        budgets = settings.budgets
        self.acting = False
        ready = settings.wait_for_pods_ready
        self.cache = Cache(
            features,
            settings.resources.exclude_resource_prefixes,
            block_admission=ready.block_admission,
            requeue_by_creation=ready.requeuing_strategy.timestamp == "Creation",
            admission_fair_sharing=settings.admission_fair_sharing.rules(features),
        )
        self.watches = Watches(
            client,
            osmo=features.osmo_pools,
            gangs=features.gang_scheduling,
            pod_groups=features.pod_groups,
        )
        self._groups = {kind.name: PodGroups() for kind in (PLAIN_POD, POD_GROUP)}
        self._group_writer: PodGroupWriter | None = None
        self.recorder = EventRecorder(client, "assigner", instance=settings.identity)
        self._report = Reporter(self.recorder)
        # Do not write while the API server may have another store than the one that was read.
        client = client.with_write_gate(self.watches.wait_confirmed)
        pending = _budget(client, budgets.pending)
        for_jobs = _budget(client, budgets.jobs)
        admission = _budget(client, budgets.admission)
        writer = WorkloadWriter(
            admission, pending, for_jobs, self._report, without_effect=self._without_effect
        )
        watches = self.watches
        self._client = client
        self._elastic_kinds = enabled_elastic_kinds(features)
        self._unsupported_texts = KnownTexts(
            elastic_kinds=self._elastic_kinds, excluded=self.cache.excluded
        )
        deactivated_s = settings.object_retention_policies.workloads.after_deactivated_by_kueue
        self._deletes_jobs = deactivated_s is not None
        self._gang_index = self._start_gang_index()
        self._child_gangs = self._start_child_gangs()
        self._instances = self._start_gang_instances()
        self.jobs = self._job_controller(for_jobs, writer, settings)
        self.gangs = self._gang_controller(for_jobs)
        self.linked = self._linked_controller(for_jobs)
        self.native_groups = self._native_groups(client)
        self.gang_statuses = self._gang_status_controller(pending)
        self.slices = self._slice_controller(SliceWriter(admission, writer), settings)
        self.checks = AdmissionCheckController(
            watches.workloads.store, self.cache.cluster_queues, writer
        )
        self.finalizers_controller = self._finalizers(pending)
        self.pools = self._pool_controller(watches.osmo, pending)
        self.flavors = FlavorController(self.cache, watches.flavors.store, self._report)
        self._strategies = settings.fair_sharing.strategies()
        self.unsupported = UnsupportedFieldController(
            watches,
            self._report,
            features,
            writer,
            self.jobs.workloads_of,
            admission_fair_sharing=self.cache.usage_history is not None,
        )
        self.statuses = QueueStatusController(
            self.cache,
            watches.cluster_queues.store,
            watches.local_queues.store,
            watches.cohorts.store,
            _budget(client, budgets.queues),
            features=features,
            fair_sharing=settings.fair_sharing.enable,
            min_interval_s=settings.queue_status.min_interval,
            max_interval_s=settings.queue_status.max_interval,
        )
        self.usage = self._usage_controller()
        nodes = NodeWriter(admission, self._report)
        self.failures = NodeReplacementController(
            self.cache, watches.workloads.store, pending, nodes, request_cycle=self._request_cycle
        )
        self.scheduler = Scheduler(
            self.cache,
            watches.workloads.store,
            writer,
            features=features,
            nodes=nodes,
            second_pass=self._second_pass,
            is_in_sync=self._is_in_sync,
            min_interval_s=settings.cycle.min_interval,
            message_interval_s=settings.cycle.message_interval,
            workers=budgets.admission.concurrency,
            check_usage=settings.cycle.check_usage,
            fair_sharing=self._strategies,
            before_cycle=self._update_usage,
        )
        self.verification = Verification(
            self.cache, self._request_cycle, period_s=settings.verify_period
        )
        self._add_listeners()

    def _job_controller(
        self, client: Client, writer: WorkloadWriter, settings: AssignerSettings
    ) -> JobController:
        watches = self.watches
        jobs: dict[str, Mapping[str, JobLike]] = {
            kind: watch.store for kind, watch in watches.kinds.items()
        }
        if self.cache.features.pod_groups:
            jobs |= self._groups
        if self._instances is not None:
            jobs[GANG.name] = self._instances
        if watches.group_pods is not None:
            self._group_writer = PodGroupWriter(client, watches.group_pods.store.get)
        return JobController(
            job_executor.Stores(
                jobs,
                watches.child_jobs.store,
                watches.workloads.store,
                watches.flavors.store,
                watches.workload_classes.store,
                watches.classes.store,
            ),
            client,
            writer,
            self._report,
            workers=settings.job_workers,
            system_namespace=settings.leader_election.namespace,
            features=self.cache.features,
            on_in_sync=self._ready,
            live_pods=self.cache.live_pod_count,
            on_managed=self._set_job_queue,
            timeouts=settings.wait_for_pods_ready.timeouts(),
            retention=settings.object_retention_policies.retention(),
            is_namespace_selected=None if self._selector.everything else self._is_selected,
            gangs=self._gang_index,
            gang_pods=GangPods(client, watches.workloads.store, self._child_gangs_of)
            if watches.gangs
            else None,
            gang_timeout_limit=settings.gang_timeout_limit,
            pods=self._group_writer,
            instances=self._instances,
        )

    def _start_gang_instances(self) -> GangInstances | None:
        """Gangs of pods that no managed job owns."""
        watches = self.watches
        if watches.gangs is None:
            return None
        from rackgate_assigner.gangs.instances import DEFAULT_QUEUE, GangInstances

        queues = watches.local_queues.store
        return GangInstances(
            watches.gangs.store,
            watches.workloads.store,
            has_default_queue=lambda namespace: f"{namespace}/{DEFAULT_QUEUE}" in queues,
            topologies=self._topologies_of_queue,
            nested=self.cache.features.gang_nested_placement,
            set_hold=self.cache.set_hold,
            on_upsert=self._on_instance_upsert,
            on_change=self._on_instance_change,
            on_delete=self._on_instance_delete,
            on_use_change=self._on_gang_use_change,
        )

    def _on_instance_upsert(self, group: GangGroup) -> None:
        self._on_job_upsert(None, group)
        self.jobs.on_job_upsert(None, group)

    def _on_instance_change(self, key: str) -> None:
        self.jobs.queue.add(Key(GANG.name, key))
        self.scheduler.request_cycle_if_changed()

    def _on_instance_delete(self, group: GangGroup) -> None:
        self._on_job_delete(group)
        self.jobs.on_job_delete(group)

    def _start_gang_index(self) -> GangIndex | None:
        watches = self.watches
        if watches.gangs is None:
            return None
        # Its models use memory, so they are imported only if they are needed.
        from rackgate_assigner.gangs.index import GangIndex

        return GangIndex(
            self.cache.features,
            {kind: watch.store for kind, watch in watches.kinds.items()},
            watches.workloads.store,
            watches.gangs.store,
            is_job=self._may_have_gangs,
            set_hold=self.cache.set_hold,
            on_change=self._on_gang_change,
            topologies=self._topologies_of_queue,
            on_use_change=self._on_gang_use_change,
            on_children_change=self._on_child_gangs_change,
        )

    def _start_child_gangs(self) -> ChildJobGangs | None:
        if self._gang_index is None:
            return None
        from rackgate_assigner.gangs.child_jobs import ChildJobGangs

        jobs = {kind: watch.store for kind, watch in self.watches.kinds.items()}
        return ChildJobGangs(self._gang_index, jobs, self.watches.child_jobs.store)

    def _child_gangs_of(self, job_uid: str) -> Sequence[ChildGang]:
        return self._child_gangs.of_job(job_uid) if self._child_gangs is not None else ()

    def _on_child_gangs_change(self, job_uid: str) -> None:
        """The child Jobs of a job have Workloads of gangs, and what is true of them changed."""
        if self.gangs is not None:
            self.gangs.on_children_change(job_uid)
        if self.gang_statuses is not None:
            self.gang_statuses.on_children_change(job_uid)

    def _may_have_gangs(self, job: JobLike) -> bool:
        """Whether a job is managed by itself. `GangInstances` and the ungater care for pods."""
        is_part = is_child_of_job(job.metadata) or isinstance(job, PodGroup)
        return not is_part and self.jobs.is_followed(job)

    def _topologies_of_queue(self, key: str) -> tuple[tuple[str, ...], ...] | None:
        """Levels of the Topologies of a LocalQueue's flavors; None if an object is missing."""
        local_queue = self.cache.local_queues.get(key)
        queue = self.cache.cluster_queues.get(local_queue.cluster_queue) if local_queue else None
        if queue is None:
            return None
        flavors = [self.cache.flavors.get(name) for name in queue.flavors]
        if any(one is None or (one.topology and not one.levels) for one in flavors):
            return None
        return tuple(dict.fromkeys(one.levels for one in flavors if one is not None and one.levels))

    def _on_gang_use_change(self, gang: str) -> None:
        if self.gang_statuses is not None:
            self.gang_statuses.mark(gang)

    def _native_groups(self, client: Client) -> NativeGroups | None:
        if self._gang_index is None or not self.cache.features.native_pod_groups:
            return None
        from rackgate.kube.native_groups import NativeGroups

        return NativeGroups(
            client, on_change=self._on_native_group, on_served=self._on_native_served
        )

    def _on_native_group(
        self, before: ObservedPodGroup | None, after: ObservedPodGroup | None
    ) -> None:
        """The status of its gang may have changed."""
        group = after or before
        if group is not None and self._gang_index is not None:
            self._gang_index.on_pods_change(f"{group.namespace}/{group.owner_name}")

    def _on_pod_phase(self, before: core.Pod | None, pod: core.Pod) -> None:
        """The status of a gang shows the phases of its pods."""
        link = link_of(pod.metadata.annotations)
        if link and (before is None or before.status.phase != pod.status.phase):
            self._on_gang_use_change(f"{pod.metadata.namespace}/{link}")

    def _on_native_served(self) -> None:
        for key in self.watches.gangs.store if self.watches.gangs is not None else ():
            self._on_gang_use_change(key)

    def _native_use(self) -> NativeUse | None:
        """What the status of gangs says about PodGroups; None while it is not known."""
        found = self.native_groups
        if found is None or not found.checked.is_set():
            return None
        from rackgate_assigner.gangs.native import NativeUse

        return NativeUse(found.adapter, found.store)

    def _gang_status_controller(self, client: Client) -> GangStatusController | None:
        watches, index = self.watches, self._gang_index
        if index is None or watches.gangs is None:
            return None
        from rackgate_assigner.gangs.status.controller import GangStatusController
        from rackgate_assigner.gangs.status.writer import GangWriter

        return GangStatusController(
            index,
            {kind: watch.store for kind, watch in watches.kinds.items()},
            watches.workloads.store,
            watches.gangs.store,
            GangWriter(client),
            reporter=self._report,
            bound_pods=self._bound_pods,
            instances=self._instances,
            native=self._native_use,
            children=self._child_gangs,
            bound_pods_of_child=self._bound_pods,
        )

    def _bound_pods(self, job_uid: str, child_uid: str = "") -> BoundPods:
        """Bound pods of a job, or of one of its child Jobs, that have not ended."""
        rows = [row for row in self.cache.live_pods.rows_of(job_uid) if not row.terminating]
        pods = self.watches.pods.store
        if child_uid:
            rows = [row for row in rows if _controller_uid(pods.get(row.key)) == child_uid]
        found = [(row.podset, pods.get(row.key)) for row in rows]
        return BoundPods(
            Counter(podset for podset, _ in found),
            [pod.metadata.name for _, pod in found if pod is not None and is_not_held(pod)],
            Counter((podset, pod_phase(pod.status.phase)) for podset, pod in found if pod),
        )

    def _on_pods_change(self, job_uid: str) -> None:
        self.jobs.on_pods_change(job_uid)
        if self._gang_index is not None:
            for key in self.cache.excess_usage.workloads_of(job_uid):
                self._gang_index.on_pods_change(key)

    def _gang_controller(self, client: Client) -> GangController | None:
        watches, index = self.watches, self._gang_index
        if index is None:
            return None
        from rackgate_assigner.gangs.controller import GangController
        from rackgate_assigner.gangs.status.writer import GangWriter

        return GangController(
            index,
            {kind: watch.store for kind, watch in watches.kinds.items()},
            GangWriter(client),
            self._report,
            live_pods=lambda uid: self.cache.live_pod_count(uid).total,
            children=self._child_gangs,
        )

    def _linked_controller(self, client: Client) -> LinkedController | None:
        watches = self.watches
        if watches.gangs is None:
            return None
        from rackgate_assigner.gangs.linked_controller import LinkedController
        from rackgate_assigner.gangs.status.writer import GangWriter

        return LinkedController(
            {kind: watch.store for kind, watch in watches.linked.items()},
            watches.gangs.store,
            GangWriter(client),
            self._report,
            rev_n=self.cache.features.workload_rev_n,
        )

    def _on_gang_change(self, key: JobKey) -> None:
        """The gangs of a job, or what holds it, may have changed."""
        self.jobs.queue.add(Key(*key))
        if self.gangs is not None:
            self.gangs.queue.add(key)
        self.scheduler.request_cycle_if_changed()

    def _usage_controller(self) -> UsageController | None:
        history = self.cache.usage_history
        if history is None:
            return None
        kind = resources.LOCAL_QUEUES.kind
        return UsageController(
            self.cache,
            history,
            on_change=lambda key: self.statuses.mark(kind, key),
            request_cycle=self._request_cycle,
        )

    def _update_usage(self) -> None:
        if self.usage is not None:
            self.usage.update()

    def _set_job_queue(self, job: JobLike) -> None:
        """Charge the pods of a managed job to its queue, whether or not it has a Workload."""
        queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
        self.cache.set_job(job.metadata.uid, f"{job.metadata.namespace}/{queue}")
        self.scheduler.request_cycle_if_changed()

    def _is_selected(self, namespace: str) -> bool:
        """Whether jobs of a namespace are managed; False until its labels are known."""
        found = self.watches.namespaces.store.get(namespace)
        return found is not None and self._selector.selects(found.metadata.labels)

    def _on_namespace_upsert(self, before: core.Namespace | None, space: core.Namespace) -> None:
        """Update which jobs count: a namespace is selected now, or no longer selected."""
        labels = space.metadata.labels
        was = before is not None and self._selector.selects(before.metadata.labels)
        if was == self._selector.selects(labels):
            return
        for job in self.jobs.on_namespace_change(space.metadata.name):
            self._on_job_upsert(job, job)

    def _finalizers(self, client: Client) -> finalizers.FinalizerController:
        watches = self.watches
        stores = finalizers.Stores(
            watches.topologies.store,
            watches.flavors.store,
            watches.cluster_queues.store,
            watches.workloads.store,
        )
        return finalizers.FinalizerController(stores, client)

    def _pool_controller(
        self, watches: PoolWatches | None, client: Client
    ) -> PoolController | None:
        if watches is None:
            return None
        # Its models use memory, so they are imported only if they are needed.
        from rackgate_assigner.osmo_pools.controller import start_pool_controller

        return start_pool_controller(watches, client, self._report)

    def _slice_controller(self, writer: SliceWriter, settings: AssignerSettings) -> SliceController:
        watches = self.watches
        jobs = {kind: watch.store for kind, watch in watches.kinds.items()}
        return SliceController(
            self.cache,
            watches.workloads.store,
            writer,
            ResizableJobs(jobs, watches.pods.store, self.cache, self._report),
            enabled=self.cache.features.elastic_jobs,
            message_interval_s=settings.cycle.message_interval,
        )

    def _ready(self, key: str) -> None:
        self.scheduler.reset_backoff(key)

    def _is_in_sync(self, workload: kueue.Workload) -> bool:
        return self.jobs.is_in_sync(workload) and self.slices.is_in_sync(workload)

    def _request_cycle(self) -> None:
        self.scheduler.request_cycle()

    def _second_pass(self, snapshot: Snapshot) -> list[SecondPassDecision]:
        features = self.cache.features
        if not features.failed_node_replacement:
            return []
        return second_pass(snapshot, self.cache.hosts, self.failures.requested, features)

    def missing(self) -> list[str]:
        """Reasons why this replica is not ready; a standby with warm caches is ready."""
        return [line for watch in self.watches.needed() for line in watch.missing()]

    async def follow(self) -> None:
        """Keep the cache up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self.recorder.run(), "events")
            spawn(group, self.verification.run(), "verification")
            for watch in self.watches.all():
                spawn(group, watch.run(), f"watch {watch.resource.full_name}")
            if self.native_groups is not None:
                spawn(group, self.native_groups.run(), "native PodGroups")

    async def synced(self) -> None:
        """Wait until every required watch has listed once: before that, no decision is made."""
        for watch in self.watches.needed():
            await watch.synced()
        freeze_heap()
        log.info("caches_synced")

    def visibility(self, settings: VisibilitySettings, client: Client) -> VisibilityController:
        """The visibility API, which a standby serves, too."""
        strategies = self._strategies

        def explained(key: str) -> Explanation | None:
            features = self.cache.features
            return explain(self.cache, key, features, fair_sharing=strategies)

        return VisibilityController(
            client,
            settings,
            self.cache,
            self.watches.workloads.store,
            is_synced=lambda: not self.missing(),
            explain=explained,
        )

    async def act(self) -> None:
        """Decide and write until cancelled. Only the holder of the Lease may call this."""
        self.acting = True
        if self.usage is not None:
            self.usage.take_over()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self.scheduler.run(), "cycle")
                spawn(group, self.jobs.run(), "jobs")
                spawn(group, self.checks.run(), "admission-checks")
                spawn(group, self.slices.run(), "slices")
                spawn(group, self.finalizers_controller.run(), "finalizers")
                spawn(group, self.failures.run(), "node-failures")
                spawn(group, self.statuses.run(), "queue-status")
                spawn(group, self.flavors.run(), "flavor-report")
                spawn(group, self.unsupported.run(), "unsupported-fields")
                if self.usage is not None:
                    spawn(group, self.usage.run(), "local-queue-usage")
                spawn(group, self._serve_metrics(), "gauges")
                if self._deletes_jobs:
                    spawn(group, self._check_retention(), "rights of retention")
                if self.pools is not None:
                    spawn(group, self.pools.run(), "osmo-pools")
                if self.gangs is not None:
                    spawn(group, self.gangs.run(), "gangs")
                if self.linked is not None:
                    spawn(group, self.linked.run(), "linked")
                if self.gang_statuses is not None:
                    spawn(group, self.gang_statuses.run(), "gang-status")
        finally:
            self.acting = False

    async def _check_retention(self) -> None:
        """Log if the setting of retention is without effect, because the right is missing."""
        try:
            missing = await missing_rights(self._client, "delete", (JOBS, JOBSETS, RAY_CLUSTERS))
        except KubeError as error:
            log.warning("rights_not_checked", error=str(error)[:500])
            return
        if missing:
            log.error(
                "retention_without_right",
                setting="objectRetentionPolicies.workloads.afterDeactivatedByKueue",
                missing=[f"delete {name}" for name in missing],
                remedy="add the component deploy/retention to your kustomization, and apply it",
            )

    async def _serve_metrics(self) -> None:
        """Serve the metrics that are computed at each scrape, until cancelled."""

        def families() -> Iterator[GaugeMetricFamily]:
            yield from queue_families(self.cache, self.cache.features)
            yield from topology_families(self.cache)

        with scraping(families):
            await asyncio.Event().wait()

    def _without_effect(self, workload: kueue.Workload) -> str:
        watches = self.watches
        local_queue = watches.local_queues.store.get(
            f"{workload.metadata.namespace}/{workload.spec.queue_name}"
        )
        queue = None
        if local_queue is not None:
            queue = watches.cluster_queues.store.get(local_queue.spec.cluster_queue)
        return self._unsupported_texts.text(workload, self.jobs.job_for(workload), queue)

    # Listeners. The cache comes first: all others read it.

    def _add_listeners(self) -> None:
        cache, watches = self.cache, self.watches
        watches.workloads.add_listener(
            delete=lambda gone: self._unsupported_texts.forget(gone.metadata.key)
        )
        for watch, upsert, delete in cache_updates(watches, cache):
            self._connect_cache(watch, upsert, delete)
        failures = self.failures
        if self.usage is not None:
            watches.local_queues.add_listener(self.usage.on_local_queue_upsert)
            watches.workloads.add_listener(
                self.usage.on_workload_upsert, self.usage.on_workload_delete
            )
        watches.namespaces.add_listener(self._on_namespace_upsert)
        watches.pods.add_listener(failures.on_pod_upsert, failures.on_pod_delete)
        watches.workloads.add_listener(failures.on_workload_upsert, failures.on_workload_delete)
        watches.workloads.add_listener(
            self.checks.on_workload_upsert, self.checks.on_workload_delete
        )
        watches.cluster_queues.add_listener(self.checks.on_cluster_queue_upsert)
        watches.child_jobs.add_listener(self._on_child_job_upsert, self._on_child_job_delete)
        watches.submitters.add_listener(self._on_submitter_upsert, self._on_submitter_delete)
        cache.on_pods_changed = self._on_pods_change
        cache.on_hosts_changed = failures.on_hosts_change
        cache.on_excess_usage_changed = self._on_excess_usage_changed
        if watches.group_pods is not None:
            watches.group_pods.add_listener(self._on_group_pod_upsert, self._on_group_pod_delete)
        self._add_instance_listeners()
        for managed in watches.kinds.values():
            managed.add_listener(self._on_job_upsert, self._on_job_delete)
            managed.add_listener(self.jobs.on_job_upsert, self.jobs.on_job_delete)
            managed.add_listener(self.slices.on_job_upsert, self.slices.on_job_delete)
        watches.workloads.add_listener(self._on_workload_upsert, self._on_workload_delete)
        self._add_gang_listeners()
        self._add_linked_listeners()
        for classes in (watches.workload_classes, watches.classes):
            self._class_listener(classes)
        for used in (watches.topologies, watches.flavors, watches.cluster_queues):
            self._finalizer_listener(used)
        for queue in (watches.cohorts, watches.cluster_queues, watches.local_queues):
            self._queue_listener(queue)
        for other in (watches.topologies, watches.flavors, watches.checks):
            self._reference_listener(other)
        watches.nodes.add_listener(self.flavors.on_node_upsert, lambda _node: self.flavors.mark())
        for kind in (watches.topologies, watches.flavors):
            kind.add_listener(
                lambda _before, _item: self.flavors.mark(), lambda _item: self.flavors.mark()
            )

    def _add_instance_listeners(self) -> None:
        """Before those of Workloads: they look for the gang of a Workload."""
        instances, watches = self._instances, self.watches
        if instances is None or watches.gangs is None:
            return
        watches.gangs.add_listener(instances.on_gang_upsert, instances.on_gang_delete)
        watches.workloads.add_listener(
            lambda _before, workload: instances.on_workload_upsert(workload),
            instances.on_workload_delete,
        )
        watches.local_queues.add_listener(
            lambda before, queue: self._on_default_queue_change(queue) if before is None else None,
            self._on_default_queue_change,
        )
        self._add_levels_listeners(instances.on_topologies_change)

    def _on_default_queue_change(self, queue: kueue.LocalQueue) -> None:
        from rackgate_assigner.gangs.instances import DEFAULT_QUEUE

        if self._instances is not None and queue.metadata.name == DEFAULT_QUEUE:
            self._instances.on_default_queue_change(queue.metadata.namespace)

    def _add_gang_listeners(self) -> None:
        """After the listeners of jobs: they say which jobs are managed."""
        index, watches, gangs = self._gang_index, self.watches, self.gangs
        if index is None or watches.gangs is None or gangs is None:
            return
        watches.gangs.add_listener(gangs.on_gang_upsert, gangs.on_gang_delete)
        watches.gangs.add_listener(index.on_gang_upsert, index.on_gang_delete)
        watches.child_jobs.add_listener(gangs.on_child_upsert, gangs.on_child_delete)
        if self.gang_statuses is not None:
            watches.child_jobs.add_listener(self.gang_statuses.on_child_upsert)
            watches.gangs.add_listener(delete=self.gang_statuses.on_gang_delete)
        watches.workloads.add_listener(
            lambda _before, workload: index.on_workload_change(workload), index.on_workload_change
        )
        watches.pods.add_listener(self.jobs.on_pod_upsert, self.jobs.on_pod_gone)
        watches.pods.add_listener(self._on_pod_phase)
        self._add_levels_listeners(index.on_topologies_change)
        for managed in watches.kinds.values():
            managed.add_listener(delete=gangs.on_job_delete)

    def _add_levels_listeners(self, on_change: Callable[[], None]) -> None:
        """Which levels the jobs of a queue can use follows from four kinds."""

        def upserted(before: Any, item: Any) -> None:
            if before is None or before.spec != item.spec:
                on_change()

        watches: tuple[Watch[Any], ...] = (
            self.watches.topologies,
            self.watches.flavors,
            self.watches.cluster_queues,
            self.watches.local_queues,
        )
        for watch in watches:
            watch.add_listener(upserted, lambda _item: on_change())

    def _add_linked_listeners(self) -> None:
        linked, watches = self.linked, self.watches
        if linked is None or watches.gangs is None:
            return
        watches.gangs.add_listener(
            lambda _before, gang: linked.on_gang_change(gang), linked.on_gang_change
        )
        for kind, watch in watches.linked.items():
            watch.add_listener(partial(linked.on_upsert, kind), partial(linked.on_delete, kind))

    def _connect_cache(
        self, watch: Watch[V], upsert: Callable[[V], Any], delete: Callable[[str], Any]
    ) -> None:
        def upserted(_before: V | None, item: V) -> None:
            upsert(item)
            self.scheduler.request_cycle_if_changed()

        def deleted(item: V) -> None:
            delete(item.metadata.key)
            self.scheduler.request_cycle_if_changed()

        watch.add_listener(upserted, deleted)

    def _on_workload_upsert(self, before: kueue.Workload | None, workload: kueue.Workload) -> None:
        self.jobs.on_workload_upsert(before, workload)
        if before is None or before.metadata.controller != workload.metadata.controller:
            self._recheck_job(workload)
        self.slices.on_workload_upsert(before, workload)
        # A Workload that left a queue, or changed its usage, changes the counts of both queues.
        if before is not None:
            self.statuses.mark_workload(before)
            if before.metadata.generation != workload.metadata.generation:
                self.scheduler.reset_backoff(workload.metadata.key)
        self.scheduler.on_workload_upsert(workload)
        self.statuses.mark_workload(workload)
        self.finalizers_controller.on_user_change(watch_kind(self.watches.workloads))

    def _on_workload_delete(self, workload: kueue.Workload) -> None:
        self.jobs.on_workload_delete(workload)
        self._recheck_job(workload)
        self.slices.on_workload_delete(workload)
        self.scheduler.forget(workload.metadata.key)
        self.statuses.mark_workload(workload)
        self.finalizers_controller.on_user_change(watch_kind(self.watches.workloads))

    def _recheck_job(self, workload: kueue.Workload) -> None:
        """A Workload was added or deleted: it may be the only reason to manage its job."""
        job = None if self._selector.everything else self.jobs.job_for(workload)
        if job is not None:
            self._on_job_upsert(job, job)

    def _class_listener(self, watch: Watch[Any]) -> None:
        kind = watch_kind(watch)

        def counts(item: Any) -> tuple[int, bool]:
            return item.value, getattr(item, "global_default", False)

        def upserted(before: Any, item: Any) -> None:
            if self.acting and (before is None or counts(before) != counts(item)):
                self.jobs.on_priority_class_change(kind, item.metadata.name)

        def deleted(item: Any) -> None:
            if self.acting:
                self.jobs.on_priority_class_change(kind, item.metadata.name)

        watch.add_listener(upserted, deleted)

    def _finalizer_listener(self, watch: Watch[Any]) -> None:
        kind = watch_kind(watch)
        watch.add_listener(
            lambda _before, item: self.finalizers_controller.on_upsert(kind, item.metadata),
            lambda item: self.finalizers_controller.on_delete(kind, item.metadata),
        )

    def _queue_listener(self, watch: Watch[Any]) -> None:
        kind = watch_kind(watch)

        def upserted(before: Object | None, item: Object) -> None:
            if before is None or before.metadata.generation != item.metadata.generation:
                self.statuses.mark_all()
            else:
                self.statuses.mark(kind, item.metadata.key)

        def deleted(item: Object) -> None:
            self.statuses.gone(kind, item.metadata)
            self.statuses.mark_all()

        watch.add_listener(upserted, deleted)

    def _reference_listener(self, watch: Watch[Any]) -> None:
        kind = watch_kind(watch)

        def upserted(_before: Object | None, item: Object) -> None:
            self.statuses.mark_all()
            self.jobs.on_flavor_added(f"{kind}/{item.metadata.name}")

        watch.add_listener(upserted, lambda _item: self.statuses.mark_all())

    def _on_submitter_upsert(self, before: batch.Job | None, job: batch.Job) -> None:
        """The Job that submits a RayJob only matters as the controller of a pod."""
        owner = job.metadata.controller
        if owner is not None and (before is None or before.metadata.controller != owner):
            self.cache.set_owner(job.metadata.uid, owner.uid, job.metadata.namespace)
            self.scheduler.request_cycle_if_changed()
        elif owner is None and before is not None and before.metadata.controller is not None:
            self.cache.set_owner(job.metadata.uid, "")

    def _on_submitter_delete(self, job: batch.Job) -> None:
        self.cache.drop_owner(job.metadata.uid)
        self.scheduler.request_cycle_if_changed()

    def _on_child_job_upsert(self, before: batch.Job | None, child_job: batch.Job) -> None:
        self._on_submitter_upsert(before, child_job)
        if self._child_gangs is not None:
            self._child_gangs.on_upsert(before, child_job)
        self.jobs.on_child_upsert(before, child_job)

    def _on_excess_usage_changed(self, excess: ExcessUsage) -> None:
        self.statuses.mark_cluster_queue(excess.cluster_queue)
        if excess.local_queue and self.usage is not None:
            self.usage.mark(excess.local_queue)
        if excess.local_queue:
            self.statuses.mark(resources.LOCAL_QUEUES.kind, excess.local_queue)

    def _on_job_upsert(self, before: JobLike | None, job: JobLike) -> None:
        owner = job.metadata.controller
        if owner is None or not is_child_of_job(job.metadata):
            if self.jobs.is_followed(job):
                self._set_job_queue(job)
            elif not self._selector.everything:
                self.cache.drop_job(job.metadata.uid)
        elif before is None or before.metadata.controller != owner:
            # The job controller verifies the claim; until then it has no effect.
            self.cache.set_owner(job.metadata.uid, owner.uid, job.metadata.namespace)
            self.scheduler.request_cycle_if_changed()
        if (
            before is not None
            and is_child_of_job(before.metadata)
            and not is_child_of_job(job.metadata)
        ):
            self.cache.set_owner(job.metadata.uid, "")
        if self._gang_index is not None:
            self._gang_index.on_job_upsert(job)

    def _on_job_delete(self, job: JobLike) -> None:
        if self._gang_index is not None:
            self._gang_index.on_job_delete(job)
        self.cache.drop_job(job.metadata.uid)
        if is_child_of_job(job.metadata) and job.metadata.key not in self.watches.child_jobs.store:
            self.cache.drop_owner(job.metadata.uid)
        self.scheduler.request_cycle_if_changed()

    def _on_group_pod_upsert(self, before: GroupPod | None, pod: GroupPod) -> None:
        if self._is_gang_pod(pod) and self._instances is not None:
            replaced = before is not None and before.metadata.uid != pod.metadata.uid
            if before is not None and (replaced or not self._is_gang_pod(before)):
                self._on_group_pod_delete(before)
            self._instances.on_pod_upsert(pod)
            return
        if not self.cache.features.pod_groups:
            return
        is_plain = is_group_pod(pod.metadata)  # a pod of a job may copy the label from a template
        if before is not None and not (is_plain and key_of(before) == key_of(pod)):
            self._on_group_pod_delete(before)
        if not is_plain:
            return
        kind, key = key_of(pod)
        one = assemble([pod])  # its key and labels: the whole group is assembled when it is read
        if self._groups[kind].put(key, pod):
            self._on_job_upsert(None, one)
        self.jobs.on_job_upsert(None, one)

    def _is_gang_pod(self, pod: GroupPod) -> bool:
        if self._instances is None:
            return False
        from rackgate_assigner.gangs.instances import is_gang_pod

        return is_gang_pod(pod, groups_elsewhere=self.cache.features.pod_groups)

    def _on_group_pod_delete(self, pod: GroupPod) -> None:
        if self._is_gang_pod(pod) and self._instances is not None:
            if self._group_writer is not None:
                self._group_writer.forget(pod.metadata)
            self._instances.on_pod_delete(pod)
            return
        kind, key = key_of(pod)
        groups = self._groups[kind]
        if key not in groups:
            return
        if self._group_writer is not None:
            self._group_writer.forget(pod.metadata)
        one = assemble([pod])
        if groups.drop(key, pod):
            self._on_job_delete(one)
            self.jobs.on_job_delete(one)
        else:
            self.jobs.on_job_upsert(None, one)

    def _on_child_job_delete(self, child_job: batch.Job) -> None:
        self.cache.drop_owner(child_job.metadata.uid)
        if self._child_gangs is not None:
            self._child_gangs.on_delete(child_job)
        self.jobs.on_child_delete(child_job)


def watch_kind(watch: Watch[Any]) -> str:
    """The kind of a watch."""
    return watch.resource.kind


def _controller_uid(pod: core.Pod | None) -> str:
    owner = pod.metadata.controller if pod is not None else None
    return owner.uid if owner is not None else ""


def _budget(client: Client, settings: BudgetSettings) -> Client:
    return client.budget(settings.qps, settings.burst, settings.concurrency)

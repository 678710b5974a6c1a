"""State of the cluster, kept up to date by watch events.

Every event updates what is derived from it at once or marks it stale: usage per Workload and per
queue, coverage of bound pods, usage beyond admission, and the topology trees. `snapshot` copies
what one scheduling cycle needs. Decisions, explanations and status writes take the cache as an
argument and are in other modules.

Invariant: everything derived is a function of the objects. `consistency.mismatches` compares it
with a rebuild from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rackgate.features import DEFAULTS, Features
from rackgate.jobframework.slice_chains import SliceChains
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.assumed_writes import AssumedStatus
from rackgate_assigner.cache.changes import Changes
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies, Trees
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.cache.objects import Objects
from rackgate_assigner.cache.pods.bound_pods import BoundPods
from rackgate_assigner.cache.pods.ending_pods import EndingWorkloads
from rackgate_assigner.cache.pods.live_pods import ExcessUsageTracker, LivePodCount, LivePods
from rackgate_assigner.cache.pods.pod_defaults import without_pod_defaults
from rackgate_assigner.cache.quota_usage import (
    QuotaUsage,
    running_workload,
    shared_quota_tree,
)
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.cache.stored_usage import stored_usage
from rackgate_assigner.cache.usage import (
    ExcessUsage,
    Totals,
    WorkloadUsage,
    covering_assignments,
    usage_without_done_pods,
    workload_usage,
)
from rackgate_assigner.quota.active import cluster_queue_activity
from rackgate_assigner.quota.admission_fair_sharing import (
    AdmissionFairSharing,
    LocalQueueUsage,
    UsageHistory,
    amounts_of,
)
from rackgate_assigner.quota.queues import DRAIN, FlavorResource
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.tree import QuotaTree
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.info import (
    PodInfo,
    PodShape,
    WorkloadInfo,
    pod_info,
    workload_info,
)
from rackgate_assigner.workload_slices.families import (
    SliceFamilies,
    SliceFamily,
    is_merged,
    is_orphan,
    merge_assignments,
)


class Cache(Objects):
    """The state of the cluster that admission needs; mutable, for one thread.

    Usage is always derived from Workloads and bound pods, never from the existence of a node,
    flavor or queue, which may be deleted and created again.

    Attributes:
        epoch: increases with every change that could make a pending Workload fit or not fit.
            Heartbeats, pods on their assigned nodes, and condition writes do not increase it.
        changes: what of that a plan has to look at; use `take_changes`. Releases are recorded
            where usage is subtracted, some of it not before `take_changes`.
        workloads: by key.
        assumed: assignments whose status writes the watch has not shown yet, by key.
        usages: quota and capacity of each Workload, by key; also of Workloads without any.
        families: which Workloads are slices of which.
        live_pods: pods by the job at the root of their owner chain.
        excess_usage: what these use beyond admission; charged like an assignment.
        on_pods_changed: called with the uid of a job whose pods changed.
        on_hosts_changed: called with the hosts whose node or its health changed.
        on_excess_usage_changed: called with what was charged beyond admission before a change, and
            with what is charged after it.
        usage_history: of LocalQueues; None: admission fair sharing is off. Not derived: it is what
            their status shows, until this replica acts (`queues.usage_controller`).
    """

    def __init__(
        self,
        features: Features = DEFAULTS,
        excluded: Sequence[str] = (),
        *,
        block_admission: bool = False,
        requeue_by_creation: bool = False,
        admission_fair_sharing: AdmissionFairSharing | None = None,
    ) -> None:
        """Start empty.

        Args:
            features: feature gates.
            excluded: prefixes of resources that count neither for quota nor for capacity (C16).
            block_admission: admit nothing while pods of an admitted Workload are not ready.
            requeue_by_creation: see `workload_info`.
            admission_fair_sharing: how usage over time orders LocalQueues; None: it does not.
        """
        super().__init__()
        self._block_admission, self._requeue_by_creation = block_admission, requeue_by_creation
        self.features = features
        self.excluded = tuple(excluded)
        rules = admission_fair_sharing
        self.usage_history = None if rules is None else UsageHistory(rules)
        self.workloads: dict[str, WorkloadInfo] = {}
        self._holds: dict[str, str] = {}
        self.assumed: dict[str, AssumedStatus[Assignment]] = {}
        self.on_pods_changed: Callable[[str], None] = lambda _job_uid: None
        self.on_hosts_changed: Callable[[set[str]], None] = lambda _hosts: None
        self.on_excess_usage_changed: Callable[[ExcessUsage], None] = lambda _excess: None
        self._reset_derived_state()

    def _reset_derived_state(self) -> None:
        self.usages: dict[str, WorkloadUsage] = {}
        self.families = SliceFamilies()
        # Workloads with reclaimable pods, and those whose assignments must be computed again.
        self._with_reclaimable_pods: set[str] = set()
        self._reclaimable_outdated: set[str] = set()
        self._totals = Totals()
        self.pods = BoundPods(self.nodes, self._charge_node)
        held = self.features.hold_quota_for_terminating_pods
        self.live_pods = LivePods(self.nodes, terminating=held)
        self.excess_usage = ExcessUsageTracker(
            self,
            workloads=self.workloads,
            usages=self.usages,
            families=self.families,
            live_pods=self.live_pods,
            totals=self._totals,
            charge_released=held,
            on_change=self._on_excess_changed,
        )
        # Pods that lost their controller, by the Workload that they name.
        self._pods_without_owner: dict[str, set[str]] = {}
        self._slice_chains = SliceChains[str]()
        self.hosts = Hosts(self.nodes.values())
        self._ending = EndingWorkloads(self.excess_usage, self.live_pods, self.nodes, self.hosts)
        self.trees = Trees(self.nodes, self.flavors, self.pods.charged, self.usages, self.hosts)
        self._quota_usage = QuotaUsage()
        self._pending: dict[str, WorkloadInfo] = {}
        # Keys of pending Workloads by namespace and LocalQueue; those of slices by their parent.
        self._pending_by_queue: dict[str, dict[str, set[str]]] = {}
        self._pending_slices: dict[str, set[str]] = {}
        self._deactivated: set[str] = set()
        self._with_unhealthy_nodes: set[str] = set()
        self._to_place: set[str] = set()
        # Workloads with quota whose pods are not all ready, also while their admission is assumed.
        self._unready: set[str] = set()

    # The history of LocalQueues.

    def set_local_queue(self, queue: kueue.LocalQueue) -> None:
        """A LocalQueue was added or changed; of its status, only its history counts."""
        super().set_local_queue(queue)
        if self.usage_history is not None and (stored := stored_usage(queue.status)) is not None:
            self.usage_history.restore(queue.metadata.key, *stored)

    def drop_local_queue(self, key: str) -> None:
        """A LocalQueue is gone, and its history."""
        super().drop_local_queue(key)
        if self.usage_history is not None:
            self.usage_history.forget(key)

    def local_queue_usage(self) -> LocalQueueUsage | None:
        """What orders LocalQueues now; None if admission fair sharing is off."""
        if self.usage_history is None:
            return None
        return LocalQueueUsage(self.usage_history, self._weight_of)

    def _weight_of(self, local_queue: str) -> float:
        found = self.local_queues.get(local_queue)
        return 1.0 if found is None else found.fair_weight

    def charge_entry_penalty(self, key: str) -> None:
        """A Workload that holds quota, or whose admission is assumed, is not admitted yet."""
        usage = self.usages[key]
        queue = self.cluster_queues.get(usage.cluster_queue)
        if self.usage_history is not None and queue is not None and queue.usage_based:
            self.usage_history.reserve(key, usage.local_queue, amounts_of(usage.quota))

    # Pods and Workloads: the sources of usage.

    def set_pod(self, pod: wire.Pod) -> None:
        """A pod was added or changed; one that is not bound, or has ended, uses no capacity."""
        key = pod.metadata.key
        row = pod_info(pod)
        if row is None:
            self.drop_pod(key)
        else:
            self.put_pod(row)

    def put_pod(self, row: PodInfo) -> None:
        """As `set_pod`, for a bound pod that has not ended."""
        self._slice_chains.set_pod(row.key, row.slice_chain)
        if row.slice_chain:
            row = self._of_live_slice(row)
        before = self.pods.rows.get(row.key)
        if before is not None and row.uid == before.uid and before.owner_uid and not row.owner_uid:
            # Its controller is gone, or its owner reference was removed: it still counts.
            row = replace(row, owner_uid=before.owner_uid, is_job_pod=before.is_job_pod)
        elif not row.owner_uid and row.workload_annotation:
            # The same, before this process saw it: its Workload names its job.
            self._pods_without_owner.setdefault(row.workload_annotation, set()).add(row.key)
            workload = self.workloads.get(row.workload_annotation)
            if workload is not None:
                row = replace(row, owner_uid=workload.job_uid)
        self._on_pods_changed(self.live_pods.put(row))
        changed = self.pods.set(row)
        found = [one for one in (before, row) if one is not None and before != row]
        if (
            changed and any(map(self._affects_scheduling, found))
        ) or self._mark_reclaimable_outdated(found):
            self.epoch += 1

    def drop_pod(self, key: str) -> None:
        """A pod is gone, or has ended."""
        self._on_pods_changed(self.live_pods.drop(key))
        before = self.pods.rows.get(key)
        if before is None:
            return
        self._slice_chains.set_pod(key, "")
        discard(self._pods_without_owner, before.workload_annotation, key)
        if self.pods.drop(key) and self._affects_scheduling(before):
            self.epoch += 1
        if self._mark_reclaimable_outdated([before]):
            self.epoch += 1

    def _of_live_slice(self, row: PodInfo) -> PodInfo:
        """The pod, with the Workload that it belongs to now if Kueue replaced the one it names."""
        named = row.workload_annotation or row.slice_chain
        workload = self._slice_chains.workload_of(row.slice_chain, named)
        return row if workload == row.workload else replace(row, workload=workload)

    def set_owner(self, uid: str, root: str, namespace: str = "") -> None:
        """Pods of this controller are pods of another object: those of a Job, of its JobSet.

        Args:
            uid: of the controller.
            root: uid of the object; "" when it belongs to none any more.
            namespace: of the controller; "" for any.
        """
        self._on_pods_changed(self.live_pods.set_owner(uid, root, namespace))
        if self.pods.set_owner(uid, root):
            self._reclaimable_outdated |= self._with_reclaimable_pods
            self.epoch += 1

    def drop_owner(self, uid: str) -> None:
        """A controller of pods is gone."""
        self.live_pods.drop_owner(uid)
        self.pods.drop_owner(uid)

    def set_job(self, uid: str, queue: str) -> None:
        """A managed job exists; `queue` is its LocalQueue as `namespace/name`."""
        known = self.live_pods.is_managed(uid)
        self._update_excess_usage(self.live_pods.set_job(uid, queue))
        if not known:
            self._job_added_or_removed(uid)

    def drop_job(self, uid: str) -> None:
        """A job is deleted, or is no longer managed."""
        self._update_excess_usage(self.live_pods.drop_job(uid))
        self._job_added_or_removed(uid)

    def _job_added_or_removed(self, uid: str) -> None:
        for key in self.excess_usage.workloads_of(uid):
            if self._update_usage(key):
                self.epoch += 1

    def live_pod_count(self, job_uid: str) -> LivePodCount:
        """How many pods of a job live."""
        return self.live_pods.count(job_uid)

    def _on_pods_changed(self, roots: Iterable[str]) -> None:
        """Pods of these jobs were added, deleted, or are being deleted."""
        self._update_excess_usage(roots)
        for root in roots:
            self.on_pods_changed(root)

    def _update_excess_usage(self, roots: Iterable[str]) -> None:
        """Recompute what pods of these jobs use beyond admission."""
        for root in roots:
            if self.excess_usage.update(root):
                self.epoch += 1

    def _mark_reclaimable_outdated(self, rows: Sequence[PodInfo]) -> bool:
        """Recompute Workloads of these pods that have reclaimable pods; whether there is any."""
        names = {row.workload for row in rows} & self._with_reclaimable_pods
        self._reclaimable_outdated |= names
        return bool(names)

    def _affects_scheduling(self, row: PodInfo) -> bool:
        """Whether a charge that changed with a pod can affect any decision.

        A pod that an assignment may cover can have used the capacity of a pod on another node, if
        two nodes share a hostname. Then it does not matter whether its own node is in a tree.
        """
        return self.pods.covers(row.workload, row.podset) or self.trees.affects_any_tree(row.node)

    def set_workload(self, workload: kueue.Workload) -> None:
        """A Workload was added or changed."""
        known = self.workloads.get(workload.metadata.key)
        row = workload_info(
            workload,
            known,
            self.excluded,
            requeue_by_creation=self._requeue_by_creation,
        )
        hold = self._holds.get(row.key)
        self.put_workload(row if hold is None else replace(row, hold=hold))

    def set_hold(self, key: str, message: str) -> None:
        """The gangs of a Workload, which need not exist yet, allow no admission; "": they do."""
        if self._holds.get(key, "") == message:
            return
        if message:
            self._holds[key] = message
        else:
            del self._holds[key]
        row = self.workloads.get(key)
        if row is not None:
            self.put_workload(replace(row, hold=message))

    def put_workload(self, row: WorkloadInfo) -> None:
        """As `set_workload`, for its projection."""
        old = self.workloads.get(row.key)
        row = self.pod_defaults.with_pod_defaults(row)
        self.pod_defaults.track(old, row)
        self.workloads[row.key] = row
        relinked = self.excess_usage.link(row)
        before = self.families.link(row.key, row.parent)
        assumed = self.assumed.get(row.key)
        if assumed is not None and _is_superseded(assumed, row):
            del self.assumed[row.key]
        changed = old is None or old.scheduling_inputs != row.scheduling_inputs
        changed |= self._record_inputs(old, row)
        self._quota_usage.mark_workloads({row.key, before} & self.workloads.keys())
        if self._update_usage(row.key) or changed:
            self.epoch += 1
        if before not in ("", row.parent):
            self._update_covered_pods(before)
            self._record_family(before)
        self._update_excess_usage(relinked)
        if old is None and row.key in self._pods_without_owner:
            for key in sorted(self._pods_without_owner[row.key]):
                self.put_pod(self.pods.rows[key])
        self._set_slice_chain(row.key, row.slice_chain, admitted=row.admitted)

    def _set_slice_chain(self, key: str, chain: str, *, admitted: bool = False) -> None:
        """Kueue may have replaced the Workload that pods name by this one."""
        for pod in sorted(self._slice_chains.set_workload(key, chain, admitted=admitted)):
            self.put_pod(self.pods.rows[pod])

    def _record_inputs(self, old: WorkloadInfo | None, row: WorkloadInfo) -> bool:
        """Record what a changed Workload means for itself and others, apart from its usage.

        Returns:
            Whether any decision depends on it.
        """
        key, changes = row.key, self.changes
        found = False
        if key in self._pending:
            found = old is None or old.pending_inputs != row.pending_inputs
            if found:
                changes.add(workloads=(key,))
            else:
                changes.add(refreshed=(key,))
        usage = self.usages.get(key)
        if (
            usage is not None
            and usage.cluster_queue
            and (old is None or old.preemption_inputs != row.preemption_inputs)
        ):
            found = True
            changes.add(queues=(usage.cluster_queue,))
        if old is None or old.family_inputs != row.family_inputs:
            found |= self._record_family(key)
        return found

    def _record_family(self, key: str) -> bool:
        """The family of a Workload changed; whether slices of it are pending."""
        slices = self._pending_slices.get(self.families.parent_or_self(key), ())
        self.changes.add(workloads=slices)
        return bool(slices)

    def drop_workload(self, key: str) -> None:
        """A Workload is deleted, and its usage is released."""
        row = self.workloads.pop(key, None)
        if row is None:
            return
        self.pod_defaults.untrack(row)
        self.assumed.pop(key, None)
        root, parent = self.excess_usage.unlink(key), self.families.parent_or_self(key)
        if self._update_usage(key):
            self.epoch += 1
        self._record_family(key)
        self.families.link(key, "")
        for gone in {key, parent} - self.workloads.keys():
            self._quota_usage.forget(gone)
        self._update_excess_usage({root})
        self._set_slice_chain(key, "")

    def assume(self, key: str, assignment: Assignment, *, replace_existing: bool = False) -> None:
        """Charge an assignment before its status write is seen; may replace an existing one.

        Ends when the watch shows an admission at a newer resourceVersion, when the Workload is
        finished or deleted, by `forget`, or after `confirm` when the watch reaches that version.
        The epoch does not change: the plan that made the assignment has charged it already. What
        it releases by replacing another one is in `changes`.
        """
        row = self.workloads.get(key)
        if row is None or row.finished or (row.reserved is not None) != replace_existing:
            return
        self.assumed[key] = AssumedStatus(assignment, row.uid, row.resource_version)
        is_known = key not in self.changes.workloads
        self._update_usage(key)
        if is_known:
            self.changes.workloads.discard(key)  # no longer pending, as the plan decided
        if not replace_existing:
            self.charge_entry_penalty(key)

    def confirm(self, key: str, resource_version: str) -> None:
        """Record the resourceVersion in the response to the status write.

        From that version on the watch is used, even if it no longer shows an admission.
        Otherwise an admission that was cleared before the watch showed it would stay charged.
        """
        assumed, row = self.assumed.get(key), self.workloads.get(key)
        if assumed is None or row is None:
            return
        self.assumed[key] = assumed.with_written_version(resource_version)
        if _is_superseded(self.assumed[key], row):
            self.forget(key)

    def forget(self, key: str) -> None:
        """Release an assumed assignment: its status write failed."""
        if self.assumed.pop(key, None) is not None:
            self._update_usage(key)
            self.epoch += 1

    # Reading.

    @property
    def totals(self) -> Totals:
        """Sums by queue of the usage of Workloads, and of their pods beyond admission."""
        self.excess_usage.flush()
        return self._totals

    def pending(self) -> list[WorkloadInfo]:
        """Workloads to be admitted, in any order."""
        return list(self._pending.values())

    def pending_workload(self, key: str) -> WorkloadInfo | None:
        """A Workload that is to be admitted."""
        return self._pending.get(key)

    def quota_usage(self) -> QuotaUsage:
        """The live quota tree and the Workloads in it; valid until the next event.

        Whoever changes it takes the change back.
        """
        totals = self.totals
        self._quota_usage.update_tree(
            self._quota_tree, totals.cluster_queues, totals.changed_cluster_queues
        )
        self._quota_usage.update_running(self.workloads.keys(), self._running_workload)
        self._quota_usage.update_ending(self._ending.read())
        return self._quota_usage

    def take_changes(self) -> Changes:
        """What changed since the last call.

        Usage that is computed late is computed now, so take the changes before the snapshot.
        """
        self.flavor_topologies()
        self.excess_usage.flush()
        return self.changes.take()

    def _quota_tree(self) -> QuotaTree:
        stopped = [
            name
            for name, queue in self.cluster_queues.items()
            if not cluster_queue_activity(
                queue, self.flavors, self.checks, self.features, self.cohorts
            ).active
        ]
        return shared_quota_tree(self.cluster_queues, self.cohorts, stopped)

    def _running_workload(self, key: str) -> RunningWorkload | None:
        info, usage = self.workloads.get(key), self.usages.get(key)
        if info is None or usage is None or info.parent:
            return None
        slices = [self.usages[other] for other in self.families.slices_of(key)]
        return running_workload(info, [usage, *slices], self.priorities)

    def snapshot(self, pending: Sequence[WorkloadInfo] | None = None) -> Snapshot:
        """A copy of the state for one cycle; changes of the copy do not affect the cache.

        Args:
            pending: the pending Workloads that the cycle has to check; None: all.
        """
        policies = {queue.stop_policy for queue in self.cluster_queues.values()}
        policies.update(queue.stop_policy for queue in self.local_queues.values())
        evictable: Iterable[str] = self._deactivated
        if DRAIN in policies:
            evictable = self.workloads
        elif policies - {"None"}:  # which clear the reservations that are no admissions yet
            evictable = self._deactivated | self._unready
        # Updates the usage of Workloads with reclaimable pods, so it comes first.
        flavor_topologies = self.flavor_topologies().copy()
        return Snapshot(
            pending=self.pending() if pending is None else pending,
            eviction_candidates=[self.workloads[key] for key in evictable],
            to_place=[self.workloads[key] for key in self._to_place if key not in self.assumed],
            with_unhealthy_nodes=[
                self.workloads[key] for key in self._with_unhealthy_nodes if key not in self.assumed
            ],
            local_queues=dict(self.local_queues),
            cluster_queues=dict(self.cluster_queues),
            flavors=dict(self.flavors),
            checks=dict(self.checks),
            namespaces=dict(self.namespaces),
            priorities=dict(self.priorities),
            quota_usage=self.quota_usage(),
            cohorts=dict(self.cohorts),
            flavor_topologies=flavor_topologies,
            families={key: self._slice_family(key) for key in self._pending_slices},
            unready=frozenset(self._unready) if self._block_admission else None,
            local_queue_usage=self.local_queue_usage(),
        )

    def _slice_family(self, key: str) -> SliceFamily:
        excess = dict(self.excess_usage.excess_of_workload(key))
        family = SliceFamily(self.workloads.get(key), excess=excess)
        for member in (key, *self.families.slices_of(key)):
            usage = self.usages.get(member)
            for podset, assignment in (usage.assignments if usage else {}).items():
                family.assignments.setdefault(podset, []).append(assignment)
        return family

    def rebuild_derived_state(self) -> None:
        """Derive everything again from the objects."""
        pods, owners = list(self.pods.rows.values()), self.pods.owners
        live = self.live_pods
        self._reset_derived_state()
        for uid, queue in live.queues.items():
            self.set_job(uid, queue)
        for node in self.nodes.values():
            self.trees.record_node_change(None, node)
        for key, found in self.workloads.items():
            self.workloads[key] = self.pod_defaults.with_pod_defaults(without_pod_defaults(found))
            self.families.link(key, found.parent)
            self.excess_usage.link(found)
        for key in self.workloads:
            self._update_usage(key)
        for uid, root in owners.items():
            self.pods.set_owner(uid, root)
        for uid, claim in live.claims.items():
            self.live_pods.set_owner(uid, *claim)
        for row in pods:
            self.put_pod(row)
        for uid in live.deleted_jobs:
            self.drop_job(uid)
        self._all_changed()

    def flavor_topologies(self) -> FlavorTopologies:
        """The live trees with everything charged; read-only, and valid until the next event."""
        self.pods.update_coverage()
        for key in sorted(self._reclaimable_outdated):
            self._release_reclaimable(key)
        self._reclaimable_outdated.clear()
        return self.trees.flavor_topologies()

    def _update_usage(self, key: str) -> bool:
        """Update the usage of a Workload and its slices; whether other decisions depend on it."""
        found = [self._update_usage_of(each) for each in (key, *self.families.slices_of(key))]
        head = self.families.parent_or_self(key)
        self._quota_usage.mark_workloads((key, head))
        if any(changed for changed, _ in found):
            self._update_covered_pods(head)
        self._update_excess_usage(self.excess_usage.roots_of((key, head)))
        return any(moved for _, moved in found)

    def _update_usage_of(self, key: str) -> tuple[bool, bool]:
        """As `_update_usage`, for one Workload; the first result is whether anything changed."""
        row = self.workloads.get(key)
        old = self.usages.get(key)
        new = None if row is None else self._workload_usage(row)
        was_pending = self._pending.pop(key, None)
        self._deactivated.discard(key)
        self._with_unhealthy_nodes.discard(key)
        self._to_place.discard(key)
        was_unready = key in self._unready
        self._unready.discard(key)
        if row is not None and new is not None:
            if new.pending:
                self._pending[key] = row
            if new.cluster_queue and not row.active:
                self._deactivated.add(key)
            if new.cluster_queue and row.passed_checks:
                self._to_place.add(key)
            # Pods of a slice belong to its parent, which replaces their nodes once it counts them.
            if new.admitted and row.unhealthy and not row.parent:
                self._with_unhealthy_nodes.add(key)
            # One that waits for its admission checks will start, too.
            starts = bool(row.not_ready_reason) or row.reserved is None or not row.admitted
            # An elastic job has no timeout, so it might block all admissions for ever.
            if new.cluster_queue and starts and not row.elastic:
                self._unready.add(key)
        if was_unready and key not in self._unready and self._block_admission:
            self._all_changed()
        self._index_pending(key, was_pending, self._pending.get(key))
        self._track_reclaimable(key, row)
        if old == new:
            return False, False
        self._replace_usage(key, old, new)
        before = old.visible_to_others if old is not None else ()
        return True, before != (new.visible_to_others if new is not None else ())

    def _index_pending(self, key: str, old: WorkloadInfo | None, new: WorkloadInfo | None) -> None:
        """A Workload is pending now (`new`), was pending before (`old`), or both."""
        if (old is None) != (new is None):
            self.changes.add(workloads=(key,))
        if old is not None and (new is None or (old.queue, old.parent) != (new.queue, new.parent)):
            by_queue = self._pending_by_queue[old.namespace]
            discard(by_queue, old.queue, key)
            if not by_queue:
                del self._pending_by_queue[old.namespace]
            discard(self._pending_slices, old.parent, key)
        if new is not None:
            by_queue = self._pending_by_queue.setdefault(new.namespace, {})
            by_queue.setdefault(new.queue, set()).add(key)
            if new.parent:
                self._pending_slices.setdefault(new.parent, set()).add(key)

    def _workload_usage(self, row: WorkloadInfo) -> WorkloadUsage:
        assumed = self.assumed.get(row.key)
        assignment = assumed.value if assumed else None
        if not row.parent:
            if row.deleting and row.job_uid and not self.live_pods.is_managed(row.job_uid):
                # Its job is gone: no pods are created any more, and each deleted pod releases its
                # usage.
                return WorkloadUsage(row.queue)
            return workload_usage(row, assignment)
        parent = self.workloads.get(row.parent)
        merged, orphan = is_merged(row, parent), is_orphan(row, parent)
        return workload_usage(row, assignment, merged=merged, orphan=orphan)

    def _track_reclaimable(self, key: str, row: WorkloadInfo | None) -> None:
        self._with_reclaimable_pods.discard(key)
        if row is not None and any(row.reclaimable.values()):
            self._with_reclaimable_pods.add(key)
            self._reclaimable_outdated.add(key)

    def _release_reclaimable(self, key: str) -> None:
        """Release the assignments of reclaimable pods, now that coverage is up to date."""
        row, old = self.workloads.get(key), self.usages.get(key)
        if row is None or old is None or not old.charges:
            return
        new = usage_without_done_pods(row, self._workload_usage(row), self.pods)
        if new != old:
            self._quota_usage.mark_workloads((key, self.families.parent_or_self(key)))
            self._replace_usage(key, old, new)

    def _replace_usage(
        self, key: str, old: WorkloadUsage | None, new: WorkloadUsage | None
    ) -> None:
        self._record_family(key)
        if old is not None and old.cluster_queue:
            self._record_release(old, new)
        if old is not None:
            del self.usages[key]
            self._charge_usage(old, -1)
        if new is not None:
            self.usages[key] = new
            self._charge_usage(new, 1)

    def _record_release(self, old: WorkloadUsage, new: WorkloadUsage | None) -> None:
        """Record where less is used than before."""
        same_queue = new is not None and new.cluster_queue == old.cluster_queue
        if not same_queue or _is_less(new.quota if new else {}, old.quota):
            self.changes.add(queues=(old.cluster_queue,))
        kept = new.charges if new is not None else ()
        for charge in old.charges:
            if charge not in kept:
                self._record_flavors(self.trees.flavors_charged_by(charge))

    def _record_flavors(self, flavors: Iterable[str] | None) -> None:
        """Capacity of these flavors was released; None: of any."""
        if flavors is None:
            self.changes.add_everything()
        else:
            self.changes.add(flavors=flavors)

    def _charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        """A pod not placed by TAS uses a node (1), or no longer does (-1)."""
        if sign < 0:
            self._record_flavors(self.trees.flavors_with_node(node))
        self.trees.charge_node(node, shape, sign)

    def _on_excess_changed(
        self, root: str, old: ExcessUsage | None, new: ExcessUsage | None
    ) -> None:
        """Pods of a job use another amount beyond its admission."""
        for key in self.excess_usage.workloads_of(root):
            self._record_family(key)
        if old is not None:
            same_queue = new is not None and new.cluster_queue == old.cluster_queue
            if not same_queue or _is_less(new.amounts if new else {}, old.amounts):
                self.changes.add(queues=(old.cluster_queue,))
        for excess in (old, new):
            if excess is not None:
                self.on_excess_usage_changed(excess)

    def _charge_usage(self, usage: WorkloadUsage, sign: int) -> None:
        self._totals.add(usage, sign)
        for charge in usage.charges:
            self.trees.charge(charge, sign)

    def _on_node_changed(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        found = new or old
        if found is None:
            return
        hosts = self.hosts.drop(found.name) if new is None else self.hosts.put(new)
        if hosts:
            self.on_hosts_changed(hosts)
        self.trees.record_node_change(old, new)
        self._on_pods_changed(self.live_pods.node_changed(found.name))
        if (old.labels if old else None) != (new.labels if new else None):
            here = map(self.live_pods.root_of, self.pods.pods_on_node(found.name))
            self._update_excess_usage(self.excess_usage.flavor_dependent(filter(None, here)))

    def _on_flavor_changed(self, name: str) -> None:
        self.trees.record_flavor_change(name)
        self._quota_usage.mark_quota()
        self._update_excess_usage(self.excess_usage.flavor_dependent())

    def _on_quota_changed(self) -> None:
        self._quota_usage.mark_quota()

    def _on_priorities_changed(self) -> None:
        self._quota_usage.mark_workloads(self.usages)

    def _on_local_queue_changed(self, key: str) -> None:
        namespace = key.partition("/")[0]
        self.changes.add(workloads=self._pending_by_queue.get(namespace, {}).get(key, ()))
        self.epoch += 1

    def _on_namespace_changed(self, name: str) -> None:
        for keys in self._pending_by_queue.get(name, {}).values():
            self.changes.add(workloads=keys)
        self.epoch += 1

    def _on_queue_changed(self, kind: str, key: str) -> None:
        self._update_excess_usage(self.excess_usage.roots_of_queue(kind, key))

    def _update_covered_pods(self, key: str) -> None:
        """Update which pods are covered by the assignments of a Workload and its slices."""
        keys = (key, *self.families.slices_of(key))
        row = self.workloads.get(key)
        owner = row.job_uid or row.owner_uid if row is not None else ""
        held = filter(None, map(self.usages.get, keys))
        parts = [covering_assignments(usage, self.flavors) for usage in held if usage.assignments]
        self.pods.set_assignments(key, owner, merge_assignments(parts))
        self._reclaimable_outdated |= {key} & self._with_reclaimable_pods

    def _on_pod_requests_changed(self, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            self.put_workload(self.workloads[key])

    def _on_levels_changed(self, flavor: str) -> None:
        for key, usage in self.usages.items():
            if any(charge.flavor == flavor for charge in usage.charges):
                self._update_covered_pods(self.families.parent_or_self(key))

    def _on_node_labels_changed(self, node: str) -> None:
        if self.pods.node_labels_changed(node):
            self._reclaimable_outdated |= self._with_reclaimable_pods
            self.epoch += 1


def _is_less(new: Mapping[FlavorResource, int], old: Mapping[FlavorResource, int]) -> bool:
    """Whether any amount is smaller."""
    return any(new.get(pair, 0) < amount for pair, amount in old.items())


def _is_superseded(assumed: AssumedStatus[Assignment], row: WorkloadInfo) -> bool:
    """Whether the watch is used from now on, whatever it shows."""
    shown = row.reserved is not None
    return row.finished or assumed.is_superseded_by(row.uid, row.resource_version, shown=shown)

"""Objects in the cache other than Workloads and pods: nodes and objects of administrators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.cache.changes import Changes
from rackgate_assigner.cache.pods.pod_defaults import PodDefaultsIndex
from rackgate_assigner.quota.queues import (
    CheckInfo,
    ClusterQueueInfo,
    CohortInfo,
    FlavorInfo,
    LocalQueueInfo,
    check_info,
    cluster_queue_info,
    cohort_info,
    flavor_info,
    local_queue_info,
)
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import takes_part
from rackgate_assigner.workload.info import node_info


class Objects:
    """Nodes, topologies, flavors, queues and the objects that queues refer to.

    Attributes:
        epoch: increases with every change that could make a pending Workload fit or not fit.
        changes: what changed since a plan took them; see `Cache.take_changes`.
        topologies: level keys by name, coarsest first.
        checks: AdmissionChecks by name.
        pod_defaults: what LimitRanges and RuntimeClasses add to pods.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.changes = Changes(everything=True)
        self.nodes: dict[str, NodeInfo] = {}
        self.flavors: dict[str, FlavorInfo] = {}
        self.topologies: dict[str, tuple[str, ...]] = {}
        self.cluster_queues: dict[str, ClusterQueueInfo] = {}
        self.cohorts: dict[str, CohortInfo] = {}
        self.local_queues: dict[str, LocalQueueInfo] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.priorities: dict[str, int] = {}
        self.checks: dict[str, CheckInfo] = {}
        self.pod_defaults = PodDefaultsIndex()

    # Nodes, topologies, flavors: the sources of trees.

    def set_node(self, node: wire.Node) -> None:
        """A node was added or changed; only what placement reads counts (C7)."""
        self.put_node(node_info(node))

    def put_node(self, facts: NodeInfo) -> None:
        """As `set_node`, for its projection."""
        old = self.nodes.get(facts.name)
        if old == facts:
            return
        self.nodes[facts.name] = facts
        self._node_changed(old, facts)

    def drop_node(self, name: str) -> None:
        """A node is deleted; assignments to it stay (TAS-23)."""
        old = self.nodes.pop(name, None)
        if old is not None:
            self._node_changed(old, None)

    def _node_changed(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        facts = [found for found in (old, new) if found is not None]
        self._on_node_changed(old, new)
        flavors = [
            flavor.name
            for flavor in self.flavors.values()
            if flavor.levels
            and any(takes_part(found, flavor.node_labels, flavor.levels) for found in facts)
        ]
        if flavors:
            # What was placed in a rack is charged in it to every flavor that shares a node of it.
            # Such a node takes part in both, so nothing else is released by its change.
            self.changes.add(flavors=flavors)
            self.epoch += 1
        if (old.labels if old else None) != (new.labels if new else None):
            self._on_node_labels_changed(facts[0].name)

    def set_topology(self, topology: kueue.Topology) -> None:
        """A Topology was added or changed."""
        levels = tuple(level.node_label for level in topology.spec.levels)
        self.put_topology(topology.metadata.name, levels)

    def put_topology(self, name: str, levels: tuple[str, ...]) -> None:
        """As `set_topology`, for its levels; without levels, it is deleted."""
        if self.topologies.get(name, ()) == levels:
            return
        if levels:
            self.topologies[name] = levels
        else:
            del self.topologies[name]
        for flavor in [found for found in self.flavors.values() if found.topology == name]:
            self.put_flavor(replace(flavor, levels=levels))
        self._all_changed()

    def drop_topology(self, name: str) -> None:
        """A Topology is deleted: its flavors have no tree until it is created again."""
        self.put_topology(name, ())

    def set_flavor(self, flavor: kueue.ResourceFlavor) -> None:
        """A flavor was added or changed."""
        self.put_flavor(flavor_info(flavor, self.topologies))

    def put_flavor(self, row: FlavorInfo) -> None:
        """As `set_flavor`, for its projection."""
        old = self.flavors.get(row.name)
        if old == row:
            return
        self.flavors[row.name] = row
        self._on_flavor_changed(row.name)
        if (old.levels if old else ()) != row.levels:
            self._on_levels_changed(row.name)
        self._all_changed()

    def drop_flavor(self, name: str) -> None:
        """A flavor is deleted; Workloads keep the quota that they have in it."""
        if self.flavors.pop(name, None) is not None:
            self._on_flavor_changed(name)
            self._on_levels_changed(name)
            self._all_changed()

    # Queues, and the objects that they refer to.

    def set_cluster_queue(self, queue: kueue.ClusterQueue) -> None:
        """A ClusterQueue was added or changed; its status does not count."""
        self.put_cluster_queue(cluster_queue_info(queue))

    def put_cluster_queue(self, row: ClusterQueueInfo) -> None:
        """As `set_cluster_queue`, for its projection."""
        if self._put(self.cluster_queues, row.name, row):
            self._on_quota_changed()
        self._on_queue_changed("ClusterQueue", row.name)

    def drop_cluster_queue(self, name: str) -> None:
        """A ClusterQueue is gone."""
        self._drop(self.cluster_queues, name)
        self._on_queue_changed("ClusterQueue", name)
        self._on_quota_changed()

    def set_cohort(self, cohort: kueue.Cohort) -> None:
        """A Cohort was added or changed; its status does not count."""
        self.put_cohort(cohort_info(cohort))

    def put_cohort(self, row: CohortInfo) -> None:
        """As `set_cohort`, for its projection."""
        if self._put(self.cohorts, row.name, row):
            self._on_quota_changed()

    def drop_cohort(self, name: str) -> None:
        """A Cohort is gone; its members still share their own quota."""
        self._drop(self.cohorts, name)
        self._on_quota_changed()

    def set_local_queue(self, queue: kueue.LocalQueue) -> None:
        """A LocalQueue was added or changed; its status does not count."""
        self.put_local_queue(local_queue_info(queue))

    def put_local_queue(self, row: LocalQueueInfo) -> None:
        """As `set_local_queue`, for its projection."""
        if self.local_queues.get(row.key) != row:
            self.local_queues[row.key] = row
            self._on_local_queue_changed(row.key)
        self._on_queue_changed("LocalQueue", row.key)

    def drop_local_queue(self, key: str) -> None:
        """A LocalQueue is gone."""
        if self.local_queues.pop(key, None) is not None:
            self._on_local_queue_changed(key)
        self._on_queue_changed("LocalQueue", key)

    def set_namespace(self, namespace: wire.Namespace) -> None:
        """A namespace was added or changed; only its labels count."""
        name, labels = namespace.metadata.name, namespace.metadata.labels
        if self.namespaces.get(name) != labels:
            self.namespaces[name] = labels
            self._on_namespace_changed(name)

    def drop_namespace(self, name: str) -> None:
        """A namespace is gone."""
        if self.namespaces.pop(name, None) is not None:
            self._on_namespace_changed(name)

    def set_workload_priority_class(self, item: kueue.WorkloadPriorityClass) -> None:
        """A WorkloadPriorityClass was added or changed."""
        self._put(self.priorities, item.metadata.name, item.value)
        self._on_priorities_changed()

    def drop_workload_priority_class(self, name: str) -> None:
        """A WorkloadPriorityClass is gone."""
        self._drop(self.priorities, name)
        self._on_priorities_changed()

    def set_admission_check(self, check: kueue.AdmissionCheck) -> None:
        """An AdmissionCheck was added or changed."""
        if self._put(self.checks, check.metadata.name, check_info(check)):
            self._on_quota_changed()

    def drop_admission_check(self, name: str) -> None:
        """An AdmissionCheck is gone."""
        self._drop(self.checks, name)
        self._on_quota_changed()

    # Objects that change the requests of pods. Admitted Workloads keep their usage.

    def set_limit_range(self, item: wire.LimitRange) -> None:
        """A LimitRange was added or changed."""
        self._on_pod_requests_changed(self.pod_defaults.set_limit_range(item))

    def drop_limit_range(self, key: str) -> None:
        """A LimitRange is gone."""
        self._on_pod_requests_changed(self.pod_defaults.drop_limit_range(key))

    def set_runtime_class(self, item: wire.RuntimeClass) -> None:
        """A RuntimeClass was added or changed."""
        self._on_pod_requests_changed(self.pod_defaults.set_runtime_class(item))

    def drop_runtime_class(self, name: str) -> None:
        """A RuntimeClass is deleted: pods that name it cannot be created until it is back."""
        self._on_pod_requests_changed(self.pod_defaults.drop_runtime_class(name))

    def _put(self, rows: dict[str, Any], key: str, row: Any) -> bool:
        """Store a row; whether it changed anything."""
        if key in rows and rows[key] == row:
            return False
        rows[key] = row
        self._all_changed()
        return True

    def _drop(self, rows: dict[str, Any], key: str) -> None:
        if rows.pop(key, None) is not None:
            self._all_changed()

    def _all_changed(self) -> None:
        """An object changed that many Workloads depend on."""
        self.changes.add_everything()
        self.epoch += 1

    def _on_local_queue_changed(self, key: str) -> None:
        """A LocalQueue changed: its Workloads may be in another ClusterQueue, or in none."""

    def _on_namespace_changed(self, name: str) -> None:
        """Labels of a namespace changed: other ClusterQueues may admit its Workloads."""

    def _on_queue_changed(self, kind: str, key: str) -> None:
        """A ClusterQueue or LocalQueue changed: pods may be charged to another queue."""

    def _on_priorities_changed(self) -> None:
        """The value of a WorkloadPriorityClass changed."""

    def _on_quota_changed(self) -> None:
        """The quota of a ClusterQueue or Cohort changed, or whether it admits Workloads."""

    def _on_node_changed(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        """A node was added, changed or deleted."""

    def _on_flavor_changed(self, name: str) -> None:
        """A flavor was added, changed or deleted."""

    def _on_pod_requests_changed(self, keys: Iterable[str]) -> None:
        """Requests of pods of these Workloads may have changed."""

    def _on_levels_changed(self, flavor: str) -> None:
        """The levels of a flavor changed: assignments may not fit its tree any more."""

    def _on_node_labels_changed(self, node: str) -> None:
        """Labels of a node changed: its pods may be in other domains."""

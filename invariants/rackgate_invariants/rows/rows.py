"""The fields of each object that the rules read: small rows that share equal values.

Times are Unix seconds, 0 if the object does not show them. Amounts are millicores for cpu, base
units for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment

OUR_GATES = frozenset(
    {names.TOPOLOGY_GATE, names.ELASTIC_GATE, names.GANG_GATE, names.ADMISSION_GATE}
)
Amounts = tuple[tuple[str, int], ...]
# (flavor, resource) -> amount
FlavorAmounts = Mapping[tuple[str, str], int]


class NodeRow(msgspec.Struct, frozen=True, gc=False):
    """A node; a kubelet that is not ready reports nothing about its pods."""

    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    allocatable: dict[str, int] = msgspec.field(default_factory=dict)
    version: str = ""
    uid: str = ""
    ready: bool = True


class PodRow(msgspec.Struct, frozen=True, gc=False):
    """A pod that has not ended.

    Attributes:
        owner: uid of its controller, "" for none.
        owner_kind: the controller's kind.
        owner_name: the controller's name.
        former_owner: without a controller, uid of the Job that its labels name, "" for none.
        workload: name that its annotation claims, "" for none.
        podset: PodSet that its label claims, "" for none.
        group: "head" or the worker group, as KubeRay's labels say, "" for none.
        tas: it has the label of pods that get their domain from the ungater.
        cleanup: its labels say that it deletes the storage of a RayCluster's head.
        gates: names of its scheduling gates.
        selector: its nodeSelector.
        requests: what it uses of its node, sorted by resource.
        index: its completion index; -1 without one, or if it does not count from 0.
        subindex: index of its child Job among those of one template; -1 without one.
        ends_at: when its deletion should be over; 0 while it is not being deleted.
        scheduled_at: when it was bound, according to its conditions.
        ungater_wrote_at: when the ungater wrote to it last, according to its managed fields.
        link: name of its Workload of gangs, "" for none.
        run: id of the run in which its gang was released, "" if it was not.
        labels: those of a pod with a link.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    owner: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    former_owner: str = ""
    workload: str = ""
    podset: str = ""
    group: str = ""
    tas: bool = False
    cleanup: bool = False
    gates: tuple[str, ...] = ()
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    node: str = ""
    requests: Amounts = ()
    index: int = -1
    subindex: int = -1
    terminating: bool = False
    ends_at: float = 0.0
    created_at: float = 0.0
    scheduled_at: float = 0.0
    ungater_wrote_at: float = 0.0
    link: str = ""
    run: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def gated(self) -> bool:
        """Whether it has a gate of Rackgate."""
        return bool(self.gates) and any(gate in OUR_GATES for gate in self.gates)

    @property
    def owning_uid(self) -> str:
        """The uid that leads to its job: that of its controller, or of its last one."""
        return self.owner or self.former_owner

    @property
    def assigned_at(self) -> float:
        """When it got its domain, by the API server's clock."""
        return self.ungater_wrote_at or self.created_at

    def domain(self, levels: tuple[str, ...]) -> Domain | None:
        """The domain of its nodeSelector; None if that does not name every level."""
        get = self.selector.get
        if len(levels) == 1:  # usually a host; called several times for every pod
            value = get(levels[0])
            return (value,) if value else None
        found = tuple([get(level, "") for level in levels])
        return found if all(found) else None


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A Job, JobSet, RayCluster or RayJob.

    Attributes:
        kind: as in the API.
        parent_uid: uid of the JobSet, RayCluster or RayJob that it names as its controller, "" for
            none.
            If that one exists they are managed together (`OwnerIndex`).
        parent_kind: kind of that controller.
        parent_name: its name.
        podset_by_child_job: PodSet that a child Job belongs to.
        has_queue_label: it has the queue label.
        queue: `namespace/name` of the LocalQueue that the label names, "" for none.
        managed: Rackgate acts on it unless it is a child Job: with a queue label, in a managed
            namespace, and with the usual controller.
        owned: another object controls it.
        count: pods that run at once.
        podset_counts: the same by PodSet.
        whole: PodSets of which every index has a pod at once (Indexed, completions = parallelism).
        is_elastic_job: its counts may change while it runs.
        without_elastic_gate: PodSets whose template lacks the elastic gate.
        listed: names of pods to delete, as the autoscaler wrote them.
        suspend_changed_at: when it was last created, suspended or resumed.
        written_at: when anything but its status was last written.
        injected: annotations, labels and gates of Rackgate on it and its templates, as text.
        injected_at_creation: those of them that the webhook injects at creation.
        started: it has the annotation of a Job that was started and not restored.
        has_priority_class: it names a priority class, which may not exist yet.
        node_constraints: canonical text of each template's nodeSelector and tolerations.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    has_queue_label: bool = False
    managed: bool = False
    owned: bool = False
    suspended: bool = False
    finished: bool = False
    deleting: bool = False
    kind: str = "Job"
    queue: str = ""
    parent_uid: str = ""
    parent_kind: str = ""
    parent_name: str = ""
    podset_by_child_job: str = ""
    count: int = 0
    podset_counts: dict[str, int] = msgspec.field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    is_elastic_job: bool = False
    without_elastic_gate: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    suspend_changed_at: float = 0.0
    written_at: float = 0.0
    injected: tuple[str, ...] = ()
    injected_at_creation: tuple[str, ...] = ()
    started: bool = False
    has_priority_class: bool = False
    node_constraints: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def over(self) -> bool:
        """Whether it has ended or is being deleted."""
        return self.finished or self.deleting


class SliceLayer(msgspec.Struct, frozen=True, gc=False):
    """Each `size` pods are in one domain of this level."""

    level: str
    size: int


class PodSetRow(msgspec.Struct, frozen=True, gc=False):
    """One PodSet and its entry in the admission.

    Attributes:
        requested_count: pods requested.
        topology: it requests a topology.
        requests: of one pod, sorted by resource.
        required: level that all pods must share a domain of.
        slice_layers: levels and sizes of its slices.
        group: PodSets of one name share their required domain.
        indexed: ranks are the completion indexes, of each child Job where there are subgroups.
        subgroups: child Jobs that the ranks run over; 0 for none.
        node_constraints: canonical text of the template's nodeSelector and tolerations.
        admitted_count: pods admitted; 0 without an admission.
        flavors: by resource.
        usage: charged amounts by resource.
        assignment: topology assignment, None without one.
        reclaimable: pods that have succeeded, whose quota and capacity others may use.
        delayed: the assignment comes later.
        problem: why the assignment or an amount cannot be decoded.
    """

    name: str
    requested_count: int = 0
    topology: bool = False
    requests: Amounts = ()
    required: str = ""
    slice_layers: tuple[SliceLayer, ...] = ()
    group: str = ""
    indexed: bool = False
    subgroups: int = 0
    node_constraints: str = ""
    admitted_count: int = 0
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    usage: dict[str, int] = msgspec.field(default_factory=dict)
    assignment: TopologyAssignment | None = None
    reclaimable: int = 0
    delayed: bool = False
    problem: str = ""

    def held(self, resource: str) -> int:
        """What it reserves of a queue now."""
        amount = self.usage.get(resource, 0)
        if not (self.reclaimable and self.admitted_count):
            return amount
        return (
            amount
            * min(max(0, self.requested_count - self.reclaimable), self.admitted_count)
            // self.admitted_count
        )

    def rank(self, pod: PodRow) -> int:
        """The rank of a pod; -1 if its labels have none."""
        if not self.subgroups:
            return pod.index
        size = self.requested_count // self.subgroups
        if pod.subindex < 0 or not 0 <= pod.index < size:
            return -1
        return pod.subindex * size + pod.index


class WorkloadRow(msgspec.Struct, frozen=True, gc=False):
    """A Workload.

    Attributes:
        owner: uid of its controller, "" for none.
        owner_kind: kind of its controller.
        job_uid: uid of the job that it was created for, by its label, "" for none.
        ours: Rackgate created it, by its managed fields.
        queue: `namespace/name` of its LocalQueue, "" for none.
        reserved: QuotaReserved is True and it has an admission.
        cluster_queue: that it was admitted to.
        reserved_at: when QuotaReserved became True.
        admitted_at: when Admitted became True.
        evicted_at: when Evicted became True.
        evicted_reason: reason of Evicted while it is True.
        preempted_reason: reason of Preempted while it is True.
        preemptor: UID of the Workload that Preempted names while it is True, "" for none.
        preemptions: evictions by preemption that its status counts.
        requeue_at: when it may be queued again; 0 without such a time.
        timeouts: evictions because its pods were not ready, as its status counts them.
        placed_at: when the admission was last written, by the API server's clock.
        changed_at: the latest change according to its conditions.
        unhealthy_hosts: hosts that await replacement.
        elastic: it may be resized while it runs.
        merged_slices: uid and PodSet of each slice that was merged into its admission.
        resized_at: when the state of a resize was last written, by the API server's clock.
        done_pods: child Jobs had completed pods of its gangs before.
        run: id of the run that its admission starts, "" while it is not admitted.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    owner: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    job_uid: str = ""
    ours: bool = False
    queue: str = ""
    active: bool = True
    deleting: bool = False
    done_pods: bool = False
    finished: bool = False
    evicted: bool = False
    reserved: bool = False
    admitted: bool = False
    cluster_queue: str = ""
    reserved_at: float = 0.0
    admitted_at: float = 0.0
    evicted_at: float = 0.0
    evicted_reason: str = ""
    preempted_reason: str = ""
    preemptor: str = ""
    preemptions: int = 0
    requeue_at: float = 0.0
    timeouts: int = 0
    placed_at: float = 0.0
    changed_at: float = 0.0
    podsets: tuple[PodSetRow, ...] = ()
    unhealthy_hosts: frozenset[str] = frozenset()
    elastic: bool = False
    merged_slices: tuple[tuple[str, str], ...] = ()
    resized_at: float = 0.0
    run: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def owning_uid(self) -> str:
        """The uid that leads to its job: that of its controller, else the one in its label."""
        return self.owner or self.job_uid

    @property
    def is_slice(self) -> bool:
        """Whether it is a slice of another Workload."""
        return self.owner_kind == "Workload"

    @property
    def holds(self) -> bool:
        """Whether it holds quota and capacity."""
        return self.reserved and not self.finished

    @property
    def waiting(self) -> bool:
        """Whether it is pending."""
        return self.active and not (self.reserved or self.finished or self.deleting)

    @property
    def may_ungate(self) -> bool:
        """Whether its pods may be ungated now."""
        going = self.evicted or self.deleting or not self.active
        return self.holds and self.admitted and not going


class GangWorkloadRow(msgspec.Struct, frozen=True, gc=False):
    """A Workload of gangs.

    Attributes:
        spec: the canonical form, without pod templates.
        created_at: when it was created.
        spec_at: when its spec was last written. If it was changed, when anything but the status
            was, which may be later.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at: float = 0.0
    spec_at: float = 0.0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class FlavorRow(msgspec.Struct, frozen=True, gc=False):
    """A ResourceFlavor; `topology` is "" for a plain one."""

    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    topology: str = ""
    version: str = ""
    uid: str = ""


class TopologyRow(msgspec.Struct, frozen=True, gc=False):
    """A Topology: level keys, coarsest first."""

    name: str
    levels: tuple[str, ...] = ()
    version: str = ""
    uid: str = ""


class Counts(msgspec.Struct, frozen=True, gc=False):
    """The status of a queue."""

    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    reservation: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    usage: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)


class QueueRow(msgspec.Struct, frozen=True, gc=False):
    """A ClusterQueue, LocalQueue or Cohort.

    Attributes:
        key: name, or `namespace/name`.
        cluster_queue: of a LocalQueue.
        cohort: of a ClusterQueue; of a Cohort, its parent.
        nominal: quota of a ClusterQueue or Cohort.
        borrowing_limit: for the pairs that have one.
        lending_limit: for the pairs that have one.
        stopped: it admits nothing.
        drained: it is stopped, and what was admitted is evicted.
        created_at: when it was created.
        spec_at: when its spec was last written, by its managed fields.
    """

    key: str
    cluster_queue: str = ""
    cohort: str = ""
    nominal: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    borrowing_limit: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    lending_limit: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    stopped: bool = False
    drained: bool = False
    counts: Counts = Counts()
    deleting: bool = False
    created_at: float = 0.0
    spec_at: float = 0.0
    version: str = ""
    uid: str = ""

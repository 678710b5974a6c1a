"""The data of an explanation: the JSON that `rackgate explain --json` prints, and its schema.

Amounts are Kubernetes quantities ("500m", "16Gi"). Lists of names are truncated; a number next to
each list counts all entries.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

API_VERSION: Final = "explain.rackgate.dev/v1"
KIND: Final = "Explanation"

State: TypeAlias = Literal[
    "waiting",
    "notSubmitted",
    "noWorkload",
    "ungoverned",
    "invalid",
    "reserved",
    "admitted",
    "evicted",
    "inactive",
    "deleting",
    "finished",
    "unreadable",
]
Rule: TypeAlias = Literal[
    "flavorLabels",
    "missingLevel",
    "notReady",
    "unschedulable",
    "hostname",
    "taint",
    "nodeSelector",
    "affinity",
    "resource",
]
RemedyKind: TypeAlias = Literal[
    "wait",
    "coarserLevel",
    "preferred",
    "toleration",
    "nodeSelector",
    "affinity",
    "fewerPods",
    "room",
    "levelName",
    "nodeLabels",
    "quota",
    "queue",
    "priorityClass",
    "pods",
    "podSize",
    "resource",
    "reactivate",
]
When: TypeAlias = Literal["now", "whenEmpty", "perhaps"]


class ExplanationObject(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base: immutable, camelCase in JSON."""


class ResourceCapacity(ExplanationObject, frozen=True):
    """One resource in one domain, over the nodes that the pods may use.

    Attributes:
        resource: name; `pods` is the number of pods that nodes can still run.
        per_pod: what one pod requests.
        wanted: what all pods of the PodSet request.
        free: sum of what is free.
        pods: pods that would fit if this resource alone counted, node by node.
        missing: what is requested beyond what is free; "0" when the sum is enough.
        stranded: free in amounts smaller than the request of one pod.
    """

    resource: str
    per_pod: str
    wanted: str
    free: str
    pods: int
    missing: str
    stranded: str


class Holder(ExplanationObject, frozen=True):
    """A Workload or pod that uses capacity or quota.

    Attributes:
        kind: Workload, or Pod for one without an admission.
        name: `namespace/name`.
        pods: pods in the domain (0 for quota).
        amounts: by resource.
    """

    kind: Literal["Workload", "Pod"]
    name: str
    pods: int = 0
    amounts: dict[str, str] = {}


class DomainCapacity(ExplanationObject, frozen=True):
    """A domain, and its missing capacity.

    Attributes:
        domain: values from the coarsest level on.
        pods: pods of the PodSet that fit now.
        pods_when_empty: the same if nothing else were placed by topology.
        slices: podset slices that fit now (pods without slices); 0 below the slices' level.
        pods_with_leader: pods that fit together with the leader; null without a leader, or if
            the leader does not fit.
        nodes: nodes in the domain.
        usable_nodes: those that taints, selectors and affinity allow (all, unless the lowest level
            is the hostname).
        tightest: the resource that allows the fewest pods; "" if no node is usable.
        fragmented: the total capacity is enough for all pods, but they do not fit.
        resources: by name.
        holders: those with the most pods, first.
        more_holders: how many others there are.
    """

    domain: tuple[str, ...]
    pods: int
    pods_when_empty: int
    slices: int
    nodes: int
    usable_nodes: int
    tightest: str
    fragmented: bool
    resources: tuple[ResourceCapacity, ...]
    pods_with_leader: int | None = None
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0


class LevelCapacity(ExplanationObject, frozen=True):
    """The domains of one level.

    Attributes:
        level: node label key.
        asked: the PodSet requests this level.
        domains: how many there are.
        pods: pods that fit in all of them together.
        best: the best candidates, best first.
        fragmented: the domains have enough capacity together, but no single one has.
    """

    level: str
    asked: bool
    domains: int
    pods: int
    best: tuple[DomainCapacity, ...]
    fragmented: bool


class Exclusion(ExplanationObject, frozen=True):
    """Excluded nodes, by the first rule that excludes them.

    Attributes:
        rule: see `Rule`. `flavorLabels`: not of this flavor; `hostname`: another node has the same
            hostname label; `resource`: not even one pod fits.
        detail: the taint, the missing labels, the selector term, the resource.
        nodes: how many (domains of the lowest level for `resource` where that is no hostname).
        names: the first few.
    """

    rule: Rule
    detail: str
    nodes: int
    names: tuple[str, ...]


class Remedy(ExplanationObject, frozen=True):
    """A change that would help by itself.

    Attributes:
        kind: see `RemedyKind`.
        value: the level, the number of pods, the taint, the Workload.
        when: `now`: it would be admitted at once; `whenEmpty`: only after others have ended;
            `perhaps`: necessary, but it may not be enough.
        text: a sentence.
    """

    kind: RemedyKind
    value: str
    when: When
    text: str


class Overlap(ExplanationObject, frozen=True):
    """Another flavor with nodes of this one (TAS-33)."""

    flavor: str
    nodes: int


class PlacedDomain(ExplanationObject, frozen=True):
    """Pods of a PodSet in one domain of an assignment."""

    domain: tuple[str, ...]
    pods: int


class PodSetPlacement(ExplanationObject, frozen=True):
    """The assignment of a PodSet, current or simulated.

    Attributes:
        domains: how many.
        places: the first few, in rank order.
    """

    podset: str
    domains: int
    places: tuple[PlacedDomain, ...]


class FlavorView(ExplanationObject, frozen=True):
    """One flavor with a topology, and how the PodSets fit in it.

    Attributes:
        chosen: quota picks this flavor.
        problem: why a PodSet cannot use the flavor; "" if it can.
        podsets: placed together; `refused` are those that `message` is about.
        asked: the request as text: "required LEVEL", "preferred LEVEL", "unconstrained".
        fits: all PodSets fit now.
        fits_when_empty: they would if nothing else were placed by topology.
        message: as in the Workload's condition.
        cause: why no free capacity would be enough, a sentence without a full stop; "" if some
            would, or the cause is not known.
        fitting: the number in `message`, of units; null when the request itself is wrong.
        wanted: units requested.
        unit: pod, or slice of `slice_size` pods.
        nodes: nodes that count for the topology.
        levels: coarsest first; of the PodSets in `refused`, empty if the request itself is wrong.
        level_keys: of the topology, coarsest first.
        overlaps: other flavors that have nodes of this one.
    """

    flavor: str
    topology: str
    level_keys: tuple[str, ...]
    nodes: int
    chosen: bool = False
    problem: str = ""
    podsets: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    leader: str = ""
    asked: str = ""
    fits: bool = False
    fits_when_empty: bool = False
    message: str = ""
    cause: str = ""
    fitting: int | None = None
    wanted: int = 0
    unit: Literal["pod", "slice"] = "pod"
    slice_size: int = 1
    levels: tuple[LevelCapacity, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    places: tuple[PodSetPlacement, ...] = ()
    changes: tuple[Remedy, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


class QuotaLine(ExplanationObject, frozen=True):
    """Quota of one resource in one flavor of the ClusterQueue.

    Attributes:
        requested: by the whole Workload.
        available: nominal quota minus usage, never below zero.
        missing: what is requested beyond that; "0" when it is enough.
        never: more is requested than the nominal quota.
        problem: why a PodSet cannot use the flavor; "" if it can.
        holders: Workloads with the most usage.
        more_holders: number of other Workloads with usage.
    """

    flavor: str
    resource: str
    requested: str
    nominal: str
    used: str
    available: str
    missing: str
    never: bool
    problem: str = ""
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0


class NotPreempted(ExplanationObject, frozen=True):
    """A Workload that holds what is missing, and why it is not preempted.

    Attributes:
        workload: `namespace/name`.
        reason: one word; see `preemption.why_not`.
        text: a sentence without a full stop.
    """

    workload: str
    cluster_queue: str
    priority: int
    reason: str
    text: str


class WorkloadAhead(ExplanationObject, frozen=True):
    """A Workload that is scheduled earlier."""

    workload: str
    priority: int
    since: str


class QueuePosition(ExplanationObject, frozen=True):
    """The queues, and the position in them.

    Attributes:
        problems: why the queues admit no Workloads; empty when they do.
        position: among the pending Workloads of the ClusterQueue, from 0; null when not pending.
        waiting: how many Workloads of the ClusterQueue are pending.
        local_position: the same among those of the LocalQueue.
        ahead: the nearest before it come last.
    """

    local_queue: str
    cluster_queue: str
    strategy: str = ""
    problems: tuple[str, ...] = ()
    position: int | None = None
    waiting: int = 0
    local_position: int | None = None
    ahead: tuple[WorkloadAhead, ...] = ()


class NotRunningPods(ExplanationObject, frozen=True):
    """Pods that do not run, for one reason.

    Attributes:
        why: a sentence.
        names: the first few.
    """

    why: str
    pods: int
    names: tuple[str, ...] = ()


class PodSetStatus(ExplanationObject, frozen=True):
    """An admitted PodSet.

    Attributes:
        granted: admitted pods.
        running: pods in phase Running that are not being deleted; `ended`: succeeded or failed.
        held: the others, by reason.
        missing: pods that do not exist (yet).
        broken_nodes: assigned nodes that are gone, not ready or unhealthy.
    """

    podset: str
    flavors: dict[str, str]
    granted: int
    running: int = 0
    ended: int = 0
    held: tuple[NotRunningPods, ...] = ()
    missing: int = 0
    broken_nodes: tuple[str, ...] = ()
    places: PodSetPlacement | None = None


class GangView(ExplanationObject, frozen=True):
    """A gang of an admitted job.

    Attributes:
        gang: name of its group, with its replica; "" if the Workload of gangs does not exist.
        workload: name of the Workload of gangs.
        state: `Held`, `Complete` (all its pods exist), `Releasing`, `Released` or `Running`.
        min_count: pods that start together.
        members: its pods that exist and are neither being deleted nor failed.
        released: of these, pods without the gate of gangs.
        bound: of these, pods that have a node or have succeeded.
        why: what it waits for; "" while it runs.
        left_seconds: until the job is evicted; 0 if that is due; null while it runs.
        pods: those without a node, by what each of them lacks.
    """

    gang: str
    workload: str
    state: str
    min_count: int = 0
    members: int = 0
    released: int = 0
    bound: int = 0
    why: str = ""
    left_seconds: int | None = None
    pods: tuple[NotRunningPods, ...] = ()


class Resize(ExplanationObject, frozen=True):
    """Progress of the resize of a PodSet.

    Attributes:
        asked: pods that its job requests now.
        granted: pods that may run: those of the Workload, and of admitted slices not yet merged.
        waiting: pods of pending slices.
        because: why the first of these slices is pending; "" if none is.
        slices: `namespace/name` of the first few that are pending.
        more_slices: how many others are pending.
    """

    podset: str
    asked: int
    granted: int
    waiting: int = 0
    because: str = ""
    slices: tuple[str, ...] = ()
    more_slices: int = 0


class FieldProblem(ExplanationObject, frozen=True):
    """A field that would be rejected: path as in the manifest, what is wrong, how to fix it."""

    path: str
    problem: str
    help: str = ""


class Explanation(ExplanationObject, frozen=True):
    """Why a Workload is pending, or where its pods are.

    Attributes:
        workload: `namespace/name`.
        job: `namespace/name` of the job it belongs to, of the Workload when it is a slice; ""
            when there is none.
        job_kind: Job, JobSet, RayCluster, RayJob, or Workload for a slice.
        state: of the Workload.
        summary: a sentence or two.
        fits: it would be admitted if it came first; null when it is not pending, or the user may
            not read what decides it.
        reason: of the condition QuotaReserved.
        message: of that condition, byte for byte as a scheduling cycle writes it.
        in_turn: the message of the next cycle, after the Workloads ahead; "" when the same.
        told: the message that the Workload has now.
        quota: lines of the flavors that its resources could use.
        flavors: those with a topology, in the ClusterQueue's order.
        changes: what would help, the smallest change first.
        not_preempted: some that hold the missing quota or the best domain, while nothing is
            preempted.
        more_not_preempted: number of others that hold it.
        podsets: of an admitted Workload.
        resizes: by PodSet, of an admitted elastic job. While slices of it are pending, `quota`,
            `flavors`, `queue` and `changes` are those of the first slice.
        gangs: of an admitted job whose pods start together.
        errors: of a manifest that would be rejected.
        warnings: about a manifest, or about what could not be read.
    """

    workload: str
    state: State
    summary: str
    api_version: str = API_VERSION
    kind: str = KIND
    job: str = ""
    job_kind: str = ""
    priority: int = 0
    fits: bool | None = None
    reason: str = ""
    message: str = ""
    in_turn: str = ""
    told: str = ""
    queue: QueuePosition | None = None
    quota: tuple[QuotaLine, ...] = ()
    flavors: tuple[FlavorView, ...] = ()
    changes: tuple[Remedy, ...] = ()
    not_preempted: tuple[NotPreempted, ...] = ()
    more_not_preempted: int = 0
    podsets: tuple[PodSetStatus, ...] = ()
    resizes: tuple[Resize, ...] = ()
    gangs: tuple[GangView, ...] = ()
    errors: tuple[FieldProblem, ...] = ()
    warnings: tuple[str, ...] = ()


def schema() -> dict[str, Any]:
    """JSON Schema of an `Explanation`."""
    return msgspec.json.schema(Explanation)

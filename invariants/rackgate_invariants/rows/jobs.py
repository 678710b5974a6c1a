"""Converts the JSON of Jobs, JobSets, RayClusters and RayJobs to rows of one type."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from sys import intern
from typing import Final

import msgspec

from rackgate.api import names
from rackgate.wire import core
from rackgate.wire.core import View
from rackgate.wire.depth import tolerant
from rackgate_invariants.rows import rows
from rackgate_invariants.rows.projections import ManagedMeta, one, seconds

PODSET: Final = "main"
HEAD: Final = "head"
SUBMITTER: Final = "submitter"
# Kind that creates child Jobs -> API group.
_PARENT_GROUPS: Final = {
    "JobSet": names.JOBSET_GROUP,
    "RayCluster": names.RAY_GROUP,
    "RayJob": names.RAY_GROUP,
}
# Value of `spec.managedBy` that names the controller of the kind itself.
_CONTROLLERS: Final = {
    "Job": "kubernetes.io/job-controller",
    "JobSet": "jobset.sigs.k8s.io/jobset-controller",
    "RayCluster": "ray.io/kuberay-operator",
    "RayJob": "ray.io/kuberay-operator",
}
_OF_JOBSET: Final = ("jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/")


class Template(core.PodTemplate, frozen=True):
    """A pod template."""

    @property
    def gates(self) -> frozenset[str]:
        """Names of its scheduling gates."""
        return frozenset(gate.name for gate in self.spec.scheduling_gates)


class _Status(View, frozen=True):
    start_time: str | None = None
    conditions: tuple[core.Condition, ...] = ()


class _JobSpec(View, frozen=True):
    suspend: bool | None = None
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = ""
    managed_by: str | None = None
    template: Template = Template()

    @property
    def count(self) -> int:
        """Pods that run at once."""
        most = self.parallelism if self.completions is None else self.completions
        return max(0, min(self.parallelism, most))

    def whole(self, mode: str) -> bool:
        """Whether every index has a pod at once; `mode` is the default of the kind."""
        indexed = (self.completion_mode or mode) == "Indexed"
        return indexed and self.completions in (None, self.parallelism)


class _Job(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _JobSpec = _JobSpec()
    status: _Status = _Status()


class _JobTemplate(View, frozen=True):
    spec: _JobSpec = _JobSpec()


class _Replicated(View, frozen=True):
    name: str = ""
    replicas: int = 1
    template: _JobTemplate = _JobTemplate()


class _JobSetSpec(View, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None
    replicated_jobs: tuple[_Replicated, ...] = ()


class _JobSet(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _JobSetSpec = _JobSetSpec()
    status: _Status = _Status()


class _ScaleStrategy(View, frozen=True):
    workers_to_delete: tuple[str, ...] = ()


class _Group(View, frozen=True):
    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool | None = None
    scale_strategy: _ScaleStrategy = _ScaleStrategy()
    template: Template = Template()

    @property
    def count(self) -> int:
        """Pods that KubeRay creates: replicas within their bounds, times hosts."""
        if self.suspend:
            return 0
        least = max(0, self.min_replicas or 0)
        wanted = max(least if self.replicas is None else self.replicas, least)
        if self.max_replicas is not None:
            wanted = min(wanted, max(0, self.max_replicas))
        return wanted * max(1, self.num_of_hosts or 1)


class _RaySpec(View, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None
    enable_in_tree_autoscaling: bool | None = None
    head_group_spec: _Group = _Group()
    worker_group_specs: tuple[_Group, ...] = ()


class _RayCluster(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _RaySpec = _RaySpec()
    status: _Status = _Status()


class _RayJobSpec(View, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None
    submission_mode: str | None = None
    ray_cluster_spec: _RaySpec = _RaySpec()
    submitter_pod_template: Template | None = None


class _RayJobStatus(_Status, frozen=True):
    job_deployment_status: str = ""


class _RayJob(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _RayJobSpec = _RayJobSpec()
    status: _RayJobStatus = _RayJobStatus()


_job = tolerant(msgspec.json.Decoder(_Job).decode)
_jobset = tolerant(msgspec.json.Decoder(_JobSet).decode)
_raycluster = tolerant(msgspec.json.Decoder(_RayCluster).decode)
_rayjob = tolerant(msgspec.json.Decoder(_RayJob).decode)
_canonical = msgspec.json.Encoder(order="deterministic").encode


def node_constraints_of(template: Template) -> str:
    """Canonical text of nodeSelector and tolerations, without what JobSet adds."""
    spec = template.spec
    selector = {k: v for k, v in spec.node_selector.items() if not k.startswith(_OF_JOBSET)}
    tolerations = [one for one in spec.tolerations if not one.key.startswith(_OF_JOBSET)]
    return _canonical([selector, tolerations]).decode()


def job_row(raw: bytes | msgspec.Raw) -> rows.JobRow:
    """A Job."""
    job = _job(raw)
    spec = job.spec
    labels = job.metadata.labels
    podset_by_child_job = labels.get(names.REPLICATED_JOB_LABEL, "").lower()
    if labels.get(names.RAY_ORIGIN_KIND_LABEL) == names.RAY_JOB_KIND:
        podset_by_child_job = SUBMITTER
    return _row(
        "Job",
        job,
        templates={PODSET: spec.template},
        podset_counts={PODSET: spec.count},
        whole=frozenset({PODSET} if spec.whole("NonIndexed") else ()),
        is_elastic_job=spec.completion_mode == "Indexed"
        and job.metadata.annotations.get(names.ELASTIC_ANNOTATION) == "true",
        podset_by_child_job=podset_by_child_job,
    )


def jobset_row(raw: bytes | msgspec.Raw) -> rows.JobRow:
    """A JobSet."""
    jobset = _jobset(raw)
    jobs = {found.name.lower(): found for found in jobset.spec.replicated_jobs}
    specs = {name: found.template.spec for name, found in jobs.items()}
    return _row(
        "JobSet",
        jobset,
        templates={name: spec.template for name, spec in specs.items()},
        podset_counts={
            name: max(0, jobs[name].replicas) * spec.count for name, spec in specs.items()
        },
        whole=frozenset(name for name, spec in specs.items() if spec.whole("Indexed")),
    )


def raycluster_row(raw: bytes | msgspec.Raw) -> rows.JobRow:
    """A RayCluster."""
    cluster = _raycluster(raw)
    groups = {group.group_name.lower(): group for group in cluster.spec.worker_group_specs}
    every = {HEAD: cluster.spec.head_group_spec, **groups}
    is_elastic_job = cluster.spec.enable_in_tree_autoscaling is True
    row = _row(
        "RayCluster",
        cluster,
        templates={name: group.template for name, group in every.items()},
        podset_counts={HEAD: 1, **{name: group.count for name, group in groups.items()}},
        is_elastic_job=is_elastic_job,
    )
    listed = [name for group in groups.values() for name in group.scale_strategy.workers_to_delete]
    return msgspec.structs.replace(row, listed=frozenset(listed)) if listed else row


def rayjob_row(raw: bytes | msgspec.Raw) -> rows.JobRow:
    """A RayJob: the PodSets of its cluster, and that of its submitter."""
    job = _rayjob(raw)
    cluster = job.spec.ray_cluster_spec
    groups = {group.group_name.lower(): group for group in cluster.worker_group_specs}
    every = {HEAD: cluster.head_group_spec, **groups}
    templates = {name: group.template for name, group in every.items()}
    podset_counts = {HEAD: 1, **{name: group.count for name, group in groups.items()}}
    if (job.spec.submission_mode or "K8sJobMode") == "K8sJobMode":
        podset_counts[SUBMITTER] = 1
        if job.spec.submitter_pod_template is not None:
            templates[SUBMITTER] = job.spec.submitter_pod_template
    row = _row("RayJob", job, templates=templates, podset_counts=podset_counts)
    ended = job.status.job_deployment_status in ("Complete", "Failed")
    return msgspec.structs.replace(row, finished=ended)


def _row(
    kind: str,
    job: _Job | _JobSet | _RayCluster | _RayJob,
    *,
    templates: Mapping[str, Template],
    podset_counts: dict[str, int],
    whole: frozenset[str] = frozenset(),
    podset_by_child_job: str = "",
    is_elastic_job: bool = False,
) -> rows.JobRow:
    """The row of any kind of job."""
    meta, spec, conditions = job.metadata, job.spec, job.status.conditions
    queue = meta.labels.get(names.QUEUE_LABEL)
    true = {condition.type for condition in conditions if condition.status == "True"}
    # Jobs, and the RayClusters of RayJobs, are children of another kind: others with a queue label
    # are jobs themselves.
    parent = _parent_of(meta) if kind in ("Job", "RayCluster") else None
    injected, created = _all_injected(templates, is_elastic_job=is_elastic_job)
    first = next(iter(templates.values()), Template())
    node_constraints = {name: node_constraints_of(template) for name, template in templates.items()}
    return rows.JobRow(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=intern(meta.uid),
        version=meta.resource_version,
        kind=kind,
        queue=intern(f"{meta.namespace}/{queue}") if queue else "",
        parent_uid=intern(parent.uid) if parent else "",
        parent_kind=intern(parent.kind) if parent else "",
        parent_name=intern(parent.name) if parent else "",
        podset_by_child_job=intern(podset_by_child_job) if parent else "",
        has_queue_label=queue is not None,
        managed=bool(queue)
        and meta.namespace not in names.UNMANAGED_NAMESPACES
        and spec.managed_by in (None, _CONTROLLERS[kind]),
        owned=meta.controller is not None,
        suspended=spec.suspend is True,
        finished=not true.isdisjoint(("Complete", "Completed", "Failed")),
        deleting=meta.deletion_timestamp is not None,
        count=sum(podset_counts.values()),
        podset_counts=one(tuple(podset_counts.items()), podset_counts),
        whole=one(whole, whole),
        is_elastic_job=is_elastic_job,
        without_elastic_gate=frozenset(
            name for name, found in templates.items() if names.ELASTIC_GATE not in found.gates
        )
        if is_elastic_job
        else frozenset(),
        suspend_changed_at=_suspend_changed_at(job),
        written_at=max(
            (seconds(e.time) for e in meta.managed_fields if not e.subresource), default=0.0
        ),
        injected=one(injected, injected),
        injected_at_creation=one(created, created),
        started=any(
            names.WORKLOAD_ANNOTATION in one.annotations
            for one in (meta, *(template.metadata for template in templates.values()))
        ),
        has_priority_class=bool(first.spec.priority_class_name)
        or names.PRIORITY_CLASS_LABEL in meta.labels,
        node_constraints=one(tuple(node_constraints.items()), node_constraints)
        if queue is not None or parent
        else {},
    )


def _parent_of(meta: core.Meta) -> core.OwnerReference | None:
    """The JobSet, RayCluster or RayJob that an object names as its controller."""
    owner = meta.controller
    if owner is None or _PARENT_GROUPS.get(owner.kind) != owner.api_version.partition("/")[0]:
        return None
    return owner


def _suspend_changed_at(job: _Job | _JobSet | _RayCluster | _RayJob) -> float:
    """When it was last created, suspended or resumed, according to its status."""
    turned = [c.last_transition_time for c in job.status.conditions if "Suspend" in c.type]
    moments = [job.metadata.creation_timestamp, job.status.start_time, *turned]
    return max(map(seconds, moments))


def _all_injected(
    templates: Mapping[str, Template], *, is_elastic_job: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What Rackgate injected into the templates, and which of it the webhook injected."""
    injected: list[str] = []
    created: list[str] = []
    for name, template in templates.items():
        where = f" of {name}" if len(templates) > 1 else ""
        later, early = _injected(template, is_elastic_job=is_elastic_job)
        injected += [f"{what}{where}" for what in (*later, *early)]
        created += [f"{what}{where}" for what in early]
    return tuple(injected), tuple(created)


def _injected(template: Template, *, is_elastic_job: bool) -> tuple[Iterable[str], Iterable[str]]:
    """What admission injected, and what the webhook injected."""
    annotations, labels, gates = (
        template.metadata.annotations,
        template.metadata.labels,
        template.gates,
    )
    by_topology = any(key in annotations for key in names.TOPOLOGY_ANNOTATIONS)
    # Type, name, the mapping that would have it, and whether the webhook injects it.
    possible: tuple[tuple[str, str, Container[str], bool], ...] = (
        ("annotation", names.WORKLOAD_ANNOTATION, annotations, False),
        ("annotation", names.ELASTIC_ANNOTATION, annotations, is_elastic_job),
        ("label", names.TAS_LABEL, labels, False),
        ("label", names.PODSET_LABEL, labels, by_topology or is_elastic_job),
        ("gate", names.TOPOLOGY_GATE, gates, by_topology),
        ("gate", names.ELASTIC_GATE, gates, is_elastic_job),
    )
    found = [(f"{what} {name}", early) for what, name, place, early in possible if name in place]
    return [text for text, early in found if not early], [text for text, early in found if early]


def mark_unmanaged(job: rows.JobRow, unmanaged: frozenset[str]) -> rows.JobRow:
    """The row of a job, not managed if its namespace is not."""
    if not job.managed or job.namespace not in unmanaged:
        return job
    return msgspec.structs.replace(job, managed=False)
